"""Timers by key: what is due when.

Owns the deadlines. Must not know clocks or what a timer is for. Invariant: a key has one deadline at most, the one set last.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable

Key = tuple[Hashable, ...]


class Timers:
    """Deadlines in milliseconds on the monotonic clock. A timer that was moved or cancelled stays in the heap until its time."""

    def __init__(self) -> None:
        self._live: dict[Key, int] = {}
        self._heap: list[tuple[int, int, Key]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def set(self, key: Key, at: int) -> None:
        """Make ``key`` due at ``at``, and at no other time."""
        number = next(self._numbers)
        self._live[key] = number
        heapq.heappush(self._heap, (at, number, key))
        if len(self._heap) > 64 + 4 * len(self._live):
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def cancel(self, key: Key) -> None:
        """Forget a timer, if there is one."""
        self._live.pop(key, None)

    def next_at(self) -> int | None:
        """When the next timer is due; ``None`` while there is none."""
        while self._heap and self._live.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, mono: int) -> Key | None:
        """A timer whose time has come, taken out; ``None`` where there is none."""
        at = self.next_at()
        if at is None or at > mono:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._live[key]
        return key
