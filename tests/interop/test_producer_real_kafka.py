"""What Ottla's producers write is what other clients read, on each version of Apache Kafka and on Ottla's broker.

Owns the comparison of records, partitions and segments. Must not know the wire formats. The tested versions are those around a
change of what a producer may do: 1.0 is the oldest that is supported, 2.1 the first with zstd, 2.8 the last that is tested and
converts records to old formats, 3.9 the last before 4.0; 4.3 names topics by their ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pyarrow
import pytest

from ottla import AsyncProducer, Broker, Consumer, ConsumerGroupMetadata, Delivery, Producer
from ottla.errors import OttlaError, UnsupportedApiError
from tests.interop.java_records import partitions_by_java, read_java
from tests.interop.other_clients import Message, create_topic, read_all
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, OwnKafka, free_port_pair, run_tool

pytestmark = pytest.mark.interop

OURS = "ottla"
VERSIONS = ["1.0.2", "2.1.1", "2.8.2", "3.9.1", "4.3.1"]
NEWEST = "4.3.1"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS = 3
SOON = 60.0
"""Seconds."""
NOW = 1_700_000_000_000
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [
    (),
    (("origin", b"test"),),
    (("twice", b"1"), ("twice", b"2"), ("null", None), ("empty", b""), ("größe", b"\xff")),
]
_numbers = count()


class Row(NamedTuple):
    """A record to write."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


ROWS = [
    Row(
        number % PARTITIONS,
        (None, b"", b"key-%d" % number, b"\x00\xff" * 40)[number % 4],
        (None, b"", b"value %d " % number * 30, bytes(range(256)))[number // 4 % 4],
        NOW + number * 7 % 100 if number % 5 else 0,
        HEADERS[number % len(HEADERS)],
    )
    for number in range(240)
]
"""All combinations of nulls and empty bytes in keys and values, with and without headers, timestamps out of order."""


def stored(rows: list[Row]) -> list[Message]:
    """What a reader gets, by partition and offset."""
    offsets = [count() for _ in range(PARTITIONS)]
    found = [Message(row.partition, next(offsets[row.partition]), *row[1:]) for row in rows]
    return sorted(found, key=lambda one: (one.partition, one.offset))


class Cluster(NamedTuple):
    """A broker that is written to."""

    address: str
    name: str
    data: Path

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, (NEWEST if self.name == OURS else self.name).split(".")))

    @property
    def java(self) -> str:
        """The version of Java's clients that ask it."""
        return "" if self.name in (OURS, NEWEST) else self.name

    @property
    def codecs(self) -> list[str]:
        return CODECS if self.version >= (2, 1) else CODECS[:-1]


