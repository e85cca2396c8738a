"""``Stream`` and the thread that polls for the streams of a ``Consumer``.

Owns the iterators, how they wait, the pump thread, and the calls that other threads make of a consumer with streams. Must not know
what a call does, nor which records a stream gets: ``Pump`` and ``Streams`` in ``client.calls`` decide that. Invariants: the calls
of a consumer with streams run on its pump thread alone; the pump thread refers to no ``Consumer`` and no ``Stream``, so both can be
garbage collected; however the pump ends, every stream ends or raises the reason.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import Any, Generic, Self

from ottla.client.calls.calls import ConsumerCalls
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Await, Call, T
from ottla.client.calls.pump import Pump
from ottla.client.calls.streams import StreamQueue, Streams
from ottla.config import ConsumerConfig
from ottla.consumer_base import END_GRACE, Caller
from ottla.errors import (
    ClosedError,
    ConcurrentAccessError,
    ConsumerTimeoutError,
    ForkedError,
    IllegalStateError,
    OttlaError,
    WakeupError,
)
from ottla.records import Record, Walk
from ottla.runtime import clock
from ottla.runtime.network_thread import NetworkThread
from ottla.thread_driver import ThreadDriver, not_awaited
from ottla.types import GroupMembershipOperation, K_co, Now, V_co

_log = logging.getLogger(__name__)

_CHECK_INTERVAL = 500
"""Milliseconds that the pump thread sleeps at most."""

_LEASE_INTERVAL = 0.1
"""Seconds between two checks of a stream whether the member has a lease again: see ``SharedState.lease_until``."""


class Stream(Generic[K_co, V_co]):
    """One of the streams of ``Consumer.streams()``: an iterator over records, for one thread.

    A record counts as processed when the next one is requested. The iterator ends when the consumer is closed. It raises

    - an error that ``poll()`` would raise (see docs/errors.md), when no record waits; unless the error is fatal, the iteration may
      continue;
    - ``ConsumerTimeoutError`` after ``consumer_timeout`` without a record, and ``WakeupError``, once, after ``wakeup()``: the
      iteration may continue;
    - ``ConcurrentAccessError`` in another thread than the one that has iterated so far, unless that one has ended.
    """

    __slots__ = ("_consumer", "_given", "_reader", "_thread", "_walk")

    def __init__(self, reader: StreamReader, consumer: object) -> None:
        self._reader = reader
        self._walk = reader.queue.walk
        self._consumer = consumer
        """Keeps the consumer alive."""
        self._thread = 0
        """The number of the thread that iterates."""
        self._given: Record[Any, Any] | None = None
        """The latest record that ``__next__`` has returned, or is returning."""

    def __repr__(self) -> str:
        return f"<Stream {self._reader.queue.name}>"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record[K_co, V_co]:
        me = get_ident()
        if me != self._thread:
            self._reader.claim()
            self._thread = me
        record: Record[K_co, V_co] | None = self._walk.current
        # If a signal handler raised after the latest record was created, that one is still to be returned.
        if record is None or record is self._given:
            record = next(self._walk)
        self._given = record
        return record


class PumpState:
    """What the pump thread and the streams share beside the queues.

    ``wake`` wakes the pump thread. ``may_begin`` returns whether a stream may begin another chunk.
    """

    def __init__(self, wake: Callable[[], object], may_begin: Callable[[], bool]) -> None:
        self.wake = wake
        self.may_begin = may_begin
        self.failure: OttlaError | None = None
        """The error that has ended the pump, which every stream raises. Set before the streams end."""
        # Re-entrant, since the handler of a signal may iterate while its own thread is in ``claim``.
        self.claiming = threading.RLock()
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise ``ForkedError`` in a forked child: it has no pump thread."""
        if os.getpid() != self._pid:
            raise ForkedError(f"this stream belongs to process {self._pid}, this is process {os.getpid()}")


