"""``uniform`` if members subscribed to different topics: nearly balanced, and members keep as many partitions as possible.

Must not know the case of equal subscriptions, which has an optimal result. Invariants: every partition of a subscribed topic has
one owner; the result does not depend on the order of the mappings; balancing ends after a bounded number of sweeps.

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
"""The maximum number of passes over all topics to balance them. Each pass moves fewer partitions than the one before."""


def assign_heterogeneous(group: GroupSpec) -> dict[str, Assignment]:
    """Distribute the partitions of all subscribed topics. Raises ``AssignmentError`` for a subscribed topic that does not exist."""
    return _Builder(group).build()


class _Builder:
    """The assignment in progress. A member is identified by its index in the order of ids."""

    def __init__(self, group: GroupSpec) -> None:
        self._members = sorted(group.members)
        self._counts = {topic_id: group.topics[topic_id].partitions for topic_id in sorted(group.subscribed)}
        self._subscribers = _subscribers([group.members[member_id].topics for member_id in self._members])
        retained = {member_id: _retained(group, member_id) for member_id in self._members}
        self._before, sizes, self._free = keep(retained, self._members, self._counts)
        self._loads = list(sizes.values())
        self._shares: dict[UUID, dict[int, list[int]]] = {topic_id: {} for topic_id in self._counts}
        for index, member_id in enumerate(self._members):
            for topic_id, numbers in self._before[member_id].items():
                self._shares[topic_id][index] = list(numbers)
        self._changed: set[int] = set()

    def build(self) -> dict[str, Assignment]:
        """Assign the free partitions, balance the topics, and return the assignment."""
        order = sorted(self._counts, key=self._weight)
        for topic_id in order:
            self._give_out(topic_id)
        self._balance([topic_id for topic_id in order if len(self._subscribers[topic_id]) > 1])
        targets: dict[str, dict[UUID, tuple[int, ...]]] = {self._members[index]: {} for index in self._changed}
        for topic_id, shares in self._shares.items():
            for index in self._changed & shares.keys():
                if shares[index]:
                    targets[self._members[index]][topic_id] = tuple(sorted(shares[index]))
        return {member_id: targets.get(member_id, before) for member_id, before in self._before.items()}

    def _weight(self, topic_id: UUID) -> tuple[float, int, UUID]:
        """The sort key of a topic: topics with many partitions and few subscribers come first, since they have the least choice."""
        subscribers = len(self._subscribers[topic_id])
        return -self._counts[topic_id] / subscribers, subscribers, topic_id

    def _give_out(self, topic_id: UUID) -> None:
        """Assign each free partition to the subscriber with the fewest partitions."""
        if topic_id not in self._free:
            return
        takers = _rising(self._by_load(topic_id), self._loads)
        for number, index in zip(self._free[topic_id], takers, strict=False):
            self._receive(index, topic_id, number)

    def _balance(self, topics: list[UUID]) -> None:
        """Balance topic by topic until no partition moves, or ``MAX_SWEEPS`` times."""
        unchanged = 0
        for topic_id in topics * MAX_SWEEPS:
            unchanged = 0 if self._balance_topic(topic_id) else unchanged + 1
            if unchanged == len(topics):
                break

    def _balance_topic(self, topic_id: UUID) -> bool:
        """Move partitions of one topic from the members with the most to those with the fewest; return whether any moved."""
        shares, members = self._shares[topic_id], self._by_load(topic_id)
        if self._loads[members[-1]] - self._loads[members[0]] <= 1:
            return False
        moved = False
        for giver, taker in zip(_falling(members, self._loads, shares), _rising(members, self._loads), strict=False):
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

    def _receive(self, index: int, topic_id: UUID, number: int) -> None:
        self._shares[topic_id].setdefault(index, []).append(number)
        self._loads[index] += 1
        self._changed.add(index)


def _subscribers(subscriptions: list[frozenset[UUID]]) -> dict[UUID, list[int]]:
    """Topic id -> the indexes of its subscribers, ascending."""
    by_subscription: dict[int, list[int]] = {}
    for index, topics in enumerate(subscriptions):
        by_subscription.setdefault(id(topics), []).append(index)
    subscribers: dict[UUID, list[int]] = {}
    for indexes in by_subscription.values():
        for topic_id in subscriptions[indexes[0]]:
            subscribers.setdefault(topic_id, []).extend(indexes)
    for indexes in subscribers.values():
        indexes.sort()
    return subscribers


# Loads change while these two iterate. They need not look back: a giver never has fewer partitions than a taker.


def _rising(members: list[int], loads: Sequence[int]) -> Iterator[int]:
    """The members that take the next partitions, endlessly: always one with the fewest.

    Each member with the lowest load takes one partition, and then has the same load as the members of the next level.
    """
    width = 0
    for level in count(loads[members[0]]):
        while width < len(members) and loads[members[width]] == level:
            width += 1
        yield from members[:width]


def _falling(members: list[int], loads: Sequence[int], shares: Mapping[int, list[int]]) -> Iterator[int]:
    """The members that give the next partitions: always one with the most, skipping those without partitions of the topic."""
    left = len(members)
    reached: list[int] = []
    for level in range(loads[members[-1]], 0, -1):
        while left and loads[members[left - 1]] == level:
            left -= 1
            reached.append(members[left])
        reached = [index for index in reached if shares.get(index)]
        yield from reached


def _retained(group: GroupSpec, member_id: str) -> Assignment:
    """A member's previous partitions of the topics to which it still subscribes."""
    before = group.assignments.get(member_id, EMPTY)
    topics = group.members[member_id].topics
    if before.keys() <= topics:
        return before
    return {topic_id: numbers for topic_id, numbers in before.items() if topic_id in topics}
