"""The sharing of the sticky assignors where all members want the same topics: sizes differ by one at most.

Must not know where the claims came from. Invariant: every partition is given to one member, and a member keeps what it held as far
as its share is large enough (and, where racks matter, as far as it is near).

Source: the algorithm for equal subscriptions of Kafka's sticky assignors. Kafka visits members in the order of a hash table; here
they are visited by id.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.assignors.owned_partitions import OwnedPartitions
from ottla.assignors.rack_affinity import RackAffinity
from ottla.types import TopicPartition


def share(partitions: Sequence[TopicPartition], claims: OwnedPartitions, affinity: RackAffinity) -> dict[str, list[TopicPartition]]:
    """For each member what it gets; ``partitions`` are sorted."""
    if not claims.held:
        return {}
    sharing = _Sharing(len(partitions), claims, affinity)
    kept = sharing.keep()
    free = affinity.hardest_first(tp for tp in partitions if tp not in kept)
    sharing.deal(sharing.deal_nearby(free) if affinity.matters else free)
    return sharing.shares


class _Sharing:
    """Members on the way to their quotas: ``below`` have less than the smaller one, ``at`` have just that and may get one more."""

    def __init__(self, total: int, claims: OwnedPartitions, affinity: RackAffinity) -> None:
        self.shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in sorted(claims.held)}
        self._claims = claims
        self._affinity = affinity
        self._quota, self._larger = divmod(total, len(self.shares))
        self._below: list[str] = []
        self._at: list[str] = []

    def keep(self) -> set[TopicPartition]:
        """Let all members keep what they had, up to their quota, and return all of it."""
        kept: set[TopicPartition] = set()
        for member_id, mine in self.shares.items():
            held = [tp for tp in self._claims.held[member_id] if not self._affinity.far(member_id, tp)]
            held.sort(key=lambda tp: (tp.partition, tp.topic))
            if len(held) < self._quota:
                mine += held
                self._below.append(member_id)
            elif len(held) > self._quota and self._larger:
                mine += held[: self._quota + 1]
                self._larger -= 1
            else:
                mine += held[: self._quota]
                self._at.append(member_id)
            kept.update(mine)
        return kept

    def deal_nearby(self, free: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Deal to members in the racks of each partition as far as quotas allow; what is left over is returned."""
        left: list[TopicPartition] = []
        turn = 0
        for tp in free:
            place = self._next_near(self._below, tp, turn)
            if place is not None:
                member_id = self._below[place]
                if self._receive(member_id, tp):
                    self._below.pop(place)
                    self._at.append(member_id)
                else:
                    place += 1
                turn = place % len(self._below) if self._below else 0
                continue
            place = self._next_near(self._at, tp, 0) if self._larger else None
            if place is None:
                left.append(tp)
            else:
                self._receive(self._at.pop(place), tp)
                self._larger -= 1
        return left

    def deal(self, free: Sequence[TopicPartition]) -> None:
        """One by one: round and round to those below the quota, then one more to those at it."""
        turn = 0
        for tp in free:
            if not self._below:
                self._receive(self._at.pop(0), tp)
                continue
            turn %= len(self._below)
            if self._receive(self._below[turn], tp):
                self._at.append(self._below.pop(turn))
            else:
                turn += 1

    def _receive(self, member_id: str, tp: TopicPartition) -> bool:
        """Whether the member is at its quota now."""
        self.shares[member_id].append(tp)
        return len(self.shares[member_id]) == self._quota

    def _next_near(self, members: Sequence[str], tp: TopicPartition, turn: int) -> int | None:
        """The place of the next member in a rack of the partition, from one's turn on."""
        places = (place % len(members) for place in range(turn, turn + len(members)))
        return next((place for place in places if self._affinity.same_rack(members[place], tp)), None)
