"""The reader of a stream, without Spark: its sequence of offsets, and what it does not wait for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import Admin, Broker, Producer, TopicPartition
from ottla.errors import ConfigError
from ottla.spark import cluster
from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options
from ottla.spark.reading import read_ranges
from ottla.spark.runner_environment import DRAIN, SAMPLE
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
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest", **options}
    given |= {} if "subscribePattern" in options or "subscribe" in options else {"subscribe": topic}
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


@pytest.mark.parametrize("start", ["latest", pytest.param("group:latest", id="group")])
def test_records_may_arrive_before_an_available_now_query_knows_its_start(broker: Broker, topic: str, start: str) -> None:
    """Spark fixes the end first. The start is later then, and the query has nothing to read; nothing is lost either."""
    stream = reader(broker, topic, startingOffsets=start, groupId="g")
    stream.prepareForTriggerAvailableNow()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    begin, end = first_batch(stream)
    assert (begin[topic], end[topic]) == ({"0": 11}, {"0": 11})
    assert rows(stream, begin, end) == 0
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    stream.stop()


@pytest.mark.parametrize(
    "start", ["latest", "earliest", pytest.param("group:latest", id="group"), pytest.param('{"%s": {"0": 3}}', id="offsets")]
)
def test_a_first_batch_that_the_connector_has_begun_is_not_finished_from_another_start(
    broker: Broker, topic: str, start: str
) -> None:
    """The connector keeps the start in a file of its own. From another one records would be skipped: at offset 10 nothing is left
    of a batch that ends there."""
    stream = reader(broker, topic, startingOffsets=start.replace("%s", topic), groupId="g")
    begin, end = stream.initialOffset(), {topic: {"0": 10}}
    if "latest" in start:
        with pytest.raises(ConfigError, match="a first batch that another source has begun and not finished"):
            stream.partitions(begin, end)
    else:
        assert rows(stream, begin, end) == 10 - begin[topic]["0"]
    stream.stop()


def test_an_end_before_the_position_may_be_that_of_a_new_leader_for_a_moment(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that has not heard from the other replicas (KIP-207). Here the log grows while the query looks."""
    stream = reader(broker, topic)
    position = {**first_batch(stream)[1], topic: {"0": 11}}
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer, ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: (time.sleep(0.5), producer.send(topic, b"x")))
        assert stream.latestOffset(position, ReadAllAvailable()) == position
    monkeypatch.setattr("ottla.spark.stream.MISSING_TIMEOUT", 0.3)
    with pytest.raises(DataLossError, match="offsets 11 to 19 cannot be read: the log now ends at offset 11"):
        stream.latestOffset({**position, topic: {"0": 20}}, ReadAllAvailable())
    stream.stop()


def test_an_idle_source_does_not_hold_up_the_other_sources_of_a_query(broker: Broker, topic: str) -> None:
    """Spark asks one source after the other, and tells each one when a batch of any of them was processed."""
    stream = reader(broker, topic)
    end = first_batch(stream)[1]
    took = []
    for is_busy in (True, True, True, False, False):
        began = time.monotonic()
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        took.append(time.monotonic() - began)
        if is_busy:
            stream.commit(end)
    assert max(took[:4]) < 0.5 < took[4]
    stream.stop()


def test_a_recreated_topic_is_read_from_its_beginning_if_losses_are_accepted(broker: Broker, topic: str) -> None:
    stream, tolerant = reader(broker, topic), reader(broker, topic, failOnDataLoss="false")
    end = first_batch(stream)[1]
    recreate(broker, topic, 25)
    for _ in range(2):  # before Spark can store an end that each start of the query would find again
        with pytest.raises(DataLossError, match="offsets from 10 on cannot be read: the topic was deleted, and created again"):
            stream.latestOffset(end, ReadAllAvailable())
    later = tolerant.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="offsets from 10 on cannot be read: the topic was deleted, and created again"):
        stream.partitions(end, later)
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


def test_a_task_whose_worker_knows_the_topic_asks_for_no_metadata(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic)
    (task,) = stream.partitions(*first_batch(stream))
    assert sum(batch.num_rows for batch in stream.read(task)) == 10
    with broker.faults.fail("Metadata", "UNKNOWN_SERVER_ERROR", times=None) as asked:
        assert sum(batch.num_rows for batch in stream.read(task)) == 10
    assert not asked.struck
    stream.stop()


