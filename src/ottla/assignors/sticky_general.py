"""The sticky assignment if members subscribed to different topics: as balanced as the subscriptions allow.

Must not know the source of the previous assignment. Invariants: each partition is assigned to a subscriber of its topic; at the end
no member has two partitions more than another subscriber of one of its topics.

Source: ``GeneralAssignmentBuilder`` of Kafka's sticky assignors, which results in the same sizes. First all members keep their
partitions, then the free ones go to the members with the fewest, then partitions move from members with more to members with fewer,
until none can. If a partition of the same topic moved in the opposite direction before, that one moves back instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.assignors.interface import MemberSubscription
from ottla.assignors.owned_partitions import OwnedPartitions
from ottla.assignors.rack_affinity import RackAffinity
from ottla.types import TopicPartition


def share(
    partitions: Sequence[TopicPartition], members: Mapping[str, MemberSubscription], owned: OwnedPartitions, affinity: RackAffinity
) -> dict[str, list[TopicPartition]]:
    """Assign the sorted ``partitions``; returns those of each member."""
    builder = _Builder(members, owned, affinity)
    # Topics with few subscribers come first: their partitions have the least choice.
    order = sorted(partitions, key=lambda tp: (len(builder.subscribers(tp.topic)), tp))
    free = [tp for tp in order if tp not in builder.owner]
    builder.assign_free(free)
    movable = [tp for tp in order if len(builder.subscribers(tp.topic)) > 1]
    if not builder.lost_any:
        builder.balance([tp for tp in free if len(builder.subscribers(tp.topic)) > 1])
    builder.balance(movable)
    shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
    for tp, owner in builder.owner.items():
        shares[owner].append(tp)
    return shares


class _Builder:
    """The assignment in progress. ``lost_any``: whether a member cannot keep a partition: not subscribed, or in another rack."""

    def __init__(self, members: Mapping[str, MemberSubscription], owned: OwnedPartitions, affinity: RackAffinity) -> None:
        self.owner: dict[TopicPartition, str] = {}
        self.lost_any = False
        self._affinity = affinity
        self._earlier = owned.earlier
        self._subscribers: dict[str, list[str]] = {}
        for member_id in sorted(members):
            for topic in dict.fromkeys(members[member_id].topics):
                self._subscribers.setdefault(topic, []).append(member_id)
        self._loads = dict.fromkeys(members, 0)
        self._came_from: dict[TopicPartition, str] = {}
        for member_id, owned_by_member in owned.by_member.items():
            for tp in owned_by_member:
                if tp.topic in members[member_id].topics and not affinity.mismatch(member_id, tp):
                    self.owner[tp] = member_id
                    self._loads[member_id] += 1
                else:
                    self.lost_any = True

    def subscribers(self, topic: str) -> Sequence[str]:
        """The subscribers of a topic."""
        return self._subscribers.get(topic, ())

    def assign_free(self, free: Iterable[TopicPartition]) -> None:
        """Assign each partition to the member with the fewest, if possible of those in its racks."""
        left = []
        for tp in free:
            near = [member_id for member_id in self.subscribers(tp.topic) if not self._affinity.mismatch(member_id, tp)]
            if near:
                self._give(tp, self._least_loaded(near))
            else:
                left.append(tp)
        for tp in left:
            self._give(tp, self._least_loaded(self.subscribers(tp.topic)))

    def balance(self, partitions: Sequence[TopicPartition]) -> None:
        """Move partitions while that improves the balance."""
        moved = True
        while moved:
            moved = False
            for tp in partitions:
                taker = self._better_owner(tp)
                if taker is not None:
                    self._move(self._to_move(tp, taker), taker)
                    moved = True

    def _better_owner(self, tp: TopicPartition) -> str | None:
        """A member with at least two partitions fewer than the owner; preferably the previous owner of this one."""
        limit = self._loads[self.owner[tp]] - 1
        before = self._earlier.get(tp)
        if before is not None and before in self.subscribers(tp.topic) and self._loads[before] < limit:
            return before
        least_loaded = self._least_loaded(self.subscribers(tp.topic))
        return least_loaded if self._loads[least_loaded] < limit else None

    def _to_move(self, tp: TopicPartition, taker: str) -> TopicPartition:
        """The partition to move: one of the topic that moved from the taker to this owner before, or else ``tp``."""
        owner = self.owner[tp]
        back = (
            moved
            for moved, source in self._came_from.items()
            if source == taker and moved.topic == tp.topic and self.owner[moved] == owner
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

    def _least_loaded(self, members: Sequence[str]) -> str:
        return min(members, key=lambda member_id: (self._loads[member_id], member_id))
