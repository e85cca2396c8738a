"""Batches: rows and columns are those of the produced records, for all ways to select them."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options
from ottla.spark.planning import OffsetRange
from ottla.spark.reading import read_ranges
from tests.spark.conftest import Kafka, Load, Message, numbered

FIRST = 1_700_000_000_000
MESSAGES = [
    Message(b"plain", b"key", 0, FIRST),
    Message(None, b"tombstone", 0, FIRST + 1),
    Message(b"", b"", 0, FIRST + 2),
    Message(bytes(range(256)), None, 1, FIRST + 3, [("trace", b"1"), ("trace", b"2"), ("none", None), ("empty", b"")]),
    Message(b"x" * 100_000, "schlüssel".encode(), 2, FIRST + 4, [("größe", b"\xff\x00")]),
]


def row_of(topic: str, offset: int, message: Message) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=message.timestamp)
    return {
        "key": message.key,
        "value": message.value,
        "topic": topic,
        "partition": message.partition,
        "offset": offset,
        "timestamp": stamp.replace(tzinfo=None),
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in message.headers] or None,
    }


def plain(value: Any) -> Any:
    """Convert rows and bytearrays to dictionaries and bytes."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.asDict().items()} if hasattr(value, "asDict") else value


@pytest.fixture(scope="module")
def filled(kafka: Kafka) -> str:
    topic = kafka.create(3, retention_ms="-1")
    kafka.produce(topic, MESSAGES)
    return topic


@pytest.fixture(scope="module")
def thousand(kafka: Kafka) -> str:
    """4 partitions with 250 numbers each, in ascending order: partition 0 has 0 to 249, and so on."""
    topic = kafka.create(4)
    for partition in range(4):
        kafka.produce(topic, numbered(250, partition * 250, partition))
    return topic


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_rows_are_the_produced_records(spark: SparkSession, load: Load, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    frame = load(subscribe=filled, includeHeaders=True).orderBy("partition", "offset")
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    rows = [plain(row) for row in frame.selectExpr("* except (timestamp)", "unix_millis(timestamp) AS millis").collect()]
    for row, (partition, offset), message in zip(rows, places, MESSAGES, strict=True):
        expected = row_of(filled, offset, message)
        assert row.pop("millis") == message.timestamp
        del expected["timestamp"]
        assert row == expected
        assert partition == message.partition


def test_the_schema_is_that_of_sparks_own_connector(load: Load, filled: str) -> None:
    columns = "key binary,value binary,topic string,partition int,offset bigint,timestamp timestamp,timestampType int"
    assert load(subscribe=filled).schema.simpleString() == f"struct<{columns.replace(' ', ':')}>"
    headers = load(subscribe=filled, includeHeaders=True).schema["headers"]
    assert headers.dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_only_the_columns_that_are_asked_for_in_the_order_asked(load: Load, thousand: str) -> None:
    frame = load("offset bigint, value binary", subscribe=thousand)
    assert frame.columns == ["offset", "value"]
    assert sorted((row.offset, int(row.value)) for row in frame.collect())[:2] == [(0, 0), (0, 250)]
    assert values(
        load("value binary", subscribe=thousand, endingOffsets=f'{{"{thousand}": {{"0": 3, "1": 0, "2": 0, "3": 0}}}}')
    ) == [0, 1, 2]


def test_columns_match_without_regard_to_case(load: Load, thousand: str) -> None:
    frame = load("Offset bigint, VALUE binary, timestamptype int", subscribe=thousand)
    assert frame.columns == ["Offset", "VALUE", "timestamptype"]
    rows = frame.where("offset = 3").select("value", "timestampType").collect()
    assert sorted(int(row[0]) for row in rows) == [3, 253, 503, 753]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("colour string", "no column 'colour'"),
        ("value string", "value is binary, not string"),
        ("value binary, VALUE binary", "column value is named twice"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(load: Load, schema: str, words: str) -> None:
    """Before any request to the cluster, in which the topic does not exist."""
    with pytest.raises(PySparkException, match=words):
        load(schema, subscribe="any").collect()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka_fetch_min_byte": "1"}, r"did you mean kafka\.fetch\.min\.bytes"),
        ({"kafka_fetch_min_bytes": "many"}, r"kafka\.fetch\.min\.bytes='many'"),
        ({"minPartitions": "many"}, "minPartitions"),
    ],
)
def test_options_are_checked_in_load(load: Load, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        load(subscribe="any", **options)


def test_a_configuration_of_sparks_connector_for_sources_and_sinks_works(load: Load, thousand: str) -> None:
    frame = load(subscribe=thousand, kafka_acks="all", kafka_enable_metrics_push="false", kafka_metric_reporters="")
    assert frame.count() == 1000


def test_everything_by_default(load: Load, thousand: str) -> None:
    assert values(load(subscribe=thousand)) == list(range(1000))


def test_from_and_to_offsets_that_are_named(load: Load, thousand: str) -> None:
    frame = load(
        subscribe=thousand,
        startingOffsets=f'{{"{thousand}": {{"0": 240, "1": 5, "2": -2, "3": 250}}}}',
        endingOffsets=f'{{"{thousand}": {{"0": -1, "1": 8, "2": 1, "3": -1}}}}',
    )
    assert values(frame) == [*range(240, 250), 255, 256, 257, 500]


def test_partitions_that_are_assigned(load: Load, thousand: str) -> None:
    frame = load(assign=f'{{"{thousand}": [3, 1]}}')
    assert values(frame) == [*range(250, 500), *range(750, 1000)]


def test_topics_in_whose_name_a_pattern_finds_a_match(load: Load, kafka: Kafka) -> None:
    for name, number in (("spark-pattern-a", 1), ("spark-pattern-b", 2), ("spark-pattern-bb", 3), ("old-spark-pattern-a", 4)):
        kafka.create(name=name)
        kafka.produce(name, numbered(1, number))
    assert values(load(subscribePattern="spark-pattern-.")) == [1, 2, 3, 4]
    assert values(load(subscribePattern="^spark-pattern-.$")) == [1, 2]


def test_several_topics(load: Load, thousand: str, kafka: Kafka) -> None:
    other = kafka.create()
    kafka.produce(other, numbered(2, 5000))
    assert values(load(subscribe=f"{thousand},{other}")) == [*range(1000), 5000, 5001]


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"minPartitions": 10}, 10),
        ({"maxPartitions": 1}, 1),
        ({"maxPartitions": 3}, 3),
        ({"maxRecordsPerPartition": 100}, 12),
        ({"maxRecordsPerPartition": 100, "planOnce": "true"}, 12),
    ],
)
def test_the_number_of_tasks(load: Load, thousand: str, options: dict[str, Any], tasks: int) -> None:
    frame = load(subscribe=thousand, **options)
    assert frame.rdd.getNumPartitions() == tasks
    assert values(frame) == list(range(1000))