def test_a_coordinator_that_does_not_answer_delays_no_batch(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, groupId=topic)
    end = first_batch(stream)[1]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    with broker.faults.delay("OffsetCommit", 3.0, times=1) as silent:
        began = time.monotonic()
        stream.commit(end)
        silent.wait()
        later = stream.latestOffset(end, ReadAllAvailable())
        stream.commit(later)
        assert time.monotonic() - began < 2.5
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(later, ReadAllAvailable()) == later  # the end of an availableNow run waits for its last commit
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert [position.offset for position in admin.group_offsets(topic).values() if position] == [11]
    stream.stop()


def test_a_stream_with_a_backlog_looks_its_end_up_from_time_to_time(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.spark.stream.BACKLOG_INTERVAL", 3600.0)
    stream = reader(broker, topic, maxOffsetsPerTrigger="3")
    limit = stream.getDefaultReadLimit()
    ends = [stream.latestOffset(stream.initialOffset(), limit)]
    with broker.faults.fail(["ListOffsets", "Metadata"], "UNKNOWN_SERVER_ERROR", times=None) as asked:
        ends.append(stream.latestOffset(ends[-1], limit))
        ends.append(stream.latestOffset(ends[-1], limit))
        assert not asked.struck
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, ["10", "11"])
    ends.append(stream.latestOffset(ends[-1], limit))  # only one record of those that it knows is left
    assert [end[topic]["0"] for end in ends] == [3, 6, 9, 12]
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_partitions({topic: 2})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for partition in (0, 0, 0, 0, 0, 1):
            producer.send(topic, b"x", partition=partition)
    end = stream.latestOffset(ends[-1], limit)
    assert sorted(end[topic]) == ["0", "1"]
    monkeypatch.setattr("ottla.spark.stream.BACKLOG_INTERVAL", 0.0)
    with broker.faults.fail("ListOffsets", "UNKNOWN_SERVER_ERROR", times=1) as asked:
        stream.latestOffset(end, limit)
    assert asked.struck
    stream.stop()


def requests(stream: OttlaStreamReader) -> float:
    clients = (stream._cluster._consumer, stream._watch._consumer)
    metrics = [client.metrics() for client in clients if client is not None]
    return sum(value for each in metrics for name, value in each.items() if name.name == "request-total")


@pytest.mark.parametrize("pattern", [False, True])
def test_an_idle_stream_asks_little_and_notices_a_record_soon(broker: Broker, topic: str, pattern: bool) -> None:
    others = [f"{topic}-b", f"{topic}-c"]
    for other in others:
        create(broker, other, 2)
    stream = reader(broker, topic, **({"subscribePattern": f"^{topic}"} if pattern else {"subscribe": ",".join([topic, *others])}))
    end = first_batch(stream)[1]
    began = time.monotonic()
    assert stream.latestOffset(end, ReadAllAvailable()) == end  # at once, for processAllAvailable()
    assert time.monotonic() - began < 0.5
    assert stream.latestOffset(end, ReadAllAvailable()) == end  # connects the watch
    asked, began = requests(stream), time.monotonic()
    while time.monotonic() < began + 2.5:
        assert stream.latestOffset(end, ReadAllAvailable()) == end
    assert (requests(stream) - asked) / (time.monotonic() - began) < 5
    delays = []
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger=0) as producer, ThreadPoolExecutor(1) as pool:
        producer.partitions_for(topic)
        for pause in (0.05, 0.3, 0.6):
            waiting = pool.submit(changed_at, stream, end)
            time.sleep(pause)
            producer.send(topic, b"x").result(10)
            sent = time.monotonic()
            end, noticed = waiting.result(10)
            delays.append(noticed - sent)
    assert sorted(delays)[1] < 0.1
    stream.stop()


def changed_at(stream: OttlaStreamReader, end: dict[str, Any]) -> tuple[dict[str, Any], float]:
    return changed(stream, end), time.monotonic()


