"""How the calls of an ``AsyncConsumer`` wait on its event loop: for the network thread, for each other, and for listeners.

Owns the futures of waiting calls, and the tasks that listeners run in. Must not know what a call does. Invariants: after each
notification, every call that waits for news looks again; a listener that has begun is never interrupted by the call that waits for
it, except when the consumer is closed and the timeout has passed.

All of it runs on the event loop, except the one function that the network thread calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.errors import IllegalStateError
from ottla.runtime import clock
from ottla.runtime.network_thread import NotificationQueue

_log = logging.getLogger(__name__)

LAST_WORD = 1.0
"""Seconds that a cancelled listener has for its ``finally`` blocks."""


class Waiters:
    """The waiting calls. There may be several, and the first one that runs handles all notifications, so all are woken."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        """In the order in which they began to wait and are woken."""
        self._listening = 0
        """How many of them wait for news."""

    def wake(self) -> None:
        """Make every call look again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def sleep(self, until: int | None = None) -> None:
        """Wait until ``wake()``, or until a time (monotonic ms)."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = None
        if until is not None:
            timer = loop.call_later(max(0, until - clock.now().mono) / 1000, _set, future)
        self._waiting[future] = None
        try:
            await future
        finally:
            del self._waiting[future]
            if timer is not None:
                timer.cancel()

    async def wait_for_news(self, notifications: NotificationQueue, until: int | None) -> None:
        """Wait until the network thread notifies, or until a time (monotonic ms)."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: no call waits
                loop.call_soon_threadsafe(self.wake)

        if not notifications.arm(tell):
            self.wake()  # arm() has replaced the callback of the other calls
            return
        self._listening += 1
        try:
            await self.sleep(until)
        finally:
            self._listening -= 1
            if not self._listening:
                notifications.disarm()


class ListenerTasks:
    """Listeners and commit callbacks that are coroutines, each in its own task."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._tasks: list[asyncio.Task[Any]] = []
        """The latest last: before a listener are those in whose calls it was called."""
        self._alone: set[asyncio.Task[Any]] = set()
        """Those whose call was cancelled."""
        self._unraised: Exception | None = None
        """What a listener has raised after its call was cancelled."""

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def run(self, awaitable: Awaitable[Any], check: Callable[[], None], on_left: Callable[[], None]) -> BaseException | None:
        """Run what a listener returned; return what it raised.

        ``check`` may raise, after each wake-up, to stop waiting for the listener; then, and when this is cancelled, ``on_left`` is
        called when the listener has ended.
        """
        task: asyncio.Task[Any] = asyncio.ensure_future(_awaited(awaitable))
        task.add_done_callback(lambda _: self._waiters.wake())
        self._tasks.append(task)
        try:
            while not task.done():
                await self._waiters.sleep()
                check()
        except BaseException:
            self._alone.add(task)
            task.add_done_callback(lambda task: self._end_alone(task, on_left))
            raise
        self._tasks.remove(task)
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    async def settle(self, check: Callable[[], None]) -> None:
        """Wait for the listeners of cancelled calls, and raise what one of them has raised."""
        while self._alone:
            await self._waiters.sleep()
            check()
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error

    async def end(self, deadline: float) -> None:
        """Wait for them to end, until a deadline (monotonic seconds); then cancel them."""
        others = self.others()
        if others:
            _, pending = await asyncio.wait(others, timeout=max(0.0, deadline - clock.monotonic()))
            for task in pending:
                _log.warning("a listener had not finished when its consumer was closed: it is cancelled")
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=LAST_WORD)

    def others(self) -> list[asyncio.Task[Any]]:
        """The listeners that do not wait for the current task. If a listener calls this, those before it wait for it."""
        me = asyncio.current_task()
        return self._tasks[self._tasks.index(me) + 1 :] if me in self._tasks else self._tasks[:]

    def log_unraised(self) -> None:
        """Log it, since no later call can raise it."""
        if self._unraised is not None:
            _log.warning("a listener failed whose call was cancelled: %r", self._unraised)

    def _end_alone(self, task: asyncio.Task[Any], on_left: Callable[[], None]) -> None:
        """The listener of a cancelled call has ended: the rebalance goes on; the next poll raises what it raised."""
        self._tasks.remove(task)
        self._alone.remove(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._unraised = error
        try:
            on_left()
        except IllegalStateError as closed:
            _log.debug("a listener outlived its consumer: %s", closed)
        self._waiters.wake()


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
