"""Virtual time and counting ids, in place of sources that differ in each run.

Owns the events and their order. Must not know what happens in an event. Invariant: time moves only when a test moves it, and the
same calls give the same history.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable

from ottla.types import Now

START = Now(1_000_000, 1_700_000_000_000)


class Clock:
    """Events in the order of their time."""

    def __init__(self, start: Now = START) -> None:
        self.now = start
        self.events = 0
        """The number of events so far."""
        self.acting = ""
        """The host on which the present event happens, for traces."""
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now.mono + delay, next(self._count), action))

    def at(self, mono: int, action: Callable[[], None]) -> None:
        self.after(max(0, mono - self.now.mono), action)

    def step(self, until: int) -> bool:
        """The next event, if it comes before ``until``."""
        if not self._events or self._events[0][0] > until:
            self.move_to(until)
            return False
        self.events += 1
        at, _, action = heapq.heappop(self._events)
        self.move_to(at)
        action()
        return True

    def run(self, duration: int) -> None:
        """Let time pass, with all its events (milliseconds)."""
        until = self.now.mono + duration
        while self.step(until):
            pass

    def set_wall(self, by: int) -> None:
        """Set the wall clock, forward or back (milliseconds)."""
        self.now = Now(self.now.mono, self.now.wall + by)

    def move_to(self, mono: int) -> None:
        """Let time pass up to ``mono``, without events."""
        self.now = Now(mono, self.now.wall + mono - self.now.mono)


class CountingIds:
    """Predictable ids: 1, 2, 3. ``first``: another number to begin with, where several processes generate ids."""

    def __init__(self, first: int = 1) -> None:
        self._numbers = itertools.count(first)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=next(self._numbers))

    def new_id(self) -> str:
        return str(self.new_uuid())
