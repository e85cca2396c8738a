"""Producer ids, each given out once.

Owns the next id and the end of the block that was put aside. Must not know producers. Invariant: an id is below a limit that
was stored before it was given out, so that no restart gives it out again; ids in the rest of a block are lost with a restart.
"""

from __future__ import annotations

from collections.abc import Callable

BLOCK = 1000


class ProducerIds:
    """Gives out producer ids. ``reserve`` stores a new limit before any id below it is used; it may raise ``ApiError``."""

    def __init__(self, first: int, reserve: Callable[[int], None]) -> None:
        self._next = self.limit = first
        self._reserve = reserve

    def allocate(self) -> int:
        """An id that was never given out."""
        if self._next == self.limit:
            self._reserve(self.limit + BLOCK)
            self.limit += BLOCK
        self._next += 1
        return self._next - 1
