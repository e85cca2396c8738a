"""How the calls of producers wait: on the thread, or in the task, that makes them.

Owns the two drivers, and the wait for a ``Delivery``. Must not know what a call does. Invariants: any number of threads or tasks
may wait at once, each for itself; a call ends soon after the network thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ottla.arguments import Timeout, duration
from ottla.client.produce.calls import metadata_of
from ottla.client.produce.outcome import Call
from ottla.errors import IllegalStateError
from ottla.producer_base import ProducerNetwork
from ottla.records.accumulator import RecordAccumulator
from ottla.records.arrow_delivery import ArrowDelivery, WrittenRows
from ottla.records.producer_queues import Delivery
from ottla.runtime import clock
from ottla.types import RecordMetadata

T = TypeVar("T")

CHECK_INTERVAL = 0.5
"""Seconds between two checks that the network thread is still running."""


def until(timeout: Timeout) -> int | None:
    """The end of a timeout (monotonic ms); ``None``: there is none."""
    return None if timeout is None else clock.now().mono + duration(timeout)


def _left(until: int | None) -> float:
    """The seconds to wait before the next check."""
    return CHECK_INTERVAL if until is None else max(0.0, min(CHECK_INTERVAL, (until - clock.now().mono) / 1000))


GIVE_WAY_TIME = 0.0003
"""Seconds for which the network thread leaves the GIL to a thread whose call it has ended, if it has no other batches."""


class Bell:
    """Wakes the thread of a call.

    1. ``ring`` wakes the thread. 2. That needs the GIL, which the network thread would keep until it has computed its next sleep.
    3. So ``ring`` blocks until the thread calls ``release``. With other batches to care for, the network thread goes on at once.
    """

    def __init__(self, accumulator: RecordAccumulator) -> None:
        self._accumulator = accumulator
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._runs = threading.Lock()
        """Locked from a ring until the thread has run."""

    def ring(self) -> None:
        """Called by the network thread."""
        self._runs.acquire(blocking=False)
        self._rings.put(None)
        if len(self._accumulator.incomplete) <= 1:  # that of the call counts until all who wait for it are woken
            self._runs.acquire(timeout=GIVE_WAY_TIME)

    def wait(self, timeout: float) -> bool:
        """Wait for a ring; return whether there was one."""
        try:
            self._rings.get(timeout=timeout)
        except Empty:
            return False
        return True

    def release(self) -> None:
        """End a ``ring``."""
        if self._runs.locked():
            self._runs.release()


def drive_in_thread(network: ProducerNetwork, call: Call[T]) -> T:
    """Run a call on this thread."""
    bell = Bell(network.accumulator)
    try:
        wait = next(call)
        while True:
            wait.for_.waiters.append(bell.ring)
            left = CHECK_INTERVAL
            while left > 0 and not wait.is_over():
                network.check_running()
                left = _left(wait.until)
                if bell.wait(left):
                    break
                network.remind()
            wait = call.send(clock.now())
            bell.release()
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        bell.release()
        call.close()


async def drive_in_task(network: ProducerNetwork, call: Call[T]) -> T:
    """Run a call in this task."""
    loop = asyncio.get_running_loop()
    try:
        wait = next(call)
        while True:
            future: asyncio.Future[None] = loop.create_future()
            wait.for_.waiters.append(soon(loop, _setter(future)))
            left = CHECK_INTERVAL
            while left > 0 and not wait.is_over() and not future.done():
                network.check_running()
                left = _left(wait.until)
                await asyncio.wait([future], timeout=left)
                if not future.done():
                    network.remind()
            wait = call.send(clock.now())
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        call.close()


def soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> Callable[[], None]:
    """Return a function that any thread may call to have another one called on the event loop."""

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(function)

    return call


def _setter(future: asyncio.Future[None]) -> Callable[[], None]:
    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    return set_result


class ThreadWaits:
    """How a ``Delivery`` of a ``Producer`` is waited for. A task of any event loop may await it, too."""

    def __init__(self, network: ProducerNetwork) -> None:
        self._network = network

    def result(self, delivery: Delivery, timeout: Timeout) -> RecordMetadata:
        """Block the thread until a record has an outcome."""
        if delivery.done():  # as in a callback: no need for a call that can wait
            return metadata_of(delivery)
        return drive_in_thread(self._network, self._network.calls.wait(delivery, until(timeout)))

    def wait(self, delivery: Delivery) -> Generator[Any, None, RecordMetadata]:
        """Wait in a task until a record has an outcome."""
        return drive_in_task(self._network, self._network.calls.wait(delivery, None)).__await__()

    def rows(self, delivery: ArrowDelivery, timeout: Timeout) -> list[WrittenRows]:
        """Block the thread until all rows have an outcome."""
        return drive_in_thread(self._network, self._network.calls.wait_for_rows(delivery, until(timeout)))

    def wait_for_rows(self, delivery: ArrowDelivery) -> Generator[Any, None, list[WrittenRows]]:
        """Wait in a task until all rows have an outcome."""
        return drive_in_task(self._network, self._network.calls.wait_for_rows(delivery, None)).__await__()


class TaskWaits(ThreadWaits):
    """How a ``Delivery`` of an ``AsyncProducer`` is waited for."""

    def result(self, delivery: Delivery, timeout: Timeout) -> RecordMetadata:
        """Return the outcome, if there is one: the event loop must not be blocked."""
        del timeout
        _check_done(delivery)
        return metadata_of(delivery)

    def rows(self, delivery: ArrowDelivery, timeout: Timeout) -> list[WrittenRows]:
        """Return the outcome of the rows, if all have one."""
        del timeout
        _check_done(delivery)
        if (error := delivery.error()) is not None:
            raise error.afresh()
        return delivery.written()


def _check_done(delivery: Delivery | ArrowDelivery) -> None:
    if not delivery.done():
        raise IllegalStateError("there is no outcome yet", hint="await the delivery")
