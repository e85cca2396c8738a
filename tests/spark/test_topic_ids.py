"""A task notices that its topic was recreated since it was planned: from Fetch 13 on the broker compares the topic id, before the
task does."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ottla.spark.batch import OttlaBatchReader
from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options
from ottla.spark.stream import OttlaStreamReader
from tests.spark.conftest import Kafka, cluster_of, numbered


@pytest.fixture(scope="module", params=["kafka", pytest.param("3.0.2", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    with cluster_of(request, request.param) as kafka:
        yield kafka


def recreate(cluster: Kafka, topic: str, count: int) -> None:
    cluster.delete(topic)
    end = time.monotonic() + 60
    while True:
        try:
            cluster.create(name=topic)
            break
        except KafkaException as error:  # the controller of 3.0 deletes it a while after the broker
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > end:
                raise
            time.sleep(0.2)
    cluster.produce(topic, numbered(count))


@pytest.mark.parametrize("later", [10, 100, 300], ids=["shorter", "as long", "longer"])
def test_a_worker_that_has_read_the_topic_before(cluster: Kafka, later: int) -> None:
    topic = cluster.create()
    cluster.produce(topic, numbered(100))
    given = {"kafka.bootstrap.servers": cluster.servers, "subscribe": topic, "startingOffsets": "earliest"}
    reader = OttlaStreamReader(parse_options(given).for_stream(), ("value",))
    tolerant = OttlaStreamReader(parse_options({**given, "failOnDataLoss": "false"}).for_stream(), ("value",))
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(50))
    end = reader.latestOffset(middle, ReadAllAvailable())
    (first,), (second,) = reader.partitions(start, middle), reader.partitions(middle, end)
    for each in (reader, tolerant):
        assert sum(batch.num_rows for batch in each.read(first)) == 50
    recreate(cluster, topic, later)
    with pytest.raises(
        DataLossError, match=f"{topic}-0: offsets 50 to 99 cannot be read: the topic was deleted, and created again"
    ):
        list(reader.read(second))
    assert list(tolerant.read(second)) == []
    reader.stop()
    tolerant.stop()


def test_one_of_two_topics_was_recreated(cluster: Kafka) -> None:
    topics = sorted(cluster.create() for _ in range(2))
    for topic in topics:
        cluster.produce(topic, numbered(100))
    given = {"kafka.bootstrap.servers": cluster.servers, "subscribe": ",".join(topics), "startingOffsets": "earliest"}
    options = parse_options({**given, "maxPartitions": "1", "failOnDataLoss": "false"})
    reader = OttlaStreamReader(options.for_stream(), ("topic", "value"))
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    recreate(cluster, topics[0], 200)
    rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
    assert {row["topic"] for row in rows} == {topics[1]}
    assert len(rows) == 100
    reader.stop()


def batch_reader(cluster: Kafka, topic: str, **options: str) -> OttlaBatchReader:
    given = {"kafka.bootstrap.servers": cluster.servers, "subscribe": topic, "planOnce": "true", **options}
    return OttlaBatchReader(parse_options(given).for_batch(), ("value",), given)


@pytest.mark.parametrize("later", [10, 100, 300], ids=["shorter", "as long", "longer"])
def test_a_batch_whose_topic_is_recreated_after_it_was_planned(cluster: Kafka, later: int) -> None:
    topic = cluster.create()
    cluster.produce(topic, numbered(100))
    batch, tolerant = batch_reader(cluster, topic), batch_reader(cluster, topic, failOnDataLoss="false")
    (task,) = batch.partitions()
    for each in (batch, tolerant):
        assert sum(rows.num_rows for rows in each.read(task)) == 100
    recreate(cluster, topic, later)
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 99 cannot be read: the topic was deleted, and created again"):
        list(batch.read(task))
    assert list(tolerant.read(task)) == []
    (task,) = batch.partitions()
    assert sum(rows.num_rows for rows in batch.read(task)) == later


@pytest.mark.slow
def test_a_batch_on_brokers_without_topic_ids(request: pytest.FixtureRequest) -> None:
    with cluster_of(request, "2.4.1") as old:
        topic = old.create()
        old.produce(topic, numbered(10))
        batch = batch_reader(old, topic)
        (task,) = batch.partitions()
        assert [each.topic_id for each in task.value] == [None]
        recreate(old, topic, 20)
        assert sum(rows.num_rows for rows in batch.read(task)) == 10
