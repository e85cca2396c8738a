"""``uniform`` where members subscribed to different topics: near balance, with every partition kept that can be.

Must not know the case where all members want the same: that one has an exact answer. Invariants: every partition of a subscribed
topic has one owner; the answer does not depend on the order of the mappings; balancing ends after a bounded number of sweeps.

Source: the uniform assignor of Apache Kafka 4.3's group coordinator. Balance means the number of partitions of a member, over
all topics, compared with the other subscribers of each of its topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from uuid import UUID

from ottla.assignors.retained import keep
from ottla.assignors.server import EMPTY, Assignment, GroupSpec

MAX_SWEEPS = 16
"""How often all topics are gone through for partitions that should move; each sweep leaves less to do for the next."""


def assign_heterogeneous(group: GroupSpec) -> dict[str, Assignment]:
    """The partitions of all subscribed topics. Raises ``AssignmentError`` if a member subscribed to one that does not exist."""
    return _Heterogeneous(group).build()


class _Heterogeneous:
    """One question on its way to its answer. Members are known by their place in the order of ids."""

    def __init__(self, group: GroupSpec) -> None:
        self._members = sorted(group.members)
        self._counts = {topic_id: group.topics[topic_id].partitions for topic_id in sorted(group.subscribed)}
        self._subscribers = _subscribers([group.members[member_id].topics for member_id in self._members])
        wanted = {member_id: _wanted(group, member_id) for member_id in self._members}
        self._before, sizes, self._free = keep(wanted, self._members, self._counts)
        self._loads = list(sizes.values())
        self._shares: dict[UUID, dict[int, list[int]]] = {topic_id: {} for topic_id in self._counts}
        for place, member_id in enumerate(self._members):
            for topic_id, numbers in self._before[member_id].items():
                self._shares[topic_id][place] = list(numbers)
        self._changed: set[int] = set()

    def build(self) -> dict[str, Assignment]:
        """Give out what is free, balance, and say what came of it."""
        order = sorted(self._counts, key=self._weight)
        for topic_id in order:
            self._give_out(topic_id)
        self._balance([topic_id for topic_id in order if len(self._subscribers[topic_id]) > 1])
        targets: dict[str, dict[UUID, tuple[int, ...]]] = {self._members[place]: {} for place in self._changed}
        for topic_id, shares in self._shares.items():
            for place in self._changed & shares.keys():
                if shares[place]:
                    targets[self._members[place]][topic_id] = tuple(sorted(shares[place]))
        return {member_id: targets.get(member_id, before) for member_id, before in self._before.items()}

    def _weight(self, topic_id: UUID) -> tuple[float, int, UUID]:
        """Topics with many partitions for each of few subscribers come first: they leave the least choice."""
        subscribers = len(self._subscribers[topic_id])
        return -self._counts[topic_id] / subscribers, subscribers, topic_id

    def _give_out(self, topic_id: UUID) -> None:
        """Each partition without an owner goes to a subscriber that has as few partitions as any."""
        if topic_id not in self._free:
            return
        takers = _rising(self._by_load(topic_id), self._loads)
        for number, place in zip(self._free[topic_id], takers, strict=False):
            self._receive(place, topic_id, number)

    def _balance(self, topics: list[UUID]) -> None:
        """Go through the topics until none of them has a partition to move, or often enough."""
        at_rest = 0
        for topic_id in topics * MAX_SWEEPS:
            at_rest = 0 if self._even_out(topic_id) else at_rest + 1
            if at_rest == len(topics):
                break

    def _even_out(self, topic_id: UUID) -> bool:
        """Move partitions of one topic from those who have most to those who have fewest; returns whether any moved."""
        shares, steps = self._shares[topic_id], self._by_load(topic_id)
        if self._loads[steps[-1]] - self._loads[steps[0]] <= 1:
            return False
        moved = False
        for giver, taker in zip(_falling(steps, self._loads, shares), _rising(steps, self._loads), strict=False):
            if self._loads[giver] - self._loads[taker] <= 1:
                break
            numbers = shares[giver]
            numbers.sort()
            self._receive(taker, topic_id, numbers.pop())
            self._loads[giver] -= 1
            self._changed.add(giver)
            moved = True
        return moved

    def _by_load(self, topic_id: UUID) -> list[int]:
        """The subscribers of a topic, those with the fewest partitions first."""
        return sorted(self._subscribers[topic_id], key=self._loads.__getitem__)

    def _receive(self, place: int, topic_id: UUID, number: int) -> None:
        self._shares[topic_id].setdefault(place, []).append(number)
        self._loads[place] += 1
        self._changed.add(place)


def _subscribers(subscriptions: list[frozenset[UUID]]) -> dict[UUID, list[int]]:
    """By topic the places of those who subscribed to it, in their order."""
    alike: dict[int, list[int]] = {}
    for place, topics in enumerate(subscriptions):
        alike.setdefault(id(topics), []).append(place)
    subscribers: dict[UUID, list[int]] = {}
    for places in alike.values():
        for topic_id in subscriptions[places[0]]:
            subscribers.setdefault(topic_id, []).extend(places)
    for places in subscribers.values():
        places.sort()
    return subscribers


# Loads change while these two iterate. They need not look back: a giver still has no fewer than any taker.


def _rising(steps: list[int], loads: Sequence[int]) -> Iterator[int]:
    """Who takes the next partition, without end: like water that rises over steps, it reaches the higher ones later.

    Each member of one level takes one partition and then is at the next level, together with those already there.
    """
    width = 0
    for level in count(loads[steps[0]]):
        while width < len(steps) and loads[steps[width]] == level:
            width += 1
        yield from steps[:width]


def _falling(steps: list[int], loads: Sequence[int], shares: Mapping[int, list[int]]) -> Iterator[int]:
    """Who gives the next partition, the mirror image: from the highest step down, passing over those who have none to give."""
    left = len(steps)
    reached: list[int] = []
    for level in range(loads[steps[-1]], 0, -1):
        while left and loads[steps[left - 1]] == level:
            left -= 1
            reached.append(steps[left])
        reached = [place for place in reached if shares.get(place)]
        yield from reached


def _wanted(group: GroupSpec, member_id: str) -> Assignment:
    """What a member had of the topics that it still subscribes to."""
    before = group.assignments.get(member_id, EMPTY)
    topics = group.members[member_id].topics
    if before.keys() <= topics:
        return before
    return {topic_id: numbers for topic_id, numbers in before.items() if topic_id in topics}
