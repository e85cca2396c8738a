"""The state of one partition of ``__consumer_offsets``: its groups, their offsets, and the writes of open transactions.

Owns the state; only ``replay`` writes it, both live and on load. Must not know requests, responses or timers. Invariants: replaying
the durable events alone gives the durable part of the state; a log from which compaction has dropped any superseded records gives
the same; of all committed writes to a key, in transactions or outside of them, the last write wins, whichever transaction is
committed last.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar, assert_never

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.classic.machine import ClassicEvent, apply
from ottla.coordinator.consumer.client_side import ClientAssignment
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.machine import ConsumerEvent, ConsumerGroupUpdate
from ottla.coordinator.events import (
    Event,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    OffsetCommitted,
    OffsetDeleted,
    OffsetEvent,
    TransactionalOffsetCommitted,
    TransactionEnded,
    VolatileEvent,
)
from ottla.protocol.group_records import OffsetCommitValue
from ottla.types import TopicPartition

Group = ClassicGroup | ConsumerGroup

Offsets = Mapping[TopicPartition, OffsetCommitValue]

_NO_OFFSETS: Offsets = MappingProxyType({})

K = TypeVar("K", bound=Hashable)

V = TypeVar("V")


class PendingWrite(NamedTuple, Generic[V]):
    """One write of an open transaction. ``superseded``: a later write to the key is committed, so this one has no effect."""

    number: int
    value: V
    superseded: bool = False


class PendingWrites(Generic[K, V]):
    """The pending writes by producer and key. Numbers tell the order of the writes:

    1. Producer 1 writes offset 10 of a partition in a transaction.
    2. Producer 2 writes offset 20 of the same partition in another, and commits first.
    3. Producer 1 commits. The offset stays 20, since that write is the later one.
    """

    def __init__(self) -> None:
        self._open: dict[int, dict[K, PendingWrite[V]]] = {}
        self._writes = 0

    def write(self, producer_id: int, key: K, value: V) -> None:
        """Add a write of a transaction; it replaces an earlier one of the same transaction."""
        self._writes += 1
        self._open.setdefault(producer_id, {})[key] = PendingWrite(self._writes, value)

    def supersede(self, key: K) -> None:
        """Note a write outside of transactions, which takes effect at once and supersedes all pending writes to the key."""
        if self._open:
            self._supersede(key, self._writes + 1)

    def forget(self, key: K) -> None:
        """Drop all pending writes to a key, whose value was deleted."""
        for writes in self._open.values():
            writes.pop(key, None)

    def end(self, producer_id: int, *, commit: bool) -> list[tuple[K, V]]:
        """End a transaction. Return the keys and values that take effect."""
        writes = self._open.pop(producer_id, {})
        effective = [(key, write) for key, write in writes.items() if commit and not write.superseded]
        for key, write in effective:
            self._supersede(key, write.number)
        return [(key, write.value) for key, write in effective]

    def by_producer(self) -> Iterator[tuple[int, Mapping[K, PendingWrite[V]]]]:
        """Yield the writes of each open transaction."""
        yield from self._open.items()

    def _supersede(self, key: K, number: int) -> None:
        for writes in self._open.values():
            write = writes.get(key)
            if write is not None and write.number < number:
                writes[key] = write._replace(superseded=True)


GroupTopicPartition = tuple[str, TopicPartition]
"""The key of an offset: a group and a partition."""


class PendingTransactionalOffsets(PendingWrites[GroupTopicPartition, OffsetCommitValue]):
    """The offsets that open transactions have committed (TxnOffsetCommit)."""

    def of_group(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the partitions of a group with a pending offset."""
        if not self._open:
            return frozenset()
        return frozenset(partition for writes in self._open.values() for group, partition in writes if group == group_id)

    def durable(self) -> dict[int, dict[GroupTopicPartition, OffsetCommitValue | None]]:
        """Return the part of the state that the log holds: producer id -> pending offsets, ``None`` for superseded ones."""
        return {
            producer_id: {key: None if write.superseded else write.value for key, write in writes.items()}
            for producer_id, writes in self._open.items()
            if writes
        }


