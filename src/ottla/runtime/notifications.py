"""The queue from a network thread to the application: notifications, and the application's only place to sleep.

Owns the queue and its lock; must not know what a notification means. Invariant: what was put is drained once, in order, and whoever
waits wakes when something is put.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable


class NotificationQueue:
    """Put by the network thread (and ``wake`` by anybody), drained by the application thread."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._ready = threading.Condition()
        self._woken = False

    def put_all(self, items: Iterable[object]) -> None:
        """Add notifications and wake whoever waits."""
        with self._ready:
            self._items.extend(items)
            self._ready.notify_all()

    def wake(self) -> None:
        """End the present or the next ``wait`` without a notification."""
        with self._ready:
            self._woken = True
            self._ready.notify_all()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until there is a notification, ``wake`` is called or ``timeout`` (seconds) is over; whether there is one."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._items) or self._woken, timeout)
            self._woken = False
            return bool(self._items)

    def drain(self) -> list[object]:
        """Take all that is there."""
        # Exchanged, not cleared: a signal handler may put something in between, in this very thread.
        with self._ready:
            items, self._items = self._items, deque()
        return list(items)
