"""In which order commits were asked for, so that one that is sent again takes back neither a later one nor another member's.

Owns the numbers of commits, which of them are under way, and up to which each partition was committed, or given up. Must not know
requests or errors. Invariant: what the coordinator has taken of a partition is followed only by what was asked for later.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.commands import Offsets
from ottla.types import TopicPartition


class CommitOrder:
    """See the module. A commit goes by the number it got when it was asked for."""

    def __init__(self) -> None:
        self._last = 0
        self._under_way: set[int] = set()
        self._taken: dict[TopicPartition, int] = {}
        self._given_up: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<CommitOrder {self._last} asked for, {sorted(self._under_way)} under way>"

    def next(self) -> int:
        """The number of a commit that is asked for now."""
        self._last += 1
        return self._last

    def may_leave(self, number: int) -> bool:
        """Whether no later commit is under way: what becomes of that one has to be known before an earlier one is sent again."""
        return all(other < number for other in self._under_way)

    def left(self, number: int, offsets: Offsets) -> Offsets:
        """What is still to be said of a commit: all but the partitions of which the coordinator has taken a later one."""
        return {tp: position for tp, position in offsets.items() if self._taken.get(tp, 0) < number}

    def sent(self, number: int) -> None:
        """A commit is on its way."""
        self._under_way.add(number)

    def ended(self, number: int, taken: Iterable[TopicPartition] = ()) -> None:
        """It was answered, or will not be; ``taken`` are the partitions that the coordinator has committed."""
        self._under_way.discard(number)
        for tp in taken:
            self._taken[tp] = max(number, self._taken.get(tp, 0))

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Whatever was asked for of these until now was asked for by who held them then."""
        self._given_up.update(dict.fromkeys(partitions, self._last))

    def given_up(self, number: int, offsets: Offsets) -> frozenset[TopicPartition]:
        """The partitions of a commit that were given up since it was asked for."""
        return frozenset(tp for tp in offsets if self._given_up.get(tp, 0) >= number)
