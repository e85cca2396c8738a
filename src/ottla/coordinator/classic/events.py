"""The events of a group of the classic protocol, as values.

Owns the volatile events, and the list of all that change a classic group. Must not know which handler decides on an event or how it
changes the group.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.coordinator.classic.group import ClassicGroupMember, InitialDelay, Protocols
from ottla.coordinator.effects import Ticket
from ottla.coordinator.events import GroupMetadataDeleted, GroupMetadataUpdated, VolatileEvent


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
