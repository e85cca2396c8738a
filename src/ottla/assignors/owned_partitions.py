"""Which partitions members owned before, where their claims conflict as well.

Must not know what becomes of them. Invariant: a partition has at most one owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from ottla.protocol.sticky_user_data import StickyUserData
from ottla.types import TopicPartition


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """``held``: by member id what it may keep. ``disputed``: what several members claim in the same generation, so none owns it.

    ``earlier``: the owner of a partition in a generation before the latest one, if a member reports it.
    """

    held: Mapping[str, list[TopicPartition]]
    disputed: Set[TopicPartition]
    earlier: Mapping[TopicPartition, str]

    def owners(self) -> dict[TopicPartition, str]:
        """The member that may keep each partition."""
        return {tp: member_id for member_id, held in self.held.items() for tp in held}


def resolve_claims(said: Mapping[str, StickyUserData], partitions: Set[TopicPartition]) -> OwnedPartitions:
    """Of two who claim a partition the one with the later generation is right; in the same generation neither is.

    ``partitions`` are those that exist and are wanted.
    """
    latest = max((claim.generation for claim in said.values()), default=-1)
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    earlier: dict[TopicPartition, tuple[int, str]] = {}
    for member_id in sorted(said):
        held, generation = said[member_id]
        for tp in dict.fromkeys(held):
            if tp not in partitions:
                continue
            rival = best.get(tp)
            if rival is None or generation > rival[0]:
                best[tp] = (generation, member_id)
            elif generation == rival[0]:
                best[tp] = (generation, None)
            if generation < latest and (tp not in earlier or generation > earlier[tp][0]):
                earlier[tp] = (generation, member_id)
    mine: dict[str, list[TopicPartition]] = {member_id: [] for member_id in said}
    for tp, (_, holder) in best.items():
        if holder is not None:
            mine[holder].append(tp)
    disputed = frozenset(tp for tp, (_, holder) in best.items() if holder is None)
    return OwnedPartitions(mine, disputed, {tp: holder for tp, (_, holder) in earlier.items()})
