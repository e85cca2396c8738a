"""The reader of a stream, without Spark: its sequence of offsets, and what it does not wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import Admin, Broker, Producer
from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options
from ottla.spark.reading import read_ranges
from ottla.spark.stream import OttlaStreamReader


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    create(broker, name, 10)
    return str(name)


def create(broker: Broker, topic: str, count: int) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({topic: 1})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, [str(number) for number in range(count)])


def recreate(broker: Broker, topic: str, count: int) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])
    create(broker, topic, count)


def reader(broker: Broker, topic: str, **options: str) -> OttlaStreamReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest", **options}
    return OttlaStreamReader(parse_options(given).for_stream(), ("value",))


def first_batch(stream: OttlaStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    start = stream.initialOffset()
    return start, stream.latestOffset(start, ReadAllAvailable())


def rows(stream: OttlaStreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(batch.num_rows for each in stream.partitions(start, end) for batch in stream.read(each))


def test_a_topic_that_a_broker_does_not_know_for_a_moment_is_not_gone(broker: Broker, topic: str) -> None:
    end = first_batch(reader(broker, topic))[1]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    stream = reader(broker, topic)
    with broker.faults.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", topic=topic, times=3):
        stream.prepareForTriggerAvailableNow()
        later = stream.latestOffset(end, ReadAllAvailable())
        assert later[topic] == {"0": 11}
    with broker.faults.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION", topic=topic, times=3) as unknown:
        assert rows(stream, end, later) == 1
        assert unknown.struck == 3
    assert stream.latestOffset(later, ReadAllAvailable()) == later
    stream.stop()


def test_records_after_the_start_of_an_available_now_run_are_left_to_the_next(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic)
    stream.prepareForTriggerAvailableNow()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    assert first_batch(stream)[1][topic] == {"0": 10}
    stream.stop()


def test_a_recreated_topic_is_read_from_its_beginning_if_losses_are_accepted(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic)
    end = first_batch(stream)[1]
    recreate(broker, topic, 25)
    later = stream.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="offsets from 10 on cannot be read: the topic was deleted, and created again"):
        stream.partitions(end, later)
    tolerant = reader(broker, topic, failOnDataLoss="false")
    assert rows(tolerant, end, later) == 25
    assert tolerant.latestOffset(later, ReadAllAvailable()) == later
    stream.stop()
    tolerant.stop()


def test_a_topic_that_is_recreated_with_as_many_records_begins_a_batch(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, failOnDataLoss="false")
    end = first_batch(stream)[1]
    recreate(broker, topic, 10)
    later = stream.latestOffset(end, ReadAllAvailable())
    assert later != end
    assert later[topic] == end[topic]
    assert rows(stream, end, later) == 10
    stream.stop()


def test_a_task_does_not_read_a_topic_that_was_recreated_since_it_was_planned(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic)
    (task,) = stream.partitions(*first_batch(stream))
    recreate(broker, topic, 20)
    with pytest.raises(DataLossError, match="offsets 0 to 9 cannot be read: the topic was deleted, and created again"):
        list(stream.read(task))
    options = parse_options({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": topic, "failOnDataLoss": "false"})
    assert list(read_ranges(task.value, ("value",), options.for_stream())) == []
    stream.stop()


def test_a_coordinator_that_does_not_answer_delays_no_batch(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, groupId=topic)
    with broker.faults.delay("OffsetCommit", 3.0, times=1) as silent:
        end = first_batch(stream)[1]
        stream.commit(end)
        silent.wait()
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send(topic, b"x")
        began = time.monotonic()
        later = stream.latestOffset(end, ReadAllAvailable())
        stream.commit(later)
        assert time.monotonic() - began < 1
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(later, ReadAllAvailable()) == later  # the end of an availableNow run waits for its last commit
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert [position.offset for position in admin.group_offsets(topic).values() if position] == [11]
    stream.stop()
