"""What a real Kafka answers at unlucky moments: that it does not know a topic, or nothing for a while. The reader of a stream runs
without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla.protocol.apis import Api
from ottla.spark.options import parse_options
from ottla.spark.progress import Progress
from ottla.spark.stream import OttlaStreamReader
from tests.spark.conftest import Kafka, numbered
from tests.spark.unlucky_proxy import UnluckyProxy


@pytest.fixture
def proxy(kafka: Kafka) -> Iterator[UnluckyProxy]:
    with UnluckyProxy().in_front_of(kafka.servers) as running:
        yield running


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.create()
    kafka.produce(name, numbered(10))
    return name


def reader(proxy: UnluckyProxy, topic: str, **options: str) -> OttlaStreamReader:
    given = {"kafka.bootstrap.servers": proxy.address, "subscribe": topic, "startingOffsets": "earliest", **options}
    return OttlaStreamReader(parse_options(given).for_stream(), ("value",))


def latest(stream: OttlaStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, ReadAllAvailable())


def values(stream: OttlaStreamReader, task: InputPartition) -> list[int]:
    return [int(value) for batch in stream.read(task) for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("api", [Api.METADATA, Api.LIST_OFFSETS], ids=["Metadata", "ListOffsets"])
def test_an_available_now_run_whose_broker_does_not_know_the_topic_for_a_moment(
    kafka: Kafka, proxy: UnluckyProxy, topic: str, api: Api
) -> None:
    stream = reader(proxy, topic)
    with proxy.unknown_topic(api, times=3):
        start = stream.initialOffset()
    assert start[topic] == {"0": 0}
    end = latest(stream, start)
    stream.stop()
    kafka.produce(topic, numbered(1, 10))
    stream = reader(proxy, topic)
    with proxy.unknown_topic(api, times=3):
        stream.prepareForTriggerAvailableNow()
        later = latest(stream, end)
    assert (end[topic], later[topic]) == ({"0": 10}, {"0": 11})
    assert latest(stream, later) == later
    stream.stop()


@pytest.mark.parametrize("api", [Api.METADATA, Api.FETCH], ids=["Metadata", "Fetch"])
def test_a_task_whose_broker_does_not_know_the_topic_for_a_moment(proxy: UnluckyProxy, topic: str, api: Api) -> None:
    stream = reader(proxy, topic)
    start = stream.initialOffset()
    (task,) = stream.partitions(start, latest(stream, start))
    with proxy.unknown_topic(api, times=3):
        assert values(stream, task) == list(range(10))
    stream.stop()


def test_a_task_whose_broker_does_not_know_the_topic_when_records_are_lost(kafka: Kafka, proxy: UnluckyProxy, topic: str) -> None:
    stream = reader(proxy, topic, failOnDataLoss="false")
    start = stream.initialOffset()
    (task,) = stream.partitions(start, latest(stream, start))
    assert values(stream, task) == list(range(10))  # from now on the worker needs no metadata to fetch
    kafka.delete_records(topic, 0, 5)
    with proxy.unknown_topic(Api.METADATA, times=3):
        assert values(stream, task) == list(range(5, 10))
    stream.stop()


def test_a_coordinator_that_does_not_answer_delays_no_batch(kafka: Kafka, proxy: UnluckyProxy, topic: str) -> None:
    stream = reader(proxy, topic, groupId=topic)
    end = latest(stream, stream.initialOffset())
    kafka.produce(topic, numbered(1, 10))
    with proxy.silence(Api.OFFSET_COMMIT) as begun:
        before = time.monotonic()
        stream.commit(end)
        assert begun.wait(20)
        later = latest(stream, end)
        stream.commit(later)
        assert time.monotonic() - before < Progress.TIMEOUT
    stream.prepareForTriggerAvailableNow()
    assert latest(stream, later) == later  # the end of an availableNow run waits for its last commit
    assert kafka.committed(topic) == {(topic, 0): 11}
    stream.stop()
