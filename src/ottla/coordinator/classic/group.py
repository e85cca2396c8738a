"""A group of the classic protocol, as an immutable value.

Owns the fields of a group and of its members, the check of a request's sender, and the decoding of the members' topics. Must not
know how they change (``machine``) nor which responses follow. Invariants: nothing here changes after it was created; mappings are
replaced, never written to; metadata that cannot be decoded means "unknown", never an error.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.coordinator.effects import Ticket
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import decode_subscription
from ottla.protocol.group_records import GroupMetadataValue

Protocols = tuple[tuple[str, bytes], ...]
"""The assignors that a member supports, in order of preference, each with the member's metadata for it."""


class ClassicGroupState(enum.Enum):
    """The state of a group; the values are the names that DescribeGroups and ListGroups use."""

    EMPTY = "Empty"
    """No members. It may have offsets, and member ids that clients have not joined with yet."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The join phase: all members must rejoin, and those that have wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The sync phase: a generation has begun, and its members wait for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is stored; each member has it or gets it with its SyncGroup."""
    DEAD = "Dead"
    """The group does not exist, or no longer exists."""


@dataclass(frozen=True, slots=True)
class ClassicGroupMember:
    """One member. Timeouts are milliseconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """It is in its first join phase and does not know its generation, so it cannot send heartbeats yet."""
    join: Ticket | None = None
    """The parked JoinGroup, which waits for the end of the join phase."""
    sync: Ticket | None = None
    """The parked SyncGroup, which waits for the leader's."""

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for one protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """The time for which the first rebalance of an empty group waits for more members (milliseconds).

    ``delay``: the current wait; ``remaining``: the time by which it may still be extended; ``extend``: another member joined during
    the wait.
    """

    delay: int
    remaining: int
    extend: bool = False


@dataclass(frozen=True, slots=True)
class ClassicGroup:
    """One group. Without a ``stored`` record it is *simple*: it exists only because offsets were committed with its id."""

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    since: int = -1
    """When it entered its state (wall-clock milliseconds)."""
    protocol_type: str | None = None
    """``consumer`` for consumers; ``None`` until a member has joined."""
    generation: int = 0
    protocol: str | None = None
    """The assignor of this generation."""
    leader: str | None = None
    members: Mapping[str, ClassicGroupMember] = field(default_factory=dict)
    """By member id, in the order in which they joined."""
    pending: frozenset[str] = frozenset()
    """Member ids that clients got and have not joined with yet (KIP-394)."""
    pending_sync: frozenset[str] = frozenset()
    """Members of this generation that have not sent their SyncGroup yet."""
    subscriptions: tuple[bytes, ...] | None = None
    """The members' metadata for the assignor in the last generation; ``None`` before the first."""
    initial_delay: InitialDelay | None = None
    """Set in a join phase that began with an empty group."""
    stored: GroupMetadataValue | None = None
    """The last record of the group in the log: its durable part."""

    @property
    def rebalance_timeout(self) -> int:
        """The longest rebalance timeout of a member (milliseconds): the limit of a join phase."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        """Whether all members have rejoined in the join phase, and no client with a new member id is missing."""
        return not self.pending and all(member.join is not None for member in self.members.values())

    def static_member_id(self, instance_id: str) -> str | None:
        """Return the current member id of an instance id."""
        return next((member.member_id for member in self.members.values() if member.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols can join. A rebalance keeps its protocol type even if all its members leave."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        common = self.common_protocols()
        return protocol_type == self.protocol_type and any(not self.members or name in common for name, _ in protocols)

    def common_protocols(self) -> frozenset[str]:
        """Return the protocols that every member supports."""
        counts = Counter(name for member in self.members.values() for name in dict(member.protocols))
        return frozenset(name for name, count in counts.items() if count == len(self.members))

    def elect_protocol(self) -> str:
        """Return the protocol with the most votes: each member votes for the first of its protocols that all members support.

        The leader's order breaks a tie.
        """
        common = self.common_protocols()
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in self.members.values())
        order = [name for name, _ in self.members[self.leader or ""].protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))


def sender_error(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Return the error for a sender that is no member, or that another process with its instance id has replaced."""
    if instance_id is not None:
        current = group.static_member_id(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in group.members else ErrorCode.unknown_member_id


def generation_error(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
    """Return the error for a sender that is no valid member or names another generation."""
    error = sender_error(group, member_id, instance_id)
    if error is None and generation != group.generation:
        return ErrorCode.illegal_generation
    return error


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Return the topics of the last generation; ``None`` if they are unknown.

    They are unknown for another protocol type, before the first generation, and if metadata cannot be decoded.
    """
    if group.protocol_type != "consumer" or group.subscriptions is None:
        return None
    try:
        return frozenset(topic for blob in group.subscriptions for topic in decode_subscription(blob).topics)
    except ProtocolError:
        return None
