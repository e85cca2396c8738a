"""Everything that can happen to groups and offsets, as values.

*Durable* events are the records of ``__consumer_offsets``, one record each; what they say survives a restart. *Volatile* events are
never written: who waits for an answer, which ids were given out, where a round stands. Owns the vocabulary and the mapping between
durable events and records; must not know who decides on an event or what it changes. Invariant:
``event_of(*record_of(event)) == event``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.coordinator.classic.group import InitialDelay, Member, Protocols
from ottla.coordinator.effects import Ticket
from ottla.protocol.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Unknown,
    decode_record,
    encode_record,
)
from ottla.types import TopicPartition

# Durable.


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """The group has finished a round, lost its last member, was created, or a static member has a new id."""

    group_id: str
    value: GroupMetadataValue


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """The group is gone."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A committed offset of a partition."""

    group_id: str
    partition: TopicPartition
    value: OffsetCommitValue


@dataclass(frozen=True, slots=True)
class OffsetDeleted:
    """The committed offset of a partition is gone."""

    group_id: str
    partition: TopicPartition


# Volatile.


@dataclass(frozen=True, slots=True)
class MemberIdGiven:
    """A client was sent away with a member id, under which it is expected to come back (KIP-394)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberIdDropped:
    """A client that was given a member id does not come any more."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A new member, which makes the first one the leader and its protocol type the group's."""

    group_id: str
    member: Member
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberUpdated:
    """A member rejoined, maybe with other protocols and timeouts (milliseconds)."""

    group_id: str
    member_id: str
    protocols: Protocols
    rebalance_timeout: int
    session_timeout: int


@dataclass(frozen=True, slots=True)
class MemberReplaced:
    """A static member came back under a new member id and takes the place and the assignment of its old self."""

    group_id: str
    old_member_id: str
    member: Member


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """A member left or was removed."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class JoinParked:
    """A member's JoinGroup waits for the end of the join phase."""

    group_id: str
    member_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SyncReceived:
    """A member of this generation has sent its SyncGroup."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class SyncParked:
    """A member's SyncGroup waits for the leader's."""

    group_id: str
    member_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SyncsAnswered:
    """No SyncGroup waits any more."""

    group_id: str


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A join phase begins; ``initial_delay`` is set if the group was empty. Nobody has an assignment of an unfinished round."""

    group_id: str
    at: int
    initial_delay: InitialDelay | None = None


@dataclass(frozen=True, slots=True)
class InitialDelayExtended:
    """The join phase of a group that was empty goes on for another delay."""

    group_id: str
    initial_delay: InitialDelay


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """The join phase has ended, with members: all JoinGroups are answered, all SyncGroups are due."""

    group_id: str
    at: int
    generation: int
    protocol: str
    leader: str


DurableEvent = GroupWritten | GroupDeleted | OffsetCommitted | OffsetDeleted
ClassicEvent = (
    GroupWritten
    | GroupDeleted
    | MemberIdGiven
    | MemberIdDropped
    | MemberJoined
    | MemberUpdated
    | MemberReplaced
    | MemberRemoved
    | JoinParked
    | SyncReceived
    | SyncParked
    | SyncsAnswered
    | RebalanceStarted
    | InitialDelayExtended
    | GenerationStarted
)
"""What happens to one group of the classic protocol."""
Event = ClassicEvent | OffsetCommitted | OffsetDeleted


def record_of(event: DurableEvent) -> tuple[bytes, bytes | None]:
    """The record of a durable event. Raises ``ProtocolError`` if the record can not hold what the event says."""
    match event:
        case GroupWritten(group_id, value):
            return encode_record(GroupMetadataKey(group=group_id), value)
        case GroupDeleted(group_id):
            return encode_record(GroupMetadataKey(group=group_id), None)
        case OffsetCommitted(group_id, partition, offset):
            return encode_record(_offset_key(group_id, partition), offset)
        case OffsetDeleted(group_id, partition):
            return encode_record(_offset_key(group_id, partition), None)


def event_of(key: bytes, value: bytes | None) -> DurableEvent | None:
    """The event of a record; ``None`` for a type of record that is not known here. Raises ``ProtocolError`` for bad bytes."""
    match decode_record(key, value):
        case Unknown(), _:
            return None
        case GroupMetadataKey(group=group), GroupMetadataValue() as stored:
            return GroupWritten(group, stored)
        case GroupMetadataKey(group=group), _:
            return GroupDeleted(group)
        case OffsetCommitKey() as offset_key, OffsetCommitValue() as offset:
            return OffsetCommitted(offset_key.group, TopicPartition(offset_key.topic, offset_key.partition), offset)
        case OffsetCommitKey() as offset_key, _:
            return OffsetDeleted(offset_key.group, TopicPartition(offset_key.topic, offset_key.partition))
    raise AssertionError("every key class has its events")


def _offset_key(group_id: str, partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
