"""The first step of a sticky assignor: what members may keep, and which partitions are then without an owner.

Must not know the sizes of shares. Invariant: a partition is kept by one member or it is free, whatever the assignments were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from ottla.assignors.server import EMPTY, Assignment


class RetainedPartitions(NamedTuple):
    """``targets``: what each member keeps. ``sizes``: of how many partitions that is. ``free``: by topic, in the order of ids, the
    partitions that no member keeps, ascending; a topic that has none is left out.
    """

    targets: dict[str, Assignment]
    sizes: dict[str, int]
    free: dict[UUID, Sequence[int]]


def keep(before: Mapping[str, Assignment], members: Iterable[str], counts: Mapping[UUID, int]) -> RetainedPartitions:
    """What the members had, less what is not wanted any more, and what is left.

    ``counts``: the number of partitions of each topic that is wanted, in the order of ids. Of two members with the same partition
    (no assignor of ours gives such an answer, but a log may hold one) the first by id keeps it.
    """
    targets = {member_id: before.get(member_id, EMPTY) for member_id in members}
    sizes: dict[str, int] = {}
    owned: dict[UUID, list[int]] = {topic_id: [] for topic_id in counts}
    # By identity, since the hash of a UUID is computed in Python, each time; all its ids stay alive as long as ``before`` does.
    known = {id(topic_id): numbers for topic_id, numbers in owned.items()}
    stale: list[str] = []
    for member_id, target in targets.items():
        size = 0
        for topic_id, numbers in target.items():
            of_topic = known.get(id(topic_id))
            if of_topic is None:
                of_topic = owned.get(topic_id)
                if of_topic is None:
                    stale.append(member_id)
                    continue
                known[id(topic_id)] = of_topic
            of_topic.extend(numbers)
            size += len(numbers)
        sizes[member_id] = size
    for member_id in stale:
        targets[member_id] = {topic_id: numbers for topic_id, numbers in before[member_id].items() if topic_id in counts}
    free: dict[UUID, Sequence[int]] = {}
    for topic_id, of_topic in owned.items():
        every = _numbers(counts[topic_id])
        unowned = _number_set(counts[topic_id]).difference(of_topic) if of_topic else every
        if unowned:
            free[topic_id] = sorted(unowned) if of_topic else every
        if len(of_topic) + len(unowned) != len(every):
            _settle(targets, sizes, topic_id, len(every))
    return RetainedPartitions(targets, sizes, free)


def _settle(targets: dict[str, Assignment], sizes: dict[str, int], topic_id: UUID, count: int) -> None:
    """Take from members what others have as well, and what does not exist."""
    taken: set[int] = set()
    for member_id in sorted(targets):
        had = targets[member_id].get(topic_id, ())
        numbers = tuple(number for number in had if 0 <= number < count and number not in taken)
        taken.update(numbers)
        if numbers != had:
            changed = {**targets[member_id], topic_id: numbers}
            targets[member_id] = {one: some for one, some in changed.items() if some}
            sizes[member_id] -= len(had) - len(numbers)


@lru_cache(64)
def _numbers(count: int) -> tuple[int, ...]:
    """The partitions of a topic, kept: most topics of a cluster have as many as others."""
    return tuple(range(count))


@lru_cache(64)
def _number_set(count: int) -> frozenset[int]:
    return frozenset(range(count))