def changed(stream: OttlaStreamReader, end: dict[str, Any]) -> dict[str, Any]:
    while (later := stream.latestOffset(end, ReadAllAvailable())) == end:
        pass
    return later


def test_an_idle_stream_whose_topic_is_deleted_goes_on(broker: Broker, topic: str) -> None:
    create(broker, f"{topic}-b", 3)
    stream = reader(broker, topic, subscribe=f"{topic},{topic}-b", failOnDataLoss="false")
    end = first_batch(stream)[1]
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([f"{topic}-b"])
    later = changed(stream, end)
    assert later[topic] == end[topic]
    assert f"{topic}-b" not in later
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, b"x")
    assert changed(stream, later)[topic] == {"0": 11}
    stream.stop()


def test_a_topic_that_was_new_in_an_unfinished_batch_and_is_deleted(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(broker, topic, subscribePattern=f"^{topic}")
    end = first_batch(stream)[1]
    create(broker, f"{topic}-b", 3)
    later = changed(stream, end)
    assert later[f"{topic}-b"] == {"0": 3}
    stream.stop()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([f"{topic}-b"])
    monkeypatch.setattr(cluster, "MISSING_TIMEOUT", 0.3)
    stream = reader(broker, topic, subscribePattern=f"^{topic}")
    with pytest.raises(DataLossError, match=rf"{topic}-b-0: offsets 0 to 2 cannot be read: the partition no longer exists"):
        stream.partitions(end, later)
    stream.stop()
    stream = reader(broker, topic, subscribePattern=f"^{topic}", failOnDataLoss="false")
    assert stream.partitions(end, later) == []
    stream.stop()
    stream = reader(broker, topic)
    assert stream.partitions(end, {**later, f"{topic}-b": {"0": 0}}) == []  # nothing was in it
    stream.stop()


def test_a_topic_that_was_new_in_an_unfinished_batch_is_read_whatever_is_selected_now(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, subscribePattern=f"^{topic}")
    end = first_batch(stream)[1]
    create(broker, f"{topic}-b", 3)
    later = changed(stream, end)
    stream.stop()
    stream = reader(broker, topic)
    assert rows(stream, end, later) == 3
    stream.stop()


def test_a_topic_that_a_broker_does_not_know_for_a_moment_begins_late(broker: Broker, topic: str) -> None:
    stream = reader(broker, f"{topic}-later")
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(stream.initialOffset)
        time.sleep(0.5)
        create(broker, f"{topic}-later", 3)
        assert start.result(10)[f"{topic}-later"] == {"0": 0}
    stream.stop()


def test_starting_at_a_timestamp(broker: Broker, topic: str) -> None:
    soon = int(time.time() * 1000) + 60_000
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(3):
            producer.send(topic, b"x", timestamp=soon + 10 * number)
    for after, offset in ((0, 10), (1, 11), (20, 12)):
        stream = reader(broker, topic, startingTimestamp=str(soon + after))
        assert stream.initialOffset()[topic] == {"0": offset}
        stream.stop()
    late = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": soon + 21}})}
    stream = reader(broker, topic, **late)
    with pytest.raises(
        ConfigError, match=f"option startingOffsetsByTimestamp: {topic}-0 has no record at or after {soon + 21} .20"
    ):
        stream.initialOffset()
    stream.stop()
    stream = reader(broker, topic, **late, startingOffsetsByTimestampStrategy="latest")
    assert stream.initialOffset()[topic] == {"0": 13}
    stream.stop()


def test_starting_at_the_committed_offsets_of_a_group(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        for word, offset in (("earliest", 0), ("latest", 10)):
            stream = reader(broker, topic, startingOffsets=f"group:{word}", groupId=topic)
            assert stream.initialOffset()[topic] == {"0": offset}
            stream.stop()
        admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 4})
        stream = reader(broker, topic, startingOffsets="group:latest", groupId=topic)
        assert stream.initialOffset()[topic] == {"0": 4}
        stream.stop()
        admin.alter_group_offsets(topic, {TopicPartition(topic, 0): 14})
        stream = reader(broker, topic, startingOffsets="group:latest", groupId=topic)
        with pytest.raises(ConfigError, match=f"group '{topic}' has committed offset 14 of {topic}-0, whose log ends at offset 10"):
            stream.initialOffset()
        stream.stop()
        stream = reader(broker, topic, startingOffsets="group:latest", groupId=topic, failOnDataLoss="false")
        assert stream.initialOffset()[topic] == {"0": 10}
        stream.stop()


