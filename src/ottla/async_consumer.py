"""``AsyncConsumer``: the face of a consumer for tasks of an event loop.

Owns the signatures, the guard against two tasks, and the driver that runs the calls of ``client.calls`` on an event loop, which it
never blocks. Must not know how anything is done. Invariants: one task at a time is inside a consumer, besides its own listener; a
call that is cancelled leaves everything it has not given back to the next one; a listener that has begun is never cut short by who
waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla import arguments
from ottla.arguments import Offset, Partitions, Timeout
from ottla.caller import Caller
from ottla.client.calls.collector import Delivery
from ottla.client.calls.commits import CommitCallback
from ottla.client.calls.mailbox import Await, Call, T, Wait
from ottla.client.calls.rebalancing import Listeners
from ottla.client.subscription import EARLIEST, LATEST
from ottla.consumer_base import CLOSE_TIMEOUT, END_GRACE, ConsumerBase
from ottla.errors import ConcurrentAccessError, IllegalStateError, OttlaError, WakeupError
from ottla.records import Record, Records
from ottla.runtime import clock
from ottla.runtime.network_thread import NetworkThread
from ottla.types import (
    GroupMembershipOperation,
    K_co,
    Now,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    PartitionInfo,
    TopicPartition,
    V_co,
)

_log = logging.getLogger(__name__)

RebalanceListener = Callable[["AsyncConsumer[Any, Any]", list[TopicPartition]], Awaitable[None] | None] | None
"""``listener(consumer, partitions)``, a function or a coroutine function, or none."""

F = TypeVar("F", bound=Callable[..., Any])

BREATH = 0.01
"""Seconds that calls may go on finding what they want without letting other tasks run."""


def _coroutine_function(function: F) -> F:
    """Mark a function that returns a coroutine, so that ``inspect`` and ``unittest.mock`` take it for a coroutine function.

    It is none, since a coroutine does not know the task that has called for it, but only the one that runs it.
    """
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return function


class AsyncConsumer(ConsumerBase[K_co, V_co]):
    """``Consumer`` for asyncio: the same settings, the same calls with ``await``.

    ::

        async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                await handle(record)

    What needs no waiting stays as it is: ``assignment()``, ``subscription()``, ``paused()``, ``group_metadata()``, ``wakeup()``.
    Listeners and commit callbacks may be coroutine functions; they run on the event loop, inside a call, and may use the consumer.

    Every call can be cancelled (``asyncio.timeout``, a ``TaskGroup`` that ends). A cancelled ``poll()`` loses no record: the next
    one has it. A listener that is under way is not cancelled with it: it goes on, and the next call waits until it is through. A
    consumer belongs to one event loop, and to one task at a time; only ``wakeup()``, ``health()``, ``metrics()`` and ``rebalances``
    are for elsewhere, too.
    """

    def _prepare(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._listening: list[asyncio.Task[Any]] = []
        """The listener that runs, and below it those in whose calls it was called."""
        self._unraised: Exception | None = None
        self._breathe_at = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close. After an exception the records of the last poll do not count as processed, so they are delivered again."""
        if kind is None:
            await self.close()
            return
        try:
            await self._close(CLOSE_TIMEOUT, GroupMembershipOperation.DEFAULT, self._processed(error))
        except OttlaError as closing:
            closing.__context__ = None
            assert error is not None
            error.add_note(f"closing the consumer failed, too: {closing}")

    # -- what is read -----------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> None:
        """As ``Consumer.subscribe``; the listeners may be coroutine functions."""
        wanted = arguments.topics(topics, pattern)
        for name, listener in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            arguments.callback(listener, name)
        listeners = Listeners(self._bound(on_assign), self._bound(on_revoke), self._bound(on_lost))
        await self._run(lambda now: self._calls.subscribe(wanted, listeners, now, pattern))

    async def unsubscribe(self) -> None:
        """As ``Consumer.unsubscribe``."""
        await self._run(self._calls.unsubscribe)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """As ``Consumer.assign``. If it is cancelled, what it replaces is committed even so."""
        wanted = arguments.partitions((partitions,))
        await self._run(lambda now: self._calls.assign(wanted, now, self._is_processed))

    # -- records ----------------------------------------------------------------------------------------------------------

    @_coroutine_function
    def poll(self, timeout: float | timedelta = 0.0) -> Coroutine[Any, Any, Records[K_co, V_co]]:
        """As ``Consumer.poll``. If it is cancelled, what it would have given comes out of the next one.

        With ``enable_auto_commit`` (the default) this call says that the records of the previous ``poll()`` are processed. Do not
        give records to tasks of their own (``asyncio.create_task(handle(record))``) without ``enable_auto_commit=False``.

        The records belong to the task that calls this, also where another one awaits it: ``asyncio.wait_for(consumer.poll(), 5)``.
        """
        return self._poll(self._poll_timeout(timeout), _caller())

    async def _poll(self, wait: int, caller: Caller) -> Records[K_co, V_co]:
        delivery = await self._run(lambda now: self._calls.deliver(wait, now))
        if delivery is None:
            return Records.empty()
        delivery.caller, delivery.whole = caller, True
        return delivery.records()

    async def __aiter__(self) -> AsyncIterator[Record[K_co, V_co]]:
        """Records one by one, for ever.

        A record is done with when the next one is asked for; ``await commit()`` in the body includes it.
        """
        collector, monotonic = self._calls.collector, clock.monotonic
        while True:
            delivery = await self._run(lambda now: self._calls.deliver(1_000, now))
            if delivery is None:
                continue
            service_at, delivery.caller = monotonic() + BREATH, _caller()
            for record in collector.walk(delivery):
                yield record
                # Other tasks want to run, too, and the group wants to hear of us; but most records come too soon to bother.
                if monotonic() >= service_at:
                    await self._run(self._calls.service)
                    service_at, delivery.caller = monotonic() + BREATH, _caller()

    # -- positions --------------------------------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """As ``Consumer.seek``."""
        wanted = {arguments.partition(partition): arguments.position(offset)}
        await self._run(lambda now: self._calls.seek(wanted, now))

    async def seek_to_beginning(self, *partitions: Partitions) -> None:
        """As ``Consumer.seek_to_beginning``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.seek_to_beginning(wanted, now))

    async def seek_to_end(self, *partitions: Partitions) -> None:
        """As ``Consumer.seek_to_end``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.seek_to_end(wanted, now))

    async def position(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """As ``Consumer.position``."""
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return await self._run(lambda now: self._calls.position(wanted, wait, now))

    async def pause(self, *partitions: Partitions) -> None:
        """As ``Consumer.pause``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.pause(wanted, now))

    async def resume(self, *partitions: Partitions) -> None:
        """As ``Consumer.resume``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.resume(wanted, now))

    # -- commits ----------------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """As ``Consumer.commit``. If it is cancelled, the commit is made even so; that it failed is logged."""
        wanted, wait = arguments.offsets(offsets), self._timeout(timeout)
        return await self._run(lambda now: self._calls.commit(wanted, wait, now))

    async def commit_async(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """As ``Consumer.commit_async``; ``callback(offsets, error)`` may be a coroutine function."""
        arguments.callback(callback, "callback")
        wanted = arguments.offsets(offsets)
        await self._run(lambda now: self._calls.commit_async(wanted, callback, now))

    async def committed(self, *partitions: Partitions, timeout: Timeout = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As ``Consumer.committed``."""
        wanted = arguments.partitions(partitions) if partitions else sorted(self.assignment())
        wait = self._timeout(timeout)
        return await self._run(lambda now: self._calls.committed(wanted, wait, now))

    # -- questions --------------------------------------------------------------------------------------------------------

    async def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """As ``Consumer.beginning_offsets``."""
        return await self._edges(partitions, EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """As ``Consumer.end_offsets``."""
        return await self._edges(partitions, LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As ``Consumer.offsets_for_times``."""
        wanted, wait = arguments.timestamps(timestamps), self._timeout(timeout)
        return await self._run(lambda now: self._calls.list_offsets(wanted, wait, now))

    async def lag(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """As ``Consumer.lag``."""
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return await self._run(lambda now: self._calls.lag(wanted, wait, now))

    async def partitions_for(self, topic: str, timeout: Timeout = None) -> list[PartitionInfo]:
        """As ``Consumer.partitions_for``."""
        name, wait = arguments.topic(topic), self._timeout(timeout)
        topics = await self._run(lambda now: self._calls.describe_topics((name,), wait, now))
        return list(topics[topic].partitions)

    async def list_topics(self, timeout: Timeout = None) -> dict[str, list[PartitionInfo]]:
        """As ``Consumer.list_topics``."""
        wait = self._timeout(timeout)
        topics = await self._run(lambda now: self._calls.describe_topics(None, wait, now))
        return {name: list(topics[name].partitions) for name in sorted(topics)}

    # -- the end ----------------------------------------------------------------------------------------------------------

    @_coroutine_function
    def close(
        self,
        timeout: float | timedelta = CLOSE_TIMEOUT,
        *,
        group_membership: GroupMembershipOperation | str = GroupMembershipOperation.DEFAULT,
    ) -> Coroutine[Any, Any, None]:
        """As ``Consumer.close``. If it is cancelled, the consumer is closed even so, but its group may hear of it later.

        The records of the last poll do not count as processed either where the task that polled has failed, is being cancelled, or
        still works on them while another task closes. That is decided when this is called, so another task may await it:
        ``asyncio.shield(consumer.close())``.
        """
        operation = arguments.group_membership(group_membership)
        return self._close(arguments.duration(timeout) / 1000, operation, self._processed())

    async def _close(self, timeout: float, operation: GroupMembershipOperation, processed: Delivery | None) -> None:
        """``processed``: see ``_processed``. What was handed out since is not."""
        self._check_process()
        if self._closed:
            return
        with self._entered():
            if self._network is None:
                self._closed = True
                return
            deadline = clock.monotonic() + timeout
            try:
                await self._end_listener(deadline)
                left = max(0.0, deadline - clock.monotonic())
                done = self._calls.collector.delivery in (None, processed)
                call = self._calls.close(round(left * 1000), clock.now(), operation, done_with_last=done)
                await self._drive(call)
            finally:
                await self._end(self._network, deadline)

    async def _end(self, network: NetworkThread, deadline: float) -> None:
        """Close for good. If ``close()`` was cancelled, the listener that it has left behind may still use the consumer."""
        try:
            await self._end_listener(deadline)
        finally:
            self._closed = True
            if self._unraised is not None:
                _log.warning("a listener failed whose call was cancelled: %r", self._unraised)
            await self._end_thread(network, max(deadline, clock.monotonic() + END_GRACE))

    async def _end_listener(self, deadline: float) -> None:
        """Let a listener that a cancelled call has left behind come to its end, as long as there is time."""
        left_behind = self._left_behind()
        if left_behind:
            _, pending = await asyncio.wait(left_behind, timeout=max(0.0, deadline - clock.monotonic()))
            for task in pending:
                _log.warning("a listener was not through when its consumer was closed: it is cancelled")
                task.cancel()
            if pending:
                await asyncio.wait(pending, timeout=1.0)

    def _left_behind(self) -> list[asyncio.Task[Any]]:
        """The listeners that nobody waits for. Where a listener asks, those below it wait for what it does."""
        me = asyncio.current_task()
        return self._listening[self._listening.index(me) + 1 :] if me in self._listening else self._listening[:]

    async def _end_thread(self, network: NetworkThread, deadline: float) -> None:
        until = round(deadline * 1000)
        # One can wait for the thread at a time. A listener that is still at it does so, and hears that the consumer is closed.
        while not network.close(0) and not self._left_behind() and clock.now().mono < until:
            await self._wait(network, until)

    # -- the driver -------------------------------------------------------------------------------------------------------

    async def _run(self, call: Callable[[Now], Call[T]]) -> T:
        """Run one call from beginning to end in this task."""
        with self._entered() as nested:
            if not nested:
                await self._settle_listener()
            if clock.monotonic() >= self._breathe_at:
                await asyncio.sleep(0)
                self._breathe_at = clock.monotonic() + BREATH
            return await self._drive(call(clock.now()))

    async def _drive(self, call: Call[T]) -> T:
        network = self._network_thread()
        try:
            step = next(call)
            while True:
                failure: BaseException | None = None
                if isinstance(step, Await):
                    failure = await self._listen(call, step.awaitable)
                else:
                    await self._wait_for(step, call, network)
                step = call.send(clock.now()) if failure is None else call.throw(failure)
        except StopIteration as done:
            result: T = done.value
            return result
        except WakeupError:
            self._on_interrupted("a call of the consumer was woken")
            raise
        except (KeyboardInterrupt, SystemExit):
            self._calls.interrupted = True
            raise

    async def _wait_for(self, wait: Wait, call: Call[T], network: NetworkThread) -> None:
        """Until there is something new for a call. If that is cancelled, the call ends here, keeping nothing to itself."""
        try:
            await self._wait(network, wait.until)
            self._check_running(network)
        except BaseException:
            call.close()
            raise

    async def _wait(self, network: NetworkThread, until: int | None) -> None:
        """Until the network thread tells something, or ``until``."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def on_news() -> None:
            if not told.done():
                told.set_result(None)

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
                loop.call_soon_threadsafe(on_news)

        if not network.notifications.arm(tell):
            return
        timer = None if until is None else loop.call_later(max(0, until - clock.now().mono) / 1000, on_news)
        try:
            await told
        finally:
            self._breathe_at = clock.monotonic() + BREATH
            network.notifications.disarm()
            if timer is not None:
                timer.cancel()

    # -- listeners --------------------------------------------------------------------------------------------------------

    async def _listen(self, call: Call[T], awaitable: Awaitable[Any]) -> BaseException | None:
        """Run what a listener returned as a task of its own: who waits for it may be cancelled without cutting it short.

        Gives what it raised.
        """
        task: asyncio.Task[Any] = asyncio.ensure_future(_awaited(awaitable))
        self._listening.append(task)
        try:
            await asyncio.wait([task])
        except BaseException:
            task.add_done_callback(lambda task: self._on_left_listener(call, task))
            raise
        self._listening.remove(task)
        return asyncio.CancelledError() if task.cancelled() else task.exception()

    def _on_left_listener(self, call: Call[T], task: asyncio.Task[Any]) -> None:
        """A listener is through whose call was cancelled: the rebalance goes on; what it raised is raised by the next call."""
        self._listening.remove(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._unraised = error
        try:
            call.close()
        except IllegalStateError as closed:
            _log.debug("a listener outlived its consumer: %s", closed)

    async def _settle_listener(self) -> None:
        """A listener that a cancelled call has left behind comes first."""
        if self._listening:
            await asyncio.wait(list(self._listening))
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error

    @contextmanager
    def _entered(self) -> Iterator[bool]:
        """One task at a time, of one event loop; the running listener may come in, too: then the value is true."""
        self._check_open()
        me = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise IllegalStateError(
                "the consumer belongs to another event loop", hint="make, use and close it within one asyncio.run()"
            )
        self._loop = loop
        if me is not None and me in self._listening:
            yield True
            return
        if self._owner is not None:
            raise ConcurrentAccessError(
                f"{_name(me)} calls a consumer that {_name(self._owner)} is in",
                hint="let one task poll and give the records to others, by an asyncio.Queue for example; or one consumer for each",
            )
        self._owner = me
        try:
            yield False
        finally:
            self._owner = None

    async def _edges(self, partitions: Iterable[TopicPartition], timestamp: int, timeout: Timeout) -> dict[TopicPartition, int]:
        wanted, wait = dict.fromkeys(arguments.partitions((partitions,)), timestamp), self._timeout(timeout)
        found = await self._run(lambda now: self._calls.list_offsets(wanted, wait, now))
        return {tp: 0 if answer is None else answer.offset for tp, answer in found.items()}


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _caller() -> Caller:
    """The code that calls, with its task."""
    try:
        return Caller(asyncio.current_task())
    except RuntimeError:  # no event loop runs yet: the coroutine is for asyncio.run()
        return Caller()


def _name(task: asyncio.Task[Any] | None) -> str:
    return "code outside of any task" if task is None else f"task {task.get_name()!r}"
