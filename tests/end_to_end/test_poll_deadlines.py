"""Timeouts, ``wakeup()``, Ctrl-C and cancellation of ``poll()`` while the commit before a rebalance gets no response."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import confluent_kafka
import pytest

from ottla import AsyncConsumer, Broker, Consumer, TopicPartition
from ottla.errors import WakeupError
from tests.interop.other_clients import create_topic

KINDS: dict[str, dict[str, Any]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range", "heartbeat_interval": 0.1},
    "cooperative": {
        "group_protocol": "classic",
        "partition_assignment_strategy": "cooperative-sticky",
        "heartbeat_interval": 0.1,
    },
    "consumer": {"group_protocol": "consumer"},
}
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
}
PARTITIONS = 4
PATIENCE = 60.0
SLACK = 5.0
"""Seconds beyond the timeout that a busy machine may take. Without the timeout these polls took ``UNANSWERED``."""
UNANSWERED = 30.0
"""Seconds until the broker responds to a commit."""
TIMEOUT = 0.1
NUMBERS = itertools.count(1)

OnRevoke = Callable[[Any, list[TopicPartition]], None]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic with a record in each partition. Its name is also used for a group."""
    name = f"topic-{next(NUMBERS)}"
    create_topic(broker.bootstrap_servers, name, PARTITIONS)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for partition in range(PARTITIONS):
        producer.produce(name, b"value", partition=partition)
    assert producer.flush(PATIENCE) == 0
    return name


def settings(broker: Broker, topic: str, kind: str, client_id: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": topic,
        "client_id": client_id,
        "auto_offset_reset": "earliest",
        "auto_commit_interval": 3_600,
        **KINDS[kind],
    }


@contextmanager
def another(broker: Broker, topic: str, kind: str) -> Iterator[list[Any]]:
    """Run another member of the group, and yield its partitions."""
    stop, given = threading.Event(), list[Any]()

    def work() -> None:
        with Consumer(settings(broker, topic, kind, f"{topic}-b")) as consumer:
            consumer.subscribe([topic])
            while not stop.is_set():
                given.extend(consumer.poll(0.1))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield given
    finally:
        stop.set()
        thread.join(PATIENCE)


def reading(consumer: Consumer, topic: str, on_revoke: OnRevoke) -> None:
    """Poll until all records were read and count as processed."""
    consumer.subscribe([topic], on_revoke=on_revoke)
    deadline, read = time.monotonic() + PATIENCE, 0
    while read < PARTITIONS:
        read += len(consumer.poll(0.1))
        assert time.monotonic() < deadline
    consumer.poll(0)


def poll_until(consumer: Consumer, condition: Callable[[], bool]) -> list[float]:
    """The duration of each poll."""
    took, deadline = [], time.monotonic() + PATIENCE
    while not condition():
        began = time.monotonic()
        assert len(consumer.poll(TIMEOUT)) == 0
        took.append(time.monotonic() - began)
        assert began < deadline
    return took


def interrupt_after(seconds: float, handler: Callable[[int, FrameType | None], Any]) -> None:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def alarm() -> Iterator[None]:
    """Restore the handler of SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", KINDS)
def test_polls_do_not_wait_longer_for_a_commit(broker: Broker, topic: str, kind: str) -> None:
    revoked: list[int] = []
    with Consumer(settings(broker, topic, kind, f"{topic}-a")) as consumer:
        reading(consumer, topic, lambda _, partitions: revoked.append(len(partitions)))
        unanswered = broker.faults.delay("OffsetCommit", UNANSWERED, client_id=f"{topic}-a")
        with another(broker, topic, kind) as given:
            took = poll_until(consumer, lambda: unanswered.struck > 0)
            took += [*poll_until(consumer, itertools.chain([False] * 5, [True]).__next__)]

            threading.Timer(0.2, consumer.wakeup).start()
            began = time.monotonic()
            with pytest.raises(WakeupError):
                consumer.poll(20)
            took.append(time.monotonic() - began - 0.2)

            for handler, error in ((lambda *_: consumer.wakeup(), WakeupError), (raise_interrupt, KeyboardInterrupt)):
                began = time.monotonic()
                interrupt_after(0.2, handler)
                with pytest.raises(error):
                    consumer.poll(20)
                took.append(time.monotonic() - began - 0.2)

            assert revoked == []
            assert max(took) < TIMEOUT + SLACK
            unanswered.clear()
            poll_until(consumer, lambda: len(consumer.assignment()) == PARTITIONS // 2)
            assert revoked == [PARTITIONS if kind == "eager" else PARTITIONS // 2]
            assert unanswered.struck == 1
        assert given == [], "all was committed"


@pytest.mark.parametrize("kind", KINDS)
def test_async_polls_do_not_wait_longer_for_a_commit(broker: Broker, topic: str, kind: str) -> None:
    revoked: list[int] = []

    async def timed(consumer: AsyncConsumer, timeout: float) -> float:
        began = time.monotonic()
        assert len(await consumer.poll(timeout)) == 0
        return time.monotonic() - began

    async def main() -> None:
        async with AsyncConsumer(settings(broker, topic, kind, f"{topic}-a")) as consumer:
            await consumer.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(len(partitions)))
            read = 0
            while read < PARTITIONS:
                read += len(await consumer.poll(0.1))
            await consumer.poll(0)
            unanswered = broker.faults.delay("OffsetCommit", UNANSWERED, client_id=f"{topic}-a")
            with another(broker, topic, kind) as given:
                took = []
                while not unanswered.struck:
                    took.append(await timed(consumer, TIMEOUT))
                took += [await timed(consumer, TIMEOUT) for _ in range(5)]
                for delay in (0.0, 0.001, 0.01, 0.1, 0.3):
                    began = time.monotonic()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await consumer.poll(20)
                    took.append(time.monotonic() - began - delay)
                threading.Timer(0.2, consumer.wakeup).start()
                began = time.monotonic()
                with pytest.raises(WakeupError):
                    await consumer.poll(20)
                took.append(time.monotonic() - began - 0.2)
                assert revoked == []
                assert max(took) < TIMEOUT + SLACK
                unanswered.clear()
                while len(consumer.assignment()) != PARTITIONS // 2:
                    took.append(await timed(consumer, TIMEOUT))
                assert revoked == [PARTITIONS if kind == "eager" else PARTITIONS // 2]
                assert unanswered.struck == 1
            assert given == [], "all was committed"

    async def in_time() -> None:
        async with asyncio.timeout(PATIENCE):
            await main()

    asyncio.run(in_time())
