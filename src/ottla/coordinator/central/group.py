"""A central group as an immutable value.

Owns the fields of a group, and a group as a new coordinator finds it. Must not know how they change (``machine``) nor which
responses follow. Invariants: nothing here changes after it was created; mappings are replaced, never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter, countOf
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.member import CentralMember, MemberState
from ottla.coordinator.central.states import CentralGroupState
from ottla.errors import ProtocolError
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread, decode_owner

Owners = Mapping[TopicPartition, ConsumerThread]
Share = Mapping[TopicPartition, int]
"""The partitions of a member -> the thread that reads each."""

MOST_THREADS = 100_000
"""The threads of a member over all topics: each check of its group makes them all, so one member could block the broker."""

_NO_SHARE: Share = MappingProxyType({})
_STATE_OF = attrgetter("state")


class CommittedOffset(NamedTuple):
    """A committed offset, and the id of the topic at the commit; ``None``: not known, since the topic had none."""

    offset: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A central group, as a coordinator finds it in ZooKeeper. ``owners``: the text of the thread that owns each partition."""

    group_id: str
    generation: int
    members: int
    session_timeout_ms: int
    epoch: int
    """That of the coordinator that has written the generation."""
    owners: Mapping[TopicPartition, str]
    offsets: Mapping[TopicPartition, CommittedOffset]
    outdated: frozenset[TopicPartition] = frozenset()
    """Other partitions with an offset: their topic was deleted after the commit, and perhaps created again."""
    processes: frozenset[str] = frozenset()
    """The processes that were members when the generation began (``GenerationNode.processes``)."""
    is_malformed: bool = False
    """Whether its node has no generation that can be read."""


@dataclass(frozen=True, slots=True)
class CentralGroup:
    """A group. Its offsets are beside it (``state``)."""

    group_id: str
    state: CentralGroupState = CentralGroupState.EMPTY
    flag: RebalanceFlag = RebalanceFlag.IDLE
    generation: int = 0
    epoch: int = 0
    """That of the coordinator that has written the generation."""
    stored_members: int = 0
    """The members in its node; 0: Kafka 0.8's members may use the group."""
    may_be_later: bool = False
    """Whether members may know a later generation: the node that has it was malformed, and is as long as there are owners in it."""
    session_timeout_ms: int = 0
    """The longest session timeout, as its node has it: how long a new coordinator waits for the owners."""
    owners: Owners = field(default_factory=dict)
    shares: Mapping[str, Share] = field(default_factory=dict)
    """The same by member (``shares_of``)."""
    processes: frozenset[str] = frozenset()
    """The processes that were members when the generation began (``GenerationNode.processes``)."""
    members: Mapping[str, CentralMember] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    """The owners that a new coordinator has found, and that have not registered."""
    leases: Mapping[str, CentralMember] = field(default_factory=dict)
    """Evicted members that may still read: their session timers run on."""
    failures: int = 0
    """The rebalances, one after the other, in which a member did not start."""
    is_failing: bool = False
    """Whether a member did not start in the running rebalance."""
    regexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The patterns of members -> the topics that they match."""
    regex_version: int | None = None
    """The version of the topic image in which the patterns were matched."""
    is_resolving: bool = False
    reason: str = ""
    """Why the members were stopped, the last time."""

    @property
    def failures_so_far(self) -> int:
        """The same with the running rebalance, as it is now."""
        return self.failures + 1 if self.is_failing else 0

    @property
    def patterns(self) -> frozenset[str]:
        """The patterns of all members."""
        return frozenset(member.pattern for member in self.members.values() if member.pattern is not None)

    @property
    def is_deserted(self) -> bool:
        """Whether there is no member, none that may come back, and none that may still read."""
        return not (self.members or self.found or self.leases)

    @property
    def has_unknown_members(self) -> bool:
        """Whether it has members that are not known: after an election, one that owns nothing is not found, but registers."""
        return self.is_deserted and self.stored_members > 0

    def topics_of(self, member: CentralMember) -> dict[str, int]:
        """Return the topics that a member reads -> its threads for each: fewer if a pattern matches too many topics."""
        if member.pattern is None:
            return dict(member.topics)
        matched = self.regexes.get(member.pattern, ())
        return dict.fromkeys(matched, min(member.streams, max(1, MOST_THREADS // max(1, len(matched)))))

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that members read."""
        return frozenset(topic for member in self.members.values() for topic in self.topics_of(member))

    def share_of(self, member_id: str) -> Share:
        """Return the share of a member."""
        return self.shares.get(member_id, _NO_SHARE)

    def has_member_in(self, state: MemberState) -> bool:
        """Whether a member is in this state."""
        return state in map(_STATE_OF, self.members.values())

    def all_members_are_in(self, state: MemberState) -> bool:
        """Whether each member is in this state."""
        return countOf(map(_STATE_OF, self.members.values()), state) == len(self.members)


def shares_of(owners: Owners) -> Mapping[str, Share]:
    """Return the share of each member that owns partitions."""
    shares: dict[str, dict[TopicPartition, int]] = {}
    for partition, owner in owners.items():
        shares.setdefault(owner.member_id, {})[partition] = owner.thread
    return shares


def owner_of(text: str) -> ConsumerThread:
    """Return the thread of an owner's text. Any other text is taken for a member, which never registers."""
    try:
        return decode_owner(text.encode(errors="surrogatepass"), "")
    except ProtocolError:
        return ConsumerThread(text, 0)
