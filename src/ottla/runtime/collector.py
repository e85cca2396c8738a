"""Python's garbage collector while a broker reads its logs: full collections are disabled until that is done.

The loaded objects stay alive, and each full collection would traverse all of them again: that took a third of the time in which
100,000 groups are loaded. Owns the collector's highest threshold meanwhile. Must not know what is read. Invariants: young garbage
is collected as usual; after the last broker has read its logs the threshold is the former one, unless the application has set
another, also in a forked child.
"""

from __future__ import annotations

import gc
import os
import threading

_NEVER = 2**31 - 1


class FullCollections:
    """The full collections of this process, which any number of brokers may disable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._usual = gc.get_threshold()

    def put_off(self) -> None:
        """Disable them until ``resume`` was called as often as this."""
        with self._lock:
            if not self._count:
                self._usual = gc.get_threshold()
                gc.set_threshold(*self._usual[:2], _NEVER)
            self._count += 1

    def resume(self) -> None:
        """Undo one ``put_off``; the last one restores the threshold."""
        with self._lock:
            self._count -= 1
            if not self._count:
                self._restore()

    def forked(self) -> None:
        """In a forked child: the code that disabled it does not run here."""
        self._lock = threading.Lock()
        if self._count:
            self._count = 0
            self._restore()

    def _restore(self) -> None:
        if gc.get_threshold()[2] == _NEVER:
            gc.set_threshold(*self._usual)


FULL_COLLECTIONS = FullCollections()
os.register_at_fork(after_in_child=FULL_COLLECTIONS.forked)
