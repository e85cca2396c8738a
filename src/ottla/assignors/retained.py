"""The first step of a sticky assignor: the partitions that members keep, and those without an owner.

Must not know the sizes of shares. Invariant: each partition is kept by exactly one member or is free, even if the previous
assignments were invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from ottla.assignors.server import EMPTY, Assignment


class RetainedPartitions(NamedTuple):
    """``targets``: the partitions that each member keeps. ``sizes``: their numbers. ``free``: topic id, in ascending order -> the
    partitions that no member keeps, ascending; a topic without such partitions is missing.
    """

    targets: dict[str, Assignment]
    sizes: dict[str, int]
    free: dict[UUID, Sequence[int]]


def keep(before: Mapping[str, Assignment], members: Iterable[str], counts: Mapping[UUID, int]) -> RetainedPartitions:
    """Retain the members' partitions of topics that are still subscribed.

    ``counts``: subscribed topic id, in ascending order -> the number of its partitions. If two members have the same partition
    (Ottla's assignors do not assign like that, but a log may contain it) the first by id keeps it.
    """
    targets = {member_id: before.get(member_id, EMPTY) for member_id in members}
    sizes: dict[str, int] = {}
    owned: dict[UUID, list[int]] = {topic_id: [] for topic_id in counts}
    # Look up by identity, since Python computes the hash of a UUID each time. The ids are unique while ``before`` is alive.
    by_identity = {id(topic_id): numbers for topic_id, numbers in owned.items()}
    stale: list[str] = []
    for member_id, target in targets.items():
        size = 0
        for topic_id, numbers in target.items():
            of_topic = by_identity.get(id(topic_id))
            if of_topic is None:
                of_topic = owned.get(topic_id)
                if of_topic is None:
                    stale.append(member_id)
                    continue
                by_identity[id(topic_id)] = of_topic
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
            _remove_conflicts(targets, sizes, topic_id, len(every))
    return RetainedPartitions(targets, sizes, free)


def _remove_conflicts(targets: dict[str, Assignment], sizes: dict[str, int], topic_id: UUID, count: int) -> None:
    """Remove partitions that an earlier member has, too, and those that do not exist."""
    taken: set[int] = set()
    for member_id in sorted(targets):
        had = targets[member_id].get(topic_id, ())
        numbers = tuple(number for number in had if 0 <= number < count and number not in taken)
        taken.update(numbers)
        if numbers != had:
            changed = {**targets[member_id], topic_id: numbers}
            targets[member_id] = {topic_id: numbers for topic_id, numbers in changed.items() if numbers}
            sizes[member_id] -= len(had) - len(numbers)


@lru_cache(64)
def _numbers(count: int) -> tuple[int, ...]:
    """The partitions of a topic, cached: many topics of a cluster have the same number of partitions."""
    return tuple(range(count))


@lru_cache(64)
def _number_set(count: int) -> frozenset[int]:
    return frozenset(range(count))
