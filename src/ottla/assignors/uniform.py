"""``uniform`` (KIP-848): all members get the same number of partitions, and as few partitions as possible move.

If all members subscribed to the same topics, as is nearly always the case, the result is optimal: sizes differ by at most one, and
the number of partitions that move is minimal. Must not know epochs and reconciliation. Invariants: every partition of a subscribed
topic has one owner, even if the previous assignments were invalid; the result does not depend on the order of the mappings.

Source: the uniform assignor of Apache Kafka 4.3's group coordinator. Kafka visits members in the order of a hash table; here the
larger shares go first to members that have more partitions already, so that never more partitions move than in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from uuid import UUID

from ottla.assignors.retained import keep
from ottla.assignors.server import Assignment, GroupSpec
from ottla.assignors.uniform_heterogeneous import assign_heterogeneous


def assign(group: GroupSpec) -> dict[str, Assignment]:
    """Distribute the partitions of all subscribed topics evenly.

    Raises ``AssignmentError`` if a member subscribed to a topic that does not exist.
    """
    if not group.members:
        return {}
    return _assign_homogeneous(group) if group.homogeneous else assign_heterogeneous(group)


def _assign_homogeneous(group: GroupSpec) -> dict[str, Assignment]:
    counts = {topic_id: group.topics[topic_id].partitions for topic_id in sorted(group.subscribed)}
    targets, sizes, free = keep(group.assignments, group.members, counts)
    takers: list[tuple[list[str], int]] = []
    given_up: dict[UUID, list[int]] = {}
    for members, change in _changes(sizes, sum(counts.values())):
        if change > 0:
            takers.append((members, change))
            continue
        for member_id in members:
            targets[member_id] = _cut(targets[member_id], -change, given_up)
    for topic_id, numbers in given_up.items():
        free[topic_id] = sorted([*free.get(topic_id, ()), *numbers])
    _deal(takers, targets, {topic_id: tuple(free[topic_id]) for topic_id in counts if topic_id in free})
    return targets


def _changes(sizes: Mapping[str, int], total: int) -> Iterator[tuple[list[str], int]]:
    """The members that gain or lose partitions, and how many. The members and their order depend only on ids.

    Some members get one partition more than the others: first those that have exactly that many, then those with more, then those
    with fewer than the others (whose shares change anyway), then the rest.
    """
    by_size: dict[int, list[str]] = {}
    for member_id, size in sizes.items():
        by_size.setdefault(size, []).append(member_id)
    smaller, one_more = divmod(total, len(sizes))
    for size in sorted(by_size, key=lambda size: (0 if size > smaller else 1 if size < smaller else 2, size)):
        members = by_size[size]
        larger = min(one_more, len(members))
        one_more -= larger
        if size == smaller:
            yield nsmallest(larger, members), 1
        elif size == smaller + 1:
            yield nlargest(len(members) - larger, members), -1
        else:
            members.sort()
            yield members[:larger], smaller + 1 - size
            yield members[larger:], smaller - size


def _cut(target: Assignment, surplus: int, given_up: dict[UUID, list[int]]) -> Assignment:
    """The assignment without its last ``surplus`` partitions, which are added to ``given_up``."""
    kept = dict(target)
    for topic_id in sorted(target, reverse=True):
        numbers = kept.pop(topic_id)
        stay = max(len(numbers) - surplus, 0)
        given_up.setdefault(topic_id, []).extend(numbers[stay:])
        surplus -= len(numbers) - stay
        if stay:
            kept[topic_id] = numbers[:stay]
        if not surplus:
            break
    return kept


def _deal(takers: Iterable[tuple[list[str], int]], targets: dict[str, Assignment], free: Mapping[UUID, tuple[int, ...]]) -> None:
    """Assign the free partitions to the takers: slice by slice of each topic, so that a member reads few topics."""
    topics = iter(free.items())
    numbers: tuple[int, ...] = ()
    start = 0
    for members, number in takers:
        for member_id in members:
            target = dict(targets[member_id])
            missing = number
            while missing:
                if start == len(numbers):
                    topic_id, numbers = next(topics)
                    start = 0
                share = numbers[start : start + missing]
                start += len(share)
                missing -= len(share)
                had = target.setdefault(topic_id, share)
                if had is not share:
                    target[topic_id] = tuple(sorted(had + share))
            targets[member_id] = target
