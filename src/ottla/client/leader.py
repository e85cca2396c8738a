"""What the leader of a classic group does besides: it knows what all members want, and says who reads what.

Owns the wishes of the group's members and the partition counts that the last assignment was made for. Must not know requests,
states or timers. Invariant: an assignment is made with metadata that is newer than the join it belongs to, and that names every
topic of the group.
"""

from __future__ import annotations

from typing import Any

from ottla.assignors import ASSIGNORS, Cluster, MemberAssignment, MemberSubscription
from ottla.client.metadata import Metadata, MetadataManager
from ottla.protocol.consumer_protocol import Assignment, decode_subscription, encode_assignment

_UNKNOWN_TOPIC_OR_PARTITION = 3


class Leadership:
    """One generation's leadership. Raises ``ProtocolError`` for a member whose wish can not be read."""

    def __init__(self, protocol: str, members: Any, metadata: MetadataManager) -> None:
        wishes = {item.member_id: (item.group_instance_id, decode_subscription(item.metadata)) for item in members}
        self._members = {
            member_id: MemberSubscription(wish.topics, instance_id, wish.rack, wish.owned, wish.generation, wish.user_data)
            for member_id, (instance_id, wish) in wishes.items()
        }
        self.topics = frozenset(topic for wish in self._members.values() for topic in wish.topics)
        """All topics that any member wants."""
        self._assignor = ASSIGNORS[protocol]()
        self._metadata = metadata
        self._fresh_after = metadata.request_update()
        self._counts: dict[str, int] | None = None

    def assign(self) -> dict[str, bytes] | None:
        """For each member id its assignment, encoded; ``None`` while the metadata is not fresh."""
        current = self._metadata.current
        if current.version <= self._fresh_after:
            return None
        if not self._metadata.follows_all and not all(topic in current.topics for topic in self.topics):
            self._fresh_after = self._metadata.request_update()
            return None
        self._counts = _partition_counts(current, self.topics)
        assigned = self._assignor.assign(Cluster(self._counts), self._members)
        answer: dict[str, bytes] = {}
        for member_id, share in assigned.items():
            known = share if isinstance(share, MemberAssignment) else MemberAssignment(tuple(share))
            answer[member_id] = encode_assignment(Assignment(known.partitions, known.user_data))
        return answer

    def let_stand(self) -> None:
        """What was assigned before stands (KIP-814), but new partitions are this leader's business all the same."""
        self._counts = _partition_counts(self._metadata.current, self.topics)

    def outdated(self) -> bool:
        """Whether there are partitions that nobody was assigned, or assigned ones that are gone."""
        current = self._metadata.current
        settled = self._metadata.follows_all or all(_is_settled(current, topic) for topic in self.topics)
        if self._counts is None or not settled:
            return False
        return self._counts != _partition_counts(current, self.topics)


def _partition_counts(metadata: Metadata, topics: frozenset[str]) -> dict[str, int]:
    """How many partitions each topic has that exists."""
    return {topic: count for topic in sorted(topics) if (count := len(metadata.partitions_for(topic)))}


def _is_settled(metadata: Metadata, topic: str) -> bool:
    """Whether the latest metadata describes a topic, or says that it does not exist."""
    known = metadata.topics.get(topic)
    return known is not None and (known.error is None or known.error.code == _UNKNOWN_TOPIC_OR_PARTITION)
