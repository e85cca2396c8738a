"""How the calls of an ``AsyncConsumer`` wait on its event loop: for the network thread, for each other, and for listeners.

Owns the futures of waiting calls, and the tasks in which listeners run. Must not know what a call does. Invariants: each
notification wakes every call that waits for one; a call that waits for a listener never interrupts it, except when the consumer is
closed and the timeout has passed.

Everything runs on the event loop, except the callback of ``wait_for_news``, which any thread may call.
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

CANCELLATION_TIME = 1.0
"""Seconds that a cancelled listener has for its ``finally`` blocks."""


class Waiters:
    """The waiting calls. The first one that runs handles all notifications, so all are woken."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        """In the order in which they began to wait, which is that in which they are woken."""
        self._listening = 0
        """How many of them wait for notifications."""

    def wake(self) -> None:
        """Wake all waiting calls."""
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
        """Wait for a notification of the network thread, or until a time (monotonic ms)."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no call waits
                loop.call_soon_threadsafe(self.wake)

        if not notifications.arm(wake):
            self.wake()  # arm() has removed the callback of the other calls
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
        """The latest last. A listener may call the consumer, which may run another listener: the outer ones come first."""
        self._alone: set[asyncio.Task[Any]] = set()
        """The listeners whose call was cancelled."""
        self._unraised: Exception | None = None
        """The exception of a listener whose call was cancelled."""

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def run(self, awaitable: Awaitable[Any], check: Callable[[], None], on_left: Callable[[], None]) -> BaseException | None:
        """Run the awaitable that a listener returned, in a task; return the exception that it raised, if any.

        ``check`` runs after each wake-up and may raise to end the wait. Then, and if this is cancelled, the listener goes on, and
        ``on_left`` is called when it has ended.
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
        """Wait for the listeners of cancelled calls, and raise the exception of one of them."""
        while self._alone:
            await self._waiters.sleep()
            check()
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error

    async def end(self, deadline: float) -> None:
        """Wait for the listeners to end until a deadline (monotonic seconds), then cancel them."""
        others = self.others()
        if others:
            _, pending = await asyncio.wait(others, timeout=max(0.0, deadline - clock.monotonic()))
            for task in pending:
                _log.warning("a listener had not finished when its consumer was closed: it is cancelled")
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=CANCELLATION_TIME)

    def others(self) -> list[asyncio.Task[Any]]:
        """The listeners that do not wait for the current task. If a listener calls this, the outer ones wait for it."""
        me = asyncio.current_task()
        return self._tasks[self._tasks.index(me) + 1 :] if me in self._tasks else self._tasks[:]

    def log_unraised(self) -> None:
        """Log the exception of a listener whose call was cancelled: no later call can raise it."""
        if self._unraised is not None:
            _log.warning("a listener whose call was cancelled failed: %r", self._unraised)

    def _end_alone(self, task: asyncio.Task[Any], on_left: Callable[[], None]) -> None:
        """End the listener of a cancelled call: the rebalance goes on, and the next poll raises the listener's exception."""
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
