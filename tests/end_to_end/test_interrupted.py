"""Ctrl-C at any moment: a consumer whose calls are interrupted neither loses nor repeats records.

CPython runs signal handlers at the start of a function, after a call of a C function, and at the start of each iteration of a loop.
A first run records all these points of the package on the application's thread; each further run raises at one of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla import AsyncConsumer, Consumer, TopicPartition
from tests.end_to_end.interruptions import Interruptions

PARTITIONS, RECORDS = 3, 60
ALL = PARTITIONS * RECORDS
PATIENCE = 60.0
"""Seconds: a limit for everything, on a busy machine."""


Seen = Counter[tuple[int, int]]


def poll(consumer: Consumer, seen: Seen) -> None:
    seen.update((record.partition, record.offset) for record in consumer.poll(0.5))


def walk(consumer: Consumer, seen: Seen) -> None:
    for record in consumer:
        seen[record.partition, record.offset] += 1
        if len(seen) == ALL:
            break


def poll_and_commit(consumer: Consumer, seen: Seen) -> None:
    poll(consumer, seen)
    consumer.commit()
    consumer.commit_async()


def poll_and_move(consumer: Consumer, seen: Seen) -> None:
    consumer.resume(*consumer.paused())
    poll(consumer, seen)
    for tp in sorted(consumer.assignment())[len(seen) % 4 :][:1]:
        consumer.pause(tp)
        consumer.seek(tp, consumer.position(tp))
        consumer.resume(tp)


MANNERS: dict[str, Callable[[Consumer, Seen], None]] = {
    "poll": poll,
    "walk": walk,
    "commit": poll_and_commit,
    "move": poll_and_move,
}


def insist(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except KeyboardInterrupt:
        return action()


def consume(served: str, topic: str, group: str, manner: str, interruptions: Interruptions) -> Seen:
    """Read the whole topic with a consumer; continue after an interruption."""
    seen: Seen = Counter()
    settings: Any = {"auto_offset_reset": "earliest", "max_poll_records": 17, "auto_commit_interval": 0.02, "fetch_max_wait": 0.05}
    until = time.monotonic() + PATIENCE
    with interruptions:
        consumer = insist(lambda: Consumer(bootstrap_servers=served, group_id=group, **settings))
        insist(lambda: consumer.subscribe([topic]))
        while len(seen) < ALL and time.monotonic() < until:
            try:
                MANNERS[manner](consumer, seen)
            except KeyboardInterrupt:
                # Until an automatic commit is due, which may now cover the wrong records.
                time.sleep(0.03)
        insist(lambda: consumer.close())
    network = consumer._network
    assert network is not None
    network._thread.join(PATIENCE)
    assert not network._thread.is_alive()
    return seen


def committed(served: str, topic: str, group: str) -> dict[int, int]:
    with Consumer(bootstrap_servers=served, group_id=group) as other:
        found = other.committed(*(TopicPartition(topic, number) for number in range(PARTITIONS)))
    return {tp.partition: 0 if position is None else position.offset for tp, position in found.items()}


def filled(served: str, topic: Callable[..., str]) -> str:
    name = topic(PARTITIONS)
    producer = Producer({"bootstrap.servers": served, "batch.size": 600})
    for number in range(ALL):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0
    return name


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize(
    "share", [pytest.param(150, id="some"), pytest.param(10, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_interrupted_calls_neither_lose_nor_repeat_records(served: str, topic: Callable[..., str], manner: str, share: int) -> None:
    name = filled(served, topic)
    first = Interruptions()
    consume(served, name, f"{name}-first", manner, first)
    threads = threading.active_count()
    chances = [(point, hit) for point, hits in first.passed.items() for hit in sorted({1, 2, 1 + hits // 2}) if hit <= hits]
    raised = 0
    for number, (point, hit) in enumerate(chances[len(chances) // 2 % share :: share]):
        interruptions, group = Interruptions(point, hit), f"{name}-{number}"
        seen = consume(served, name, group, manner, interruptions)
        raised += interruptions.raised
        lost = sorted({(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)} - seen.keys())
        assert not lost, (point, hit, lost)
        assert set(seen.values()) == {1}, (point, hit)
        for partition, position in committed(served, name, group).items():
            assert position <= RECORDS, (point, hit, partition)
    assert raised > len(chances) // share // 4
    assert threading.active_count() <= threads


async def consume_in_a_task(served: str, topic: str, group: str, interruptions: Interruptions) -> Seen:
    seen: Seen = Counter()
    settings: Any = {"auto_offset_reset": "earliest", "max_poll_records": 17, "auto_commit_interval": 0.02, "fetch_max_wait": 0.05}
    until = time.monotonic() + PATIENCE
    consumer = AsyncConsumer(bootstrap_servers=served, group_id=group, **settings)
    try:
        await consumer.subscribe([topic])
        while len(seen) < ALL and time.monotonic() < until:
            try:
                with interruptions:
                    records = await consumer.poll(0.5)
                seen.update((record.partition, record.offset) for record in records)
            except MemoryError:
                await asyncio.sleep(0.03)
    finally:
        await consumer.close()
    return seen


@pytest.mark.parametrize(
    "share", [pytest.param(30, id="some"), pytest.param(2, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_memory_error_in_a_poll_neither_loses_nor_repeats_records(served: str, topic: Callable[..., str], share: int) -> None:
    """As above, with an error that does not end the program: it leaves a poll anywhere, and the next poll continues."""
    name = filled(served, topic)
    first = Interruptions()
    asyncio.run(consume_in_a_task(served, name, f"{name}-first", first))
    points = [point for point in first.passed if point.file.startswith("/client/")]
    for number, point in enumerate(points[::share]):
        group = f"{name}-{number}"
        interruptions = Interruptions(point, min(2, first.passed[point]), MemoryError)
        seen = asyncio.run(consume_in_a_task(served, name, group, interruptions))
        assert len(seen) == ALL, (point, ALL - len(seen))
        assert set(seen.values()) == {1}, point
        assert all(position <= RECORDS for position in committed(served, name, group).values()), point
