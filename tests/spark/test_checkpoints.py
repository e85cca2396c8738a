"""Checkpoints: those of Spark's connector continue under Ottla, and converted ones of Ottla's under the connector."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ottla.spark.checkpoint import convert, read_batches
from tests.spark.conftest import Kafka, connector_jars, numbered

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not connector_jars(), reason="Spark's connector needs Maven")]


class Query:
    """A query whose source changes, and the values that its batches have had."""

    def __init__(self, spark: SparkSession, kafka: Kafka, topic: str) -> None:
        self._spark, self._kafka, self._topic = spark, kafka, topic
        self.seen: list[int] = []
        self.fails = False

    def run(self, source: str, checkpoint: Path) -> None:
        reader = self._spark.readStream.format(source).option("kafka.bootstrap.servers", self._kafka.servers)
        stream = reader.option("subscribe", self._topic).option("startingOffsets", "earliest").load()
        writer = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)

    def _take(self, batch: DataFrame, _: int) -> None:
        if self.fails:
            raise RuntimeError("on purpose")
        self.seen += [int(row.value) for row in batch.collect()]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.create(2)
    kafka.produce(name, [*numbered(20), *numbered(20, 20, 1)])
    return name


@pytest.mark.slow
def test_a_checkpoint_goes_from_the_connector_to_ottla_and_back(
    spark: SparkSession, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, kafka, topic)
    query.run("kafka", tmp_path / "one")
    kafka.produce(topic, numbered(10, 40))
    query.run("ottla", tmp_path / "one")
    assert sorted(query.seen) == list(range(50))
    kafka.produce(topic, numbered(10, 50, 1))
    with pytest.raises(StreamingQueryException):
        query.run("kafka", tmp_path / "one")
    assert convert(tmp_path / "one", tmp_path / "two") == 1
    query.run("kafka", tmp_path / "two")
    assert sorted(query.seen) == list(range(60))


def test_a_first_batch_that_is_not_processed_begins_where_it_did(
    spark: SparkSession, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    query = Query(spark, kafka, topic)
    query.fails = True
    with pytest.raises(StreamingQueryException, match="on purpose"):
        query.run("ottla", tmp_path / "one")
    (batch,) = read_batches(tmp_path / "one")
    assert not batch.is_committed
    kafka.produce(topic, numbered(10, 40))
    assert convert(tmp_path / "one", tmp_path / "two") == 1
    query.fails = False
    query.run("kafka", tmp_path / "two")
    assert sorted(query.seen) == list(range(50))