def test_a_batch_waits_for_the_least_number_of_offsets(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, minOffsetsPerTrigger="20", maxTriggerDelay="2s")
    end = first_batch(stream)[1]  # the first one does not wait
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send_many(topic, [b"x"] * 5)
        producer.flush()
        assert changed_within(stream, end, 0.6) is None
        producer.send_many(topic, [b"x"] * 15)
        producer.flush()
        later = changed_within(stream, end, 0.6)
        assert later is not None
        assert later[topic] == {"0": 30}
        began = time.monotonic()
        producer.send(topic, b"x").result()
        latest = changed(stream, later)
    assert latest[topic] == {"0": 31}
    assert 1 < time.monotonic() - began < 10
    stream.stop()


def test_a_query_with_available_now_does_not_wait_for_the_least_number_of_offsets(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="6")
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert end[topic] == {"0": 6}
    assert stream.latestOffset(end, stream.getDefaultReadLimit())[topic] == {"0": 10}
    stream.stop()


def changed_within(stream: OttlaStreamReader, end: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    until = time.monotonic() + seconds
    while (later := stream.latestOffset(end, ReadAllAvailable())) == end:
        if time.monotonic() > until:
            return None
    return later


def test_a_task_of_a_stream_has_at_most_so_many_records(broker: Broker, topic: str) -> None:
    stream = reader(broker, topic, maxRecordsPerPartition="4")
    start, end = first_batch(stream)
    tasks = [each.value for each in stream.partitions(start, end)]
    assert [[(each.start, each.end) for each in task] for task in tasks] == [[(0, 3)], [(3, 6)], [(6, 10)]]
    stream.stop()


def test_a_batch_has_the_same_tasks_on_a_host_with_other_cores(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "many-partitions"
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({topic: 8})
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for partition in range(8):
            producer.send(topic, "one", partition=partition)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    first = reader(broker, topic)
    start, end = first_batch(first)
    first.stop()
    assert end["$cores"] == 3
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    again = reader(broker, topic)
    assert len(again.partitions(start, end)) == 3
    assert again.latestOffset(end, ReadAllAvailable()) is end  # without new records, other cores are no reason for a batch
    assert len(again.partitions(start, {key: value for key, value in end.items() if key != "$cores"})) == 8
    again.stop()


def test_a_drained_stream_offers_nothing_more(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DRAIN, str(tmp_path / "drain"))
    query = reader(broker, topic)
    start = query.initialOffset()
    (tmp_path / "drain").touch()
    first = query.latestOffset(start, ReadAllAvailable())
    assert (first[topic], first["$from"]) == ({"0": 0}, {topic: {"0": 0}})
    assert query.partitions(start, first) == []
    assert query.latestOffset(first, ReadAllAvailable()) is first
    (tmp_path / "drain").unlink()
    assert query.latestOffset(first, ReadAllAvailable())[topic] == {"0": 10}
    query.stop()


def test_a_drained_stream_with_available_now_ends(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DRAIN, str(tmp_path / "drain"))
    query = reader(broker, topic, maxOffsetsPerTrigger="4")
    query.prepareForTriggerAvailableNow()
    first = query.latestOffset(query.initialOffset(), query.getDefaultReadLimit())
    assert first[topic] == {"0": 4}
    (tmp_path / "drain").touch()
    assert query.latestOffset(first, query.getDefaultReadLimit()) is first
    query.stop()


def test_a_sample_is_the_latest_records_and_commits_nothing(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SAMPLE, "3")
    query = reader(broker, topic, groupId=f"group-{topic}", startingOffsets="latest")
    query.prepareForTriggerAvailableNow()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send(topic, "later")
    start, end = first_batch(query)
    assert (start[topic], end[topic], rows(query, start, end)) == ({"0": 7}, {"0": 10}, 3)
    assert query.latestOffset(end, ReadAllAvailable()) is end
    query.stop()
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert admin.group_offsets(f"group-{topic}") == {}
