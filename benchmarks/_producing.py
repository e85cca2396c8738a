"""Ways to produce records, each measured from the first call to the last acknowledgement.

All send the same records: keys of 8 bytes, values of one size, to one topic, with ``acks=all``, idempotent where the client can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Settings = dict[str, Any]

KEYS = [b"%08d" % number for number in range(1_000)]


class Producing(NamedTuple):
    """The time and the processor time of one run, in seconds."""

    records: int
    seconds: float
    cpu: float


Produce = Callable[[str, str, int, int, Settings], Producing]
"""Called with servers, topic, the number of records, the size of a value and the client's settings."""


class _Clock:
    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, records: int) -> Producing:
        return Producing(records, time.perf_counter() - self._began, time.process_time() - self._cpu)


def send(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``Producer.send`` for each record."""
    from ottla import Producer

    value = bytes(size)
    with Producer(bootstrap_servers=servers, **settings) as producer:
        producer.partitions_for(topic)
        clock, send = _Clock(), producer.send
        for _ in range(records // len(KEYS)):
            for key in KEYS:
                send(topic, value, key)
        producer.flush()
        return clock.stop(records)


def send_async(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``await AsyncProducer.send`` for each record."""
    from ottla import AsyncProducer

    return asyncio.run(_sent_by(AsyncProducer, topic, records, size, {"bootstrap_servers": servers, **settings}))


def confluent(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """confluent-kafka's ``produce`` for each record."""
    import confluent_kafka

    value = bytes(size)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
    producer.list_topics(topic)
    clock, produce, poll = _Clock(), producer.produce, producer.poll
    for _ in range(records // len(KEYS)):
        for key in KEYS:
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    poll(0.01)
        poll(0)
    assert producer.flush() == 0
    return clock.stop(records)


def aiokafka(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """aiokafka's ``send`` for each record."""
    from aiokafka import AIOKafkaProducer

    return asyncio.run(_sent_by(AIOKafkaProducer, topic, records, size, {"bootstrap_servers": servers, **settings}))


async def _sent_by(client: Callable[..., Any], topic: str, records: int, size: int, settings: Settings) -> Producing:
    """Send with a client whose calls are coroutines."""
    value = bytes(size)
    async with client(**settings) as producer:
        await producer.partitions_for(topic)
        clock, send = _Clock(), producer.send
        for _ in range(records // len(KEYS)):
            for key in KEYS:
                await send(topic, value, key)
        await producer.flush()
        return clock.stop(records)
