"""``range``: each topic by itself is cut into contiguous ranges, one for each of its subscribers.

Source: Kafka's RangeAssignor. Topics with the same number of partitions and the same subscribers are cut alike, so that
records with the same key meet in one member (co-partitioning).
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.assignors.interface import MemberSubscription, in_order
from ottla.types import TopicPartition


class RangeAssignor:
    """Of ``p`` partitions and ``n`` subscribers, in order, the first ``p % n`` get one more than the others."""

    name = "range"

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> dict[str, tuple[TopicPartition, ...]]:
        """See ``Assignor.assign``."""
        shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        for topic in sorted(partitions):
            subscribers = in_order(members, (one for one in members if topic in members[one].topics))
            start = 0
            for member_id, size in zip(subscribers, _sizes(partitions[topic], len(subscribers)), strict=True):
                shares[member_id] += (TopicPartition(topic, number) for number in range(start, start + size))
                start += size
        return {member_id: tuple(share) for member_id, share in shares.items()}


def _sizes(partitions: int, subscribers: int) -> list[int]:
    if not subscribers:
        return []
    size, left_over = divmod(partitions, subscribers)
    return [size + (place < left_over) for place in range(subscribers)]
