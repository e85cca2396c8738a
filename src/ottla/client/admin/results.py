"""The values that calls of an ``Admin`` return.

Owns the descriptions of topics, configurations, groups and clusters. Must not know messages or sockets. Invariant: all of them are
immutable.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.errors import OttlaError
from ottla.types import Node, PartitionInfo, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, in order. ``topic_id`` is ``None`` if the broker is too old for topic ids."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster. ``controller`` is the one that clients send changes to."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic, a broker or a group. ``value`` is ``None`` for a secret one."""

    name: str
    value: str | None
    source: str
    """The origin of the value: ``topic``, ``broker``, ``default`` ..., or ``unknown``."""
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A directory with logs of a broker.

    ``error``: why the broker cannot use it, or ``None``. ``total_bytes`` and ``usable_bytes`` are those of its disk, ``None`` if
    the broker is too old to send them (KIP-827). ``sizes``: the size of each partition in it, in bytes.
    """

    path: str
    error: OttlaError | None
    total_bytes: int | None
    usable_bytes: int | None
    sizes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of a coordinator. ``state`` and ``group_type`` are empty if the broker is too old to send them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. ``assignor`` is the one that its members have elected, or the broker's; empty while it has none.

    ``group_type`` is ``"classic"``, or ``"consumer"`` for the protocol of KIP-848.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    group_type: str = "classic"