class StreamReader:
    """The reading end of a stream: prepares the next record, and waits for it."""

    def __init__(self, name: str, timeout: int, state: PumpState) -> None:
        self.queue = StreamQueue(name, self._go_on, self._ring)
        self._timeout = timeout
        """Milliseconds; -1: no limit."""
        self._state = state
        self._woken = False
        """``wakeup()`` was called, and the stream has not raised ``WakeupError`` yet."""
        self._bell: SimpleQueue[None] = SimpleQueue()

    def claim(self) -> None:
        """Make the current thread the one that iterates. Raise ``ConcurrentAccessError`` if another one does."""
        self._state.check_process()
        queue, me = self.queue, threading.current_thread()
        with self._state.claiming:
            owner = queue.thread
            if isinstance(owner, threading.Thread) and owner is not me and owner.is_alive():
                raise ConcurrentAccessError(
                    f"{me.name} iterates over the stream {queue.name}, as {owner.name} does",
                    hint="let one thread iterate over each stream; streams({topic: n}) returns n of them",
                )
            queue.thread = me

    def wakeup(self) -> None:
        """Have the stream raise ``WakeupError``, now or at the next record. Any thread, and a signal handler, may call this."""
        self._woken = True
        self.queue.walk.interrupt()
        self._ring()

    def _ring(self) -> None:
        self._bell.put(None)

    def _go_on(self, walk: Walk) -> bool:
        """Finish the current record and prepare the next one; wait for it if necessary. False: the stream has ended."""
        del walk
        state, queue = self._state, self.queue
        state.check_process()
        if queue.thread is not threading.current_thread():  # it has the same number as an earlier thread
            self.claim()
        deadline = None if self._timeout < 0 else clock.now().mono + self._timeout
        while True:
            self._silence()
            may_begin = state.may_begin()
            ready = queue.advance(may_begin=may_begin)
            state.wake()  # there may be room, or one record less in hand
            if self._woken:
                self._woken = False
                raise WakeupError("wakeup() was called")
            if ready:
                queue.caller = Caller()
                return True
            self._raise_error()
            if queue.ended:
                return False
            self._wait(deadline, None if may_begin else _LEASE_INTERVAL)

    def _silence(self) -> None:
        """Forget earlier rings: what they announced is looked at after this."""
        with contextlib.suppress(Empty):
            while True:
                self._bell.get_nowait()

    def _raise_error(self) -> None:
        if self._state.failure is not None:
            raise self._state.failure.afresh()
        try:
            error, _ = self.queue.errors.popleft()
        except IndexError:  # there is none, or the pump has just removed it, since records have arrived
            return
        raise error

    def _wait(self, deadline: int | None, longest: float | None) -> None:
        """Wait until something rings, for at most ``longest`` seconds. Raise ``ConsumerTimeoutError`` at the deadline."""
        left = None if deadline is None else max(0, deadline - clock.now().mono) / 1000
        times = [time for time in (left, longest) if time is not None]
        try:
            self._bell.get(timeout=min(*times, threading.TIMEOUT_MAX) if times else None)
        except Empty:
            if deadline is not None and clock.now().mono >= deadline:
                message = f"the stream {self.queue.name} had no record for {self._timeout} ms"
                raise ConsumerTimeoutError(message) from None


class _Task:
    """A call that the pump thread runs. ``result`` gets its outcome."""

    def __init__(self, call: Callable[[Now], Call[Any]]) -> None:
        self.result: Future[Any] = Future()
        self.until = 0
        """When it continues, even without a notification (monotonic ms)."""
        self._start = call
        self._call: Call[Any] | None = None

    def step(self, now: Now) -> bool:
        """Continue the call until it waits; return whether it does, and has not ended."""
        try:
            if self._call is None:
                self._call = self._start(now)
                wait = next(self._call)
            else:
                wait = self._call.send(now)
            while isinstance(wait, Await):
                wait = self._call.throw(not_awaited(wait.awaitable))
        except StopIteration as done:
            self.result.set_result(done.value)
        except BaseException as error:
            self.result.set_exception(error)
        else:
            self.until = now.mono + _CHECK_INTERVAL if wait.until is None else wait.until
            return True
        return False

    def end(self, error: OttlaError) -> None:
        """End the call where it waits, with an error."""
        if self.result.done():
            return
        if self._call is not None:
            try:
                self._call.close()
            except Exception as closing:
                _log.error("a call of a consumer could not be ended", exc_info=closing)
        self.result.set_exception(error)


