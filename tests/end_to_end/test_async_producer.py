"""``AsyncProducer`` on the embedded broker: waiting, cancelling, and what differs from ``Producer``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla import AsyncProducer, Broker
from ottla.errors import ClosedError, IllegalStateError, OttlaTimeoutError, PolicyViolationError
from tests.end_to_end.producing import PARTITIONS, new_topic, started, stored


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with started() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    with new_topic(broker) as name:
        yield name


@asynccontextmanager
async def new(broker: Broker, **settings: Any) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
        yield producer


def values(broker: Broker, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(broker, topic) if record.partition == partition]


def test_send_flush_and_await(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker) as producer:
            delivery = await producer.send(topic, "first", partition=0)
            assert (await delivery).offset == 0
            assert delivery.result().offset == 0
            await producer.send_many(topic, [("key", "a"), ("key", "b")])
            with pytest.raises(ValueError, match=r"records\[0\] must be a value or a pair"):
                await producer.send_many(topic, [("key",)])
            with pytest.raises(TypeError, match="records must be an iterable"):
                await producer.send_many(topic, "abc")
            await producer.flush()
            assert await producer.partitions_for(topic) == [0, 1, 2]

    asyncio.run(main())
    assert sum(len(values(broker, topic, number)) for number in range(PARTITIONS)) == 3


def test_an_outcome_that_is_not_there_is_not_waited_for(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker, linger=60) as producer:
            delivery = await producer.send(topic, b"")
            with pytest.raises(IllegalStateError, match="await the delivery"):
                delivery.result()

    asyncio.run(main())


def test_callbacks_run_on_the_event_loop(broker: Broker, topic: str) -> None:
    async def main() -> None:
        called = asyncio.get_running_loop().create_future()
        async with new(broker) as producer:
            await producer.send(topic, b"", on_delivery=lambda delivery: called.set_result(asyncio.get_running_loop()))
            async with asyncio.timeout(30):
                assert await called is asyncio.get_running_loop()  # nothing else calls the producer meanwhile

    asyncio.run(main())


def test_other_tasks_run_while_one_sends(broker: Broker, topic: str) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async with new(broker, batch_size=1_000) as producer:
            other = asyncio.create_task(tick())
            for _ in range(20_000):
                await producer.send(topic, b"x" * 50)
            other.cancel()
        assert ticks > 3

    asyncio.run(main())


def test_a_full_memory_blocks_the_task_and_not_the_loop(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker, buffer_memory=20_000, batch_size=5_000, max_block=0.5) as producer:
            await (await producer.send(topic, b"", partition=0))
            broker.faults.freeze()
            with pytest.raises(OttlaTimeoutError, match="no memory"):
                await producer.send_many(topic, [bytes(1_000)] * 100)
            waiting = asyncio.create_task(producer.send(topic, bytes(1_000), partition=0))
            await asyncio.sleep(0.1)
            broker.faults.clear()
            await (await waiting)

    asyncio.run(main())


def test_a_cancelled_send_has_sent_nothing(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker, buffer_memory=3_000, batch_size=3_000) as producer:
            await (await producer.send(topic, b"first", partition=0))
            broker.faults.freeze()
            await producer.send(topic, bytes(2_000), partition=0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send(topic, b"cancelled" * 200, partition=0), 0.2)
            broker.faults.clear()
            await producer.flush()
            await producer.send(topic, b"last", partition=0)

    asyncio.run(main())
    assert values(broker, topic) == [b"first", bytes(2_000), b"last"]


def test_a_cancelled_wait_takes_nothing_back(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker) as producer:
            await (await producer.send(topic, b"first", partition=0))
            broker.faults.freeze()
            delivery = await producer.send(topic, b"second", partition=0)
            waiting = asyncio.ensure_future(delivery)
            await asyncio.wait([waiting], timeout=0.2)
            waiting.cancel()
            broker.faults.clear()
            assert (await delivery).offset == 1

    asyncio.run(main())


def test_failures(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker) as producer:
            broker.faults.fail("Produce", "POLICY_VIOLATION", times=2)
            delivery = await producer.send(topic, b"", partition=0)
            with pytest.raises(PolicyViolationError):
                await delivery
            await producer.send(topic, b"", partition=0)
            with pytest.raises(PolicyViolationError):
                await producer.flush()
            await producer.flush()

    asyncio.run(main())


def test_a_closed_producer(broker: Broker, topic: str) -> None:
    async def main() -> None:
        producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.send(topic, b"written", partition=0)
        await producer.close()
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.send(topic, b"")
        with pytest.raises(ClosedError):
            await producer.flush()
        with pytest.raises(ClosedError):
            await producer.__aenter__()

    asyncio.run(main())
    assert values(broker, topic) == [b"written"]


def test_an_event_loop_in_another_thread(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with new(broker) as producer:
            await producer.send(topic, b"one", partition=0)

            async def send() -> None:
                await producer.send(topic, b"two", partition=0)

            with pytest.raises(IllegalStateError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, send())

    asyncio.run(main())
    assert values(broker, topic) == [b"one"]


def test_another_event_loop(broker: Broker, topic: str) -> None:
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)

    async def send() -> None:
        await producer.send(topic, b"", partition=0)
        await producer.flush()

    asyncio.run(send())
    with pytest.raises(IllegalStateError, match="another event loop"):
        asyncio.run(send())
    with pytest.warns(ResourceWarning):
        producer.__del__()
