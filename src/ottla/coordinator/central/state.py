"""The state of the central coordinator: its groups, their offsets, and who is interested in what.

Owns the state; only ``replay`` writes it. Must not know requests, responses or timers. Invariants: loading what durable events have
written gives the durable part of the state; the indexes are what the groups' members say.

The indexes are fields of the draft: ``consumerGroupsPerTopic``, ``groupsWithWildcardTopics`` and ``groupsBeingRebalanced``. Its
``rebalanceRequestQ`` is the flag QUEUED of each group: there is nothing to wait for in a queue, since no thread handles it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from ottla.coordinator.central.events import (
    ChannelLost,
    Event,
    GroupDeleted,
    MemberRegistered,
    MemberRemoved,
    OffsetsCommitted,
    OffsetsDeleted,
    PingAnswered,
    Pinged,
)
from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.group import CentralGroup, CommittedOffset, StoredGroup, owner_of, shares_of
from ottla.coordinator.central.machine import apply
from ottla.coordinator.central.member import CentralMember, LastPing
from ottla.coordinator.central.states import TRANSITIONS, CentralGroupInput, CentralGroupState
from ottla.types import TopicPartition

K = TypeVar("K")

_NO_OFFSETS: Mapping[TopicPartition, CommittedOffset] = MappingProxyType({})
_NO_PINGS: Mapping[str, LastPing] = MappingProxyType({})


class CentralState:
    """All central groups."""

    def __init__(self, stored: Iterable[StoredGroup] = ()) -> None:
        self._groups: dict[str, CentralGroup] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._outdated: dict[str, set[TopicPartition]] = {}
        """Group -> the partitions whose stored offset is that of a deleted topic, so that it must be deleted."""
        self.consumer_groups_per_topic: dict[str, dict[str, int]] = {}
        """Topic -> the groups with members that name it -> the number of these members."""
        self.groups_with_wildcard_topics: set[str] = set()
        """The groups with members that have a pattern."""
        self.first_generation = 0
        """The generation with which a new group begins: 1. A process is cut off with a commit, and its group is deleted. 2. Another
        one gets its id, in a new group with that name. 3. The commit of the first one arrives, which has no other proof than that
        number."""
        self._channels: dict[int, dict[str, int]] = {}
        """Connection -> the groups for whose members it is the channel -> the number of these members."""
        self._pings: dict[str, dict[str, LastPing]] = {}
        """Group -> member -> the last Ping on its channel."""
        for one in stored:
            self._groups[one.group_id] = _found_group(one)
            if one.offsets:
                self._offsets[one.group_id] = dict(one.offsets)
            if one.outdated:
                self._outdated[one.group_id] = set(one.outdated)

    def group(self, group_id: str) -> CentralGroup | None:
        """Return a group, ``None`` if there is none with this id."""
        return self._groups.get(group_id)

    def groups(self) -> Mapping[str, CentralGroup]:
        """Return a read-only view of all groups by id."""
        return MappingProxyType(self._groups)

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group."""
        return self._offsets.get(group_id, _NO_OFFSETS)

    def outdated(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions whose stored offset is that of a deleted topic."""
        return self._outdated.get(group_id, ())

    def pings(self, group_id: str) -> Mapping[str, LastPing]:
        """Return the last Ping to each member of a group on its present channel."""
        return self._pings.get(group_id, _NO_PINGS)

    @property
    def groups_being_rebalanced(self) -> Mapping[str, RebalanceFlag]:
        """Group -> whether it is being rebalanced."""
        return {group_id: group.flag for group_id, group in self._groups.items()}

    def channels(self) -> Iterable[int]:
        """Return the connections that are channels."""
        return tuple(self._channels)

    def groups_on(self, connection: int) -> frozenset[str]:
        """Return the groups for whose members a connection is the channel."""
        return frozenset(self._channels.get(connection, ()))

    def replay(self, events: Iterable[Event]) -> None:
        """Apply events in order."""
        for event in events:
            match event:
                case OffsetsCommitted(group_id, offsets):
                    self._offsets.setdefault(group_id, {}).update(offsets)
                    self._written(group_id, offsets)
                case OffsetsDeleted(group_id, partitions):
                    self._delete_offsets(group_id, partitions)
                case Pinged(group_id, member_id, question):
                    self._pings.setdefault(group_id, {})[member_id] = LastPing(question)
                case PingAnswered(group_id, member_id):
                    pings = self._pings[group_id]
                    pings[member_id] = pings[member_id]._replace(is_answered=True)
                case GroupDeleted(group_id):
                    self._offsets.pop(group_id, None)
                    self._outdated.pop(group_id, None)
                    self._pings.pop(group_id, None)
                    deleted = self._groups.pop(group_id, None)
                    if deleted is not None:
                        self.first_generation = max(self.first_generation, deleted.generation)
                case _:
                    before = self._groups.get(event.group_id) or CentralGroup(event.group_id)
                    after = self._groups[event.group_id] = apply(before, event)
                    if isinstance(event, MemberRegistered):
                        self._index(before, after, event.member.member_id)
                    elif isinstance(event, MemberRemoved | ChannelLost):
                        self._index(before, after, event.member_id)

    def _delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        offsets = self._offsets.get(group_id, {})
        for partition in partitions:
            offsets.pop(partition, None)
        if not offsets:
            self._offsets.pop(group_id, None)
        self._written(group_id, partitions)

    def _written(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        outdated = self._outdated.get(group_id)
        if outdated is not None:
            outdated.difference_update(partitions)
            if not outdated:
                del self._outdated[group_id]

    def _index(self, before: CentralGroup, after: CentralGroup, member_id: str) -> None:
        was, is_now = before.members.get(member_id), after.members.get(member_id)
        _move(self.consumer_groups_per_topic, after.group_id, _named_topics(was), _named_topics(is_now))
        _move(self._channels, after.group_id, _channels(was), _channels(is_now))
        if _channels(was) != _channels(is_now):
            self._forget_ping(after.group_id, member_id)
        (self.groups_with_wildcard_topics.add if after.patterns else self.groups_with_wildcard_topics.discard)(after.group_id)

    def _forget_ping(self, group_id: str, member_id: str) -> None:
        """Forget the Ping to a member whose channel is gone. On the same channel, also after another Register, the next one still
        tells that the answer to this one has arrived."""
        pings = self._pings.get(group_id, {})
        pings.pop(member_id, None)
        if not pings:
            self._pings.pop(group_id, None)


def _found_group(stored: StoredGroup) -> CentralGroup:
    """Return a group as a new coordinator finds it: its owners may read, and other members hold nothing."""
    owners = {partition: owner_of(text) for partition, text in stored.owners.items()}
    shares = shares_of(owners)
    found = frozenset(shares)
    empty = CentralGroupState.EMPTY
    return CentralGroup(
        group_id=stored.group_id,
        state=TRANSITIONS[empty][CentralGroupInput.FOUND] if found else empty,
        generation=stored.generation,
        epoch=stored.epoch,
        may_be_later=stored.is_malformed,
        stored_members=max(stored.members, len(found)),
        session_timeout_ms=stored.session_timeout_ms,
        owners=owners,
        shares=shares,
        processes=stored.processes,
        found=found,
    )


def _named_topics(member: CentralMember | None) -> frozenset[str]:
    return frozenset() if member is None else frozenset(member.topics)


def _channels(member: CentralMember | None) -> frozenset[int]:
    return frozenset() if member is None or member.connection is None else frozenset({member.connection})


def _move(index: dict[K, dict[str, int]], group_id: str, before: frozenset[K], after: frozenset[K]) -> None:
    """Count a member of a group less for some keys, and more for others."""
    for key in before - after:
        index[key][group_id] -= 1
        if not index[key][group_id]:
            del index[key][group_id]
        if not index[key]:
            del index[key]
    for key in after - before:
        groups = index.setdefault(key, {})
        groups[group_id] = groups.get(group_id, 0) + 1
