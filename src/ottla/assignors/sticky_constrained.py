"""The sticky assignment if all members subscribed to the same topics: the numbers of partitions differ by at most one.

Must not know the source of the previous assignment. Invariant: each partition is assigned to one member, and a member keeps its
partitions up to its quota (if racks matter, only those in its rack).

Source: ``ConstrainedAssignmentBuilder`` of Kafka's sticky assignors. Kafka visits members in the order of a hash table; here they
are visited in the order of their ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.assignors.owned_partitions import OwnedPartitions
from ottla.assignors.rack_affinity import RackAffinity
from ottla.types import TopicPartition


def share(partitions: Sequence[TopicPartition], owned: OwnedPartitions, affinity: RackAffinity) -> dict[str, list[TopicPartition]]:
    """Assign the sorted ``partitions``; returns those of each member."""
    if not owned.by_member:
        return {}
    builder = _Builder(len(partitions), owned, affinity)
    kept = builder.keep()
    free = affinity.hardest_first(tp for tp in partitions if tp not in kept)
    builder.assign(builder.assign_by_rack(free) if affinity.matters else free)
    return builder.shares


class _Builder:
    """The assignment in progress. Members in ``_below`` have fewer partitions than the quota; those in ``_at`` have reached it."""

    def __init__(self, total: int, owned: OwnedPartitions, affinity: RackAffinity) -> None:
        self.shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in sorted(owned.by_member)}
        self._owned = owned
        self._affinity = affinity
        self._quota, self._larger = divmod(total, len(self.shares))
        self._below: list[str] = []
        self._at: list[str] = []

    def keep(self) -> set[TopicPartition]:
        """Let all members keep their partitions, up to their quota; return all that are kept."""
        kept: set[TopicPartition] = set()
        for member_id, share in self.shares.items():
            owned = [tp for tp in self._owned.by_member[member_id] if not self._affinity.mismatch(member_id, tp)]
            owned.sort(key=lambda tp: (tp.partition, tp.topic))
            if len(owned) < self._quota:
                share += owned
                self._below.append(member_id)
            elif len(owned) > self._quota and self._larger:
                share += owned[: self._quota + 1]
                self._larger -= 1
            else:
                share += owned[: self._quota]
                self._at.append(member_id)
            kept.update(share)
        return kept

    def assign_by_rack(self, free: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members in their racks as far as quotas allow; return the others."""
        left: list[TopicPartition] = []
        turn = 0
        for tp in free:
            index = self._next_in_rack(self._below, tp, turn)
            if index is not None:
                member_id = self._below[index]
                if self._receive(member_id, tp):
                    self._below.pop(index)
                    self._at.append(member_id)
                else:
                    index += 1
                turn = index % len(self._below) if self._below else 0
                continue
            index = self._next_in_rack(self._at, tp, 0) if self._larger else None
            if index is None:
                left.append(tp)
            else:
                self._receive(self._at.pop(index), tp)
                self._larger -= 1
        return left

    def assign(self, free: Sequence[TopicPartition]) -> None:
        """Assign partitions one by one to the members below the quota in turn, then one more to each of the others."""
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
        """Assign a partition; return whether the member has reached its quota."""
        self.shares[member_id].append(tp)
        return len(self.shares[member_id]) == self._quota

    def _next_in_rack(self, members: Sequence[str], tp: TopicPartition, turn: int) -> int | None:
        """The index of the next member in a rack of the partition, from index ``turn`` on."""
        indexes = (index % len(members) for index in range(turn, turn + len(members)))
        return next((index for index in indexes if self._affinity.same_rack(members[index], tp)), None)
