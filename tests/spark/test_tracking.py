"""``track_progress``: a group has the progress of queries with either source."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import ottla.spark
from ottla.errors import ConfigError
from tests.spark.conftest import Kafka, connector_jars, numbered
from tests.spark.stream_progress import wait_until


@pytest.mark.parametrize("source", ["ottla", "kafka"])
def test_the_progress_of_a_query_is_committed(spark: SparkSession, kafka: Kafka, tmp_path: Path, source: str) -> None:
    if source == "kafka" and not connector_jars():
        pytest.skip("Spark's connector needs Maven")
    topic = kafka.create(2)
    kafka.produce(topic, [*numbered(60), *numbered(40, partition=1)])
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", kafka.servers).option("subscribe", topic)
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "30").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    group = f"{topic}-tracked"
    with ottla.spark.track_progress(spark, group_id=group, bootstrap_servers=kafka.servers) as tracker:
        assert writer.queryName("tracked").trigger(availableNow=True).start().awaitTermination(60)
    assert kafka.committed(group) == kafka.ends(topic)
    assert tracker.offsets_behind_latest["tracked"] == (0, 0.0, 0)


def test_a_running_query_and_how_far_it_is_behind(spark: SparkSession, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(3)
    kafka.produce(topic, [*numbered(100), *numbered(20, partition=1)])
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", kafka.servers).option("subscribe", topic)
    stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "10").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    group = f"{topic}-tracked"
    tracker = ottla.spark.track_progress(spark, group_id=group, bootstrap_servers=kafka.servers, queries=["slow"])
    query = writer.queryName("slow").trigger(processingTime="1 hour").start()
    try:
        wait_until(lambda: sum(kafka.committed(group).values()) == 10)
        least, mean, most = tracker.offsets_behind_latest["slow"]
        assert (least, mean) == (0, 110 / 3)
        assert 90 <= most < 100
    finally:
        query.stop()
        tracker.stop()


def test_wrong_settings_are_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="sasl"):
        ottla.spark.track_progress(spark, group_id="g", bootstrap_servers="localhost:1", sasl_mechanism="NONE")
    with pytest.raises(ConfigError, match="group_id"):
        ottla.spark.track_progress(spark, group_id="", bootstrap_servers="localhost:1")
    with pytest.raises(TypeError, match="queries must be a collection of strings, not the string 'orders'"):
        ottla.spark.track_progress(spark, group_id="g", bootstrap_servers="localhost:1", queries="orders")
