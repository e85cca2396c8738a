"""The queue from a network thread to the application: notifications, and the application's only place to sleep.

Owns the queue and its lock; must not know what a notification means, nor event loops. Invariant: what was put is drained once, in
order, and whoever waits wakes when something is put: a thread in ``wait``, an event loop by what it left with ``arm``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable


class NotificationQueue:
    """Put by the network thread (and ``wake`` by anybody), drained by the application thread."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._ready = threading.Condition()
        self._woken = False
        self._tell: Callable[[], object] | None = None

    def put_all(self, items: Iterable[object]) -> None:
        """Add notifications and wake whoever waits."""
        with self._ready:
            self._items.extend(items)
            self._wake()

    def wake(self) -> None:
        """End the present or the next ``wait`` without a notification."""
        with self._ready:
            self._woken = True
            self._wake()

    def _wake(self) -> None:
        self._ready.notify_all()
        if self._tell is not None:
            tell, self._tell = self._tell, None
            tell()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until there is a notification, ``wake`` is called or ``timeout`` (seconds) is over; whether there is one."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._items) or self._woken, timeout)
            self._woken = False
            return bool(self._items)

    def arm(self, tell: Callable[[], object]) -> bool:
        """Instead of ``wait``: have ``tell`` called once, by whoever puts or wakes next; False: there is something already.

        ``tell`` runs on any thread and must neither wait nor raise. However much comes before it is armed again, it is called once.
        """
        # Left first, then looked: a signal handler may put something in between, in this very thread.
        with self._ready:
            self._tell = tell
            if self._items or self._woken:
                self._tell, self._woken = None, False
                return False
            return True

    def disarm(self) -> None:
        """Nobody waits any more."""
        with self._ready:
            self._tell = None

    def drain(self) -> list[object]:
        """Take all that is there."""
        # Exchanged, not cleared: a signal handler may put something in between, in this very thread.
        with self._ready:
            items, self._items = self._items, deque()
        return list(items)
