"""``roundrobin``: all partitions of all topics are dealt out one by one.

Source: Kafka's RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from ottla.assignors.interface import MemberSubscription, in_order
from ottla.types import TopicPartition


class RoundRobinAssignor:
    """Deals partitions in the order of topic and number to members in their order, passing over those who did not subscribe."""

    name = "roundrobin"

    def assign(
        self, members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
    ) -> dict[str, tuple[TopicPartition, ...]]:
        """See ``Assignor.assign``."""
        shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        subscribed = {topic for member in members.values() for topic in member.topics}
        dealt_to = cycle(in_order(members, members))
        for topic in sorted(subscribed & partitions.keys()):
            for number in range(partitions[topic]):
                taker = next(member_id for member_id in dealt_to if topic in members[member_id].topics)
                shares[taker].append(TopicPartition(topic, number))
        return {member_id: tuple(share) for member_id, share in shares.items()}
