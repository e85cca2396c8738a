"""The sharing of the sticky assignors where members want different topics: as even as their wishes allow.

Must not know where the claims came from. Invariants: every partition is given to a member that wants its topic; at the end no
member has two partitions more than a member that wants one of them.

Source: the general algorithm of Kafka's sticky assignors, which ends in the same sizes: first all members keep what they had, then
what is free goes to those who have least, then partitions move from those who have more to those who have less, until none can.
Where a partition of the same topic has gone the opposite way before, that one goes back instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.assignors.interface import MemberSubscription
from ottla.assignors.owned_partitions import OwnedPartitions
from ottla.assignors.rack_affinity import RackAffinity
from ottla.types import TopicPartition


def share(
    partitions: Sequence[TopicPartition], members: Mapping[str, MemberSubscription], claims: OwnedPartitions, affinity: RackAffinity
) -> dict[str, list[TopicPartition]]:
    """For each member what it gets; ``partitions`` are sorted."""
    sharing = _Sharing(members, claims, affinity)
    # Topics that few want come first: their partitions have the least choice.
    order = sorted(partitions, key=lambda tp: (len(sharing.wanting(tp.topic)), tp))
    free = [tp for tp in order if tp not in sharing.owner]
    sharing.hand_out(free)
    movable = [tp for tp in order if len(sharing.wanting(tp.topic)) > 1]
    if not sharing.gave_up:
        sharing.even_out([tp for tp in free if len(sharing.wanting(tp.topic)) > 1])
    sharing.even_out(movable)
    shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    for tp, owner in sharing.owner.items():
        shares[owner].append(tp)
    return shares


class _Sharing:
    """The current owners. ``gave_up``: whether a member does not want, or should not have, what it had."""

    def __init__(self, members: Mapping[str, MemberSubscription], claims: OwnedPartitions, affinity: RackAffinity) -> None:
        self.owner: dict[TopicPartition, str] = {}
        self.gave_up = False
        self._affinity = affinity
        self._earlier = claims.earlier
        self._wanting: dict[str, list[str]] = {}
        for member_id in sorted(members):
            for topic in dict.fromkeys(members[member_id].topics):
                self._wanting.setdefault(topic, []).append(member_id)
        self._loads = dict.fromkeys(members, 0)
        self._came_from: dict[TopicPartition, str] = {}
        for member_id, held in claims.held.items():
            for tp in held:
                if tp.topic in members[member_id].topics and not affinity.far(member_id, tp):
                    self.owner[tp] = member_id
                    self._loads[member_id] += 1
                else:
                    self.gave_up = True

    def wanting(self, topic: str) -> Sequence[str]:
        """The members that want a topic."""
        return self._wanting.get(topic, ())

    def hand_out(self, free: Iterable[TopicPartition]) -> None:
        """Each partition to the member that has least, if possible of those near to it."""
        left = []
        for tp in free:
            near = [one for one in self.wanting(tp.topic) if not self._affinity.far(one, tp)]
            if near:
                self._give(tp, self._poorest(near))
            else:
                left.append(tp)
        for tp in left:
            self._give(tp, self._poorest(self.wanting(tp.topic)))

    def even_out(self, partitions: Sequence[TopicPartition]) -> None:
        """Move partitions for as long as that makes shares more even."""
        moved = True
        while moved:
            moved = False
            for tp in partitions:
                taker = self._better_owner(tp)
                if taker is not None:
                    self._move(self._instead(tp, taker), taker)
                    moved = True

    def _better_owner(self, tp: TopicPartition) -> str | None:
        """A member with at least two partitions less; preferably the previous owner of this one."""
        limit = self._loads[self.owner[tp]] - 1
        before = self._earlier.get(tp)
        if before is not None and before in self.wanting(tp.topic) and self._loads[before] < limit:
            return before
        poorest = self._poorest(self.wanting(tp.topic))
        return poorest if self._loads[poorest] < limit else None

    def _instead(self, tp: TopicPartition, taker: str) -> TopicPartition:
        """The partition to move: one of the topic that has come from the taker to this owner before, if there is one."""
        owner = self.owner[tp]
        back = (
            one for one, source in self._came_from.items() if source == taker and one.topic == tp.topic and self.owner[one] == owner
        )
        return min(back, default=tp)

    def _move(self, tp: TopicPartition, taker: str) -> None:
        giver = self.owner[tp]
        if self._came_from.setdefault(tp, giver) == taker:
            del self._came_from[tp]
        self._loads[giver] -= 1
        self._give(tp, taker)

    def _give(self, tp: TopicPartition, taker: str) -> None:
        self.owner[tp] = taker
        self._loads[taker] += 1

    def _poorest(self, members: Sequence[str]) -> str:
        return min(members, key=lambda one: (self._loads[one], one))
