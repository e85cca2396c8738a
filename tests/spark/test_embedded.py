"""The embedded broker, a stream, a batch, and the lag of the group, without any Java except Spark's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla import Admin, Broker, TopicPartition
from tests.spark.conftest import Kafka, Sink, numbered


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.mark.slow
def test_a_stream_and_a_batch_from_the_embedded_broker(spark: SparkSession, broker: Broker, sink: Sink) -> None:
    kafka = Kafka(broker.bootstrap_servers)
    topic = kafka.create(3)
    for partition in range(3):
        kafka.produce(topic, numbered(100, 100 * partition, partition))
    source = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    sink.run(spark.readStream.format("ottla").options(**source, groupId="lake", maxOffsetsPerTrigger=130).load())
    assert sink.values() == list(range(300))
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        partitions = [TopicPartition(topic, number) for number in range(3)]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        committed = admin.group_offsets("lake")
    assert {tp: ends[tp].offset - committed[tp].offset for tp in partitions} == dict.fromkeys(partitions, 0)
    batch = spark.read.format("ottla").options(**source).load()
    assert sorted(int(row.value) for row in batch.collect()) == list(range(300))
