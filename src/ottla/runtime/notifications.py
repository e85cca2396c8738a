"""The queue from a network thread to the application: notifications, and the application's only place to sleep.

Owns the queue, and the moment in which the application has the GIL to itself; must not know what a notification means, nor event
loops. Invariant: what was put is drained once, in order, and whoever waits wakes when something is put: a thread in ``wait``, an
event loop by what it left with ``arm``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

_WAKE: list[object] = []
"""Put to end a wait: nothing to drain."""


class NotificationQueue:
    """Put by the network thread (and ``wake`` by anybody), drained by the application thread.

    On a queue that a signal handler may put into while its own thread is in here.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[list[object]] = SimpleQueue()
        self._next: list[object] = []
        """What ended the latest wait."""
        self._tells: deque[Callable[[], object]] = deque(maxlen=1)
        self._sleeping = False
        self._taken = threading.Lock()
        """Locked from a put that woke the application until it waits again."""

    @property
    def sleeping(self) -> bool:
        """Whether somebody waits."""
        return self._sleeping or bool(self._tells)

    def put_all(self, items: Iterable[object]) -> bool:
        """Add notifications and wake whoever waits; whether anybody did."""
        sleeping = self.sleeping
        if sleeping:
            self._taken.acquire(blocking=False)
        self._put([*items])
        return sleeping

    def give_way(self, timeout: float) -> None:
        """Let the application, which was woken, get to its next wait before this thread goes on; ``timeout`` in seconds.

        It needs the GIL for that, which this thread would keep for as long as it has something to do.
        """
        self._taken.acquire(timeout=timeout)

    def wake(self) -> None:
        """End the present or the next ``wait`` without a notification."""
        self._put(_WAKE)

    def _put(self, items: list[object]) -> None:
        self._queue.put(items)
        with contextlib.suppress(IndexError):  # no event loop waits
            self._tells.pop()()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until there is a notification, ``wake`` is called or ``timeout`` (seconds) is over; whether there is one."""
        self._let_go_on()
        if not self._next:
            self._sleeping = True
            try:
                self._next = self._queue.get(timeout=timeout)
            except Empty:
                return False
            finally:
                self._sleeping = False
        return bool(self._next)

    def arm(self, tell: Callable[[], object]) -> bool:
        """Instead of ``wait``: have ``tell`` called once, by whoever puts or wakes next; False: there is something already.

        ``tell`` runs on any thread and must neither wait nor raise. However much comes before it is armed again, it is called once.
        """
        self._let_go_on()
        # Left first, then looked: what comes in between is either seen or told.
        self._tells.append(tell)
        if self._next or not self._queue.empty():
            self._tells.clear()
            return False
        return True

    def _let_go_on(self) -> None:
        if self._taken.locked():
            self._taken.release()

    def disarm(self) -> None:
        """Nobody waits any more."""
        self._tells.clear()

    def drain(self) -> list[object]:
        """Take all that is there."""
        items, self._next = self._next, []
        with contextlib.suppress(Empty):
            while True:
                items = items + self._queue.get_nowait()
        return items
