"""What an ``Admin`` tells: frozen values.

Owns the shapes of topics, configurations, groups and clusters as an operator sees them. Must not know messages or
sockets. Invariant: nothing here can change after it was made.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ottla.errors import OttlaError
from ottla.types import Node, PartitionInfo, TopicPartition


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions, in order. ``topic_id`` is ``None`` where the broker is too old to have ids."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster: ``controller`` is whom a client asks for changes."""

    cluster_id: str | None
    controller: Node | None
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic, a broker or a group. ``value`` is ``None`` for a secret one."""

    name: str
    value: str | None
    source: str
    """Where the value comes from: ``topic``, ``broker``, ``default`` ..., or ``unknown``."""
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A directory that a broker keeps logs in.

    ``error``: why the broker cannot use it, or ``None``. ``total_bytes`` and ``usable_bytes`` are its disk's, ``None`` where the
    broker is too old to say (KIP-827). ``sizes``: the bytes of each partition that lies there.
    """

    path: str
    error: OttlaError | None
    total_bytes: int | None
    usable_bytes: int | None
    sizes: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. ``state`` and ``group_type`` are empty where the broker is too old to say."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group and what it is assigned."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: ``assignor`` is the strategy its members agreed on, or the broker's; empty while it has none.

    ``group_type`` is ``"classic"``, or ``"consumer"`` for the protocol of KIP-848.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    group_type: str = "classic"