class PumpThread:
    """Runs the pump, and beside it the calls of other threads, until the consumer is closed or its network thread has ended."""

    def __init__(self, pump: Pump, calls: ConsumerCalls, network: NetworkThread, state: PumpState, name: str) -> None:
        self._pump = pump
        self._calls = calls
        self._network = network
        self._state = state
        self._inbox: deque[_Task] = deque()
        self._polling = _Task(pump.run)
        self._tasks = [self._polling]
        self._closing: _Task | None = None
        """The task that closes the consumer, at the latest the one in which a listener does that."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether this is the current thread: it runs a listener or a callback."""
        return threading.current_thread() is self._thread

    def run(self, call: Callable[[Now], Call[T]]) -> T:
        """Have the thread run a call; return its result."""
        task = _Task(call)
        self._inbox.append(task)
        self._state.wake()
        if self._ended:  # set before the thread looks at the inbox for the last time, so one of the two sees the other
            self._refuse()
        result: T = task.result.result()
        return result

    def close(self, call: Callable[[Now], Call[None]]) -> None:
        """End the pump, and have the thread run a last call, ``call``. A second call waits for the first."""
        if self._closing is None:
            self._closing = _Task(call)
        closing = self._closing
        self._state.wake()
        if not self._ended:  # set before the thread looks at ``_closing`` for the last time, so one of the two sees the other
            closing.result.result()

    def closes_inside(self) -> None:
        """A listener closes the consumer, inside the pump: the thread ends when the pump does."""
        self._closing = self._polling

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as raised:
            error = raised
            _log.error("the pump thread of a consumer failed", exc_info=raised)
        finally:
            self._end(error)

    def _work(self) -> None:
        notifications = self._network.notifications
        while self._network.running:
            if self._closing is not None and self._closing is not self._polling:
                self._polling.end(ClosedError("the consumer is closed"))
                self._tasks = [self._closing, *(task for task in self._tasks if task is not self._polling)]
                self._polling = self._closing
            while self._inbox:
                self._tasks.append(self._inbox.popleft())
            now = self._calls.mailbox.now = clock.now()
            self._calls.take_news()  # no call may be waiting for it
            self._tasks = [task for task in self._tasks if task.step(now)]
            if self._polling.result.done() and self._has_ended():
                return
            until = min((task.until for task in self._tasks), default=now.mono + _CHECK_INTERVAL)
            timeout = min(until - clock.now().mono, _CHECK_INTERVAL) / 1000
            if timeout > 0 and not self._inbox:
                notifications.wait(timeout)

    def _has_ended(self) -> bool:
        """Whether the consumer is closed. Otherwise the pump has failed, and the thread still runs the calls of others."""
        if self._closing is self._polling:
            return True
        if self._state.failure is None:
            self._fail(self._polling.result.exception())
        return False

    def _fail(self, error: BaseException | None) -> None:
        """End all streams with an error."""
        self._state.failure = (
            error if isinstance(error, OttlaError) else OttlaError(f"the consumer has failed: {error!r}", cause=error)
        )
        with contextlib.suppress(ClosedError):
            self._pump.end()

    def _end(self, error: BaseException | None) -> None:
        self._ended = True
        if self._closing is None and self._state.failure is None:
            self._fail(error or IllegalStateError("the network thread of this consumer has ended", hint="create a new consumer"))
        with contextlib.suppress(ClosedError):
            self._pump.end()
        if self._closing is not None:
            self._closing.end(ClosedError("the consumer is closed"))
        self._refuse()

    def _refuse(self) -> None:
        """End the calls that have not ended: the thread does not run them any more."""
        error = self._state.failure or ClosedError("the consumer was closed")
        for task in self._tasks:
            task.end(error.afresh())
        with contextlib.suppress(IndexError):
            while True:
                self._inbox.popleft().end(error.afresh())


