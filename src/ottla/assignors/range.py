"""``range``: divides each topic separately into contiguous ranges, one for each of its subscribers.

Source: Kafka's RangeAssignor. Topics with the same number of partitions and the same subscribers get the same ranges, so that one
member reads all records with the same key (co-partitioning). If members have racks and some racks lack replicas of some partitions
(KIP-881), partitions go first to members in their racks, as far as the sizes of the shares and co-partitioning allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.assignors.interface import (
    Cluster,
    ConsumerPartitionAssignor,
    MemberAssignment,
    MemberSubscription,
    in_order,
    racks_matter,
    subscribed_topics,
)
from ottla.types import TopicPartition


class RangeAssignor(ConsumerPartitionAssignor):
    """Of ``p`` partitions and ``n`` subscribers, in order, the first ``p % n`` get one more than the others."""

    name = "range"

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``."""
        topics = [_Topic(topic, cluster, members) for topic in subscribed_topics(cluster, members)]
        if any(topic.racks_matter for topic in topics):
            _match_racks(topics)
        shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        for topic in topics:
            for member_id in topic.subscribers:
                topic.give(member_id, topic.free[: topic.remaining(member_id)])
                shares[member_id] += (TopicPartition(topic.name, number) for number in sorted(topic.given[member_id]))
        return {member_id: MemberAssignment(tuple(share)) for member_id, share in shares.items()}


class _Topic:
    """One topic during its assignment."""

    def __init__(self, name: str, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> None:
        self.name = name
        self.count = cluster.partitions[name]
        self.subscribers = in_order(members, (member_id for member_id in members if name in members[member_id].topics))
        self.free = list(range(self.count))
        self.given: dict[str, list[int]] = {member_id: [] for member_id in self.subscribers}
        self._size, self._larger = divmod(self.count, len(self.subscribers))
        self._rack = {member_id: members[member_id].rack or None for member_id in self.subscribers}
        self._racks = [cluster.racks_of(TopicPartition(name, number)) for number in range(self.count)]
        self.racks_matter = racks_matter((members[member_id] for member_id in self.subscribers), self._racks)

    def remaining(self, member_id: str) -> int:
        """How many more partitions a member may get."""
        return max(0, self._size + (self._larger > 0) - len(self.given[member_id]))

    def near(self, member_id: str, number: int) -> bool:
        """Whether a partition has a replica in the member's rack, or the member has no rack."""
        rack = self._rack[member_id]
        return rack is None or rack in self._racks[number]

    def give(self, member_id: str, numbers: Iterable[int]) -> None:
        """Give the member partitions, no more than it may get."""
        given = self.given[member_id]
        given += numbers
        self._larger -= len(given) > self._size and bool(numbers)
        self.free = [number for number in self.free if number not in given]


def _match_racks(topics: list[_Topic]) -> None:
    """Give partitions to members in their racks. Co-partitioned topics are matched together."""
    alike: dict[tuple[int, tuple[str, ...]], list[_Topic]] = {}
    for topic in topics:
        alike.setdefault((topic.count, tuple(topic.subscribers)), []).append(topic)
    for (count, subscribers), group in alike.items():
        (first, *others) = group
        if others:
            _match_together(group, count, subscribers)
        elif first.racks_matter:
            for member_id in subscribers:
                near = [number for number in first.free if first.near(member_id, number)]
                first.give(member_id, near[: first.remaining(member_id)])


def _match_together(topics: list[_Topic], count: int, subscribers: Iterable[str]) -> None:
    """Give each partition number to the first member whose rack matches in all topics."""
    for number in range(count):
        for member_id in subscribers:
            if all(topic.near(member_id, number) and topic.remaining(member_id) for topic in topics):
                for topic in topics:
                    topic.give(member_id, (number,))
                break