def test_an_empty_topic_has_no_rows(load: Load, kafka: Kafka) -> None:
    assert load(subscribe=kafka.create(2)).count() == 0


def test_a_task_that_is_cut_short_spoils_nothing(load: Load, thousand: str) -> None:
    assert len(load(subscribe=thousand, maxPartitions=1).limit(7).collect()) == 7
    assert load(subscribe=thousand).count() == 1000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec(load: Load, kafka: Kafka, codec: str) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(500), compression_type=codec)
    assert values(load(subscribe=topic)) == list(range(500))


def test_a_range_ends_behind_the_marks_of_transactions(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    producer = kafka.producer(transactional_id=f"{topic}-writer")
    producer.init_transactions(20)
    for start, commit in ((0, True), (10, False), (20, True), (30, False)):
        producer.begin_transaction()
        for message in numbered(5, start):
            producer.produce(topic, value=message.value, partition=0)
        producer.flush(60)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    deadline = time.monotonic() + 60
    while kafka.ends(topic) != {(topic, 0): 24}:  # the answer to a commit does not wait for the mark in the log
        assert time.monotonic() < deadline, kafka.ends(topic)
        time.sleep(0.05)
    assert values(load(subscribe=topic)) == [*range(5), *range(10, 15), *range(20, 25), *range(30, 35)]
    assert values(load(subscribe=topic, kafka_isolation_level="read_committed")) == [*range(5), *range(20, 25)]
    inside_a_gap = f'{{"{topic}": {{"0": 8}}}}'
    assert values(load(subscribe=topic, kafka_isolation_level="read_committed", endingOffsets=inside_a_gap)) == list(range(5))


def test_records_that_retention_took_are_an_error_that_names_them(load: Load, kafka: Kafka) -> None:
    topic = kafka.create(2)
    kafka.produce(topic, numbered(10) + numbered(10, 10, 1))
    kafka.delete_records(topic, 1, 4)
    starting = f'{{"{topic}": {{"0": 0, "1": 2}}}}'
    with pytest.raises(PySparkException) as raised:
        load(subscribe=topic, startingOffsets=starting).collect()
    for words in (f"{topic}-1: offsets 2 to 3 cannot be read", "begins at offset 4", "failOnDataLoss"):
        assert words in str(raised.value)
    frame = load(subscribe=topic, startingOffsets=starting, failOnDataLoss=False)
    assert values(frame) == [*range(10), *range(14, 20)]


def test_offsets_behind_the_end_of_the_log_are_an_error_that_names_them(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(10))
    ending = f'{{"{topic}": {{"0": 15}}}}'
    begun = time.monotonic()
    with pytest.raises(PySparkException, match=rf"option endingOffsets names offset 15 for {topic}-0, whose log ends at offset 10"):
        load(subscribe=topic, endingOffsets=ending).collect()
    assert time.monotonic() - begun < 10  # on the driver: tasks look at the log after 3 s, and are tried again
    starting = f'{{"{topic}": {{"0": 12}}}}'
    with pytest.raises(
        PySparkException, match=rf"option startingOffsets names offset 12 for {topic}-0, whose log ends at offset 10"
    ):
        load(subscribe=topic, startingOffsets=starting).collect()
    assert load(subscribe=topic, startingOffsets=starting, failOnDataLoss=False).count() == 0
    assert values(load(subscribe=topic, endingOffsets=ending, failOnDataLoss=False)) == list(range(10))


AT_1, AT_9 = '{"%s": {"0": 1}}', '{"%s": {"0": 9}}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "no-such-topic-1"}, "no-such-topic-1 does not exist"),
        ({"assign": '{"%s": [9]}'}, "option assign names partitions that do not exist: .*-9"),
        ({"subscribe": "%s", "startingOffsets": '{"%s": {"0": 0}}'}, "startingOffsets names no offset for"),
        ({"assign": '{"%s": [0]}', "startingOffsets": AT_9, "endingOffsets": AT_1}, "startingOffsets for .* is 9, beyond its end"),
        ({"subscribe": "%s", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "%s", "kafka_auto_offset_reset": "latest"}, "kafka.auto.offset.reset is not supported"),
        ({"subscribe": "%s", "kafka_fetch_min_byte": "1"}, "did you mean kafka.fetch.min.bytes"),
        ({"subscribe": "%s", "startingTimestamp": "soon"}, "startingTimestamp must be milliseconds since 1970"),
        ({}, "exactly one of the options"),
    ],
)  # fmt: skip
def test_an_invalid_option_raises(load: Load, thousand: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        load(**{name: value.replace("%s", thousand) for name, value in options.items()}).collect()


def test_servers_must_be_named(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"option kafka\.bootstrap\.servers is missing"):
        spark.read.format("ottla").option("subscribe", "t").load()


def test_an_unreachable_cluster_raises_with_its_addresses_in_time(spark: SparkSession) -> None:
    options = {
        "kafka.bootstrap.servers": "127.0.0.1:1,127.0.0.1:2",
        "subscribe": "t",
        "kafka.default.api.timeout.ms": "2000",
    }
    begun = datetime.now(UTC)
    with pytest.raises(PySparkException) as raised:
        spark.read.format("ottla").options(**options).load().collect()
    assert datetime.now(UTC) - begun < timedelta(seconds=12)
    assert "127.0.0.1:1" in str(raised.value)
    assert "127.0.0.1:2" in str(raised.value)
    assert "check kafka.bootstrap.servers" in str(raised.value)


def test_a_log_that_is_cut_at_both_ends_after_the_plan_has_lost_both(kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(10))
    kafka.delete_records(topic, 0, 4)
    options = parse_options({"kafka.bootstrap.servers": kafka.servers, "subscribe": topic})
    begins = f"{topic}-0: offsets 2 to 3 cannot be read: the log now begins at offset 4"
    ends = f"{topic}-0: offsets 10 to 14 cannot be read: the log now ends at offset 10"
    with pytest.raises(DataLossError, match=rf"{begins}.*; {ends}"):
        list(read_ranges([OffsetRange(topic, 0, 2, 15)], ("value",), options))
    lenient = dataclasses.replace(options, fail_on_data_loss=False)
    assert sum(batch.num_rows for batch in read_ranges([OffsetRange(topic, 0, 2, 15)], ("value",), lenient)) == 6


def test_offsets_on_both_sides_of_the_log_are_both_named(load: Load, kafka: Kafka) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(10))
    kafka.delete_records(topic, 0, 4)
    starting, ending = (f'{{"{topic}": {{"0": {offset}}}}}' for offset in (2, 15))
    begins = rf"option startingOffsets names offset 2 for {topic}-0, whose log begins at offset 4"
    ends = rf"option endingOffsets names offset 15 for {topic}-0, whose log ends at offset 10"
    with pytest.raises(PySparkException, match=f"{begins}; {ends}"):
        load(subscribe=topic, startingOffsets=starting, endingOffsets=ending).collect()
    assert values(load(subscribe=topic, startingOffsets=starting, endingOffsets=ending, failOnDataLoss=False)) == list(range(4, 10))
