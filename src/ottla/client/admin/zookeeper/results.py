"""The values that calls of a ``ZooKeeperAdmin`` return.

Owns the descriptions of groups in ZooKeeper. Must not know operations. Invariant: all of them are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread

ACTIVE, EMPTY, DEAD = "Active", "Empty", "Dead"
"""The states of a group: with live members, without, and not there."""


class MalformedNode(NamedTuple):
    """A node that cannot be understood. ``error`` is a sentence that says what is wrong with it, and where."""

    path: str
    error: str


@dataclass(frozen=True, slots=True)
class ZooKeeperGroupListing:
    """A group below ``/consumers``. ``state`` is ``"Active"`` if it has live members, otherwise ``"Empty"``. ``is_central``: the
    central coordinator coordinates it."""

    group_id: str
    state: str
    is_central: bool = False


@dataclass(frozen=True, slots=True)
class ZooKeeperGroupMember:
    """A member: the node ``/consumers/GROUP/ids/MEMBER``.

    ``host`` is a part of the ids that Kafka's and Ottla's consumers generate; ``None`` for other ids. ``pattern`` is ``"static"``,
    ``"white_list"`` or ``"black_list"``. ``subscription`` maps each topic to its number of streams; for the two lists, the regular
    expression. Both are empty if the node is malformed. ``is_live``: whether it disappears with the member's session; other nodes
    are not members, although Kafka's consumers take them for such. ``partitions``: what the member's threads own.
    """

    member_id: str
    host: str | None
    pattern: str
    subscription: Mapping[str, int]
    is_live: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ZooKeeperPartition:
    """A partition of a group: its committed offset and the thread that owns it; ``None`` where there is none.

    ``offset_error``: why the node of the committed offset cannot be understood.
    """

    topic: str
    partition: int
    offset: int | None
    owner: ConsumerThread | None
    offset_error: str | None = None


@dataclass(frozen=True, slots=True)
class ZooKeeperGroupDescription:
    """A group. ``partitions`` has all partitions of the topics that members own, have offsets of, or name in their subscription.

    ``malformed`` has the nodes that cannot be understood; what they should say is missing in the other fields. ``is_central``: the
    central coordinator coordinates the group, and only that knows its members.
    """

    group_id: str
    state: str
    members: tuple[ZooKeeperGroupMember, ...]
    partitions: tuple[ZooKeeperPartition, ...]
    malformed: tuple[MalformedNode, ...]
    is_central: bool = False
