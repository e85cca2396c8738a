"""Ways to read all records of a topic: with Ottla, with other clients, and with Ottla's fetches alone.

Each function takes the servers, the topic, its partitions, the number of records and the settings, and returns a ``Reading``. The
time includes the creation and the connections of the consumer, but not ``close()``. The functions access every key and value, to
add up their lengths; for Arrow they add up the bytes of the columns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka

from ottla import AsyncConsumer, Consumer, TopicPartition
from ottla.client import events
from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.shared_state import SharedState
from ottla.client.events import Fetched
from ottla.config import ConsumerConfig
from ottla.records import iter_headers
from ottla.runtime.network_thread import NetworkThread, random_source

PATIENCE = 60.0
"""Seconds without a record after which a function returns."""


class Reading(NamedTuple):
    """The number and size of the records read, the elapsed seconds, and the seconds of processor time of all threads."""

    records: int
    size: int
    seconds: float
    cpu: float


Settings = dict[str, Any]
Read = Callable[[str, str, int, int, Settings], Reading]


class _Stopwatch:
    def __init__(self) -> None:
        self.began, self.used = time.perf_counter(), time.process_time()

    def reading(self, records: int, size: int) -> Reading:
        return Reading(records, size, time.perf_counter() - self.began, time.process_time() - self.used)


def _assigned(servers: str, topic: str, partitions: int, settings: Settings) -> Consumer:
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings)
    consumer.assign(TopicPartition(topic, number) for number in range(partitions))
    return consumer


def objects(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """``poll()``, with an object per record."""
    seen, size, watch = 0, 0, _Stopwatch()
    with _assigned(servers, topic, partitions, settings) as consumer:
        while seen < count:
            records = consumer.poll(PATIENCE)
            if not records:
                break
            for record in records:
                size += len(record.key) + len(record.value)
            seen += len(records)
        return watch.reading(seen, size)


def iteration(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """``for record in consumer``."""
    seen, size, watch = 0, 0, _Stopwatch()
    with _assigned(servers, topic, partitions, settings) as consumer:
        for record in consumer:
            size += len(record.key) + len(record.value)
            seen += 1
            if seen == count:
                break
        return watch.reading(seen, size)


def arrow(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """``poll().to_arrow()``: all columns of Spark's schema."""
    seen, size, watch = 0, 0, _Stopwatch()
    with _assigned(servers, topic, partitions, settings) as consumer:
        while seen < count:
            table = consumer.poll(PATIENCE).to_arrow()
            if not table.num_rows:
                break
            seen += table.num_rows
            size += _bytes(table.column("key")) + _bytes(table.column("value"))
        return watch.reading(seen, size)


def _bytes(column: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(column)).as_py())


def fetching(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """The consumer's fetches alone: it reads the headers of batches, but no checksums and no records."""
    seen, watch = 0, _Stopwatch()
    config = ConsumerConfig.parse(bootstrap_servers=servers, auto_offset_reset="earliest", **settings)
    shared = SharedState()
    network = NetworkThread(ConsumerAssembly(config, random_source(), shared).core, shared=shared)
    network.start()
    try:
        network.submit(events.Assign(frozenset(TopicPartition(topic, number) for number in range(partitions))))
        while seen < count and network.notifications.wait(PATIENCE):
            for notification in network.notifications.drain():
                if isinstance(notification, Fetched):
                    seen += sum(
                        header.record_count for part in notification.response.partitions for _, header in iter_headers(part.data)
                    )
                    network.submit(events.Drained((notification.response.number,)))
        return watch.reading(seen, -1)
    finally:
        network.close(10)


def batches(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """``await AsyncConsumer.poll()``."""

    async def read() -> Reading:
        seen, size, watch = 0, 0, _Stopwatch()
        async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings) as consumer:
            await consumer.assign(TopicPartition(topic, number) for number in range(partitions))
            while seen < count:
                records = await consumer.poll(PATIENCE)
                if not records:
                    break
                for record in records:
                    size += len(record.key) + len(record.value)
                seen += len(records)
            return watch.reading(seen, size)

    return asyncio.run(read())


def getmany(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """aiokafka's ``getmany``."""

    async def read() -> Reading:
        seen, size, watch = 0, 0, _Stopwatch()
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, number) for number in range(partitions)])
            while seen < count:
                for records in (await consumer.getmany(timeout_ms=round(PATIENCE * 1000))).values():
                    for record in records:
                        size += len(record.key) + len(record.value)
                    seen += len(records)
            return watch.reading(seen, size)

    return asyncio.run(read())


def _assigned_confluent(servers: str, topic: str, partitions: int, settings: Settings) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest", **settings}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def consume(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """confluent-kafka's ``consume(500)``."""
    seen, size, watch = 0, 0, _Stopwatch()
    consumer = _assigned_confluent(servers, topic, partitions, settings)
    while seen < count:
        messages = consumer.consume(500, PATIENCE)
        if not messages:
            break
        for message in messages:
            size += len(message.key()) + len(message.value())
        seen += len(messages)
    reading = watch.reading(seen, size)
    consumer.close()
    return reading


def poll(servers: str, topic: str, partitions: int, count: int, settings: Settings) -> Reading:
    """confluent-kafka's ``poll()``."""
    seen, size, watch = 0, 0, _Stopwatch()
    consumer = _assigned_confluent(servers, topic, partitions, settings)
    while seen < count:
        message = consumer.poll(PATIENCE)
        if message is None:
            break
        size += len(message.key()) + len(message.value())
        seen += 1
    reading = watch.reading(seen, size)
    consumer.close()
    return reading