@pytest.fixture(scope="module", params=[OURS, *VERSIONS])
def cluster(request: pytest.FixtureRequest, kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = request.param
    if name == OURS:
        folder = tmp_path_factory.mktemp("broker")
        with Broker(folder) as broker:
            yield Cluster(broker.bootstrap_servers, name, folder)
        return
    version = "" if name == NEWEST else name
    run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    node = OwnKafka(free_port_pair(), "log.retention.ms=-1", version=version)
    try:
        yield Cluster(node.address, name, node.data)
    finally:
        node.stop()


def new_topic(cluster: Cluster, partitions: int = PARTITIONS, **config: str) -> str:
    name = f"produced-{next(_numbers)}"
    create_topic(cluster.address, name, partitions, **config)
    return name


# -- writers -----------------------------------------------------------------------------------------------------------------


def write_by_send(servers: str, topic: str, rows: list[Row], **settings: Any) -> list[int]:
    with Producer(bootstrap_servers=servers, **settings) as producer:
        sent = [
            producer.send(topic, row.value, row.key, partition=row.partition, headers=row.headers, timestamp=row.timestamp)
            for row in rows
        ]
        producer.flush(SOON)
        return [delivery.result().offset for delivery in sent]


def write_in_tasks(servers: str, topic: str, rows: list[Row], **settings: Any) -> list[int]:
    async def run() -> list[int]:
        async with AsyncProducer(bootstrap_servers=servers, **settings) as producer:
            sent: list[Delivery] = [
                await producer.send(
                    topic, row.value, row.key, partition=row.partition, headers=row.headers, timestamp=row.timestamp
                )
                for row in rows
            ]
            return [metadata.offset for metadata in await asyncio.gather(*sent)]

    return asyncio.run(run())


HEADERS_TYPE = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def write_by_arrow(servers: str, topic: str, rows: list[Row], **settings: Any) -> list[int]:
    columns = {
        "partition": pyarrow.array([row.partition for row in rows], pyarrow.int32()),
        "key": pyarrow.array([row.key for row in rows], pyarrow.binary()),
        "value": pyarrow.array([row.value for row in rows], pyarrow.binary()),
        "timestamp": pyarrow.array([row.timestamp for row in rows], pyarrow.timestamp("ms", "UTC")),
        "headers": pyarrow.array([[{"key": name, "value": value} for name, value in row.headers] for row in rows], HEADERS_TYPE),
    }
    with Producer(bootstrap_servers=servers, **settings) as producer:
        written = {one.partition: one for one in producer.send_arrow(pyarrow.table(columns), topic).result(SOON)}
    assert {number: one.last_offset for number, one in written.items()} == dict.fromkeys(range(PARTITIONS), len(rows) // 3 - 1)
    offsets = [count(written[number].first_offset) for number in range(PARTITIONS)]
    return [next(offsets[row.partition]) for row in rows]


WRITERS: dict[str, Callable[..., list[int]]] = {
    "send": write_by_send,
    "AsyncProducer": write_in_tasks,
    "send_arrow": write_by_arrow,
}


# -- records -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_others_read_what_was_written(cluster: Cluster, writer: str) -> None:
    topics = {codec: new_topic(cluster) for codec in cluster.codecs}
    expected = stored(ROWS)
    for codec, topic in topics.items():
        # Small batches, so that there are several in a request and a partition.
        offsets = WRITERS[writer](cluster.address, topic, ROWS, compression_type=codec, batch_size=2_000)
        assert sorted((row.partition, offset) for row, offset in zip(ROWS, offsets, strict=True)) == [
            (one.partition, one.offset) for one in expected
        ]
    by_java = read_java(cluster.address, list(topics.values()), cluster.java)
    for codec, topic in topics.items():
        assert by_java[topic] == expected, f"java, {codec}"
        for peer in ("confluent", "aiokafka", "kafka-python"):
            if peer != "kafka-python" or codec in ("none", "gzip"):  # its other codecs need libraries that nothing else here needs
                assert read_all(cluster.address, topic, peer, len(ROWS)) == expected, f"{peer}, {codec}"
    check_segments(cluster, topics)


def check_segments(cluster: Cluster, topics: dict[str, str]) -> None:
    """DumpLogSegments of the broker's version accepts each batch, down to its records."""
    tool = "org.apache.kafka.tools.DumpLogSegments" if cluster.version >= (4,) else "kafka.tools.DumpLogSegments"
    for codec, topic in topics.items():
        files = ",".join(map(str, sorted(cluster.data.glob(f"{topic}-*/*.log"))))
        printed = run_tool("run", tool, "--files", files, "--deep-iteration", timeout=SOON, version=cluster.java)
        assert "isvalid: false" not in printed
        assert "invalid bytes" not in printed
        assert f"compresscodec: {codec}" in printed.lower()
        assert printed.count(" sequence: ") == len(ROWS), "each record has the number that an idempotent producer gives it"


def test_zstd_is_refused_by_a_broker_that_does_not_know_it(cluster: Cluster) -> None:
    topic = new_topic(cluster)
    with Producer(bootstrap_servers=cluster.address, compression_type="zstd") as producer:
        delivery = producer.send(topic, b"x" * 1_000, partition=0)
        if cluster.version >= (2, 1):
            assert delivery.result(SOON).offset == 0
            return
        with pytest.raises(OttlaError, match="zstd"):
            delivery.result(SOON)


@pytest.mark.parametrize("codec", CODECS[:-1])
def test_a_topic_in_an_old_record_format(cluster: Cluster, codec: str) -> None:
    """A broker before 3.0 converts what it gets, and refuses there what the old format has no room for: sequence numbers."""
    topic = new_topic(cluster, **({"message_format_version": "0.10.2"} if cluster.version < (3,) else {}))
    rows = [row._replace(headers=()) for row in ROWS]
    settings = {"compression_type": codec, "bootstrap_servers": cluster.address}
    if cluster.version < (3,):
        with Producer(**settings) as producer, pytest.raises(OttlaError, match="enable_idempotence=False"):
            producer.send(topic, b"", partition=0).result(SOON)
    write_by_send(cluster.address, topic, rows, compression_type=codec, enable_idempotence=False)
    assert read_all(cluster.address, topic, "confluent", len(rows)) == stored(rows)


# -- partitions --------------------------------------------------------------------------------------------------------------

KEYS = [b"", b"\x00", b"\xff\xfe", "schlüssel".encode(), *(b"k" * size for size in range(1, 20)), *(b"%d" % n for n in range(300))]


def test_other_producers_choose_the_same_partitions(cluster: Cluster) -> None:
    topic = new_topic(cluster, 7)
    with Producer(bootstrap_servers=cluster.address) as producer:
        sent = [producer.send(topic, b"", key) for key in KEYS]
        producer.flush(SOON)
        ours = [delivery.result().partition for delivery in sent]
        rows = producer.send_arrow(pyarrow.table({"key": KEYS, "value": KEYS}), topic).result(SOON)
    assert {one.partition: one.rows for one in rows} == {number: ours.count(number) for number in set(ours)}
    assert partitions_by_java(cluster.address, topic, KEYS, cluster.java) == ours
    assert partitions_by_confluent(cluster.address, topic) == ours
    python = kafka.KafkaProducer(bootstrap_servers=cluster.address)
    assert [python.send(topic, b"", key).get(SOON).partition for key in KEYS] == ours
    python.close()
    assert asyncio.run(partitions_by_aiokafka(cluster.address, topic)) == ours


def partitions_by_confluent(servers: str, topic: str) -> list[int]:
    found: dict[bytes, int] = {}
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        assert error is None, error
        key, partition = message.key(), message.partition()
        assert isinstance(key, bytes)
        assert partition is not None
        found[key] = partition

    for key in KEYS:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(SOON) == 0
    return [found[key] for key in KEYS]


async def partitions_by_aiokafka(servers: str, topic: str) -> list[int]:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
        return [(await (await producer.send(topic, b"", key=key))).partition for key in KEYS]


# -- brokers that are too old ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before_record_batches(kafka_tool: KafkaTool) -> Iterator[str]:
    """Kafka 0.10, which has neither record batches nor idempotence."""
    version = "0.10.2.2"
    run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    node = OwnKafka(free_port_pair(), version=version)
    try:
        yield node.address
    finally:
        node.stop()


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_broker_without_record_batches_is_refused_by_name(before_record_batches: str, idempotent: bool) -> None:
    settings: dict[str, Any] = {"bootstrap_servers": before_record_batches, "enable_idempotence": idempotent}
    with Producer(**settings) as producer, pytest.raises(UnsupportedApiError, match=r"PRODUCE|INIT_PRODUCER_ID"):
        producer.send("created", b"").result(SOON)


# -- transactions ------------------------------------------------------------------------------------------------------------


def test_others_read_what_was_committed(cluster: Cluster) -> None:
    """Every second transaction is aborted. Offsets are committed for a member where brokers know members, else for the group."""
    topic, group = new_topic(cluster), f"workers-{next(_numbers)}"
    with (
        Producer(bootstrap_servers=cluster.address, transactional_id=group) as producer,
        Consumer(
            bootstrap_servers=cluster.address,
            group_id=group,
            group_protocol="classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):
        consumer.subscribe([topic])
        for number in range(0, len(ROWS), 24):
            transaction = producer.transaction()
            transaction.begin()
            for row in ROWS[number : number + 24]:
                producer.send(topic, row.value, row.key, partition=row.partition, headers=row.headers, timestamp=row.timestamp)
            if number % 48:
                producer.flush(SOON)
                transaction.abort()
            else:
                transaction.commit()
        transaction = producer.transaction()
        transaction.begin()
        until = time.monotonic() + SOON
        read = 0
        while read < len(ROWS) and time.monotonic() < until:
            read += len(consumer.poll(1))
        assert read == len(ROWS)
        if cluster.version >= (2, 5):
            transaction.commit_offsets(consumer)
        else:
            positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
            transaction.commit_offsets(ConsumerGroupMetadata(group), positions)
        transaction.commit()
        # Before 2.5 a group does not say that a transaction is still being ended: its former offsets are returned, here none.
        while None in (committed := consumer.committed()).values() and time.monotonic() < until:
            time.sleep(0.1)
    expected = [row for number, row in enumerate(ROWS) if number // 24 % 2 == 0]
    assert all(position is not None and position.offset > 0 for position in committed.values())
    assert len(committed) == PARTITIONS
    content = sorted(map(repr, [(row.partition, row.key, row.value, row.headers) for row in expected]))
    for peer, config in {
        "confluent": {"isolation.level": "read_committed"},
        "aiokafka": {"isolation_level": "read_committed"},
    }.items():
        found = read_all(cluster.address, topic, peer, len(expected) + 1, seconds=15, **config)
        assert len(found) == len(expected)
        assert sorted(map(repr, [(one.partition, one.key, one.value, one.headers) for one in found])) == content, peer
