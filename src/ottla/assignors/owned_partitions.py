"""The previous owners of partitions, derived from the members' claims, which may conflict.

Must not know the new assignment. Invariant: a partition has at most one owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ottla.protocol.sticky_user_data import StickyUserData
from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """``by_member``: member id -> the partitions that it may keep.

    ``disputed``: the partitions that several members claim in the same generation, so that none owns them. ``earlier``: partition
    -> its owner in the generation before the latest one that any member claims, if a member reports it.
    """

    by_member: Mapping[str, list[TopicPartition]]
    disputed: Set[TopicPartition]
    earlier: Mapping[TopicPartition, str]

    def owners(self) -> dict[TopicPartition, str]:
        """Partition -> the member that may keep it."""
        return {tp: member_id for member_id, owned in self.by_member.items() for tp in owned}


def resolve_claims(claims: Mapping[str, StickyUserData], partitions: Set[TopicPartition]) -> OwnedPartitions:
    """Resolve the claims of members. If two claim a partition, the later generation counts; in the same generation neither does.

    ``partitions`` are the existing ones of subscribed topics.
    """
    latest = max((claim.generation for claim in claims.values()), default=-1)
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    earlier: dict[TopicPartition, tuple[int, str]] = {}
    for member_id in sorted(claims):
        claimed, generation = claims[member_id]
        for tp in dict.fromkeys(claimed):
            if tp not in partitions:
                continue
            rival = best.get(tp)
            if rival is None or generation > rival[0]:
                best[tp] = (generation, member_id)
            elif generation == rival[0]:
                best[tp] = (generation, None)
            if generation < latest and (tp not in earlier or generation > earlier[tp][0]):
                earlier[tp] = (generation, member_id)
    by_member: dict[str, list[TopicPartition]] = {member_id: [] for member_id in claims}
    for tp, (_, owner) in best.items():
        if owner is not None:
            by_member[owner].append(tp)
    disputed = frozenset(tp for tp, (_, owner) in best.items() if owner is None)
    return OwnedPartitions(by_member, disputed, {tp: owner for tp, (_, owner) in earlier.items()})
