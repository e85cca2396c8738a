"""What happens to a group of the classic protocol, as values.

Owns the events that are not written, and the list of all that change a classic group. Must not know who decides on an event or what
it changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.coordinator.classic.group import ClassicGroupMember, InitialDelay, Protocols
from ottla.coordinator.effects import Ticket
from ottla.coordinator.events import GroupMetadataDeleted, GroupMetadataUpdated, VolatileEvent


@dataclass(frozen=True, slots=True)
class PendingMemberAdded(VolatileEvent):
    """A client was sent away with a member id, under which it is expected to come back (KIP-394)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class PendingMemberRemoved(VolatileEvent):
    """A client that was given a member id does not come any more."""

    member_id: str


@dataclass(frozen=True, slots=True)
class MemberJoined(VolatileEvent):
    """A new member, which makes the first one the leader and its protocol type the group's."""

    member: ClassicGroupMember
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberUpdated(VolatileEvent):
    """A member rejoined, maybe with other protocols and timeouts (milliseconds)."""

    member_id: str
    protocols: Protocols
    rebalance_timeout: int
    session_timeout: int


@dataclass(frozen=True, slots=True)
class MemberReplaced(VolatileEvent):
    """A static member came back under a new member id and takes the place and the assignment of its old self."""

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
    """No SyncGroup waits any more."""


@dataclass(frozen=True, slots=True)
class RebalanceStarted(VolatileEvent):
    """A join phase begins; ``initial_delay`` is set if the group was empty. No member has an assignment of an unfinished round."""

    at: int
    initial_delay: InitialDelay | None = None


@dataclass(frozen=True, slots=True)
class InitialDelayExtended(VolatileEvent):
    """The join phase of a group that was empty goes on for another delay."""

    initial_delay: InitialDelay


@dataclass(frozen=True, slots=True)
class GenerationStarted(VolatileEvent):
    """The join phase has ended, with members: all JoinGroups are answered, all SyncGroups are due."""

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
"""What happens to one group of the classic protocol."""
