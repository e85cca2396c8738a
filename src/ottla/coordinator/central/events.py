"""The events of central groups, as values.

*Durable* events are written to ZooKeeper's nodes; *volatile* ones are never written: channels, questions, the progress of a
rebalance. Owns the events and the records of durable ones. Must not know which handler decides on an event or how it changes the
state. Invariants: the records of an event are absolute, so that writing them twice does no harm; the node of the generation comes
last, so that a generation is there if all its owners are; what happens to all members at once is one event, since each event copies
the mapping of members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from ottla.coordinator.central.flag import FlagInput
from ottla.coordinator.central.group import CommittedOffset, Owners
from ottla.coordinator.central.member import CentralMember, Question
from ottla.coordinator.central.states import CentralGroupInput
from ottla.coordinator.effects import ResolvedRegexes
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from ottla.values import light_dataclass
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import GenerationNode, encode_offset, encode_owner

# Durable.


@dataclass(frozen=True, slots=True)
class GroupKnown:
    """A group became central, or has its first member, or a member with a longer session timeout."""

    group_id: str
    node: GenerationNode


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """All members have stopped, and a generation begins with these owners."""

    group_id: str
    node: GenerationNode
    owners: Owners
    disowned: tuple[TopicPartition, ...]
    """Partitions that had an owner, and have none in this generation."""


@dataclass(frozen=True, slots=True)
class GroupEmptied:
    """The last member is gone. The generation is kept."""

    group_id: str
    node: GenerationNode
    disowned: tuple[TopicPartition, ...]


@light_dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """Offsets were committed by one request."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    """Committed offsets were deleted."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """A group without members was deleted, with its offsets."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


# Volatile.


@dataclass(frozen=True, slots=True)
class MemberRegistered:
    """A member has registered, for the first time or again."""

    group_id: str
    member: CentralMember


@dataclass(frozen=True, slots=True)
class GenerationReported:
    """A member knows this generation of a group whose node was malformed."""

    group_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """A member has left or was evicted. ``may_read``: until its session ends."""

    group_id: str
    member_id: str
    is_evicted: bool
    may_read: bool = False


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """An evicted member reads no more: its session is over, or it says so."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class OwnersGivenUp:
    """The owners that have not registered so far read no more: their sessions are over."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ChannelLost:
    """The channel of a member is closed. Its questions are lost with it."""

    group_id: str
    member_id: str


@light_dataclass(frozen=True, slots=True)
class Asked:
    """A Stop or Start goes to each of these members."""

    group_id: str
    questions: Mapping[str, Question]


@light_dataclass(frozen=True, slots=True)
class Answered:
    """A member has answered its Stop or Start."""

    group_id: str
    member_id: str
    api: Api


@light_dataclass(frozen=True, slots=True)
class Pinged:
    """A Ping goes to a member."""

    group_id: str
    member_id: str
    question: Question


@light_dataclass(frozen=True, slots=True)
class PingAnswered:
    """A member has answered its Ping."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class StopOrdered:
    """Members must stop before the generation can begin."""

    group_id: str
    member_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class StartOrdered:
    """Each of these members gets its share of the present generation."""

    group_id: str
    member_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Complained:
    """A frame of a member was refused, and logged."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The group changes its state."""

    group_id: str
    cause: CentralGroupInput


@dataclass(frozen=True, slots=True)
class FlagMoved:
    """The group's flag in ``groupsBeingRebalanced`` changes."""

    group_id: str
    cause: FlagInput


@dataclass(frozen=True, slots=True)
class RegexResolutionStarted:
    """The patterns of the group are being matched."""

    group_id: str


@dataclass(frozen=True, slots=True)
class RegexResolutionEnded:
    """The patterns are matched; ``None`` if that failed."""

    group_id: str
    matches: ResolvedRegexes | None


DurableEvent = GroupKnown | GenerationStarted | GroupEmptied | OffsetsCommitted | OffsetsDeleted | GroupDeleted

GroupEvent = (
    GroupKnown
    | GenerationStarted
    | GroupEmptied
    | MemberRegistered
    | GenerationReported
    | MemberRemoved
    | LeaseEnded
    | OwnersGivenUp
    | ChannelLost
    | Asked
    | Answered
    | StopOrdered
    | StartOrdered
    | Complained
    | Moved
    | FlagMoved
    | RegexResolutionStarted
    | RegexResolutionEnded
)
"""The events that change a group; the others concern its offsets, its Pings, or its existence."""

Event = GroupEvent | OffsetsCommitted | OffsetsDeleted | GroupDeleted | Pinged | PingAnswered

_BELOW = len(paths.CONSUMERS) + 1


def records_of(event: DurableEvent) -> list[tuple[bytes, bytes | None]]:
    """Return the records of a durable event: the path of each node below ``/consumers``, and its data; ``None``: it is deleted."""
    group_id = event.group_id
    match event:
        case GroupKnown(_, node):
            return [_generation(group_id, node)]
        case GenerationStarted(_, node, owners, disowned):
            texts = {owner: encode_owner(owner) for owner in set(owners.values())}
            keys = _keys(paths.topic_owners, group_id, owners)
            owned = [(key, texts[owner]) for key, owner in zip(keys, owners.values(), strict=True)]
            return [*_deleted(paths.topic_owners, group_id, disowned), *owned, _generation(group_id, node)]
        case GroupEmptied(_, node, disowned):
            return [*_deleted(paths.topic_owners, group_id, disowned), _generation(group_id, node)]
        case OffsetsCommitted(_, offsets):
            keys = _keys(paths.topic_offsets, group_id, offsets)
            return [(key, encode_offset(committed.offset)) for key, committed in zip(keys, offsets.values(), strict=True)]
        case OffsetsDeleted(_, partitions):
            return [*_deleted(paths.topic_offsets, group_id, partitions)]
        case GroupDeleted(_, partitions):
            return [*_deleted(paths.topic_offsets, group_id, partitions), (_key(paths.generation(group_id)), None)]
        case _:
            assert_never(event)


def _generation(group_id: str, node: GenerationNode) -> tuple[bytes, bytes]:
    return _key(paths.generation(group_id)), node.encode()


def _deleted(
    parent: Callable[[str, str], str], group_id: str, partitions: Iterable[TopicPartition]
) -> Iterator[tuple[bytes, bytes | None]]:
    return ((key, None) for key in _keys(parent, group_id, partitions))


def _keys(parent: Callable[[str, str], str], group_id: str, partitions: Iterable[TopicPartition]) -> Iterator[bytes]:
    """Yield the key of each partition's node. The path of its topic is made once: a group may own 10,000 partitions of it."""
    parents: dict[str, bytes] = {}
    for topic, partition in partitions:
        if topic not in parents:
            parents[topic] = _key(parent(group_id, topic))
        yield b"%b/%d" % (parents[topic], partition)


def _key(path: str) -> bytes:
    return path[_BELOW:].encode()
