"""Other clients produce to Ottla's broker, and other clients read the same records from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.interop.one_or_three import BROKERS, brokers
from tests.interop.other_clients import MEMBER, PRODUCE, Message, Row, closing_all, create_topic, poll_until, read_all

PEERS = ["confluent", "kafka-python", "aiokafka"]
NOW = time.time_ns() // 1_000_000
_numbers = count()


@pytest.fixture(scope="module", params=BROKERS, ids="{}-brokers".format)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with brokers(request.param, tmp_path_factory.mktemp("brokers")) as servers:
        yield servers


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


def _rows(number: int, partitions: int = 2) -> list[Row]:
    rows: list[Row] = []
    for index in range(number):
        key = None if index % 7 == 0 else b"key-%d" % index
        value = None if index % 11 == 0 and key else b"value %d " % index * (index % 5 + 1)
        headers = (("origin", b"test"), ("number", b"%d" % index)) if index % 3 == 0 else ()
        rows.append((index % partitions, key, value, NOW - index, headers))
    return rows


@pytest.mark.parametrize("reader", PEERS)
@pytest.mark.parametrize("writer", PEERS)
def test_what_one_writes_another_reads(servers: str, topic: str, writer: str, reader: str) -> None:
    create_topic(servers, topic, 2)
    rows = _rows(300)
    PRODUCE[writer](servers, topic, rows)
    found = read_all(servers, topic, reader, len(rows))
    expected = sorted(((row[0], *row[1:]) for row in rows), key=lambda row: row[0])
    assert [(one.partition, one.key, one.value, one.timestamp, tuple(one.headers)) for one in found] == expected
    for partition in (0, 1):
        assert [one.offset for one in found if one.partition == partition] == list(range(150))


@pytest.mark.parametrize(
    ("writer", "codec"),
    [
        *(("confluent", codec) for codec in ("gzip", "snappy", "lz4", "zstd")),
        *(("aiokafka", codec) for codec in ("gzip", "snappy", "lz4", "zstd")),
        ("kafka-python", "gzip"),  # its other codecs need libraries that nothing else here needs
    ],
)
def test_every_codec_of_every_writer(servers: str, topic: str, writer: str, codec: str) -> None:
    create_topic(servers, topic)
    setting = "compression_codec" if writer == "confluent" else "compression_type"
    rows: list[Row] = [(0, None, b"x" * 100, NOW, ()) for _ in range(200)]
    PRODUCE[writer](servers, topic, rows, **{setting: codec})
    assert [one.value for one in read_all(servers, topic, "confluent", len(rows))] == [row[2] for row in rows]


@pytest.mark.parametrize(
    ("writer", "config"),
    [
        ("confluent", {"enable_idempotence": True}),
        ("confluent", {"acks": 0}),
        ("kafka-python", {"enable_idempotence": True}),
        ("kafka-python", {"acks": 0}),
        ("aiokafka", {"enable_idempotence": True}),
        ("aiokafka", {"acks": 0}),
    ],
)
def test_idempotent_producers_and_those_that_want_no_answer(servers: str, topic: str, writer: str, config: dict[str, Any]) -> None:
    create_topic(servers, topic, 2)
    rows = _rows(500)
    PRODUCE[writer](servers, topic, rows, **config)
    assert len(read_all(servers, topic, "confluent", len(rows))) == len(rows)


@pytest.mark.parametrize("reader", PEERS)
def test_large_batches_and_large_records(servers: str, topic: str, reader: str) -> None:
    create_topic(servers, topic, 1, max_message_bytes="5000000")
    rows: list[Row] = [(0, None, bytes([index]) * size, NOW, ()) for index, size in enumerate((900_000, 4_000_000, 10, 700_000))]
    PRODUCE["confluent"](servers, topic, rows, message_max_bytes=5_000_000)
    assert [one.value for one in read_all(servers, topic, reader, len(rows))] == [row[2] for row in rows]


def test_a_record_that_is_too_large_is_refused_by_name(servers: str, topic: str) -> None:
    create_topic(servers, topic, 1, max_message_bytes="1000")
    failed: list[KafkaError] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"x" * 2000, on_delivery=lambda error, _: failed.append(error))
    producer.flush(60)
    assert failed[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_watermarks_and_offsets_by_time(servers: str, topic: str) -> None:
    create_topic(servers, topic)
    PRODUCE["confluent"](servers, topic, [(0, None, b"%d" % index, NOW + index * 100, ()) for index in range(10)])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), 10) == (0, 10)
        asked = [confluent_kafka.TopicPartition(topic, 0, NOW + 301), confluent_kafka.TopicPartition(topic, 0, NOW + 5000)]
        assert [consumer.offsets_for_times([one], 10)[0].offset for one in asked] == [4, -1]
    finally:
        consumer.close()


def test_a_consumer_waits_for_what_is_not_there_yet(servers: str, topic: str) -> None:
    create_topic(servers, topic)
    member = MEMBER["confluent"](servers, topic, f"waits-{topic}", fetch_wait_max_ms=100_000, socket_timeout_ms=150_000)
    with closing_all(member):
        poll_until([member], lambda: member.assignment() == {0})
        assert member.poll(0.5) == []
        PRODUCE["confluent"](servers, topic, [(0, None, b"late", NOW, ())])
        found: list[Message] = []
        begin = time.monotonic()
        while not found and time.monotonic() - begin < 50:
            found += member.poll(0.1)
        assert [one.value for one in found] == [b"late"], "a parked fetch is answered when data comes, not when its time is up"


def test_topics_through_the_admin_client(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    create_topic(servers, topic, 3, retention_ms="1234567")
    described = admin.list_topics(topic, 10).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(60)
    assert settings["retention.ms"].value == "1234567"
    with pytest.raises(KafkaException) as refused:
        create_topic(servers, topic)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(60)
    assert topic not in admin.list_topics(timeout=60).topics


def test_the_cluster_through_the_admin_client(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    cluster = admin.list_topics(timeout=60)
    assert sorted(f"{one.host}:{one.port}" for one in cluster.brokers.values()) == sorted(servers.split(","))
    assert len(cluster.cluster_id) == 22
    assert cluster.controller_id in cluster.brokers
