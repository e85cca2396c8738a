"""The sink: what is in the topic is what is in the rows, and rows that cannot be records fail with a reason."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Kafka, Load, connector_jars, numbered


def write(frame: DataFrame, kafka: Kafka, mode: str = "append", source: str = "ottla", **options: Any) -> None:
    writer = frame.write.format(source).option("kafka.bootstrap.servers", kafka.servers)
    named = {name.replace("_", "."): str(value) for name, value in options.items()}
    writer.options(**named).mode(mode).save()


def stored(kafka: Kafka, topic: str) -> list[confluent_kafka.Message]:
    """All messages of a topic, by partition and offset, read by another client."""
    ends = kafka.ends(topic)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.servers, "group.id": "none", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for _, partition in ends])
    found: list[confluent_kafka.Message] = []
    deadline = time.monotonic() + 30
    while len(found) < sum(ends.values()):
        assert time.monotonic() < deadline
        found += [message for message in consumer.consume(1000, 0.2) if message.error() is None]
    consumer.close()
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def test_columns_become_records(spark: SparkSession, kafka: Kafka) -> None:
    topic, other = kafka.create(3), kafka.create()
    rows = [
        (bytearray(b"k"), "text", topic, 2, [("a", bytearray(b"1")), ("a", None)]),
        (None, None, topic, 0, None),
        (bytearray(b""), "", other, None, []),
    ]
    schema = "key binary, value string, topic string, partition int, headers array<struct<key: string, value: binary>>"
    write(spark.createDataFrame(rows, schema), kafka)
    tombstone, first = stored(kafka, topic)
    assert (first.key(), first.value(), first.partition(), first.headers()) == (b"k", b"text", 2, [("a", b"1"), ("a", None)])
    assert (tombstone.key(), tombstone.value(), tombstone.partition(), tombstone.headers()) == (None, None, 0, None)
    (second,) = stored(kafka, other)
    assert (second.key(), second.value()) == (b"", b"")


def test_the_option_topic_wins_and_other_columns_are_not_written(spark: SparkSession, kafka: Kafka) -> None:
    topic, other = kafka.create(), kafka.create()
    frame = spark.sql(f"SELECT 'v' AS value, '{other}' AS topic, current_timestamp() AS timestamp, 5 AS offset, 1.5 AS price")
    write(frame, kafka, topic=topic)
    assert [message.value() for message in stored(kafka, topic)] == [b"v"]
    assert stored(kafka, other) == []


@pytest.mark.skipif(not connector_jars(), reason="Spark's connector needs Maven")
def test_keys_go_to_the_partitions_that_the_connector_chooses(spark: SparkSession, kafka: Kafka) -> None:
    ours, theirs = kafka.create(7), kafka.create(7)
    frame = spark.range(2_000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    write(frame, kafka, topic=ours)
    write(frame, kafka, topic=theirs, source="kafka")
    by_partition = [
        {(message.key(), message.value()): message.partition() for message in stored(kafka, topic)} for topic in (ours, theirs)
    ]
    assert by_partition[0] == by_partition[1]
    assert len(by_partition[0]) == 2_000


def test_what_was_read_is_written(spark: SparkSession, kafka: Kafka, load: Load) -> None:
    topic, copy = kafka.create(2), kafka.create(2)
    kafka.produce(topic, [*numbered(50), *numbered(50, 50, 1)])
    write(load(subscribe=topic, includeHeaders=True), kafka, topic=copy)
    assert [(each.partition(), each.value()) for each in stored(kafka, copy)] == [
        (each.partition(), each.value()) for each in stored(kafka, topic)
    ]


def test_a_stream_is_written_from_one_topic_to_another(
    spark: SparkSession, kafka: Kafka, load_stream: Load, tmp_path: Path
) -> None:
    topic, copy = kafka.create(2), kafka.create(2)
    kafka.produce(topic, [*numbered(300), *numbered(300, 300, 1)])
    stream = load_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=200).selectExpr("value", "partition")
    writer = stream.writeStream.format("ottla").option("kafka.bootstrap.servers", kafka.servers).option("topic", copy)
    writer = writer.option("checkpointLocation", str(tmp_path)).option("kafka.compression.type", "zstd")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert [int(each.value()) for each in stored(kafka, copy)] == list(range(600))


@pytest.mark.parametrize(
    ("sql", "options", "words"),
    [
        ("SELECT 'k' AS key", {"topic": "t"}, "there is no column 'value', only 'key'"),
        ("SELECT 'v' AS value", {}, "there is no topic: neither an option topic nor a column topic"),
        ("SELECT 1 AS value", {"topic": "t"}, "column 'value' is int; expected: string or binary"),
        ("SELECT 'v' AS value, '1' AS partition", {"topic": "t"}, "column 'partition' is string; expected: int"),
        ("SELECT 'v' AS value, map('a', 1) AS headers", {"topic": "t"}, "column 'headers' is map<string,int>; expected: array<"),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.acks": "2"}, "acks"),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.lingr.ms": "2"}, "kafka.lingr.ms"),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        ("SELECT 'v' AS value", {"topics": "t"}, "unknown option 'topics'"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_before_a_task_runs(
    spark: SparkSession, kafka: Kafka, sql: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        write(spark.sql(sql), kafka, **options)
    assert words in str(raised.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, kafka: Kafka) -> None:
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        write(spark.sql("SELECT 'v' AS value"), kafka, mode="overwrite", topic="t")


def test_a_row_that_cannot_be_sent_fails_with_topic_key_and_cause(spark: SparkSession, kafka: Kafka) -> None:
    topic = kafka.create()
    frame = spark.sql("SELECT 'k' AS key, repeat('x', 2000000) AS value")
    with pytest.raises(PySparkException) as raised:
        write(frame, kafka, topic=topic)
    assert f"(topic '{topic}', key 'k')" in str(raised.value)
    assert "a record of 2000" in str(raised.value)
    null = spark.sql("SELECT 'k' AS key, 'v' AS value, CAST(NULL AS STRING) AS topic")
    with pytest.raises(PySparkException, match=r"row 0: the topic is null \(topic None, key 'k'\)"):
        write(null, kafka)


def test_a_topic_that_does_not_exist_fails_the_stream_with_its_name(
    spark: SparkSession, kafka: Kafka, load_stream: Load, tmp_path: Path
) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(1))
    stream = load_stream(subscribe=topic, startingOffsets="earliest").select("value")
    writer = stream.writeStream.format("ottla").option("kafka.bootstrap.servers", kafka.servers).option("topic", "no such topic")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no such topic"):
        query.awaitTermination(60)
