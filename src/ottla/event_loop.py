"""How the calls of an ``AsyncConsumer`` run on its event loop, and wait there: for the network thread, each other, and listeners.

Owns the driver of the calls, the guard against two tasks that poll, the futures of waiting calls, and the tasks in which listeners
run. Must not know what a call does. Invariants: one task at a time, and its own listener, polls or changes the subscription, while
any task may make the other calls; a cancelled call leaves everything that it has not returned to the next call; each notification
wakes every call that waits for one; a call that waits for a listener never interrupts it, except when the consumer is closed and
the timeout has passed.

Everything runs on the event loop, which nothing here blocks, except the callback of ``wait_for_news``, which any thread may call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.mailbox import Await, Call, T, Wait
from ottla.errors import ClosedError, ConcurrentAccessError, IllegalStateError, OttlaError, WakeupError
from ottla.runtime import clock
from ottla.runtime.network_thread import NetworkThread, NotificationQueue
from ottla.types import Now

_log = logging.getLogger(__name__)

YIELD_INTERVAL = 0.01
"""Seconds for which calls may succeed without letting other tasks run."""

CANCELLATION_TIME = 1.0
"""Seconds that a cancelled listener has for its ``finally`` blocks."""


class Waiters:
    """The waiting calls. The first one that runs handles all notifications, so all are woken."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        """In the order in which they started to wait, in which they are also woken."""
        self._news_waiters = 0
        """The number of calls that wait for notifications."""

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
        self._news_waiters += 1
        try:
            await self.sleep(until)
        finally:
            self._news_waiters -= 1
            if not self._news_waiters:
                notifications.disarm()


class ListenerTasks:
    """Listeners and commit callbacks that are coroutines, each in its own task."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters
        self._tasks: list[asyncio.Task[Any]] = []
        """The latest last. A listener may call the consumer, which may run another listener: the outer ones come first."""
        self._abandoned: set[asyncio.Task[Any]] = set()
        """The listeners that still run although their call was cancelled."""
        self._unraised: Exception | None = None
        """The exception of an abandoned listener, for the next poll to raise."""

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def run(self, awaitable: Awaitable[Any], check: Callable[[], None], on_end: Callable[[], None]) -> BaseException | None:
        """Run the awaitable that a listener returned, in a task; return the exception that it raised, if any.

        ``check`` runs after each wake-up and may raise to end the wait. Then, and if this is cancelled, the listener continues, and
        ``on_end`` is called when it has ended.
        """
        task: asyncio.Task[Any] = asyncio.ensure_future(_awaited(awaitable))
        task.add_done_callback(lambda _: self._waiters.wake())
        self._tasks.append(task)
        try:
            while not task.done():
                await self._waiters.sleep()
                check()
        except BaseException:
            self._abandoned.add(task)
            task.add_done_callback(lambda task: self._on_abandoned_end(task, on_end))
            raise
        self._tasks.remove(task)
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    async def settle(self, check: Callable[[], None]) -> None:
        """Wait for abandoned listeners, and raise the exception of one of them, if any."""
        while self._abandoned:
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
                _log.warning("a listener did not end within the timeout of close(), and is cancelled")
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=CANCELLATION_TIME)

    def others(self) -> list[asyncio.Task[Any]]:
        """The listeners that do not wait for the current task. If a listener calls this, the outer ones wait for it."""
        me = asyncio.current_task()
        return self._tasks[self._tasks.index(me) + 1 :] if me in self._tasks else self._tasks[:]

    def log_unraised(self) -> None:
        """Log the exception of an abandoned listener: no later call can raise it."""
        if self._unraised is not None:
            _log.warning("a listener whose call was cancelled failed: %r", self._unraised)

    def _on_abandoned_end(self, task: asyncio.Task[Any], on_end: Callable[[], None]) -> None:
        """Handle the end of an abandoned listener: the rebalance continues, and the next poll raises the listener's exception."""
        self._tasks.remove(task)
        self._abandoned.remove(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._unraised = error
        try:
            on_end()
        except IllegalStateError as closed:
            _log.debug("a listener ended after its consumer was closed: %s", closed)
        self._waiters.wake()


def _no_check() -> None:
    """The check of calls that ``close()`` does not end."""


class EventLoopDriver:
    """Runs the calls of one consumer on its event loop, each in the task that makes it.

    ``network_thread`` returns the network thread, which it starts first if necessary. ``check_open`` raises if the consumer is
    closed, ``check_running`` if the network thread has ended. ``on_interrupted`` is called when ``wakeup()`` has ended a call.
    """

    def __init__(
        self,
        calls: ConsumerCalls,
        network_thread: Callable[[], NetworkThread],
        check_open: Callable[[], None],
        check_running: Callable[[NetworkThread], None],
        on_interrupted: Callable[[str], None],
    ) -> None:
        self.waiters = Waiters()
        self.listeners = ListenerTasks(self.waiters)
        self.closing = False
        """Whether ``close()`` was called: it ends polls, and no further one starts."""
        self._calls = calls
        self._network_thread = network_thread
        self._check_open = check_open
        self._check_running = check_running
        self._on_interrupted = on_interrupted
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poller: asyncio.Task[Any] | None = None
        """The task that polls, or changes the subscription."""
        self._yield_at = 0.0
        """When a call next has to let other tasks run (monotonic seconds)."""

    def in_listener(self) -> bool:
        """Whether the current task is a listener."""
        return asyncio.current_task() in self.listeners

    def check_loop(self) -> None:
        """Raise if the consumer is closed, or belongs to another event loop than the running one."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise IllegalStateError(
                "the consumer belongs to another event loop", hint="create, use and close it within one asyncio.run()"
            )
        self._loop = loop

    async def run(self, call: Callable[[Now], Call[T]]) -> T:
        """Run one call from beginning to end in this task. Calls of other tasks may be running."""
        self.check_loop()
        try:
            return await self._yield_and_drive(call)
        except IllegalStateError as error:
            # For example: a partition is no longer assigned.
            if self.closing and not self.in_listener():
                raise ClosedError("the consumer was closed") from error
            raise

    async def run_alone(self, call: Callable[[Now], Call[T]]) -> T:
        """Run a call that only one task at a time may make: one that returns records or changes the subscription."""
        self.check_loop()
        me = asyncio.current_task()
        if me in self.listeners:
            return await self._yield_and_drive(call)
        self._check_not_closing()
        if self._poller is not None:
            raise ConcurrentAccessError(
                f"{_name(me)} polls a consumer, or changes what it reads, while {_name(self._poller)} does",
                hint="let one task poll; docs/consumer.md says how others may process the records. Or create a consumer for each",
            )
        self._poller = me
        try:
            await self.listeners.settle(self._check_not_closing)
            return await self._yield_and_drive(call, self._check_not_closing)
        finally:
            self._poller = None
            if self.closing:
                self.waiters.wake()

    async def end_poll(self, until: int) -> None:
        """Wait until the poll of another task, or its change of the subscription, has ended, or until a time (monotonic ms)."""
        self.waiters.wake()
        while self._poller is not None and clock.now().mono < until:
            await self.waiters.sleep(until)

    async def drive(self, call: Call[T], check: Callable[[], None] = _no_check) -> T:
        """Run a call. ``check`` raises when the call must not wait any longer."""
        network = self._network_thread()
        of_listener: BaseException | None = None
        try:
            step = next(call)
            while True:
                failure: BaseException | None = None
                if isinstance(step, Await):
                    failure = await self.listeners.run(step.awaitable, check, call.close)
                    of_listener = of_listener if failure is None else failure
                else:
                    await self._wait_for(step, call, network, check)
                step = call.send(clock.now()) if failure is None else call.throw(failure)
        except StopIteration as done:
            result: T = done.value
            return result
        except WakeupError:
            self._on_interrupted("a call of the consumer was interrupted by wakeup()")
            raise
        except (OttlaError, asyncio.CancelledError):
            raise
        except BaseException as error:
            if error is not of_listener:  # a call that raises what a listener has raised was not interrupted
                self._calls.interrupted = True
            raise

    async def _yield_and_drive(self, call: Callable[[Now], Call[T]], check: Callable[[], None] = _no_check) -> T:
        if clock.monotonic() >= self._yield_at:
            await asyncio.sleep(0)
            self._yield_at = clock.monotonic() + YIELD_INTERVAL
            self._check_open()
            check()
        return await self.drive(call(clock.now()), check)

    async def _wait_for(self, wait: Wait, call: Call[T], network: NetworkThread, check: Callable[[], None]) -> None:
        """Wait for notifications on behalf of a call. If the wait is cancelled, end the call."""
        try:
            check()
            self._check_running(network)
            await self.waiters.wait_for_news(network.notifications, wait.until)
            self._yield_at = clock.monotonic() + YIELD_INTERVAL
            check()
        except BaseException:
            call.close()
            raise

    def _check_not_closing(self) -> None:
        if self.closing:
            raise ClosedError("the consumer was closed")


def _name(task: asyncio.Task[Any] | None) -> str:
    return "code outside of any task" if task is None else f"task {task.get_name()!r}"


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