class StreamsDriver:
    """Runs the calls of a consumer with streams: on the pump thread, whichever thread makes them.

    ``driver`` runs the calls that listeners and callbacks make inside others. ``check_open`` raises if the consumer is closed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        calls: ConsumerCalls,
        driver: ThreadDriver,
        network: NetworkThread,
        check_open: Callable[[], None],
        wanted: Mapping[str, int] | int,
    ) -> None:
        self._calls = calls
        self._driver = driver
        self._network = network
        self._check_open = check_open
        self._wanted = wanted
        shared = calls.shared  # the streams do not refer to the calls, which belong to the pump thread
        self._state = PumpState(network.notifications.wake, lambda: shared.may_return_records(clock.now()))
        timeout = config.consumer_timeout_ms
        names = {"": wanted} if isinstance(wanted, int) else wanted
        self.readers = {
            name: [StreamReader(f"{name} {number}".strip(), timeout, self._state) for number in range(count)]
            for name, count in names.items()
        }
        """The reading ends of the streams: by topic, or those of a subscription by pattern under an empty name."""
        by_topic = {name: [reader.queue for reader in readers] for name, readers in self.readers.items()}
        most = config.queued_max_message_chunks
        self._pump = Pump(config, calls, Streams(by_topic[""] if isinstance(wanted, int) else by_topic, most))
        self._thread = PumpThread(self._pump, calls, network, self._state, f"ottla-streams-{config.client_id}")

    def begin(self, pattern: str | None, listeners: Listeners, *, is_black_list: bool) -> None:
        """Subscribe and start the pump thread."""
        wanted = self._wanted
        self._driver.run(lambda now: self._pump.begin(wanted, pattern, listeners, now, is_black_list=is_black_list))
        self._thread.start()

    def run(self, call: Callable[[Now], Call[T]]) -> T:
        """Run one call from beginning to end. Calls of other threads may be running."""
        if self._thread.is_current:
            return self._driver.run(call)
        self._check_open()
        return self._thread.run(call)

    def wakeup(self) -> None:
        """Have each stream raise ``WakeupError`` once."""
        for readers in self.readers.values():
            for reader in readers:
                reader.wakeup()

    def close(self, timeout: float, operation: GroupMembershipOperation, error: BaseException | None) -> None:
        """End the streams and close the consumer within ``timeout`` (seconds), as ``Consumer.close``.

        ``error``: the exception that left the ``with`` block.
        """
        started, own, counted = clock.now(), self._own(), self._finished(error)

        def call(now: Now) -> Call[None]:
            return self._pump.close(own, counted, round(timeout * 1000), now, operation)

        try:
            if self._thread.is_current:
                self._thread.closes_inside()
                self._driver.drive(call(started))
            else:
                self._thread.close(call)
        finally:
            self._calls.shared.closed = True
            with contextlib.suppress(ClosedError):  # the network thread may have ended before
                self._calls.leave_at_once(operation)
            self._network.close(max(END_GRACE, timeout - (clock.now().mono - started.mono) / 1000))

    def _own(self) -> list[StreamQueue]:
        """The queues of the streams that this thread iterates over."""
        me = threading.current_thread()
        return [reader.queue for readers in self.readers.values() for reader in readers if reader.queue.thread is me]

    def _finished(self, error: BaseException | None) -> list[StreamQueue]:
        """Those of its own queues whose record in hand counts as processed, by the rule for ``close()``."""
        finished = []
        for queue in self._own():
            if queue.in_hand is None:
                continue
            reason = f"{type(error).__name__} has left the with block" if error is not None else None
            if reason is None and queue.caller is not None:
                reason = queue.caller.unfinished()
            if reason is None:
                finished.append(queue)
            else:
                _log.info("the last record of stream %s does not count as processed: %s", queue.name, reason)
        return finished
