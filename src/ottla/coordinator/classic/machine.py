"""How a classic group changes: its events, the table of its states, and the draft on which a handler applies events.

Owns the volatile events, and every change of a group. ``apply`` is a pure function: handlers use it through the draft, to read the
outcome of their decision, and ``replay`` to apply events, both live and on load. Must not know which handler decides on an event.
Invariants: a state changes only by a row of ``TRANSITIONS``; the events of a draft's result, applied to the original group, give
the draft's group.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState, InitialDelay, Protocols
from ottla.coordinator.decision import GroupEffect, Result, session_timer
from ottla.coordinator.effects import CancelTimer, Reply, SetTimer, Ticket, TimerKey
from ottla.coordinator.events import GroupMetadataDeleted, GroupMetadataUpdated, VolatileEvent
from ottla.protocol.group_records import GroupMetadataMember, GroupMetadataValue
from ottla.types import Now


@dataclass(frozen=True, slots=True)
class PendingMemberAdded(VolatileEvent):
    """A client got a member id, with which it must join again (KIP-394)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class PendingMemberRemoved(VolatileEvent):
    """A client with a member id is no longer expected: it took too long, has left, or the group is full."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MemberJoined(VolatileEvent):
    """A new member joined. The first one becomes the leader, and its protocol type the group's."""

    member: ClassicGroupMember
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberUpdated(VolatileEvent):
    """A member rejoined, possibly with other protocols and timeouts (milliseconds)."""

    member_id: str
    protocols: Protocols
    rebalance_timeout: int
    session_timeout: int


@dataclass(frozen=True, slots=True)
class MemberReplaced(VolatileEvent):
    """A static member returned under a new member id, and keeps its assignment."""

    old_member_id: str
    member: ClassicGroupMember


@dataclass(frozen=True, slots=True)
class MemberRemoved(VolatileEvent):
    """A member left or was removed."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JoinParked(VolatileEvent):
    """A member's JoinGroup waits for the end of the join phase."""

    member_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SyncReceived(VolatileEvent):
    """A member of this generation has sent its SyncGroup."""

    member_id: str


@dataclass(frozen=True, slots=True)
class SyncParked(VolatileEvent):
    """A member's SyncGroup waits for the leader's."""

    member_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class SyncsCompleted(VolatileEvent):
    """All parked SyncGroups were answered."""


@dataclass(frozen=True, slots=True)
class RebalanceStarted(VolatileEvent):
    """A join phase begins; ``initial_delay`` is set if the group was empty. Assignments of an unfinished rebalance are dropped."""

    at: int
    initial_delay: InitialDelay | None = None


@dataclass(frozen=True, slots=True)
class InitialDelayExtended(VolatileEvent):
    """The join phase of a group that was empty is extended by another delay."""

    initial_delay: InitialDelay


@dataclass(frozen=True, slots=True)
class GenerationStarted(VolatileEvent):
    """The join phase has ended with members: all JoinGroups are answered, and each member must send a SyncGroup."""

    at: int
    generation: int
    protocol: str
    leader: str


ClassicEvent = (
    GroupMetadataUpdated
    | GroupMetadataDeleted
    | PendingMemberAdded
    | PendingMemberRemoved
    | MemberJoined
    | MemberUpdated
    | MemberReplaced
    | MemberRemoved
    | JoinParked
    | SyncReceived
    | SyncParked
    | SyncsCompleted
    | RebalanceStarted
    | InitialDelayExtended
    | GenerationStarted
)
"""The events of one group of the classic protocol."""


class ClassicGroupInput(enum.Enum):
    """The causes of a change of state."""

    REBALANCE = "a join, a leave, an expiry or new metadata"
    GENERATION = "all remaining members have joined"
    STORED_MEMBERS = "the record of a group with members is in the log"
    STORED_EMPTY = "the record of a group without members is in the log"
    DELETED = "the group's tombstone is in the log"


