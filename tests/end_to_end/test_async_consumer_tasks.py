"""Several tasks use one ``AsyncConsumer``: queries and commits during a poll, and ``close()`` during a poll."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import Admin, AsyncConsumer, Consumer, TopicPartition
from ottla.errors import ClosedError, WakeupError

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""

MakeTopic = Callable[..., str]


def run(main: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE):
            await main
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(in_time(), debug=True)


def consumer(served: str, group: str, **settings: Any) -> AsyncConsumer:
    quick = {"auto_offset_reset": "earliest", "fetch_max_wait": 0.05}
    return AsyncConsumer(bootstrap_servers=served, group_id=group, **{**quick, **settings})


def spread(served: str, name: str, partitions: int, records: int) -> None:
    """Produce ``records`` to each partition."""
    producer = Producer({"bootstrap.servers": served, "linger.ms": 0})
    for number in range(records):
        for partition in range(partitions):
            producer.produce(name, b"%d" % number, partition=partition)
    assert producer.flush(60) == 0


def committed(served: str, group: str, name: str, partitions: int = 1) -> dict[int, int]:
    with Consumer(bootstrap_servers=served, group_id=group) as other:
        found = other.committed(*(TopicPartition(name, number) for number in range(partitions)))
    return {tp.partition: position.offset for tp, position in found.items() if position is not None}


def has_members(served: str, group: str) -> bool:
    with Admin(bootstrap_servers=served) as admin:
        names = [each.group_id for each in admin.list_groups()]
        return group in names and bool(admin.describe_groups([group])[group].members)


@asynccontextmanager
async def polling(this: AsyncConsumer) -> AsyncIterator[asyncio.Task[Any]]:
    """Return a task that waits in ``poll()``."""
    task = asyncio.create_task(this.poll(PATIENCE), name="polling")
    await asyncio.sleep(0.05)
    assert not task.done()
    yield task
    task.cancel()
    await asyncio.wait([task])


# -- queries and commits during a poll ------------------------------------------------------------------------------------


def test_all_calls_except_polls_work_during_a_poll(served: str, topic: MakeTopic) -> None:
    name = topic(2, *(f"{number}:value" for number in range(20)))
    first, second = TopicPartition(name, 0), TopicPartition(name, 1)

    async def beside() -> None:
        async with consumer(served, f"g-{name}", enable_auto_commit=False) as this:
            await this.subscribe([name])
            taken = 0
            while taken < 20:
                taken += len(await this.poll(PATIENCE))
            async with polling(this) as task:
                ends = await this.end_offsets([first, second])
                assert sum(ends.values()) == 20
                assert {tp: at.offset for tp, at in (await this.commit()).items()} == ends
                assert {tp: at and at.offset for tp, at in (await this.committed()).items()} == ends
                heard: list[object] = []
                await this.commit_async({first: 1}, lambda offsets, error: heard.append(error))
                assert await this.position(first) == ends[first]
                assert await this.lag(second) == 0
                assert await this.beginning_offsets([first]) == {first: 0}
                assert (await this.offsets_for_times({first: 0}))[first] is not None
                assert len(await this.partitions_for(name)) == 2
                assert name in await this.list_topics()
                await this.pause(first)
                assert this.paused() == {first}
                await this.resume(first)
                assert this.paused() == set()
                assert not task.done()
                while not heard:  # the poll runs the callback
                    await asyncio.sleep(0.01)
                assert heard == [None]
                await this.seek_to_end(first)
                await this.seek(second, 0)
                assert {record.partition for record in await task} == {1}

    run(beside())


def test_many_concurrent_queries(served: str, topic: MakeTopic) -> None:
    name = topic(1, *(f"{number}:value" for number in range(5)))
    tp = TopicPartition(name, 0)

    async def ask() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.assign([tp])
            await this.poll(PATIENCE)
            async with polling(this):
                answers = await asyncio.gather(*(this.end_offsets([tp]) for _ in range(50)))
            assert answers == [{tp: 5}] * 50

    run(ask())


def test_a_commit_during_a_poll_that_returns_records(served: str, topic: MakeTopic) -> None:
    """Any call may handle a notification; the call that waits for it is woken."""
    name = topic(1)
    tp = TopicPartition(name, 0)
    seen: list[int] = []

    async def read(this: AsyncConsumer) -> None:
        while len(seen) < 300:
            seen.extend(record.offset for record in await this.poll(PATIENCE))

    async def both() -> None:
        async with consumer(served, f"g-{name}", enable_auto_commit=False) as this:
            await this.assign([tp])
            reading = asyncio.create_task(read(this))
            for _ in range(30):
                await asyncio.to_thread(spread, served, name, 1, 10)
                await this.commit()
            await reading
            await this.commit()

    run(both())
    assert seen == [*range(300)]
    assert committed(served, f"g-{name}", name) == {0: 300}


def test_a_query_during_a_poll_can_be_cancelled(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")
    tp = TopicPartition(name, 0)

    async def cancel() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.assign([tp])
            await this.poll(PATIENCE)
            async with polling(this) as task:
                for _ in range(20):
                    question = asyncio.create_task(this.end_offsets([tp]))
                    await asyncio.sleep(0)
                    question.cancel()
                    await asyncio.wait([question])
                assert await this.end_offsets([tp]) == {tp: 1}
                await asyncio.to_thread(spread, served, name, 1, 1)
                assert [record.offset for record in await task] == [1]

    run(cancel())


def test_a_wakeup_ends_the_poll_but_no_other_call(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")
    tp = TopicPartition(name, 0)

    async def wake() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.assign([tp])
            assert len(await this.poll(PATIENCE)) == 1
            for _ in range(20):
                waiting = asyncio.create_task(this.poll(PATIENCE))
                await asyncio.sleep(0.01)
                question = asyncio.create_task(this.end_offsets([tp]))
                await asyncio.sleep(0)
                this.wakeup()
                with pytest.raises(WakeupError):
                    await waiting
                assert await question == {tp: 1}

    run(wake())


def test_a_listener_may_wait_for_a_task_that_commits(served: str, topic: MakeTopic) -> None:
    """A usual pattern: ``on_revoke`` waits for worker tasks, which commit the records that they have processed."""
    name = topic(1, *(f"{number}:value" for number in range(10)))
    orders: asyncio.Queue[int] = asyncio.Queue()

    async def work(this: AsyncConsumer) -> None:
        while True:
            offset = await orders.get()
            await this.commit({TopicPartition(name, 0): offset + 1})
            orders.task_done()

    async def on_revoke(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await orders.join()

    async def both() -> None:
        async with consumer(served, f"g-{name}", enable_auto_commit=False) as this:
            await this.subscribe([name], on_revoke=on_revoke)
            working = asyncio.create_task(work(this))
            for record in await this.poll(PATIENCE):
                orders.put_nowait(record.offset)
            await this.unsubscribe()
            working.cancel()
            await asyncio.wait([working])

    run(both())
    assert committed(served, f"g-{name}", name) == {0: 10}


def test_a_callback_may_wait_for_a_task_that_commits_and_close_waits_for_both(served: str, topic: MakeTopic) -> None:
    name = topic(1, "0:value")
    tp = TopicPartition(name, 0)
    order: list[str] = []

    async def lock_in_hand() -> None:
        lock, called = asyncio.Lock(), asyncio.Event()

        async def callback(offsets: object, error: object) -> None:
            called.set()
            async with lock:
                await asyncio.sleep(0.1)
                order.append("callback")

        async with consumer(served, f"g-{name}", enable_auto_commit=False) as this:
            await this.assign([tp])
            assert len(await this.poll(PATIENCE)) == 1
            async with lock, polling(this):
                await this.commit_async({tp: 0}, callback)
                await called.wait()
                await this.commit({tp: 1})
                order.append("commit")
        order.append("close")

    run(lock_in_hand())
    assert order == ["commit", "callback", "close"]


def test_a_pause_during_an_iteration_repeats_no_records(served: str, topic: MakeTopic) -> None:
    name = topic(2)
    spread(served, name, 2, 500)
    first = TopicPartition(name, 0)
    seen: dict[int, list[int]] = {0: [], 1: []}

    async def walk(this: AsyncConsumer) -> None:
        async for record in this:
            seen[record.partition].append(record.offset)
            if len(seen[0]) + len(seen[1]) == 1_000:
                break
            if record.offset % 10 == 0:
                await asyncio.sleep(0)

    async def both() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.assign([first, TopicPartition(name, 1)])
            walking = asyncio.create_task(walk(this))
            while not walking.done():
                await this.pause(first)
                paused_at = len(seen[0])
                await asyncio.sleep(0.001)
                assert len(seen[0]) == paused_at
                await this.resume(first)
                await asyncio.sleep(0.001)
            await walking

    run(both())
    assert seen == {0: [*range(500)], 1: [*range(500)]}


# -- close() during a poll ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_end_of_async_with_ends_the_poll_of_another_task(served: str, topic: MakeTopic, protocol: str) -> None:
    name = topic(1, *(f"{number}:value" for number in range(10)))

    async def read(this: AsyncConsumer) -> int:
        taken = 0
        while True:
            try:
                taken += len(await this.poll(PATIENCE))
            except ClosedError:
                return taken

    async def both() -> None:
        async with consumer(served, f"g-{name}", group_protocol=protocol) as this:
            await this.subscribe([name])
            reading = asyncio.create_task(read(this))
            while not this.assignment() or await this.position(TopicPartition(name, 0)) < 10:
                await asyncio.sleep(0.01)
            assert has_members(served, f"g-{name}")
            await asyncio.sleep(0.05)
        assert await reading == 10
        assert this._network is not None
        assert not this._network._thread.is_alive()
        with pytest.raises(ClosedError, match="closed"):
            await this.poll()

    run(both())
    assert not has_members(served, f"g-{name}")
    assert committed(served, f"g-{name}", name) == {0: 10}


def test_the_end_of_async_with_ends_an_async_for_of_another_task(served: str, topic: MakeTopic) -> None:
    name = topic(1, *(f"{number}:value" for number in range(10)))

    async def walk(this: AsyncConsumer) -> int:
        return len([record async for record in this])

    async def both() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.subscribe([name])
            walking = asyncio.create_task(walk(this))
            while not this.assignment() or await this.lag(TopicPartition(name, 0)):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        assert await walking == 10
        with pytest.raises(ClosedError):
            await anext(aiter(this))

    run(both())
    assert committed(served, f"g-{name}", name) == {0: 10}


def test_close_in_the_body_of_an_async_for_ends_it(served: str, topic: MakeTopic) -> None:
    name = topic(1, *(f"{number}:value" for number in range(10)))
    seen: list[int] = []

    async def walk() -> None:
        this = consumer(served, f"g-{name}")
        await this.assign([TopicPartition(name, 0)])
        async for record in this:
            seen.append(record.offset)
            if record.offset == 3:
                await this.close()

    run(walk())
    assert seen == [0, 1, 2, 3]
    assert committed(served, f"g-{name}", name) == {0: 4}


def test_close_ends_a_poll_but_lets_its_listener_end(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")
    heard: list[str] = []

    async def on_assign(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        heard.append("begins")
        await asyncio.sleep(0.1)
        await this.committed(*partitions)
        heard.append("ends")

    async def both() -> None:
        async with consumer(served, f"g-{name}") as this:
            await this.subscribe([name], on_assign=on_assign)
            waiting = asyncio.create_task(this.poll(PATIENCE))
            while not heard:
                await asyncio.sleep(0.01)
        with pytest.raises(ClosedError):
            await waiting
        assert heard == ["begins", "ends"]

    run(both())


def test_a_listener_may_close_the_consumer_in_whose_poll_it_runs(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")

    async def on_assign(this: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        await this.close()

    async def main() -> None:
        this = consumer(served, f"g-{name}")
        await this.subscribe([name], on_assign=on_assign)
        with pytest.raises(ClosedError):
            await this.poll(PATIENCE)
        while asyncio.all_tasks() != {asyncio.current_task()}:  # the listener stops the network thread
            await asyncio.sleep(0.01)
        assert this._shared.closed

    began = time.monotonic()
    run(main())
    assert time.monotonic() - began < PATIENCE / 2
    assert not has_members(served, f"g-{name}")


def test_two_concurrent_closes_return_when_the_consumer_is_closed(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")

    async def close(this: AsyncConsumer) -> bool:
        await this.close()
        return this._shared.closed

    async def main() -> None:
        this = consumer(served, f"g-{name}")
        await this.subscribe([name])
        await this.poll(PATIENCE)
        assert await asyncio.gather(close(this), close(this), close(this)) == [True] * 3

    run(main())


def test_close_ends_a_waiting_query_with_an_error(served: str, topic: MakeTopic) -> None:
    name = topic(1)

    async def main() -> None:
        this = consumer(served, f"g-{name}")
        await this.assign([TopicPartition(name, 0)])
        waiting = [
            asyncio.create_task(this.position(TopicPartition(name, 0))),
            asyncio.create_task(this.end_offsets([TopicPartition("nobody-has-this", 0)])),
        ]
        await asyncio.sleep(0)
        await this.close()
        done, _ = await asyncio.wait(waiting, timeout=PATIENCE / 2)
        assert len(done) == 2
        for task in done:
            error = task.exception()
            assert error is None or isinstance(error, ClosedError), error

    run(main())


def test_a_cancelled_close_ends_the_poll_as_well(served: str, topic: MakeTopic) -> None:
    name = topic(1, "key:value")

    async def main() -> None:
        this = consumer(served, f"g-{name}")
        await this.subscribe([name])
        await this.poll(PATIENCE)
        async with polling(this) as task:
            closing = asyncio.create_task(this.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            with pytest.raises(ClosedError):
                await task
        with pytest.raises(ClosedError):
            await this.poll()

    run(main())


# -- random calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_tasks_with_random_calls(served: str, topic: MakeTopic, seed: int) -> None:
    """One task reads; others query, commit, pause, cancel and wake up; then the consumer is closed meanwhile."""
    partitions, records, chance = 3, 400, random.Random(seed)
    name = topic(partitions)
    all_of_it = [TopicPartition(name, number) for number in range(partitions)]
    spread(served, name, partitions, records)
    found: dict[int, list[int]] = {number: [] for number in range(partitions)}
    ended: list[str] = []

    async def read(this: AsyncConsumer) -> None:
        while True:
            with suppress(WakeupError, TimeoutError):
                async with asyncio.timeout(chance.choice((0.002, 0.02, 1))):
                    for record in await this.poll(chance.choice((0, 0.01, 1))):
                        found[record.partition].append(record.offset)
            await asyncio.sleep(0)

    async def ask(this: AsyncConsumer) -> None:
        questions: list[Callable[[], Awaitable[object]]] = [
            this.commit,
            this.commit_async,
            this.committed,
            lambda: this.end_offsets(all_of_it),
            lambda: this.lag(chance.choice(all_of_it)),
            lambda: this.position(chance.choice(all_of_it)),
            lambda: this.pause(chance.choice(all_of_it)),
            lambda: this.resume(*this.paused()),
            lambda: this.partitions_for(name),
        ]
        while True:
            with suppress(WakeupError, TimeoutError):
                async with asyncio.timeout(chance.choice((0.001, 0.01, 1))):
                    await chance.choice(questions)()
            if chance.random() < 0.05:
                this.wakeup()
            await asyncio.sleep(chance.choice((0, 0, 0.001)))

    async def until_closed(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ClosedError:
            ended.append("closed")

    async def main() -> None:
        async with consumer(served, f"g-{name}", max_poll_records=7, fetch_max_wait=0.005) as this:
            await this.assign(all_of_it)
            tasks = [asyncio.create_task(until_closed(read(this)))]
            tasks += [asyncio.create_task(until_closed(ask(this))) for _ in range(4)]
            while sum(map(len, found.values())) < partitions * records:
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.01)
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    run(main())
    assert ended == ["closed"] * 5
    assert found == {number: [*range(records)] for number in range(partitions)}
    assert all(offset <= records for offset in committed(served, f"g-{name}", name, partitions).values())


def test_an_iteration_raises_the_closed_error_of_another_consumer_in_a_listener(served: str, topic: MakeTopic) -> None:
    name = topic(1, "0:value")

    async def walk() -> None:
        other = consumer(served, f"other-{name}")
        await other.close()

        async def look(_: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            await other.committed(*partitions)

        async with consumer(served, f"g-{name}") as this:
            await this.subscribe([name], on_assign=look)
            with pytest.raises(ClosedError):
                async for _ in this:
                    pass
            assert len(await this.poll(PATIENCE)) == 1

    run(walk())