class ShardState:
    """Groups and offsets of one partition of ``__consumer_offsets``."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[TopicPartition, OffsetCommitValue]] = {}
        self.pending = PendingTransactionalOffsets()

    def group(self, group_id: str) -> Group | None:
        """Return a group, ``None`` if there is none with this id."""
        return self._groups.get(group_id)

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        """Return a group of the classic protocol; ``None`` if there is none with this id, or one of the consumer protocol."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a group of the consumer protocol; ``None`` if there is none with this id, or one of the classic protocol."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def groups(self) -> Mapping[str, Group]:
        """Return a read-only view of all groups by id."""
        return MappingProxyType(self._groups)

    def offsets(self, group_id: str) -> Offsets:
        """Return the committed offsets of a group."""
        return self._offsets.get(group_id, _NO_OFFSETS)

    def durable(self) -> dict[str, tuple[object, dict[TopicPartition, OffsetCommitValue]]]:
        """Return the part of the state that the log holds: for each group its record and its offsets."""
        return {
            group_id: (_durable_part(group), dict(self.offsets(group_id)))
            for group_id, group in self._groups.items()
            if _durable_part(group) is not None or group_id in self._offsets  # else nothing of it was written so far
        }

    def replay(self, events: Iterable[Event]) -> None:
        """Apply events in order. Consecutive events of one consumer group are applied to a single copy of it."""
        updates: dict[str, ConsumerGroupUpdate] = {}
        for event in events:
            if isinstance(event, OffsetCommitted) and not updates:  # nearly all events of most logs
                self._commit(event)
                continue
            if isinstance(event, ConsumerEvent):
                self._replay_consumer(updates, event)
                continue
            if not isinstance(event, TransactionEnded) and event.group_id in updates:
                self._groups[event.group_id] = updates.pop(event.group_id).group()
            if isinstance(event, ClassicEvent):
                self._replay_classic(event)
            else:
                assert not isinstance(event, VolatileEvent), "each protocol lists its events"
                self._replay_offset(event)
        for group_id, update in updates.items():
            self._groups[group_id] = update.group()

    def _replay_consumer(self, updates: dict[str, ConsumerGroupUpdate], event: ConsumerEvent) -> None:
        group_id = event.group_id
        exists = group_id in updates or isinstance(self._groups.get(group_id), ConsumerGroup)
        if getattr(event, "value", None) is None and not exists:
            return  # a tombstone that compaction has left of a group that was deleted, or replaced by a classic one
        if isinstance(event, GroupEpochUpdated) and event.value is None:
            updates.pop(group_id, None)
            self._delete_group(group_id)
            return
        if group_id not in updates:
            group = self._groups.get(group_id)
            updates[group_id] = ConsumerGroupUpdate(group if isinstance(group, ConsumerGroup) else ConsumerGroup(group_id))
        updates[group_id].apply(event)

    def _replay_classic(self, event: ClassicEvent) -> None:
        if isinstance(event, GroupMetadataDeleted) and isinstance(self._groups.get(event.group_id), ConsumerGroup):
            return  # the tombstone of the classic group that this one has replaced
        group = apply(self.classic_group(event.group_id) or ClassicGroup(event.group_id), event)
        if group.state is ClassicGroupState.DEAD:
            self._delete_group(group.group_id)
        else:
            self._groups[group.group_id] = group

    def _replay_offset(self, event: OffsetEvent) -> None:
        match event:
            case TransactionalOffsetCommitted(group_id, partition, value, producer):
                self.pending.write(producer.producer_id, (group_id, partition), value)
            case TransactionEnded(producer_id, commit):
                for (group_id, partition), value in self.pending.end(producer_id, commit=commit):
                    self._store_offset(group_id, partition, value)
            case OffsetCommitted():
                self._commit(event)
            case OffsetDeleted(group_id, partition):
                self._delete_offset(group_id, partition)
            case _:
                assert_never(event)

    def _delete_group(self, group_id: str) -> None:
        """Delete a group. If it has committed offsets, a simple group with its id remains."""
        if group_id in self._offsets:
            self._groups[group_id] = ClassicGroup(group_id)
        else:
            self._groups.pop(group_id, None)

    def _commit(self, event: OffsetCommitted) -> None:
        self.pending.supersede((event.group_id, event.partition))
        self._store_offset(event.group_id, event.partition, event.value)

    def _store_offset(self, group_id: str, partition: TopicPartition, value: OffsetCommitValue) -> None:
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id)
        self._offsets.setdefault(group_id, {})[partition] = value

    def _delete_offset(self, group_id: str, partition: TopicPartition) -> None:
        self.pending.forget((group_id, partition))
        offsets = self._offsets.get(group_id, {})
        offsets.pop(partition, None)
        if not offsets:
            self._offsets.pop(group_id, None)  # the next expiration of offsets deletes the group, as in Kafka 4


def _durable_part(group: Group) -> object:
    if isinstance(group, ClassicGroup):
        return group.stored
    return replace(group, image_version=None, regex_version=None, resolving=False, client=ClientAssignment())
