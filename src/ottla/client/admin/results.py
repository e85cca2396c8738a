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
    """A group in the list of a coordinator.

    ``group_type`` is ``"classic"``, ``"consumer"``, ``"share"`` or another word of Kafka's, in the broker's spelling, or
    ``"central"`` for a group of Ottla's central coordinator. It and ``state`` are empty if the broker is too old to send them.
    """

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

    ``group_type`` is ``"classic"``, ``"consumer"`` for the protocol of KIP-848, or ``"central"`` for a group of Ottla's central
    coordinator.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Node
    members: tuple[GroupMember, ...]
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in the list of its coordinator. ``state`` is that of its latest transaction, such as ``"Ongoing"``."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its latest transaction.

    ``state`` is ``"Ongoing"`` while the transaction is open, ``"PrepareCommit"`` or ``"PrepareAbort"`` while its end is being
    written to the partitions, then ``"CompleteCommit"`` or ``"CompleteAbort"``; ``"Empty"``: the producer has begun none.
    ``transaction_start_time_ms`` is in milliseconds since 1970, ``None`` if the producer has begun none. ``partitions`` are those
    of the open transaction; those of ``__consumer_offsets`` have offsets that it commits.
    """

    transactional_id: str
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What the leader of a partition knows of an idempotent or transactional producer.

    ``last_timestamp`` is in milliseconds since 1970. ``coordinator_epoch`` is that of the latest transaction that ended in the
    partition, ``None`` if none has. ``current_transaction_start_offset`` is the first offset of the open transaction, ``None``
    without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int | None = None
    current_transaction_start_offset: int | None = None
