"""``AsyncConsumer`` on real sockets: groups, coroutine functions as listeners, cancellation at any moment, slow handlers."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import AsyncConsumer, OffsetAndMetadata, TopicPartition
from ottla.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError, WakeupError

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""

MakeTopic = Callable[..., str]


def run(main: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE):
            await main

    asyncio.run(in_time(), debug=True)


async def until(condition: Callable[[], bool], step: Callable[[], Awaitable[object]]) -> None:
    """Repeat ``step`` until ``condition`` holds."""
    while not condition():
        await step()


def consumer(served: str, group: str | None = None, **settings: Any) -> AsyncConsumer:
    quick: dict[str, Any] = {}
    if group is not None and settings.get("group_protocol", "classic") == "classic":
        quick = {"group_protocol": "classic", "heartbeat_interval": 0.1, "session_timeout": 6}
    return AsyncConsumer(bootstrap_servers=served, group_id=group, auto_offset_reset="earliest", **{**quick, **settings})


def filled(topic: MakeTopic, partitions: int, records: int) -> str:
    """Create a topic with ``records`` in each partition."""
    return topic(partitions, *(f"{number}:value" for number in range(partitions * records)))


def spread(served: str, name: str, partitions: int, records: int) -> None:
    """Produce ``records`` to each partition."""
    producer = Producer({"bootstrap.servers": served, "linger.ms": 0})
    for number in range(records):
        for partition in range(partitions):
            producer.produce(name, b"%d" % number, partition=partition)
    assert producer.flush(60) == 0


def test_two_members_share_a_topic_and_listeners_may_commit(served: str, topic: MakeTopic) -> None:
    name = topic(4)
    spread(served, name, 4, 50)
    heard: list[str] = []
    handled: set[tuple[int, int]] = set()

    async def on_assign(member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await member.committed(*partitions)
        heard.append("assigned")

    async def on_revoke(member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        committed = await member.commit()
        assert committed.keys() <= set(partitions)
        heard.append("revoked")

    async def member(this: AsyncConsumer, done: Callable[[], bool]) -> None:
        async with this:
            await this.subscribe([name], on_assign=on_assign, on_revoke=on_revoke)
            while not done():
                for record in await this.poll(0.2):
                    handled.add((record.partition, record.offset))

    async def both() -> None:
        first, second = (consumer(served, f"g-{name}", enable_auto_commit=False) for _ in range(2))
        shared = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member(first, shared.is_set))
            await until(lambda: len(handled) == 200, lambda: asyncio.sleep(0.01))
            tasks.create_task(member(second, shared.is_set))
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, lambda: asyncio.sleep(0.01))
            spread(served, name, 4, 50)
            await until(lambda: len(handled) == 400, lambda: asyncio.sleep(0.01))
            shared.set()
        assert heard.count("assigned") >= 3
        assert heard.count("revoked") >= 3

    run(both())
    assert handled == {(partition, offset) for partition in range(4) for offset in range(100)}


@pytest.mark.parametrize("seed", range(4))
def test_polls_cancelled_at_any_moment_neither_lose_nor_repeat_records(served: str, topic: MakeTopic, seed: int) -> None:
    name, moments = topic(3), random.Random(seed)
    spread(served, name, 3, 400)
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def read() -> None:
        cancelled = 0
        async with consumer(served, max_poll_records=7, fetch_max_wait=0.005) as reader:
            await reader.assign(TopicPartition(name, partition) for partition in found)
            while sum(map(len, found.values())) < 1_200 or cancelled < 50:
                polling = asyncio.create_task(reader.poll(moments.choice((0, 0.001, 5))))
                for _ in range(moments.randrange(4)):
                    await asyncio.sleep(moments.choice((0, 0, 0.0005)))
                polling.cancel()
                try:
                    for record in await polling:
                        found[record.partition].append(record.offset)
                except asyncio.CancelledError:
                    cancelled += 1

    run(read())
    assert found == {partition: [*range(400)] for partition in range(3)}


@pytest.mark.parametrize("seed", range(2))
def test_a_group_whose_calls_are_cancelled_at_any_moment_loses_no_records(served: str, topic: MakeTopic, seed: int) -> None:
    name, moments = topic(4), random.Random(seed)
    spread(served, name, 4, 150)
    handled: set[tuple[int, int]] = set()
    wanted = {(partition, offset) for partition in range(4) for offset in range(150)}
    under_way = {"revoked": 0, "through": 0}

    async def on_revoke(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        del partitions
        under_way["revoked"] += 1
        await asyncio.sleep(0.02)
        with suppress(CommitFailedError, RebalanceInProgressError):
            await this.commit()
        under_way["through"] += 1

    async def briefly(call: Coroutine[Any, Any, Any]) -> Any:
        with suppress(TimeoutError, CommitFailedError, RebalanceInProgressError):
            async with asyncio.timeout(moments.choice((0, 0.001, 0.005, 0.2))):
                return await call

    async def member(this: AsyncConsumer, lives: float) -> None:
        ends = time.monotonic() + lives
        async with this:
            await this.subscribe([name], on_revoke=on_revoke)
            while time.monotonic() < ends or (lives and handled != wanted):
                records = await briefly(this.poll(1))
                for record in records or ():
                    handled.add((record.partition, record.offset))
                if records:
                    await briefly(this.commit())
                await asyncio.sleep(0.005)

    async def group() -> None:
        settings = {"enable_auto_commit": False, "max_poll_records": 20}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member(consumer(served, f"g-{name}", **settings), 2.0))
            for _ in range(2):
                await member(consumer(served, f"g-{name}", **settings), 0.0)
                await asyncio.sleep(0.3)
        async with consumer(served, f"g-{name}") as last:  # the records below the committed offsets have been handled
            for tp, committed in (await last.committed(*(TopicPartition(name, number) for number in range(4)))).items():
                assert committed is None or committed.offset <= 150, tp

    run(group())
    assert handled == wanted
    assert under_way["revoked"] == under_way["through"]


def test_cancelling_a_call_does_not_cancel_its_listener(served: str, topic: MakeTopic) -> None:
    name = filled(topic, 1, 3)
    heard: list[str] = []
    cut = asyncio.Event()

    async def on_assign(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        heard.append("begins")
        await cut.wait()
        await this.seek(partitions[0], 2)
        heard.append("ends")

    async def cancelled() -> None:
        async with consumer(served, f"g-{name}") as reader:
            await reader.subscribe([name], on_assign=on_assign)
            while not heard:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.poll(5)
            assert heard == ["begins"]
            cut.set()
            records = await reader.poll(PATIENCE)
            assert heard == ["begins", "ends"]
            assert [record.offset for record in records] == [2]

    run(cancelled())


def test_the_next_poll_raises_the_exception_of_an_abandoned_listener(served: str, topic: MakeTopic) -> None:
    name = filled(topic, 1, 1)
    begun, cut = asyncio.Event(), asyncio.Event()

    async def on_assign(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        del this, partitions
        begun.set()
        await cut.wait()
        raise ZeroDivisionError

    async def cancelled() -> None:
        async with consumer(served, f"g-{name}") as reader:
            await reader.subscribe([name], on_assign=on_assign)
            polling = asyncio.create_task(reader.poll(PATIENCE))
            await begun.wait()
            polling.cancel()
            await asyncio.wait([polling])
            cut.set()
            with pytest.raises(ZeroDivisionError):
                await reader.poll()
            assert len(await reader.poll(PATIENCE)) == 1
            assert reader.assignment() == {TopicPartition(name, 0)}

    run(cancelled())


def test_an_exception_of_a_listener_keeps_the_fetched_records(served: str, topic: MakeTopic) -> None:
    """After other exceptions in the middle of a call, all records are fetched again."""
    name = filled(topic, 2, 10)

    async def on_assign(member: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        raise ValueError("no use")

    async def main() -> None:
        async with consumer(served, f"of-{name}") as member:
            await member.subscribe([name], on_assign=on_assign)
            with pytest.raises(ValueError, match="no use"):
                await member.poll(PATIENCE / 2)
            assert not member._calls.interrupted

    run(main())


def test_close_waits_for_a_listener_until_its_timeout(served: str, topic: MakeTopic) -> None:
    name = filled(topic, 1, 1)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def on_assign(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        del this, partitions
        begun.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.set()

    async def closed() -> None:
        reader = consumer(served, f"g-{name}")
        await reader.subscribe([name], on_assign=on_assign)
        polling = asyncio.create_task(reader.poll(PATIENCE))
        await begun.wait()
        polling.cancel()
        await asyncio.wait([polling])
        assert not ended.is_set()
        await reader.close(timeout=0.2)
        assert ended.is_set()

    run(closed())


@pytest.mark.parametrize("cancels", [1, 2])
def test_a_cancelled_close_lets_its_listener_end(served: str, topic: MakeTopic, cancels: int) -> None:
    name = filled(topic, 1, 1)
    tp = TopicPartition(name, 0)
    begun, heard = asyncio.Event(), list[object]()

    async def on_revoke(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        begun.set()
        try:
            heard.append(await this.commit({tp: 1}))
            heard.append(await this.committed(*partitions))
        except IllegalStateError as closed:
            heard.append(closed)

    async def cancelled() -> None:
        reader = consumer(served, f"g-{name}-{cancels}", enable_auto_commit=False)
        await reader.subscribe([name], on_revoke=on_revoke)
        assert len(await reader.poll(PATIENCE)) == 1
        closing = asyncio.create_task(reader.close())
        await begun.wait()
        for _ in range(cancels):
            closing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([closing])
        assert closing.cancelled()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, lambda: asyncio.sleep(0.001))
        if cancels == 1:
            assert heard == [{tp: OffsetAndMetadata(1)}] * 2
        with pytest.raises(IllegalStateError, match="closed"):
            await reader.poll()

    began = time.monotonic()
    run(cancelled())
    assert heard
    assert time.monotonic() - began < PATIENCE / 2


def test_async_for_with_commits_in_its_body(served: str, topic: MakeTopic) -> None:
    name = topic(1)
    spread(served, name, 1, 100)

    async def walk() -> None:
        settings = {"enable_auto_commit": False}
        async with consumer(served, f"g-{name}", **settings) as reader:
            await reader.subscribe([name])
            async for record in reader:
                if record.offset == 41:
                    assert await reader.commit() == {TopicPartition(name, 0): (42, "", 0)}
                    break
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with consumer(served, f"g-{name}") as reader:
                await reader.subscribe([name])
                async for record in reader:
                    if record.offset == 50:
                        raise ZeroDivisionError
        async with consumer(served, f"g-{name}") as reader:
            await reader.subscribe([name])
            assert (await anext(aiter(reader))).offset == 50

    run(walk())


def test_an_iteration_continues_where_it_was_cancelled(served: str, topic: MakeTopic) -> None:
    name = topic(1)
    spread(served, name, 1, 100)
    offsets: list[int] = []

    async def walk() -> None:
        async with consumer(served) as reader:
            await reader.assign([TopicPartition(name, 0)])
            while len(offsets) < 100:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        async for record in reader:
                            offsets.append(record.offset)
                            await asyncio.sleep(0.001)

    run(walk())
    assert offsets == [*range(100)]


def test_an_iteration_continues_after_a_timeout_or_a_wakeup_in_anext(served: str, topic: MakeTopic) -> None:
    """An async generator would have ended: the next ``anext()`` would raise ``StopAsyncIteration``."""
    name = topic(1)
    offsets: list[int] = []

    async def walk() -> None:
        async with consumer(served) as reader:
            await reader.assign([TopicPartition(name, 0)])
            records = aiter(reader)
            while len(offsets) < 50:
                if len(offsets) % 25 == 0:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(records), 0.05)
                    reader.wakeup()
                    with pytest.raises(WakeupError):
                        await anext(records)
                    spread(served, name, 1, 25)
                offsets.append((await asyncio.wait_for(anext(records), PATIENCE)).offset)
        with pytest.raises(StopAsyncIteration):
            await anext(records)

    run(walk())
    assert offsets == [*range(50)]


def test_a_handler_slower_than_max_poll_interval_leaves_the_group_and_rejoins(served: str, topic: MakeTopic) -> None:
    name = topic(1)
    spread(served, name, 1, 20)
    heard: list[str] = []
    offsets: list[int] = []

    async def slow() -> None:
        settings = {"group_protocol": "consumer", "max_poll_interval": 1, "max_poll_records": 5, "enable_auto_commit": False}
        async with consumer(served, f"g-{name}", **settings) as reader:
            await reader.subscribe([name], on_assign=lambda *_: heard.append("assigned"), on_lost=lambda *_: heard.append("lost"))
            while not offsets:
                offsets.extend(record.offset for record in await reader.poll(5))
            await asyncio.sleep(2.5)  # much more than max_poll_interval
            while 19 not in offsets:
                offsets.extend(record.offset for record in await reader.poll(5))

    run(slow())
    assert heard[:3] == ["assigned", "lost", "assigned"]
    assert offsets[:10] == [*range(5), *range(5)]
    assert set(offsets) == {*range(20)}


class Steps:
    """Counts the waits of calls, and cancels the task at one of them."""

    def __init__(self, cancel_at: int = 0) -> None:
        self.count = 0
        self._cancel_at = cancel_at

    def of(self, call: Coroutine[Any, Any, Any]) -> Awaitable[Any]:
        return _Stepped(self, call)

    def waits(self) -> None:
        self.count += 1
        if self.count == self._cancel_at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


class _Stepped:
    def __init__(self, steps: Steps, call: Coroutine[Any, Any, Any]) -> None:
        self._steps = steps
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._call.__await__()
        step = functools.partial(next, inner)
        while True:
            try:
                future = step()
            except StopIteration as done:
                return done.value
            self._steps.waits()
            try:
                yield future
            except asyncio.CancelledError as cancelled:
                step = functools.partial(inner.throw, cancelled)
            else:
                step = functools.partial(next, inner)


async def _live(consumer: AsyncConsumer, name: str, steps: Steps, seen: Counter[tuple[int, int]], records: int) -> None:
    """Make all calls of a consumer, from ``subscribe`` to ``close``; start over once if one is cancelled."""

    async def on_assign(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)

    async def on_revoke(each: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await each.commit()

    async def turn() -> None:
        await steps.of(consumer.subscribe([name], on_assign=on_assign, on_revoke=on_revoke))
        await steps.of(consumer.resume(*consumer.paused()))
        while len(seen) < records:
            seen.update((record.partition, record.offset) for record in await steps.of(consumer.poll(0.5)))
            await steps.of(consumer.commit())
            await steps.of(consumer.commit_async())
            for tp in sorted(consumer.assignment())[len(seen) % 3 :][:1]:
                await steps.of(consumer.pause(tp))
                await steps.of(consumer.committed(tp))
                await steps.of(consumer.seek(tp, await steps.of(consumer.position(tp))))
            await steps.of(consumer.resume(*consumer.paused()))
        await steps.of(consumer.close())

    task = asyncio.current_task()
    assert task is not None
    try:
        await turn()
    except asyncio.CancelledError:
        task.uncancel()
        if not consumer._shared.closed:
            await turn()


@pytest.mark.parametrize(
    "stride", [pytest.param(4, id="some"), pytest.param(1, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_each_step_of_each_call_can_be_cancelled(served: str, topic: MakeTopic, stride: int) -> None:
    name, partitions, each = topic(2), 2, 20
    spread(served, name, partitions, each)
    everything = {(partition, offset) for partition in range(partitions) for offset in range(each)}

    def life(cancel_at: int) -> int:
        steps, seen, wrong = Steps(cancel_at), Counter[tuple[int, int]](), list[Any]()

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
            one = consumer(served, f"{name}-{cancel_at}", max_poll_records=17, auto_commit_interval=0.02, fetch_max_wait=0.05)
            await _live(one, name, steps, seen, len(everything))
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert one._network is not None
            while one._network._thread.is_alive():
                await asyncio.sleep(0.001)

        run(main())
        gc.collect()
        assert wrong == []
        assert seen.keys() == everything
        assert set(seen.values()) == {1}
        return steps.count

    for number in range(1, life(0), stride):
        life(number)
