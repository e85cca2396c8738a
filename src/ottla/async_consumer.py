"""``AsyncConsumer``: the public API of a consumer for tasks of an event loop.

Owns the signatures, the iteration over records, and the order of ``close()``. Must not know what a call does, nor how it waits:
``EventLoopDriver`` runs the calls. Invariants: an iteration lets other tasks run, and services the group, every ``YIELD_INTERVAL``;
``close()`` ends a running poll and waits until it has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from ottla import arguments
from ottla.arguments import Offset, Partitions, Timeout
from ottla.client.calls.commits import CommitCallback
from ottla.client.calls.delivery import Delivery
from ottla.client.calls.listeners import Listeners
from ottla.client.calls.mailbox import Call, T
from ottla.client.events import Offsets
from ottla.client.subscription import EARLIEST, LATEST
from ottla.consumer_base import CLOSE_TIMEOUT, END_GRACE, Caller, ConsumerBase, OffsetsOfMember
from ottla.errors import ClosedError, OttlaError
from ottla.event_loop import YIELD_INTERVAL, EventLoopDriver
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

RebalanceListener = Callable[["AsyncConsumer[Any, Any]", list[TopicPartition]], Awaitable[None] | None] | None
"""``listener(consumer, partitions)``, a function or a coroutine function, or none."""

F = TypeVar("F", bound=Callable[..., Any])

CLOSE_CHECK_INTERVAL = 1
"""Milliseconds between two checks, in ``close()``, whether the network thread has ended."""


def _coroutine_function(function: F) -> F:
    """Mark a function that returns a coroutine, so that ``inspect`` and ``unittest.mock`` treat it as a coroutine function.

    It is not a real one, since a coroutine knows only the task that runs it, not the task that created it.
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

    Methods that need not wait are not coroutines: ``assignment()``, ``subscription()``, ``paused()``, ``group_metadata()``,
    ``wakeup()``. Listeners and commit callbacks may be coroutine functions; they run on the event loop, inside a call, and may use
    the consumer.

    Every call can be cancelled (``asyncio.timeout``, a ``TaskGroup`` that ends). A cancelled ``poll()`` loses no record: the next
    one returns it. A running listener is not cancelled with it: it continues, and the next poll waits until it has ended.

    A consumer belongs to one event loop. One task at a time may poll it, iterate over its records, or change what it reads
    (``subscribe``, ``unsubscribe``, ``assign``); a second one raises ``ConcurrentAccessError``. Any task may make all other calls.
    ``close()`` ends a poll of another task with ``ClosedError``, and an ``async for`` of another task as if there were no more
    records. ``wakeup()``, ``health()``, ``metrics()`` and ``rebalances`` may be used by any thread.
    """

    def _prepare(self) -> None:
        self._driver = EventLoopDriver(
            self._calls, self._network_thread, self._check_open, self._check_running, self._last_poll.on_interrupted
        )
        self._service_at = 0.0
        """When an iteration next has to let other tasks run and service the group (monotonic seconds)."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close. After an exception the records of the last poll do not count as processed, so they are delivered again."""
        if kind is None:
            await self.close()
            return
        try:
            await self._close(CLOSE_TIMEOUT, GroupMembershipOperation.DEFAULT, self._last_poll.processed(error))
        except OttlaError as closing:
            closing.__context__ = None
            assert error is not None
            error.add_note(f"closing the consumer failed, too: {closing}")

    # -- subscriptions -----------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        blacklist: str | None = None,
        on_assign: RebalanceListener = None,
        on_revoke: RebalanceListener = None,
        on_lost: RebalanceListener = None,
    ) -> None:
        """As ``Consumer.subscribe``; the listeners may be coroutine functions."""
        wanted, regex = arguments.subscription(topics, pattern, blacklist, self._config.group_protocol)
        for name, listener in (("on_assign", on_assign), ("on_revoke", on_revoke), ("on_lost", on_lost)):
            arguments.callback(listener, name)
        listeners = Listeners(self._bound(on_assign), self._bound(on_revoke), self._bound(on_lost))
        is_black_list = blacklist is not None
        await self._driver.run_alone(lambda now: self._calls.subscribe(wanted, listeners, now, regex, is_black_list=is_black_list))

    async def unsubscribe(self) -> None:
        """As ``Consumer.unsubscribe``."""
        await self._driver.run_alone(self._calls.unsubscribe)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """As ``Consumer.assign``. If it is cancelled, the progress of the old assignment is committed nevertheless."""
        wanted = arguments.partitions((partitions,))
        await self._driver.run_alone(lambda now: self._calls.assign(wanted, now, self._last_poll.is_processed))

    # -- records ----------------------------------------------------------------------------------------------------------

    @_coroutine_function
    def poll(self, timeout: float | timedelta = 0.0) -> Coroutine[Any, Any, Records[K_co, V_co]]:
        """As ``Consumer.poll``. If it is cancelled, the next one returns its records.

        With ``enable_auto_commit`` (the default) this call says that the records of the previous ``poll()`` are processed. Do not
        pass records to other tasks (``asyncio.create_task(handle(record))``) without ``enable_auto_commit=False``.

        The records belong to the task that calls this, even if another one awaits it: ``asyncio.wait_for(consumer.poll(), 5)``.
        """
        return self._poll(self._poll_timeout(timeout), _caller())

    async def _poll(self, wait: int, caller: Caller) -> Records[K_co, V_co]:
        delivery = await self._driver.run_alone(lambda now: self._calls.deliver(wait, now))
        if delivery is None:
            return Records.empty()
        records = delivery.records()
        # At the very end: if anything is raised before this, the records do not count as returned.
        delivery.caller, delivery.whole = caller, True
        return records

    def __aiter__(self) -> AsyncIterator[Record[K_co, V_co]]:
        """Records one by one, until the consumer is closed.

        A record counts as processed when the next one is requested; ``await commit()`` in the body includes it. One ``anext()`` may
        be cancelled like every other call, and the next one continues: ``await asyncio.wait_for(anext(records), 1)``.
        """
        self._check_open()
        return _AsyncWalk(self)

    async def _next_record(self, walk: _AsyncWalk[K_co, V_co]) -> Record[K_co, V_co]:
        """Return the next record of an iteration that has no record left, or has to service the group first."""
        collector = self._calls.collector
        try:
            delivery = collector.delivery
            if delivery is not None and delivery.walk is walk.records and clock.monotonic() >= self._service_at:
                await self._driver.run_alone(self._calls.service)
                self._service_at, delivery.caller = clock.monotonic() + YIELD_INTERVAL, walk.caller()
                for record in walk.records:
                    return record
            if self._driver.in_listener():
                self._calls.check_not_in_listener()
            while True:
                delivery = await self._driver.run_alone(lambda now: self._calls.deliver(1_000, now))
                if delivery is None:
                    continue
                self._service_at, delivery.caller = clock.monotonic() + YIELD_INTERVAL, walk.caller()
                walk.records = collector.walk(delivery)
                for record in walk.records:
                    return record
        except ClosedError:
            if not (self._driver.closing or self._shared.closed):
                raise  # a listener used another client, which was closed
            raise StopAsyncIteration from None

    # -- positions --------------------------------------------------------------------------------------------------------

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """As ``Consumer.seek``.

        If it is cancelled, the new position counts if it was already requested, and otherwise the old one: ``position()`` returns
        it, and ``commit()`` and ``close()`` commit it.
        """
        await self._seek_all({arguments.partition(partition): arguments.position(offset)})

    async def _seek_all(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Seek in many partitions with one command."""
        await self._run(lambda now: self._calls.positions.seek(positions, now))

    async def seek_to_beginning(self, *partitions: Partitions) -> None:
        """As ``Consumer.seek_to_beginning``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.positions.seek_to_beginning(wanted, now))

    async def seek_to_end(self, *partitions: Partitions) -> None:
        """As ``Consumer.seek_to_end``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.positions.seek_to_end(wanted, now))

    async def position(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """As ``Consumer.position``."""
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return await self._run(lambda now: self._calls.positions.position(wanted, wait, now))

    async def pause(self, *partitions: Partitions) -> None:
        """As ``Consumer.pause``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.positions.pause(wanted, now))

    async def resume(self, *partitions: Partitions) -> None:
        """As ``Consumer.resume``."""
        wanted = arguments.partitions(partitions)
        await self._run(lambda now: self._calls.positions.resume(wanted, now))

    # -- commits ----------------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """As ``Consumer.commit``. If it is cancelled, the commit is made nevertheless, and a failure is logged."""
        wanted, wait = arguments.offsets(offsets), self._timeout(timeout)
        return await self._run(lambda now: self._calls.commits.commit(wanted, wait, now))

    async def commit_async(
        self, offsets: Mapping[TopicPartition, Offset] | None = None, callback: CommitCallback | None = None
    ) -> None:
        """As ``Consumer.commit_async``; ``callback(offsets, error)`` may be a coroutine function."""
        arguments.callback(callback, "callback")
        wanted = arguments.offsets(offsets)
        await self._run(lambda now: self._calls.commits.commit_async(wanted, callback, now))

    async def _offsets_for_transaction(self, given: Offsets | None) -> OffsetsOfMember:
        """This member of the group, and the offsets that ``AsyncTransaction.commit_offsets`` commits."""
        wait = self._timeout(None)
        offsets = await self._run(lambda now: self._calls.commits.offsets_for_transaction(given, wait, now))
        return self.group_metadata(), offsets

    async def committed(self, *partitions: Partitions, timeout: Timeout = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """As ``Consumer.committed``."""
        wanted = arguments.partitions(partitions) if partitions else sorted(self.assignment())
        wait = self._timeout(timeout)
        return await self._run(lambda now: self._calls.commits.committed(wanted, wait, now))

    # -- queries --------------------------------------------------------------------------------------------------------

    async def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """As ``Consumer.beginning_offsets``."""
        return await self._offsets(partitions, EARLIEST, timeout)

    async def end_offsets(self, partitions: Iterable[TopicPartition], timeout: Timeout = None) -> dict[TopicPartition, int]:
        """As ``Consumer.end_offsets``."""
        return await self._offsets(partitions, LATEST, timeout)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout: Timeout = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """As ``Consumer.offsets_for_times``."""
        wanted, wait = arguments.timestamps(timestamps), self._timeout(timeout)
        return await self._run(lambda now: self._calls.positions.list_offsets(wanted, wait, now))

    async def lag(self, partition: TopicPartition, timeout: Timeout = None) -> int:
        """As ``Consumer.lag``."""
        wanted, wait = arguments.partition(partition), self._timeout(timeout)
        return await self._run(lambda now: self._calls.positions.lag(wanted, wait, now))

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

    # -- closing ----------------------------------------------------------------------------------------------------------

    @_coroutine_function
    def close(
        self,
        timeout: float | timedelta = CLOSE_TIMEOUT,
        *,
        group_membership: GroupMembershipOperation | str = GroupMembershipOperation.DEFAULT,
    ) -> Coroutine[Any, Any, None]:
        """As ``Consumer.close``. If it is cancelled, the consumer leaves its group and closes at once; it may do so without the
        last commit and without calling ``on_revoke``.

        The records of the last poll also do not count as processed if the task that polled has failed, is being cancelled, or is
        still working on them while another task closes. That is decided when this is called, so another task may await it:
        ``asyncio.shield(consumer.close())``.
        """
        operation = arguments.group_membership(group_membership)
        return self._close(arguments.duration(timeout) / 1000, operation, self._last_poll.processed())

    async def _close(self, timeout: float, operation: GroupMembershipOperation, processed: Delivery | None) -> None:
        """``processed``: see ``_LastPoll.processed``. Records returned since then are not."""
        self._check_process()
        if self._shared.closed:
            return
        self._driver.check_loop()
        if self._driver.closing:
            await self._closed_by_another_task()
            return
        self._driver.closing, self._service_at = True, 0.0
        if self._network is None:
            self._shared.closed = True
            return
        deadline = clock.monotonic() + timeout
        try:
            await self._driver.end_poll(round(max(deadline, clock.monotonic() + END_GRACE) * 1000))
            await self._driver.listeners.end(deadline)
            left = max(0.0, deadline - clock.monotonic())
            done = self._calls.collector.delivery in (None, processed)
            await self._driver.drive(self._calls.close(round(left * 1000), clock.now(), operation, last_processed=done))
        finally:
            await self._end(self._network, deadline, operation)

    async def _closed_by_another_task(self) -> None:
        """Another ``close()`` is running: wait for it, unless it waits for the calling listener."""
        while not self._shared.closed and not self._driver.in_listener():
            await self._driver.waiters.sleep()

    async def _end(self, network: NetworkThread, deadline: float, operation: GroupMembershipOperation) -> None:
        """Close the consumer, even if ``close()`` was cancelled. A listener that still runs may use the consumer until it ends."""
        try:
            await self._driver.listeners.end(deadline)
        finally:
            self._shared.closed = True
            self._driver.waiters.wake()
            self._driver.listeners.log_unraised()
            self._calls.leave_at_once(operation)
            until = round(max(deadline, clock.monotonic() + END_GRACE) * 1000)
            # The network thread ends shortly after its last notification, which may complete a call of another task.
            while not network.close(0) and clock.now().mono < until:
                self._calls.take_news()
                check_at = min(until, clock.now().mono + CLOSE_CHECK_INTERVAL)
                await self._driver.waiters.wait_for_news(network.notifications, check_at)

    async def _run(self, call: Callable[[Now], Call[T]]) -> T:
        self._service_at = 0.0
        return await self._driver.run(call)

    async def _offsets(self, partitions: Iterable[TopicPartition], timestamp: int, timeout: Timeout) -> dict[TopicPartition, int]:
        wanted, wait = dict.fromkeys(arguments.partitions((partitions,)), timestamp), self._timeout(timeout)
        offsets = await self._run(lambda now: self._calls.positions.list_offsets(wanted, wait, now))
        return {tp: 0 if position is None else position.offset for tp, position in offsets.items()}


class _AsyncWalk(AsyncIterator[Record[K_co, V_co]]):
    """``async for`` over a consumer.

    Not an async generator: after the first timeout or error, that would raise only ``StopAsyncIteration``.
    """

    __slots__ = ("_consumer", "_task", "records")

    def __init__(self, consumer: AsyncConsumer[K_co, V_co]) -> None:
        self.records: Iterable[Record[K_co, V_co]] = ()
        self._consumer = consumer
        self._task = _task()

    async def __anext__(self) -> Record[K_co, V_co]:
        # Other tasks have to run, and the group needs ``service``, but not for every record. ``_service_at`` is 0 after a call that
        # may have changed the subscription and while the consumer closes: then ``_next_record`` runs at once.
        if clock.monotonic() < self._consumer._service_at:
            for record in self.records:
                return record
        return await self._consumer._next_record(self)

    def caller(self) -> Caller:
        """The code that requests the next record.

        Up to Python 3.11, ``asyncio.wait_for(anext(records), 1)`` requests it in a separate task, which ends before the record is
        processed. Then it is the task that began the iteration.
        """
        task = _task()
        is_separate = task is not None and getattr(task.get_coro(), "cr_code", None) is _AsyncWalk.__anext__.__code__
        return Caller(self._task if is_separate else task)


def _caller() -> Caller:
    """The calling code, with its task."""
    return Caller(_task())


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop is running yet: the coroutine is for asyncio.run()
        return None
