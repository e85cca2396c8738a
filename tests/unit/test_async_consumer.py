"""``AsyncConsumer`` as far as it needs no broker: arguments, cancellation, the guard against a second task."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer, OffsetAndMetadata, TopicPartition
from ottla.errors import ConcurrentAccessError, ConnectionFailedError, IllegalStateError, InvalidGroupIdError, WakeupError
from ottla.runtime.network_thread import NotificationQueue

TP = TopicPartition("t", 0)
PLAIN = {"assignment", "subscription", "paused", "group_metadata", "wakeup"}


def new(**settings: Any) -> AsyncConsumer:
    return AsyncConsumer(**{"bootstrap_servers": "localhost:1", "group_id": "g", **settings})


async def poll_without_broker(consumer: AsyncConsumer, timeout: float) -> None:
    """A poll without a broker. On a busy machine it takes so long that it raises the reason."""
    with suppress(ConnectionFailedError):
        assert not await consumer.poll(timeout)


def thread_of(consumer: Any) -> threading.Thread:
    return consumer._network._thread


def public(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_it_has_the_calls_and_parameters_of_a_consumer() -> None:
    plain, asynchronous = public(Consumer), public(AsyncConsumer)
    assert plain.keys() - asynchronous.keys() == {"streams"}  # which are for threads
    assert asynchronous.keys() <= plain.keys()
    for name in asynchronous:
        call = plain[name]
        same = [
            [(one.name, one.kind, one.default) for one in inspect.signature(each).parameters.values()]
            for each in (call, asynchronous[name])
        ]
        assert same[0] == same[1], name


def test_exactly_the_calls_that_may_wait_are_coroutine_functions() -> None:
    is_coroutine_function = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    awaited = {name for name, call in public(AsyncConsumer).items() if is_coroutine_function(call)}
    assert public(AsyncConsumer).keys() - awaited >= PLAIN
    assert not PLAIN & awaited
    assert awaited >= {"subscribe", "assign", "poll", "commit", "commit_async", "seek", "pause", "position", "lag", "close"}


def test_the_constructor_needs_no_event_loop_and_opens_nothing() -> None:
    consumer = new()
    assert repr(consumer) == "<AsyncConsumer group 'g', 0 partitions>"
    assert consumer.assignment() == set()
    asyncio.run(consumer.close())
    assert consumer._network is None
    assert repr(consumer) == "<AsyncConsumer group 'g', closed>"


def test_invalid_arguments_raise_at_once() -> None:
    async def refused() -> None:
        async with new() as consumer:
            with pytest.raises(TypeError, match=r"subscribe\(\['orders'\]\)"):
                await consumer.subscribe("orders")
            with pytest.raises(ValueError, match="negative"):
                await consumer.commit({TP: OffsetAndMetadata(-1)})
            with pytest.raises(ValueError, match="timeout is negative"):
                await consumer.poll(-1)
            with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
                await consumer.poll()
        async with new(group_id=None) as alone:
            with pytest.raises(InvalidGroupIdError, match="set group_id"):
                await alone.commit({TP: 1})

    asyncio.run(refused())


def test_a_poll_lets_other_tasks_run_and_ends_at_its_timeout() -> None:
    async def poll() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        async with new() as consumer:
            await consumer.assign([TP])
            ticking = asyncio.create_task(tick())
            while ticks < 5:
                await poll_without_broker(consumer, 0.2)
            ticking.cancel()
            for _ in range(1_000):  # with timeout 0 a poll does not wait, but lets other tasks run now and then
                await poll_without_broker(consumer, 0)

    asyncio.run(poll())


def test_a_cancelled_poll_can_be_called_again() -> None:
    async def cancelled() -> None:
        async with new() as consumer:
            await consumer.assign([TP])
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await consumer.poll(30)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(30), 0.02)
            await poll_without_broker(consumer, 0.02)

    asyncio.run(cancelled())


@pytest.mark.parametrize("second", ["poll", "subscribe", "unsubscribe", "assign"])
def test_a_second_task_that_polls_or_changes_what_is_read_raises(second: str) -> None:
    arguments = {"subscribe": (["t"],), "assign": ([TP],)}.get(second, ())

    async def both() -> None:
        async with new() as consumer:
            await consumer.assign([TP])
            polling = asyncio.create_task(consumer.poll(30), name="first")
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentAccessError, match=r"while task 'first' does.*let one task poll"):
                await getattr(consumer, second)(*arguments)
            polling.cancel()
            await asyncio.wait([polling])
            await poll_without_broker(consumer, 0)

    asyncio.run(both())


def test_one_event_loop_only() -> None:
    consumer = new()
    asyncio.run(consumer.assign([TP]))
    with pytest.raises(IllegalStateError, match="another event loop"):
        asyncio.run(consumer.poll(0))
    consumer._network.close(1)


def test_a_wakeup_from_another_thread_ends_the_poll() -> None:
    async def woken() -> None:
        async with new() as consumer:
            await consumer.assign([TP])
            threading.Timer(0.05, consumer.wakeup).start()
            with pytest.raises(WakeupError):
                await consumer.poll(30)
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await consumer.poll(30)

    asyncio.run(woken())


def test_a_cancelled_close_closes() -> None:
    async def cancelled() -> None:
        consumer = new()
        await consumer.assign([TP])
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(IllegalStateError, match="closed"):
            await consumer.poll()
        await consumer.close()
        assert not thread_of(consumer).is_alive()

    asyncio.run(cancelled())


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("call", ["poll", "commit"])
@pytest.mark.parametrize("used", [True, False])
def test_close_during_the_first_steps_of_another_call(used: bool, call: str, steps: int) -> None:
    async def close_at_once() -> None:
        consumer = new()
        if used:
            await consumer.assign([TP])
        beside = asyncio.create_task(consumer.poll(30) if call == "poll" else consumer.commit(timeout=30))
        for _ in range(steps):
            await asyncio.sleep(0)
        await consumer.close(timeout=0)
        await asyncio.wait([beside], timeout=10)
        # No records were returned, so a commit has nothing to do, and may return before the consumer is closed.
        assert isinstance(beside.exception(), IllegalStateError) or (call == "commit" and beside.result() == {})
        if consumer._network is not None:
            await asyncio.to_thread(thread_of(consumer).join, 10)
            assert not thread_of(consumer).is_alive()

    asyncio.run(close_at_once())


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_a_garbage_collected_consumer_warns_and_stops_its_thread(kind: type[Any]) -> None:
    consumer = kind(bootstrap_servers="localhost:1", group_id="g")
    if kind is Consumer:
        consumer.assign([TP])
    else:
        asyncio.run(consumer.assign([TP]))
    thread = thread_of(consumer)
    del consumer
    with pytest.warns(ResourceWarning, match="was not closed"):
        gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
def test_an_error_that_each_poll_raises_does_not_keep_its_callers_alive(kind: type[Any]) -> None:
    """The core keeps the error, and each poll raises it: its traceback must not grow."""
    consumer = kind(bootstrap_servers="127.0.0.1:1", group_id="g")
    depths = asyncio.run(traceback_lengths(consumer, 3))
    assert len(set(depths)) == 1
    thread = thread_of(consumer)
    del consumer
    with pytest.warns(ResourceWarning, match="was not closed"):
        gc.collect()
    thread.join(60)
    assert not thread.is_alive()


async def traceback_lengths(consumer: Any, times: int) -> list[int]:
    """The lengths of the tracebacks of an error that each poll raises."""
    depths: list[int] = []
    if isinstance(consumer, AsyncConsumer):
        await consumer.subscribe(["t"])
    else:
        consumer.subscribe(["t"])
    while len(depths) < times:
        try:
            polled = consumer.poll(0.05)
            if isinstance(consumer, AsyncConsumer):
                await polled
        except ConnectionFailedError as error:
            depths.append(len(traceback.extract_tb(error.__traceback__)))
    return depths


def test_a_consumer_refuses_coroutine_functions_as_listeners() -> None:
    async def listener(consumer: object, partitions: object) -> None: ...

    with Consumer(bootstrap_servers="localhost:1", group_id="g") as consumer, pytest.raises(TypeError, match="AsyncConsumer"):
        consumer.subscribe(["t"], on_revoke=listener)  # type: ignore[arg-type]


def test_many_notifications_call_an_armed_callback_once() -> None:
    queue, called = NotificationQueue(), []
    assert queue.arm(lambda: called.append("first"))
    for number in range(100):
        queue.put_all([number])
    assert called == ["first"]
    assert not queue.arm(lambda: called.append("second"))
    assert queue.drain() == list(range(100))
    assert queue.arm(lambda: called.append("third"))
    queue.disarm()
    queue.wake()
    assert called == ["first"]
    assert not queue.arm(lambda: called.append("fourth"))
