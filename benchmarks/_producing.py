"""Ways to produce records, each measured from the first call to the last acknowledgement.

All write the same records to one topic: keys of 8 bytes, values of one size that compress about as well as JSON, with ``acks=all``;
idempotent where the client can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import _topics
from _wire import Api, Lane

if TYPE_CHECKING:
    import pyarrow

Settings = dict[str, Any]

DIFFERENT = 1_000
"""The number of different records."""

READY = 2_000
"""The records of a batch that is made in advance."""

IN_FLIGHT = 5
"""The requests that ready-made batches have in flight."""

ARRAY = 100_000
"""The rows of an Arrow array, as a reader of files has them."""


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


def whole(records: int) -> int:
    """Return a number of records that all clients can produce, at least 1,000."""
    unit = ARRAY if records > ARRAY else DIFFERENT
    return max(DIFFERENT, records // unit * unit)


@lru_cache(1)
def pairs(size: int) -> list[tuple[bytes, bytes]]:
    """Return the different keys and values."""
    return [(b"%08d" % number, _topics.value(number, size)) for number in range(DIFFERENT)]


@lru_cache(1)
def _table(records: int, size: int) -> pyarrow.Table:
    import pyarrow

    keys, values = (pyarrow.array(column, pyarrow.binary()) for column in zip(*pairs(size), strict=True))
    rows = pyarrow.RecordBatch.from_arrays([keys, values], ["key", "value"])
    array = pyarrow.Table.from_batches([rows] * (min(records, ARRAY) // DIFFERENT)).combine_chunks().to_batches()
    return pyarrow.Table.from_batches(array * max(1, records // ARRAY))


def send(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``Producer.send`` for each record."""
    from ottla import Producer

    different = pairs(size)
    with Producer(bootstrap_servers=servers, **settings) as producer:
        producer.partitions_for(topic)
        clock, send = _Clock(), producer.send
        for _ in range(records // DIFFERENT):
            for key, value in different:
                send(topic, value, key)
        producer.flush()
        return clock.stop(records)


def send_arrow(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``Producer.send_arrow`` with all records, in arrays of 100,000 rows."""
    from ottla import Producer

    table = _table(records, size)
    with Producer(bootstrap_servers=servers, **settings) as producer:
        producer.partitions_for(topic)
        clock = _Clock()
        written = producer.send_arrow(table, topic).result()
        assert sum(one.rows for one in written) == records
        return clock.stop(records)


def send_async(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``await AsyncProducer.send`` for each record."""
    from ottla import AsyncProducer

    return asyncio.run(_sent_by(AsyncProducer, topic, records, size, {"bootstrap_servers": servers, **settings}))


def confluent(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """confluent-kafka's ``produce`` for each record."""
    import confluent_kafka

    different = pairs(size)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
    producer.list_topics(topic)
    clock, produce, poll = _Clock(), producer.produce, producer.poll
    for _ in range(records // DIFFERENT):
        for key, value in different:
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
    different = pairs(size)
    async with client(**settings) as producer:
        await producer.partitions_for(topic)
        clock, send = _Clock(), producer.send
        for _ in range(records // DIFFERENT):
            for key, value in different:
                await send(topic, value, key)
        await producer.flush()
        return clock.stop(records)


TRANSACTION = 100
"""The records of a transaction."""


def transactions(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """``with producer.transaction()`` for every 100 records."""
    from ottla import Producer

    different = pairs(size)
    with Producer(bootstrap_servers=servers, transactional_id=topic, **settings) as producer:
        producer.initialize()
        producer.partitions_for(topic)
        clock, send = _Clock(), producer.send
        for start in range(0, records, TRANSACTION):
            at = start % DIFFERENT
            with producer.transaction():
                for key, value in different[at : at + TRANSACTION]:
                    send(topic, value, key)
        return clock.stop(records)


def confluent_transactions(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """The same with confluent-kafka."""
    import confluent_kafka

    different = pairs(size)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": f"{topic}-confluent", **settings})
    producer.init_transactions(60)
    producer.list_topics(topic)
    clock, produce = _Clock(), producer.produce
    for start in range(0, records, TRANSACTION):
        at = start % DIFFERENT
        producer.begin_transaction()
        for key, value in different[at : at + TRANSACTION]:
            produce(topic, value, key)
        producer.commit_transaction(60)
    return clock.stop(records)


def ready_made(servers: str, topic: str, records: int, size: int, settings: Settings) -> Producing:
    """Batches of 2,000 records that are made in advance, one of each partition in a request, five requests in flight.

    They take one connection and are not idempotent: this is what the broker and the loopback interface can do.
    """
    del settings
    from ottla.records.encode import encode_batch

    api, lane = Api("produce", 9), Lane(servers)
    rows = [(key, value, (), 1_700_000_000_000) for key, value in pairs(size)]
    batch = encode_batch([*rows] * (READY // DIFFERENT), base_offset=0)
    data = tuple(api.requests.PartitionProduceData(index=partition, records=batch) for partition in range(4))
    topics = (api.requests.TopicProduceData(name=topic, partition_data=data),)
    request = api.request(1, transactional_id=None, acks=-1, timeout=timedelta(minutes=1), topic_data=topics)
    frames = max(1, records // (4 * READY))
    clock = _Clock()
    for number in range(frames + IN_FLIGHT):
        if number < frames:
            lane.sock.sendall(request)
        if number >= IN_FLIGHT - 1 and number - IN_FLIGHT + 1 < frames:
            _check(api.response(lane.frame()))
    found = clock.stop(frames * 4 * READY)
    lane.sock.close()
    return found


def _check(response: Any) -> None:
    for topic in response.responses:
        for partition in topic.partition_responses:
            assert not partition.error_code, partition
