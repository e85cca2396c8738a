"""A group of the classic protocol as a value, and the questions that one asks of it.

Owns the shape of a group and of its members. Must not know how they change (``machine``) nor what is answered to whom. Invariant:
nothing here changes after it was made; mappings are replaced, never written to.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.coordinator.effects import Ticket
from ottla.protocol.group_records import GroupMetadataValue

Protocols = tuple[tuple[str, bytes], ...]
"""Assignors that a member knows, most wanted first, each with the member's metadata for it."""


class ClassicGroupState(enum.Enum):
    """Where a group stands between two assignments; the values are the names that DescribeGroups and ListGroups use."""

    EMPTY = "Empty"
    """No members. It may have offsets, and members that have an id and have not joined yet."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The join phase: members have to rejoin, and those that have rejoined wait for the others."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The sync phase: a generation has begun, and its members wait for the leader's assignment."""
    STABLE = "Stable"
    """Each member has, or can get, its assignment."""
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
    """It waits in its first join phase and does not know its generation, so it cannot send heartbeats yet."""
    join: Ticket | None = None
    """The JoinGroup that waits for the end of the join phase."""
    sync: Ticket | None = None
    """The SyncGroup that waits for the leader's."""

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent along for one protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """An empty group waits for more members than the first.

    ``delay``: the current wait; ``remaining``: how much it may still be extended; ``extend``: a member joined meanwhile.
    """

    delay: int
    remaining: int
    extend: bool = False


@dataclass(frozen=True, slots=True)
class ClassicGroup:
    """One group. Without a ``stored`` record it is *simple*: it exists because offsets were committed under its name."""

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    since: int = -1
    """When it came to its state (wall-clock milliseconds)."""
    protocol_type: str | None = None
    """``consumer`` for consumers; ``None`` until a member has joined."""
    generation: int = 0
    protocol: str | None = None
    """The assignor of this generation."""
    leader: str | None = None
    members: Mapping[str, ClassicGroupMember] = field(default_factory=dict)
    """By member id, in the order in which they joined."""
    pending: frozenset[str] = frozenset()
    """Member ids that were given out and have not joined yet (KIP-394)."""
    pending_sync: frozenset[str] = frozenset()
    """Members of this generation that have not sent their SyncGroup yet."""
    subscriptions: tuple[bytes, ...] | None = None
    """What the members of the last generation told the assignor; ``None`` before the first."""
    initial_delay: InitialDelay | None = None
    """Set in a join phase that began with an empty group."""
    stored: GroupMetadataValue | None = None
    """The last record of the group in the log: its durable part."""

    @property
    def rebalance_timeout(self) -> int:
        """How long a join phase may take: what the slowest member asked for."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0)

    @property
    def has_all_joined(self) -> bool:
        """Whether no member is missing in the join phase."""
        return not self.pending and all(member.join is not None for member in self.members.values())

    def static_member_id(self, instance_id: str) -> str | None:
        """The member id that an instance has now."""
        return next((member.member_id for member in self.members.values() if member.instance_id == instance_id), None)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could join. A round keeps its type when all its members have left."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        common = self.common_protocols()
        return protocol_type == self.protocol_type and any(not self.members or name in common for name, _ in protocols)

    def common_protocols(self) -> frozenset[str]:
        """The protocols that every member knows."""
        known = Counter(name for member in self.members.values() for name in dict(member.protocols))
        return frozenset(name for name, count in known.items() if count == len(self.members))

    def elect_protocol(self) -> str:
        """Each member votes for the first of its protocols that all know; most votes win, and the leader's order breaks a tie."""
        common = self.common_protocols()
        votes = Counter(next(name for name, _ in member.protocols if name in common) for member in self.members.values())
        order = [name for name, _ in self.members[self.leader or ""].protocols]
        return max(votes, key=lambda name: (votes[name], -order.index(name)))
