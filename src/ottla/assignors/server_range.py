"""``range`` of consumer groups (KIP-848): divides each topic separately into contiguous ranges, one for each of its subscribers.

Not sticky: must not depend on previous assignments. Invariant: topics with the same number of partitions and the same subscribers
get the same ranges, so that one member reads all records with the same key (co-partitioning).

Source: the range assignor of Apache Kafka 4.3's group coordinator, which computes the same assignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from uuid import UUID

from ottla.assignors.server import Assignment, GroupSpec


def assign(group: GroupSpec) -> dict[str, Assignment]:
    """Of ``p`` partitions and ``n`` subscribers, static members first, the first ``p % n`` get one more than the others.

    Raises ``AssignmentError`` if a member subscribed to a topic that does not exist.
    """
    targets: dict[str, dict[UUID, tuple[int, ...]]] = {member_id: {} for member_id in _in_order(group)}
    ranges = cache(_ranges)
    for topic_id, subscribers in _subscribers(group, targets).items():
        for target, numbers in zip(subscribers, ranges(group.topics[topic_id].partitions, len(subscribers)), strict=False):
            target[topic_id] = numbers
    before = group.assignments
    return {member_id: before[member_id] if target == before.get(member_id) else target for member_id, target in targets.items()}


def _in_order(group: GroupSpec) -> list[str]:
    """Static members by instance id, which survives restarts, then the others by member id."""
    members = group.members
    static = sorted((member.instance_id, member_id) for member_id, member in members.items() if member.instance_id is not None)
    return [member_id for _, member_id in static] + sorted(
        member_id for member_id, member in members.items() if member.instance_id is None
    )


def _subscribers(
    group: GroupSpec, targets: dict[str, dict[UUID, tuple[int, ...]]]
) -> dict[UUID, list[dict[UUID, tuple[int, ...]]]]:
    """Topic id -> the targets of its subscribers, in the members' order."""
    topics = sorted(group.subscribed)
    if group.homogeneous:
        all_targets = list(targets.values())
        return dict.fromkeys(topics, all_targets)
    subscribers: dict[UUID, list[dict[UUID, tuple[int, ...]]]] = {topic_id: [] for topic_id in topics}
    for member_id, target in targets.items():
        for topic_id in group.members[member_id].topics:
            subscribers[topic_id].append(target)
    return subscribers


def _ranges(partitions: int, subscribers: int) -> Sequence[tuple[int, ...]]:
    """The ranges of the subscribers that get partitions."""
    size, left_over = divmod(partitions, subscribers)
    ends = [count * size + min(count, left_over) for count in range(1, min(partitions, subscribers) + 1)]
    return [tuple(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
