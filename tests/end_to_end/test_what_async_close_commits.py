"""The table of docs/consumer.md, "What is committed, and when", for ``AsyncConsumer``: ways to end one, and what is committed then.

Each program polls ten records, processes some and ends. A record that was not processed must never be committed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from ottla import AsyncConsumer, Consumer, Records, TopicPartition

PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""
ALL = 10
"""Records of the topic; one poll returns all of them."""

MakeTopic = Callable[..., str]


class Broken(Exception):
    """The exception of a handler."""


class Reader:
    """A consumer of the topic, with helpers for its programs. The handler hangs at the third record."""

    def __init__(self, served: str, topic: str, **settings: Any) -> None:
        self.tp = TopicPartition(topic, 0)
        self.group = f"group-of-{topic}"
        self.served = served
        self.stuck = asyncio.Event()
        self.quick = {"auto_offset_reset": "earliest", "auto_commit_interval": 3600, "fetch_max_wait": 0.05, **settings}
        self.consumer = AsyncConsumer(bootstrap_servers=served, group_id=self.group, **self.quick)

    async def ready(self) -> AsyncConsumer:
        await self.consumer.assign([self.tp])
        return self.consumer

    async def poll(self) -> Records:
        records = await self.consumer.poll(PATIENCE)
        assert len(records) == ALL
        return records

    async def handle(self, records: Records) -> None:
        for record in records:
            if record.offset == 3:
                self.stuck.set()
                await asyncio.sleep(PATIENCE)

    async def poll_and_get_stuck(self) -> None:
        await self.handle(await self.poll())

    async def walk_and_get_stuck(self) -> None:
        async for record in self.consumer:
            if record.offset == 3:
                self.stuck.set()
                await asyncio.sleep(PATIENCE)

    async def walk_with_a_time_limit_and_get_stuck(self) -> None:
        records = aiter(self.consumer)
        while True:
            # Before Python 3.12 a separate task requests the record.
            record = await asyncio.wait_for(anext(records), PATIENCE)
            if record.offset == 3:
                self.stuck.set()
                await asyncio.sleep(PATIENCE)

    async def poll_and_fail(self) -> None:
        await self.poll()
        raise Broken

    @asynccontextmanager
    async def lifespan(self, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[asyncio.Task[None]]:
        """As in a web application: one task serves and closes the consumer, another one uses it."""
        async with await self.ready():
            task = asyncio.create_task(work())
            await asyncio.wait([task, asyncio.ensure_future(self.stuck.wait())], return_when=asyncio.FIRST_COMPLETED)
            yield task

    def committed(self) -> int | None:
        with Consumer(bootstrap_servers=self.served, group_id=self.group) as other:
            found = other.committed(self.tp)[self.tp]
        return None if found is None else found.offset


Program = Callable[[Reader], Awaitable[None]]


def run(program: Program, reader: Reader) -> None:
    async def main() -> None:
        reader.stuck = asyncio.Event()
        try:
            async with asyncio.timeout(PATIENCE):
                await program(reader)
        finally:
            await reader.consumer.close()

    asyncio.run(main(), debug=True)


@pytest.fixture
def reader(served: str, topic: MakeTopic) -> Reader:
    return Reader(served, topic(1, *(f"{number}:value" for number in range(ALL))))


# -- all records are processed --------------------------------------------------------------------------------------------


async def end_of_async_with(reader: Reader) -> None:
    async with await reader.ready():
        await reader.poll()


async def end_of_a_loop(reader: Reader) -> None:
    await reader.ready()
    await reader.poll()
    await reader.consumer.close()


async def a_task_that_polls_has_ended(reader: Reader) -> None:
    async with await reader.ready():
        await asyncio.create_task(reader.poll())


async def a_poll_in_a_task_of_its_own(reader: Reader) -> None:
    async with await reader.ready() as consumer:
        polling = asyncio.create_task(consumer.poll(PATIENCE))
        await asyncio.wait([polling])
        assert len(polling.result()) == ALL


async def close_with_a_time_limit(reader: Reader) -> None:
    await reader.ready()
    assert len(await asyncio.wait_for(reader.consumer.poll(PATIENCE), PATIENCE)) == ALL
    await asyncio.wait_for(reader.consumer.close(), PATIENCE)


async def an_error_that_was_there_before(reader: Reader) -> None:
    try:
        raise Broken
    except Broken:
        async with await reader.ready():
            await reader.poll()


async def a_task_cancelled_while_it_waits_in_poll(reader: Reader) -> None:
    async def work() -> None:
        await reader.poll()
        reader.stuck.set()
        await reader.consumer.poll(PATIENCE)

    async with reader.lifespan(work) as task:
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])


async def a_time_limit_on_a_poll(reader: Reader) -> None:
    async with await reader.ready() as consumer:
        await reader.poll()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.poll(PATIENCE)


async def a_task_that_was_cancelled_has_committed(reader: Reader) -> None:
    async def work() -> None:
        await reader.poll()
        await reader.consumer.commit()
        reader.stuck.set()
        await asyncio.sleep(PATIENCE)

    async with reader.lifespan(work) as task:
        task.cancel()


async def fail_in_a_group() -> None:
    """The handler of one record fails, and the program handles the exception."""

    async def fail() -> None:
        raise Broken

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())


async def a_group_has_failed_before_the_poll(reader: Reader) -> None:
    async with await reader.ready():
        await fail_in_a_group()
        await reader.poll()


async def a_cancellation_was_caught_before_the_poll(reader: Reader) -> None:
    async def work() -> None:
        with suppress(asyncio.CancelledError):
            reader.stuck.set()
            await asyncio.sleep(PATIENCE)
        await reader.poll()

    async with reader.lifespan(work) as task:
        task.cancel()
        await asyncio.wait([task])


async def a_group_has_failed_after_the_poll(reader: Reader) -> None:
    async with await reader.ready():
        await reader.poll()
        await fail_in_a_group()


# Before Python 3.13 a failed TaskGroup leaves its request to cancel the task behind, so the records are in doubt.
UNCANCELS = sys.version_info >= (3, 13)


@pytest.mark.parametrize(
    "end",
    [
        a_group_has_failed_before_the_poll,
        a_cancellation_was_caught_before_the_poll,
        *[a_group_has_failed_after_the_poll] * UNCANCELS,
        end_of_async_with,
        end_of_a_loop,
        a_task_that_polls_has_ended,
        a_poll_in_a_task_of_its_own,
        close_with_a_time_limit,
        an_error_that_was_there_before,
        a_task_cancelled_while_it_waits_in_poll,
        a_time_limit_on_a_poll,
        a_task_that_was_cancelled_has_committed,
    ],
)
def test_the_records_of_the_last_poll_are_committed(reader: Reader, end: Program) -> None:
    run(end, reader)
    assert reader.committed() == ALL


# -- some records may be unprocessed ------------------------------------------------------------------------------------


async def an_error_leaves_the_async_with(reader: Reader) -> None:
    with suppress(Broken):
        async with await reader.ready():
            await reader.poll_and_fail()


async def an_error_and_close_in_finally(reader: Reader) -> None:
    await reader.ready()
    with suppress(Broken):
        try:
            await reader.poll_and_fail()
        finally:
            await reader.consumer.close()


async def an_error_and_a_shielded_close_in_finally(reader: Reader) -> None:
    await reader.ready()
    with suppress(Broken):
        try:
            await reader.poll_and_fail()
        finally:
            await asyncio.shield(reader.consumer.close())


async def an_error_inside_aclosing(reader: Reader) -> None:
    class Service:
        aclose = reader.consumer.close

    with suppress(Broken):
        async with aclosing(Service()):
            await reader.ready()
            await reader.poll_and_fail()


async def an_error_inside_an_exit_stack(reader: Reader) -> None:
    with suppress(Broken):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(await reader.ready())
            stack.enter_context(suppress(KeyError))
            await reader.poll_and_fail()


async def a_time_limit_on_the_handler(reader: Reader) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3), await reader.ready():
            await reader.poll_and_get_stuck()


async def cancelled_inside_the_async_with(reader: Reader) -> None:
    async def work() -> None:
        async with await reader.ready():
            await reader.poll_and_get_stuck()

    task = asyncio.create_task(work())
    await reader.stuck.wait()
    task.cancel()
    await asyncio.wait([task])


async def a_service_is_cancelled_in_its_handler(reader: Reader) -> None:
    async with reader.lifespan(reader.poll_and_get_stuck) as task:
        task.cancel()
        await asyncio.wait([task])


async def a_service_is_cancelled_and_not_waited_for(reader: Reader) -> None:
    async with reader.lifespan(reader.poll_and_get_stuck) as task:
        task.cancel()


async def a_service_that_swallows_its_cancellation(reader: Reader) -> None:
    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await reader.poll_and_get_stuck()

    async with reader.lifespan(work) as task:
        task.cancel()
        await asyncio.wait([task])


async def a_service_that_polls_with_a_time_limit_is_cancelled(reader: Reader) -> None:
    async def work() -> None:
        await reader.handle(await asyncio.wait_for(reader.consumer.poll(PATIENCE), PATIENCE))

    async with reader.lifespan(work) as task:
        task.cancel()
        await asyncio.wait([task])


async def a_service_whose_poll_is_a_task_is_cancelled(reader: Reader) -> None:
    async def work() -> None:
        polling = asyncio.create_task(reader.consumer.poll(PATIENCE))
        await asyncio.wait([polling])
        await reader.handle(polling.result())

    async with reader.lifespan(work) as task:
        task.cancel()
        await asyncio.wait([task])


async def a_service_fails(reader: Reader) -> None:
    async with reader.lifespan(reader.poll_and_fail) as task:
        assert task.done()


async def a_service_still_handles(reader: Reader) -> None:
    async with reader.lifespan(reader.poll_and_get_stuck) as task:
        pass
    task.cancel()


async def a_task_of_a_group_fails(reader: Reader) -> None:
    with suppress(ExceptionGroup):
        async with await reader.ready(), asyncio.TaskGroup() as tasks:
            tasks.create_task(reader.poll_and_fail())


async def a_neighbour_in_a_group_fails(reader: Reader) -> None:
    async def fail() -> None:
        await reader.stuck.wait()
        raise Broken

    with suppress(ExceptionGroup):
        async with await reader.ready(), asyncio.TaskGroup() as tasks:
            tasks.create_task(reader.poll_and_get_stuck())
            tasks.create_task(fail())


async def the_group_of_the_handlers_fails(reader: Reader) -> None:
    async def handle(offset: int) -> None:
        if offset == 3:
            raise Broken

    with suppress(ExceptionGroup):
        async with await reader.ready():
            records = await reader.poll()
            async with asyncio.TaskGroup() as tasks:
                for record in records:
                    tasks.create_task(handle(record.offset))


async def a_cancellation_was_caught(reader: Reader) -> None:
    async def work() -> None:
        await reader.ready()
        with suppress(asyncio.CancelledError):
            await reader.poll_and_get_stuck()
        await reader.consumer.close()

    task = asyncio.create_task(work())
    await reader.stuck.wait()
    task.cancel()
    await task


@pytest.mark.parametrize(
    "end",
    [
        a_cancellation_was_caught,
        *[a_group_has_failed_after_the_poll] * (not UNCANCELS),
        an_error_leaves_the_async_with,
        an_error_and_close_in_finally,
        an_error_and_a_shielded_close_in_finally,
        an_error_inside_aclosing,
        an_error_inside_an_exit_stack,
        a_time_limit_on_the_handler,
        cancelled_inside_the_async_with,
        a_service_is_cancelled_in_its_handler,
        a_service_is_cancelled_and_not_waited_for,
        a_service_that_swallows_its_cancellation,
        a_service_that_polls_with_a_time_limit_is_cancelled,
        a_service_whose_poll_is_a_task_is_cancelled,
        a_service_fails,
        a_service_still_handles,
        a_task_of_a_group_fails,
        a_neighbour_in_a_group_fails,
        the_group_of_the_handlers_fails,
    ],
)
def test_the_records_of_the_last_poll_are_not_committed(reader: Reader, end: Program) -> None:
    run(end, reader)
    assert reader.committed() in (None, 0)


# -- partly processed ----------------------------------------------------------------------------------------------------


async def leave_a_walk_by_break(reader: Reader) -> None:
    async with await reader.ready() as consumer:
        async for record in consumer:
            if record.offset == 3:
                break


async def leave_a_walk_by_an_error(reader: Reader) -> None:
    with suppress(Broken):
        async with await reader.ready() as consumer:
            async for record in consumer:
                if record.offset == 3:
                    raise Broken


async def a_walk_is_cancelled(reader: Reader) -> None:
    async with reader.lifespan(reader.walk_and_get_stuck) as task:
        task.cancel()


async def a_walk_still_handles(reader: Reader) -> None:
    async with reader.lifespan(reader.walk_and_get_stuck) as task:
        pass
    task.cancel()


async def a_walk_with_a_time_limit_still_handles(reader: Reader) -> None:
    async with reader.lifespan(reader.walk_with_a_time_limit_and_get_stuck) as task:
        pass
    task.cancel()


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (leave_a_walk_by_break, 4),
        (leave_a_walk_by_an_error, 3),
        (a_walk_is_cancelled, 3),
        (a_walk_still_handles, 3),
        (a_walk_with_a_time_limit_still_handles, 3),
    ],
)
def test_the_records_processed_before_the_end_are_committed(reader: Reader, end: Program, expected: int) -> None:
    run(end, reader)
    assert reader.committed() == expected


@pytest.mark.parametrize("automatic", [True, False])
def test_a_commit_in_on_revoke_covers_the_same_records_as_close(served: str, topic: MakeTopic, automatic: bool) -> None:
    name = topic(1, *(f"{number}:value" for number in range(ALL)))
    reader = Reader(served, name, enable_auto_commit=automatic, group_protocol="consumer")
    offsets: list[int] = []

    async def on_revoke(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
        offsets.append((await consumer.commit())[reader.tp].offset)

    async def fail(reader: Reader) -> None:
        with suppress(Broken):
            async with reader.consumer as consumer:
                await consumer.subscribe([name], on_revoke=on_revoke)
                await reader.poll_and_fail()

    run(fail, reader)
    assert offsets == [0]
    assert reader.committed() == 0


def test_the_exception_of_a_task_that_is_not_awaited_is_logged(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    run(a_service_fails, reader)
    assert "which polled last, has failed" in caplog.text
    assert "raise Broken" in caplog.text


@pytest.mark.parametrize("turns", range(4))
def test_close_commits_what_position_returns_after_a_cancelled_seek(reader: Reader, turns: int) -> None:
    """``turns``: iterations of the event loop before the cancellation, which comes before the seek starts or while it waits."""
    positions: list[int] = []

    async def cancel_a_seek(reader: Reader) -> None:
        async with await reader.ready() as consumer:
            await reader.poll()
            seeking = asyncio.create_task(consumer.seek(reader.tp, 7))
            for _ in range(turns):
                await asyncio.sleep(0)
            seeking.cancel()
            await asyncio.wait([seeking])
            if turns % 2:
                positions.append(await consumer.position(reader.tp))

    run(cancel_a_seek, reader)
    assert reader.committed() in (positions or [7, 10])
