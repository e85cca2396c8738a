"""``roundrobin``: assigns the partitions of all topics one by one to the members in turn.

Source: Kafka's RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from ottla.assignors.interface import (
    Cluster,
    ConsumerPartitionAssignor,
    MemberAssignment,
    MemberSubscription,
    in_order,
    subscribed_topics,
)
from ottla.types import TopicPartition


class RoundRobinAssignor(ConsumerPartitionAssignor):
    """Assigns partitions, sorted by topic and number, to members in turn, skipping those that did not subscribe."""

    name = "roundrobin"

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """See ``ConsumerPartitionAssignor.assign``."""
        shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        turns = cycle(in_order(members, members))
        for topic in subscribed_topics(cluster, members):
            for number in range(cluster.partitions[topic]):
                taker = next(member_id for member_id in turns if topic in members[member_id].topics)
                shares[taker].append(TopicPartition(topic, number))
        return {member_id: MemberAssignment(tuple(share)) for member_id, share in shares.items()}
