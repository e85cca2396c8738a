"""Runs the calls of a consumer on the threads that make them.

Owns the guard against two threads and the wait for notifications. Must not know what a call does. Invariants: one thread at a time
is inside a consumer; a call may call the consumer again on its own thread: a listener does, and so does a signal handler.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.mailbox import Await, Call, T
from ottla.consumer_base import END_GRACE
from ottla.errors import ConcurrentAccessError, OttlaError, WakeupError
from ottla.runtime import clock
from ottla.runtime.network_thread import NetworkThread
from ottla.types import GroupMembershipOperation, Now

_CHECK_INTERVAL = 0.5
"""Seconds between two checks that the network thread is still running."""


class ThreadDriver:
    """See the module.

    ``network_thread`` returns the network thread, which it starts first if necessary. ``check_open`` raises if the consumer is
    closed, ``check_running`` if the network thread has ended. ``on_interrupted`` is called when a call was interrupted.
    """

    def __init__(
        self,
        calls: ConsumerCalls,
        network_thread: Callable[[], NetworkThread],
        check_open: Callable[[], None],
        check_running: Callable[[NetworkThread], None],
        on_interrupted: Callable[[str], None],
    ) -> None:
        self._calls = calls
        self._network_thread = network_thread
        self._check_open = check_open
        self._check_running = check_running
        self._on_interrupted = on_interrupted
        # Re-entrant, since the handler of a signal may call the consumer while its own thread is in ``_enter``.
        self._guard = threading.RLock()
        self._calling_thread: int | None = None
        """The thread that is inside a call."""
        self._outermost: object | None = None
        """Identifies the outermost running call: a listener, or a signal handler, may call the consumer inside of it."""

    def run(self, call: Callable[[Now], Call[T]]) -> T:
        """Run one call from beginning to end on this thread. A signal handler may raise at any point of it."""
        this = object()
        try:
            self._enter(this)
            return self.drive(call(clock.now()))
        except WakeupError:
            self._on_interrupted("a call of the consumer was interrupted by wakeup()")
            raise
        except OttlaError:
            raise
        except BaseException as error:
            self._calls.interrupted = True
            self._on_interrupted(f"{type(error).__name__} interrupted a call of the consumer")
            raise
        finally:
            if self._outermost is this:
                self._outermost = self._calling_thread = None

    def close(
        self,
        timeout: float,
        operation: GroupMembershipOperation,
        network: NetworkThread | None,
        last_processed: Callable[[], bool],
    ) -> None:
        """Close the consumer within ``timeout`` (seconds), and ``network``, if it was started.

        ``last_processed``: whether the records of the last poll count as processed.
        """
        this = object()
        try:
            self._enter(this)
            if network is None:
                self._calls.shared.closed = True
                return
            started = clock.now()
            try:
                processed = last_processed()
                self.drive(self._calls.close(round(timeout * 1000), started, operation, last_processed=processed))
            finally:
                self._calls.shared.closed = True
                self._calls.leave_at_once(operation)
                network.close(max(END_GRACE, timeout - (clock.now().mono - started.mono) / 1000))
        finally:
            if self._outermost is this:
                self._outermost = self._calling_thread = None

    def _enter(self, call: object) -> None:
        """Note that this thread is inside a call. Raise ``ConcurrentAccessError`` if another thread is."""
        self._check_open()
        me = threading.get_ident()
        with self._guard:
            if self._calling_thread not in (None, me):
                raise ConcurrentAccessError(f"thread {me} calls a consumer that thread {self._calling_thread} is using")
            if self._outermost is None:
                self._outermost = call
            self._calling_thread = me

    def drive(self, call: Call[T]) -> T:
        """Run a call without the guard."""
        network = self._network_thread()
        try:
            wait = next(call)
            while True:
                while isinstance(wait, Await):
                    wait = call.throw(not_awaited(wait.awaitable))
                while True:
                    left = _CHECK_INTERVAL if wait.until is None else (wait.until - clock.now().mono) / 1000
                    if network.notifications.wait(max(0.0, min(left, _CHECK_INTERVAL))) or left <= _CHECK_INTERVAL:
                        break
                    self._check_running(network)
                wait = call.send(clock.now())
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            call.close()


def not_awaited(awaitable: Awaitable[Any]) -> TypeError:
    """The error for a listener or a callback that returned something to be awaited."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
    return TypeError(f"a listener returned {awaitable!r}, and a Consumer has no event loop: see AsyncConsumer")
