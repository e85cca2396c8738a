"""The queue from a network thread to the application: notifications, and the application's only place to sleep.

Owns the queue, and the moment in which the application has the GIL to itself; must not know what a notification means, nor event
loops. Invariants: notifications stay in the queue, in order, until their handler removes them, so that an exception of a signal
handler loses none; each put wakes a waiting thread in ``wait``, or an event loop by the callback passed to ``arm``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue


class NotificationQueue:
    """Put by the network thread (and ``wake`` by any thread), drained by the application thread.

    On a queue that a signal handler may put into while its own thread is in here.
    """

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        """Rung once for each put: to sleep on, and nothing is lost with it."""
        self._tells: deque[Callable[[], object]] = deque(maxlen=1)
        self._sleeping = False
        self._taken = threading.Lock()
        """Locked from a put that woke the application until it waits again."""

    @property
    def sleeping(self) -> bool:
        """Whether a thread waits."""
        return self._sleeping or bool(self._tells)

    def put_all(self, items: Iterable[object]) -> bool:
        """Add notifications and wake the waiting thread; return whether there was one."""
        sleeping = self.sleeping
        if sleeping:
            self._taken.acquire(blocking=False)
        self._items.extend(items)
        self._ring()
        return sleeping

    def give_way(self, timeout: float) -> None:
        """Let the application, which was woken, get to its next wait before this thread goes on; ``timeout`` in seconds.

        It needs the GIL for that, which this thread would keep for as long as it has something to do.
        """
        self._taken.acquire(timeout=timeout)

    def wake(self) -> None:
        """End the present or the next ``wait`` without a notification."""
        self._ring()

    def _ring(self) -> None:
        self._bell.put(None)
        with contextlib.suppress(IndexError):  # no event loop waits
            self._tells.pop()()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until there is a notification, ``wake`` is called or ``timeout`` (seconds) is over; whether there is one."""
        self._let_go_on()
        if not self._items:
            self._sleeping = True
            try:
                self._bell.get(timeout=timeout)
            except Empty:
                return False
            finally:
                self._sleeping = False
        return bool(self._items)

    def arm(self, tell: Callable[[], object]) -> bool:
        """Instead of ``wait``: have ``tell`` called once, by the next put or wake; False: there is something already.

        ``tell`` runs on any thread and must neither wait nor raise. However much comes before it is armed again, it is called once.
        """
        self._let_go_on()
        # Left first, then looked: what comes in between is either seen or told.
        self._tells.append(tell)
        if self._items or not self._bell.empty():
            self._tells.clear()
            return False
        return True

    def _let_go_on(self) -> None:
        if self._taken.locked():
            self._taken.release()

    def disarm(self) -> None:
        """Stop waiting."""
        self._tells.clear()

    def news(self) -> deque[object]:
        """All notifications, to be removed from the left when handled."""
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()
        return self._items

    def drain(self) -> list[object]:
        """Take all notifications; the caller may lose them."""
        news = self.news()
        return [news.popleft() for _ in range(len(news))]
