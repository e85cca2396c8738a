"""The events of groups and offsets, as values.

*Durable* events are the records of ``__consumer_offsets``, one record each; they survive a restart. *Volatile* events are never
written: parked requests, assigned ids, the progress of a rebalance. Owns the durable events and the mapping between them and
records; must not know the protocols, which handler decides on an event or how it changes the state. Invariant:
``event_of(*record_of(event)) == event``; a transactional commit has the record of a plain one, so it also needs its producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard, get_args

from ottla.coordinator.effects import ProducerStamp
from ottla.errors import ProtocolError
from ottla.protocol.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
    encode_key,
    encode_record,
    encode_value,
)
from ottla.types import TopicPartition
from ottla.values import light_dataclass

# Durable.


@dataclass(frozen=True, slots=True)
class GroupMetadataUpdated:
    """A classic group was created, has a new assignment, has lost its last member, or a static member has a new id."""

    group_id: str
    value: GroupMetadataValue


@dataclass(frozen=True, slots=True)
class GroupMetadataDeleted:
    """A classic group was deleted."""

    group_id: str


@light_dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """An offset was committed."""

    group_id: str
    partition: TopicPartition
    value: OffsetCommitValue


@dataclass(frozen=True, slots=True)
class OffsetDeleted:
    """A committed offset was deleted."""

    group_id: str
    partition: TopicPartition


@light_dataclass(frozen=True, slots=True)
class TransactionalOffsetCommitted:
    """An offset was committed in a transaction: it is pending until the transaction ends."""

    group_id: str
    partition: TopicPartition
    value: OffsetCommitValue
    producer: ProducerStamp


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The transaction coordinator has written the marker of a transaction to this partition."""

    producer_id: int
    commit: bool


# Durable, of consumer groups. Without a value the event is a deletion (a tombstone).


@dataclass(frozen=True, slots=True)
class GroupEpochUpdated:
    """A consumer group has a new group epoch, or was deleted."""

    group_id: str
    value: ConsumerGroupMetadataValue | None


