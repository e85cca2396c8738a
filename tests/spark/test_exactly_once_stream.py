"""Queries of Spark that write exactly once. An entry that is missing in the commit log stands for a driver that died before it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla import Admin
from tests.spark.conftest import Kafka, Load, numbered


class Copy:
    """A query that copies a topic exactly once."""

    def __init__(self, kafka: Kafka, load_stream: Load, home: Path) -> None:
        self.kafka = kafka
        self.source, self.target = kafka.create(2), kafka.create(2)
        self.checkpoint = home / "checkpoint"
        self._load = load_stream

    def sink(self, **options: str) -> dict[str, str]:
        """The options of the sink."""
        return {"kafka.bootstrap.servers": self.kafka.servers, "topic": self.target, "exactlyOnce": "true", **options}

    def run(self, **options: str) -> None:
        """Copy what is there, up to 100 records in a batch."""
        stream = self._load(subscribe=self.source, startingOffsets="earliest", maxOffsetsPerTrigger=100).select("key", "value")
        writer = (
            stream.writeStream.format("ottla").options(**self.sink(**options)).option("checkpointLocation", str(self.checkpoint))
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(100)

    def query_id(self) -> str:
        """The id of the query."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def repeat_last_batch(self) -> None:
        """Have the next run write the last batch again."""
        commits = self.checkpoint / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)


def values(kafka: Kafka, topic: str) -> list[int]:
    """The committed values of a topic, sorted."""
    return sorted(int(value) for value in kafka.values(topic))


@pytest.fixture
def copy(kafka: Kafka, load_stream: Load, tmp_path: Path) -> Copy:
    return Copy(kafka, load_stream, tmp_path)


@pytest.mark.slow
def test_a_batch_that_spark_repeats_is_written_once(copy: Copy, tmp_path: Path) -> None:
    copy.kafka.produce(copy.source, [*numbered(75), *numbered(75, 75, 1)])
    copy.run()
    copy.repeat_last_batch()
    shutil.copytree(copy.checkpoint, tmp_path / "older")
    copy.run()
    copy.kafka.produce(copy.source, numbered(150, 150))
    copy.run()
    assert values(copy.kafka, copy.target) == list(range(300))
    with Admin(bootstrap_servers=copy.kafka.servers) as admin:
        groups = {each.group_id for each in admin.list_groups() if copy.query_id() in each.group_id}
    names = [f"ottla.{copy.query_id()}.sink{task}" for task in ("", ".0", ".1")]
    assert groups == set(names)

    copy.checkpoint = tmp_path / "older"
    with pytest.raises(StreamingQueryException, match="batch 3 was committed before, and Spark now writes batch 1"):
        copy.run()
    assert values(copy.kafka, copy.target) == list(range(300))


@pytest.mark.slow
def test_foreach_batch_writes_updates_into_two_sinks(spark: SparkSession, copy: Copy, load_stream: Load) -> None:
    copy.kafka.produce(copy.source, [*numbered(60), *numbered(40, 60, 1)])
    other = copy.kafka.create()

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("CAST(parity AS STRING) AS key", "CAST(count AS STRING) AS value")
        rows.write.format("ottla").options(**copy.sink(sinkId="counts")).mode("append").save()
        rows.write.format("ottla").options(**copy.sink(sinkId="other", topic=other)).mode("append").save()
        if number == fails_in:
            raise ValueError("between the sinks and Spark's commit")

    stream = load_stream(subscribe=copy.source, startingOffsets="earliest", maxOffsetsPerTrigger=50)
    counted = stream.selectExpr("CAST(CAST(value AS STRING) AS INT) % 2 AS parity").groupBy("parity").count()
    writer = counted.writeStream.outputMode("update").foreachBatch(write).option("checkpointLocation", str(copy.checkpoint))
    fails_in = 1
    with pytest.raises(StreamingQueryException, match="between the sinks"):
        writer.trigger(availableNow=True).start().awaitTermination(100)
    fails_in = -1
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    assert values(copy.kafka, copy.target) == values(copy.kafka, other) == [25, 25, 50, 50]


@pytest.mark.slow
def test_two_sinks_need_two_ids(copy: Copy, load_stream: Load) -> None:
    copy.kafka.produce(copy.source, numbered(10))
    other = copy.kafka.create()

    def write(batch: DataFrame, _: int) -> None:
        for topic in (copy.target, other):
            batch.select("value").write.format("ottla").options(**copy.sink(topic=topic)).mode("append").save()

    stream = load_stream(subscribe=copy.source, startingOffsets="earliest")
    query = (
        stream.writeStream.foreachBatch(write).option("checkpointLocation", str(copy.checkpoint)).trigger(availableNow=True).start()
    )
    with pytest.raises(StreamingQueryException, match="two sinks of one query have the same sinkId"):
        query.awaitTermination(100)
    assert (len(values(copy.kafka, copy.target)), values(copy.kafka, other)) == (10, [])


def test_a_batch_job_writes_each_row_once(spark: SparkSession, copy: Copy) -> None:
    frame = spark.range(0, 1000, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("ottla").options(**copy.sink()).mode("append").save()
    assert values(copy.kafka, copy.target) == list(range(1000))
    fails = spark.range(0, 10, numPartitions=2).selectExpr("IF(id = 9, raise_error('no'), CAST(id AS STRING)) AS value")
    for version in ("20783", "20783", "20785", "20785"):
        named = copy.sink(txnAppId=f"daily-{copy.target}", txnVersion=version)
        frame.limit(10).write.format("ottla").options(**named).mode("append").save()
    assert len(values(copy.kafka, copy.target)) == 1020
    with pytest.raises(PySparkException, match="only a sink of a streaming query can have sinkId, "):
        frame.write.format("ottla").options(**copy.sink(sinkId="invoices")).mode("append").save()
    with pytest.raises(PySparkException):
        fails.write.format("ottla").options(**copy.sink()).mode("append").save()
    assert len(values(copy.kafka, copy.target)) == 1020


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exactlyOnce": "yes"}, "option exactlyOnce must be true or false"),
        ({"sinkId": "a.b"}, "option sinkId must be 1 to 100 letters, digits"),
        ({"txnAppId": "daily"}, "options txnAppId and txnVersion need each other"),
        ({"txnAppId": "daily", "txnVersion": "today"}, "option txnVersion must be a number of a batch"),
        ({"onReplayMismatch": "ignore"}, "option onReplayMismatch must be fail, skip or repeat"),
        ({"exactlyonce": "true", "kafka.acks": "1"}, "leave out kafka.enable.idempotence=false, acks=1"),
        ({"exactlyonce": "true", "kafka.enable.idempotence": "false"}, "need an idempotent producer"),
        ({"exactlyonce": "true", "kafka.transaction.timeout.ms": "soon"}, "kafka.transaction.timeout.ms"),
        ({"exactlyOnes": "true"}, "did you mean exactlyOnce"),
    ],
)
def test_options_that_cannot_be_are_refused(spark: SparkSession, kafka: Kafka, options: dict[str, str], words: str) -> None:
    frame = spark.sql("SELECT 'v' AS value")
    with pytest.raises(PySparkException) as raised:
        frame.write.format("ottla").options(**{"kafka.bootstrap.servers": kafka.servers, "topic": "t"}, **options).mode(
            "append"
        ).save()
    assert words in str(raised.value)
