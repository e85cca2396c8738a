"""Matches the racks of members with those of partitions, for the sticky assignors (KIP-881).

Must not know the assignment. Invariant: if racks do not matter, no member is in another rack than a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.assignors.interface import Cluster, MemberSubscription, racks_matter
from ottla.types import TopicPartition


class RackAffinity:
    """The racks of members and partitions. ``matters``: whether the assignment depends on them."""

    def __init__(self, cluster: Cluster, members: Mapping[str, MemberSubscription], partitions: Sequence[TopicPartition]) -> None:
        racks = {tp: cluster.racks_of(tp) for tp in partitions}
        self.matters = racks_matter(members.values(), list(racks.values()))
        self._racks = racks if self.matters else {}
        self._rack_of = {member_id: member.rack for member_id, member in members.items() if member.rack} if self.matters else {}

    def mismatch(self, member_id: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack in which the partition has no replica."""
        rack = self._rack_of.get(member_id)
        return rack is not None and rack not in self._racks.get(tp, ())

    def same_rack(self, member_id: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack in which the partition has a replica."""
        return self._rack_of.get(member_id) in self._racks.get(tp, ())

    def hardest_first(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions: those with the fewest members in their racks first, otherwise in the given order."""
        members_in: dict[str | None, int] = {}
        for rack in self._rack_of.values():
            members_in[rack] = members_in.get(rack, 0) + 1
        return sorted(partitions, key=lambda tp: sum(members_in.get(rack, 0) for rack in self._racks.get(tp, ())))