@dataclass(frozen=True, slots=True)
class PartitionMetadataDeleted:
    """The topic metadata of a consumer group, as older brokers stored it, was deleted."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberSubscriptionUpdated:
    """The subscription and settings of a member of a consumer group."""

    group_id: str
    member_id: str
    value: ConsumerGroupMemberMetadataValue | None


@dataclass(frozen=True, slots=True)
class TargetAssignmentEpochUpdated:
    """The assignment epoch of a consumer group: the group epoch of its target assignment."""

    group_id: str
    value: ConsumerGroupTargetAssignmentMetadataValue | None


@dataclass(frozen=True, slots=True)
class TargetAssignmentUpdated:
    """The target assignment of a member of a consumer group."""

    group_id: str
    member_id: str
    value: ConsumerGroupTargetAssignmentMemberValue | None


@dataclass(frozen=True, slots=True)
class CurrentAssignmentUpdated:
    """The current assignment of a member of a consumer group: its epoch, state and partitions."""

    group_id: str
    member_id: str
    value: ConsumerGroupCurrentMemberAssignmentValue | None


@dataclass(frozen=True, slots=True)
class ResolvedRegexUpdated:
    """The topics that a regular expression of a consumer group matches."""

    group_id: str
    regex: str
    value: ConsumerGroupRegularExpressionValue | None


# Volatile.


@dataclass(frozen=True, slots=True)
class VolatileEvent:
    """An event of a group that is never written. Each protocol has its own (``classic.machine``, ``consumer.machine``)."""

    group_id: str


DurableConsumerEvent = (
    GroupEpochUpdated
    | PartitionMetadataDeleted
    | MemberSubscriptionUpdated
    | TargetAssignmentEpochUpdated
    | TargetAssignmentUpdated
    | CurrentAssignmentUpdated
    | ResolvedRegexUpdated
)
DurableEvent = (
    GroupMetadataUpdated
    | GroupMetadataDeleted
    | OffsetCommitted
    | OffsetDeleted
    | TransactionalOffsetCommitted
    | DurableConsumerEvent
)
OffsetEvent = OffsetCommitted | OffsetDeleted | TransactionalOffsetCommitted | TransactionEnded
"""The events of committed offsets."""
Event = DurableEvent | TransactionEnded | VolatileEvent


_DURABLE: frozenset[type[Any]] = frozenset(get_args(DurableEvent))


def is_durable(event: Event) -> TypeGuard[DurableEvent]:
    """Whether an event has a record."""
    return type(event) in _DURABLE


def record_of(event: DurableEvent) -> tuple[bytes, bytes | None]:
    """Return the record of a durable event. Raises ``ProtocolError`` if a field is too long for the record."""
    if type(event) is OffsetCommitted:  # nearly all events
        return _offset_key(event.group_id, event.partition), encode_value(event.value)
    match event:
        case OffsetCommitted(group_id, partition, offset) | TransactionalOffsetCommitted(group_id, partition, offset):
            return _offset_key(group_id, partition), encode_value(offset)
        case GroupMetadataUpdated(group_id, group):
            return encode_record(GroupMetadataKey(group=group_id), group)
        case GroupMetadataDeleted(group_id):
            return encode_record(GroupMetadataKey(group=group_id), None)
        case OffsetDeleted(group_id, partition):
            return _offset_key(group_id, partition), None
        case PartitionMetadataDeleted(group_id):
            return encode_record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
        case GroupEpochUpdated(group_id):
            return encode_record(ConsumerGroupMetadataKey(group_id=group_id), event.value)
        case TargetAssignmentEpochUpdated(group_id):
            return encode_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), event.value)
        case MemberSubscriptionUpdated(group_id, member_id):
            return encode_record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), event.value)
        case TargetAssignmentUpdated(group_id, member_id):
            return encode_record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), event.value)
        case CurrentAssignmentUpdated(group_id, member_id):
            return encode_record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), event.value)
        case ResolvedRegexUpdated(group_id, regex):
            return encode_record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), event.value)


GroupRecord = tuple[bytes, bytes | None] | tuple[bytes, bytes | None, ProducerStamp]
"""Key and value of a record (``None`` for a tombstone), and the producer of the open transaction that it belongs to, if any."""


def event_of(key: bytes, value: bytes | None, producer: ProducerStamp | None = None) -> DurableEvent | None:
    """Return the event of a record; ``None`` for an unknown type of record. Raises ``ProtocolError`` for malformed bytes."""
    decoded, content = decode_record(key, value)
    of_key = _EVENT_OF_KEY.get(type(decoded))  # there is none for ``Unknown``
    event = None if of_key is None else of_key(decoded, content)
    if producer is None:
        return event
    # Only commits are written in transactions.
    return (
        TransactionalOffsetCommitted(event.group_id, event.partition, event.value, producer)
        if isinstance(event, OffsetCommitted)
        else None
    )


def events_of(records: Iterable[GroupRecord], errors: list[ProtocolError] | None = None) -> list[DurableEvent]:
    """Return the events of a log's records in order, without unknown types of records.

    With ``errors``, a malformed record is left out and its error is added to that list; otherwise it raises ``ProtocolError``.
    """
    events: list[DurableEvent] = []
    for record in records:
        try:
            event = event_of(*record)
        except ProtocolError as error:
            if errors is None:
                raise
            errors.append(error)
            continue
        if event is not None:
            events.append(event)
    return events


def _offset_event(key: OffsetCommitKey, value: OffsetCommitValue | None) -> DurableEvent:
    partition = topic_partition(key.topic, key.partition)
    return OffsetDeleted(key.group, partition) if value is None else OffsetCommitted(key.group, partition, value)


@lru_cache(maxsize=8192)
def topic_partition(topic: str, partition: int) -> TopicPartition:
    """Return one shared value for each partition: a log names few partitions, each many times."""
    return TopicPartition(topic, partition)


_EVENT_OF_KEY: Mapping[type[Any], Callable[[Any, Any], DurableEvent]] = {
    GroupMetadataKey: lambda key, value: (
        GroupMetadataDeleted(key.group) if value is None else GroupMetadataUpdated(key.group, value)
    ),
    OffsetCommitKey: _offset_event,
    ConsumerGroupPartitionMetadataKey: lambda key, value: PartitionMetadataDeleted(key.group_id),
    ConsumerGroupMetadataKey: lambda key, value: GroupEpochUpdated(key.group_id, value),
    ConsumerGroupMemberMetadataKey: lambda key, value: MemberSubscriptionUpdated(key.group_id, key.member_id, value),
    ConsumerGroupTargetAssignmentMetadataKey: lambda key, value: TargetAssignmentEpochUpdated(key.group_id, value),
    ConsumerGroupTargetAssignmentMemberKey: lambda key, value: TargetAssignmentUpdated(key.group_id, key.member_id, value),
    ConsumerGroupCurrentMemberAssignmentKey: lambda key, value: CurrentAssignmentUpdated(key.group_id, key.member_id, value),
    ConsumerGroupRegularExpressionKey: lambda key, value: ResolvedRegexUpdated(key.group_id, key.regular_expression, value),
}


@lru_cache(maxsize=8192)
def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    """Return the key of an offset's record; cached, since a group commits the offset of a partition again and again."""
    return encode_key(OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition))