TRANSITIONS: dict[ClassicGroupState, dict[ClassicGroupInput, ClassicGroupState]] = {
    ClassicGroupState.EMPTY: {
        ClassicGroupInput.REBALANCE: ClassicGroupState.PREPARING_REBALANCE,
        ClassicGroupInput.STORED_EMPTY: ClassicGroupState.EMPTY,
        ClassicGroupInput.STORED_MEMBERS: ClassicGroupState.STABLE,  # only on load: the log has no phases of a rebalance
        ClassicGroupInput.DELETED: ClassicGroupState.DEAD,
    },
    ClassicGroupState.PREPARING_REBALANCE: {
        ClassicGroupInput.GENERATION: ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupInput.STORED_EMPTY: ClassicGroupState.EMPTY,
        ClassicGroupInput.DELETED: ClassicGroupState.DEAD,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {
        ClassicGroupInput.REBALANCE: ClassicGroupState.PREPARING_REBALANCE,
        ClassicGroupInput.STORED_MEMBERS: ClassicGroupState.STABLE,
        ClassicGroupInput.DELETED: ClassicGroupState.DEAD,
    },
    ClassicGroupState.STABLE: {
        ClassicGroupInput.REBALANCE: ClassicGroupState.PREPARING_REBALANCE,
        ClassicGroupInput.STORED_MEMBERS: ClassicGroupState.STABLE,
        ClassicGroupInput.STORED_EMPTY: ClassicGroupState.EMPTY,  # only on load
        ClassicGroupInput.DELETED: ClassicGroupState.DEAD,
    },
    ClassicGroupState.DEAD: {},
}


def apply(group: ClassicGroup, event: ClassicEvent) -> ClassicGroup:
    """Return the group after an event. Raises ``KeyError`` for an event that its state does not allow: a bug in a handler."""
    match event:
        case PendingMemberAdded(_, member_id):
            return replace(group, pending=group.pending | {member_id})
        case PendingMemberRemoved(_, member_id):
            return replace(group, pending=group.pending - {member_id})
        case MemberJoined():
            return _add_member(group, event)
        case MemberUpdated(_, member_id, protocols, rebalance_timeout, session_timeout):
            times = {"rebalance_timeout": rebalance_timeout, "session_timeout": session_timeout}
            return _update_member(group, member_id, protocols=protocols, **times)
        case MemberReplaced(_, old_member_id, member):
            return _replace_member(group, old_member_id, member)
        case MemberRemoved(_, member_id):
            return _remove_member(group, member_id)
        case JoinParked(_, member_id, ticket):
            return _update_member(group, member_id, join=ticket)
        case SyncReceived(_, member_id):
            return replace(group, pending_sync=group.pending_sync - {member_id})
        case SyncParked(_, member_id, ticket):
            return _update_member(group, member_id, sync=ticket)
        case SyncsCompleted():
            return replace(group, members=_updated_members(group.members.values(), sync=None))
        case RebalanceStarted():
            return _prepare_rebalance(group, event)
        case InitialDelayExtended(_, initial_delay):
            return replace(group, initial_delay=initial_delay)
        case GenerationStarted():
            return _start_generation(group, event)
        case GroupMetadataUpdated(_, value):
            return _apply_record(group, value)
        case GroupMetadataDeleted():
            return replace(group, state=_next_state(group, ClassicGroupInput.DELETED), stored=None)
        case _:
            assert_never(event)


def metadata_value(group: ClassicGroup, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
    """Return the record of a group with these assignments."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.since,
        members=tuple(
            GroupMetadataMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout,
                session_timeout=member.session_timeout,
                subscription=member.metadata(group.protocol),
                assignment=assignments[member.member_id],
            )
            for member in group.members.values()
        ),
    )


def empty_value(group: ClassicGroup, generation: int, at: int) -> GroupMetadataValue:
    """Return the record of a group without members."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=generation,
        protocol=None,
        leader=None,
        current_state_timestamp=at,
        members=(),
    )


def _next_state(group: ClassicGroup, cause: ClassicGroupInput) -> ClassicGroupState:
    return TRANSITIONS[group.state][cause]


def _update_member(group: ClassicGroup, member_id: str, **changes: object) -> ClassicGroup:
    member = replace(group.members[member_id], **changes)  # type: ignore[arg-type]
    return replace(group, members={**group.members, member_id: member})


def _updated_members(members: Iterable[ClassicGroupMember], **changes: object) -> dict[str, ClassicGroupMember]:
    return {member.member_id: replace(member, **changes) for member in members}  # type: ignore[arg-type]


def _add_member(group: ClassicGroup, event: MemberJoined) -> ClassicGroup:
    member = event.member
    initial_delay = group.initial_delay
    if initial_delay is not None:
        initial_delay = replace(initial_delay, extend=True)
    return replace(
        group,
        protocol_type=group.protocol_type if group.members else event.protocol_type,
        leader=group.leader or member.member_id,
        members={**group.members, member.member_id: member},
        pending=group.pending - {member.member_id},
        initial_delay=initial_delay,
    )


def _replace_member(group: ClassicGroup, old_member_id: str, member: ClassicGroupMember) -> ClassicGroup:
    remaining = {other_id: other for other_id, other in group.members.items() if other_id != old_member_id}
    pending_sync = group.pending_sync
    if old_member_id in pending_sync:
        pending_sync = pending_sync - {old_member_id} | {member.member_id}
    return replace(
        group,
        members={**remaining, member.member_id: member},
        leader=member.member_id if group.leader == old_member_id else group.leader,
        pending_sync=pending_sync,
    )


def _remove_member(group: ClassicGroup, member_id: str) -> ClassicGroup:
    members = {other_id: other for other_id, other in group.members.items() if other_id != member_id}
    leader = next(iter(members), None) if group.leader == member_id else group.leader
    return replace(group, members=members, leader=leader, pending_sync=group.pending_sync - {member_id})


def _prepare_rebalance(group: ClassicGroup, event: RebalanceStarted) -> ClassicGroup:
    members: Mapping[str, ClassicGroupMember] = group.members
    if group.state is ClassicGroupState.COMPLETING_REBALANCE:
        members = _updated_members(members.values(), sync=None, assignment=b"")
    return replace(
        group,
        state=_next_state(group, ClassicGroupInput.REBALANCE),
        since=event.at,
        members=members,
        pending_sync=frozenset(),
        initial_delay=event.initial_delay,
    )


def _start_generation(group: ClassicGroup, event: GenerationStarted) -> ClassicGroup:
    return replace(
        group,
        state=_next_state(group, ClassicGroupInput.GENERATION),
        since=event.at,
        generation=event.generation,
        protocol=event.protocol,
        leader=event.leader,
        members=_updated_members(group.members.values(), join=None, is_new=False),
        pending_sync=frozenset(group.members),
        subscriptions=tuple(member.metadata(event.protocol) for member in group.members.values()),
        initial_delay=None,
    )


def _apply_record(group: ClassicGroup, value: GroupMetadataValue) -> ClassicGroup:
    """Return the group of a record, plus what only the live group has: the members' other protocols and parked requests."""
    members = {stored.member_id: _stored_member(stored, value.protocol or "", group) for stored in value.members}
    # A live group has the subscriptions of its generation since that began. On load the record is the first to mention the
    # generation, and brings them.
    subscriptions = group.subscriptions
    if value.protocol_type and (value.generation != group.generation or not members):
        subscriptions = tuple(stored.subscription for stored in value.members)
    return replace(
        group,
        state=_next_state(group, ClassicGroupInput.STORED_MEMBERS if members else ClassicGroupInput.STORED_EMPTY),
        since=value.current_state_timestamp,
        protocol_type=value.protocol_type or None,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        members=members,
        pending_sync=frozenset(group.pending_sync & members.keys()),
        subscriptions=subscriptions,
        initial_delay=None,
        stored=value,
    )


def _stored_member(stored: GroupMetadataMember, protocol: str, group: ClassicGroup) -> ClassicGroupMember:
    live = group.members.get(stored.member_id)
    protocols = () if live is None else live.protocols
    return ClassicGroupMember(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout=stored.rebalance_timeout,
        session_timeout=stored.session_timeout,
        protocols=protocols if (protocol, stored.subscription) in protocols else ((protocol, stored.subscription),),
        assignment=stored.assignment,
        is_new=live is not None and live.is_new,
        join=None if live is None else live.join,
        sync=None if live is None else live.sync,
    )


class ClassicGroupDraft:
    """A classic group, the events applied to it at the time ``now``, and effects."""

    def __init__(self, group: ClassicGroup, now: Now) -> None:
        self.group = group
        self.now = now
        self._events: list[ClassicEvent] = []
        self._effects: list[GroupEffect] = []

    def apply(self, event: ClassicEvent) -> None:
        """Apply an event to the draft's group, and add it to the result."""
        self.group = apply(self.group, event)
        self._events.append(event)

    def reply(self, ticket: Ticket | None, response: Any) -> None:
        """Answer a parked request, if there is one."""
        if ticket is not None:
            self._effects.append(Reply(ticket, response))

    def set_timer(self, key: TimerKey, delay: int) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self._effects.append(SetTimer(key, self.now.mono + delay))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self._effects.append(CancelTimer(key))

    def refresh_session(self, member: ClassicGroupMember) -> None:
        """Restart the session timer of a member that has shown that it is alive."""
        self.set_timer(session_timer(self.group.group_id, member.member_id), member.session_timeout)

    def result(self, answer: Any = None) -> Result:
        """Return the events and effects; ``answer`` is the response to the current request, ``None`` if that is parked."""
        return Result(tuple(self._events), tuple(self._effects), answer)
