"""Thousands of topics: a change costs the same however many there are, and other clients do not wait for a long request."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import CloseConnection, MuteConnection, RunJob, UnmuteConnection
from ottla.broker.log_manager import SIZE as LOGS_IN_A_SLICE
from ottla.broker.slices import DESCRIBED, SIZE
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    alter_configs_request,
    create_partitions_request,
    create_topics_request,
    delete_topics_request,
    describe_configs_request,
    fetch_request,
    incremental_alter_configs_request,
    metadata_request,
    produce_request,
)
from ottla.runtime import log_files
from ottla.simulation.clock import START
from ottla.simulation.requests import IN_TIME
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import ask_metadata, create, produce
from tests.work_counter import work

TOPIC = 2
HOUR = 3_600_000


def names(count: int, prefix: str = "topic") -> list[str]:
    return [f"{prefix}.{number:05}" for number in range(count)]


def creating(wanted: Sequence[str]) -> create_topics_request.CreateTopicsRequest:
    return create_topics_request.CreateTopicsRequest(
        topics=tuple(
            create_topics_request.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in wanted
        )
    )


def deleting(wanted: Sequence[str]) -> delete_topics_request.DeleteTopicsRequest:
    states = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in wanted)
    return delete_topics_request.DeleteTopicsRequest(topics=states, timeout=IN_TIME)


def widening(name: str, count: int) -> create_partitions_request.CreatePartitionsRequest:
    wanted = create_partitions_request.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return create_partitions_request.CreatePartitionsRequest(topics=(wanted,), timeout=IN_TIME, validate_only=False)


def altering(wanted: Sequence[str]) -> incremental_alter_configs_request.IncrementalAlterConfigsRequest:
    setting = incremental_alter_configs_request.AlterableConfig(name="retention.ms", config_operation=0, value="-1")
    resources = tuple(
        incremental_alter_configs_request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=(setting,))
        for name in wanted
    )
    return incremental_alter_configs_request.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def codes(response: Any) -> list[ErrorCode]:
    rows = getattr(response, "topics", None) or response.responses
    return [row.error_code for row in rows]


def with_topics(path: Path, count: int) -> CoreUnderTest:
    broker = CoreUnderTest(path)
    broker.ask(Api.CREATE_TOPICS, creating(names(count)))
    broker.ask(Api.CREATE_TOPICS, creating(["existing"]))
    produce(broker, batch(), topic="existing")
    broker.run_jobs()
    return broker


def create_and_delete(broker: CoreUnderTest) -> Callable[[], object]:
    fresh = (f"fresh-{number}" for number in itertools.count())

    def action() -> None:
        name = next(fresh)
        assert codes(broker.ask(Api.CREATE_TOPICS, creating([name]))) == [ErrorCode.none]
        assert produce(broker, batch(), topic=name).error_code is ErrorCode.none
        assert codes(broker.ask(Api.DELETE_TOPICS, deleting([name]))) == [ErrorCode.none]
        broker.run_jobs()

    return action


def add_partitions(broker: CoreUnderTest) -> Callable[[], object]:
    counts = itertools.count(2)
    return lambda: broker.ask(Api.CREATE_PARTITIONS, widening("existing", next(counts)))


def alter(broker: CoreUnderTest) -> Callable[[], object]:
    return lambda: broker.ask(Api.INCREMENTAL_ALTER_CONFIGS, altering(["existing"]))


def look(broker: CoreUnderTest) -> Callable[[], object]:
    return lambda: ask_metadata(broker, "existing")


@pytest.mark.parametrize("doing", [create_and_delete, add_partitions, alter, look])
def test_what_concerns_one_topic_costs_the_same_among_many(
    tmp_path: Path, doing: Callable[[CoreUnderTest], Callable[[], object]]
) -> None:
    few, many = (with_topics(tmp_path / str(count), count) for count in (4, 400))
    small, large = work(doing(few)), work(doing(many))
    assert large.lines == small.lines
    assert large.memory < 1.5 * small.memory + 4_000
    few.close()
    many.close()


def test_a_long_request_lets_others_be_served_in_between(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    wanted = names(3 * SIZE + 1)
    ticket = broker.send(Api.CREATE_TOPICS, creating(wanted))
    done = 0
    while ticket not in broker.replies:
        assert len(ask_metadata(broker).topics) == done + SIZE, "a turn of the loop is a slice"
        done += SIZE
        broker.pass_time(1)
    response = broker.replies[ticket]
    assert [row.name for row in response.topics] == wanted
    assert codes(response) == [ErrorCode.none] * len(wanted)

    ticket = broker.send(Api.DELETE_TOPICS, deleting(wanted))
    assert ticket not in broker.replies
    assert len(ask_metadata(broker).topics) == len(wanted) - SIZE
    broker.pass_time(3)
    assert [row.name for row in broker.replies[ticket].responses] == wanted
    assert not ask_metadata(broker).topics
    broker.close()


def test_what_is_described_in_slices_is_described_whole(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    wanted = names(DESCRIBED + 1)
    broker.ask(Api.CREATE_TOPICS, creating(wanted))
    message = metadata_request.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    ticket = broker.send(Api.METADATA, message)
    assert ticket not in broker.replies
    assert codes(broker.ask(Api.DELETE_TOPICS, deleting(wanted[-1:]))) == [ErrorCode.none]
    broker.pass_time(1)
    assert [row.name for row in broker.replies[ticket].topics] == wanted[:-1]

    resources = tuple(
        describe_configs_request.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in wanted[: SIZE + 1]
    )
    described = broker.ask(Api.DESCRIBE_CONFIGS, describe_configs_request.DescribeConfigsRequest(resources=resources))
    assert [row.resource_name for row in described.results] == wanted[: SIZE + 1]
    broker.close()


def test_topics_of_many_partitions_make_smaller_slices(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    wanted = names(3)
    for name in wanted:
        create(broker, name, DESCRIBED)
    message = metadata_request.MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    ticket = broker.send(Api.METADATA, message)
    broker.pass_time(2)
    assert ticket not in broker.replies
    broker.pass_time(1)
    assert [len(row.partitions) for row in broker.replies[ticket].topics] == [DESCRIBED] * 3

    ticket = broker.send(Api.DELETE_TOPICS, deleting(wanted))
    assert [topic.name for topic in broker.core.catalog.topics] == wanted[1:]
    broker.pass_time(1)
    assert [topic.name for topic in broker.core.catalog.topics] == wanted[2:]
    broker.pass_time(1)
    assert codes(broker.replies[ticket]) == [ErrorCode.none] * 3
    broker.close()


def test_settings_are_altered_in_slices(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    wanted = names(SIZE + 1)
    broker.ask(Api.CREATE_TOPICS, creating(wanted))
    assert codes(broker.ask(Api.INCREMENTAL_ALTER_CONFIGS, altering(wanted))) == [ErrorCode.none] * len(wanted)
    assert {topic.config.retention_ms for topic in broker.core.catalog.topics} == {-1}
    resources = tuple(
        alter_configs_request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=()) for name in wanted
    )
    back = alter_configs_request.AlterConfigsRequest(resources=resources, validate_only=False)
    assert codes(broker.ask(Api.ALTER_CONFIGS, back)) == [ErrorCode.none] * len(wanted)
    assert {topic.config.retention_ms for topic in broker.core.catalog.topics} == {604_800_000}
    broker.close()


def test_two_long_requests_for_the_same_names_create_each_topic_once(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    wanted = names(2 * SIZE)
    first = broker.send(Api.CREATE_TOPICS, creating(wanted))
    second = broker.send(Api.CREATE_TOPICS, creating(wanted[::-1]))
    broker.pass_time(5)
    outcomes = [
        dict(zip(order, codes(broker.replies[ticket]), strict=True)) for ticket, order in ((first, wanted), (second, wanted[::-1]))
    ]
    for name in wanted:
        assert {one[name] for one in outcomes} == {ErrorCode.none, ErrorCode.topic_already_exists}
    broker.close()


def test_a_kill_in_the_middle_keeps_what_was_created(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    ticket = broker.send(Api.CREATE_TOPICS, creating(names(2 * SIZE)))
    assert ticket not in broker.replies
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert [topic.name for topic in again.core.catalog.topics] == names(SIZE)
    assert codes(again.ask(Api.CREATE_TOPICS, creating(names(2 * SIZE)[SIZE:]))) == [ErrorCode.none] * SIZE
    again.kill()
    last = CoreUnderTest(tmp_path)
    assert [topic.name for topic in last.core.catalog.topics] == names(2 * SIZE), "what was acknowledged survives a kill"
    last.close()


def test_a_disk_that_fails_in_the_middle_refuses_the_topics_that_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = CoreUnderTest(tmp_path)
    broker.ask(Api.CREATE_TOPICS, creating(["first"]))
    ticket = broker.send(Api.CREATE_TOPICS, creating(names(2 * SIZE)))

    def full(fd: int, pieces: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        broker.pass_time(1)
    assert codes(broker.replies[ticket]) == [ErrorCode.none] * SIZE + [ErrorCode.kafka_storage_error] * SIZE
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert [topic.name for topic in again.core.catalog.topics] == ["first", *names(SIZE)]
    again.close()


def test_a_failure_in_a_later_slice_closes_the_connection_and_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = CoreUnderTest(tmp_path)
    ticket = broker.send(Api.CREATE_TOPICS, creating(names(2 * SIZE)))
    with monkeypatch.context() as patch:
        patch.setattr(broker.core.catalog.topics, "check_new", None)
        broker.pass_time(1)
    assert broker.others == [
        MuteConnection(ticket),
        UnmuteConnection(ticket),
        CloseConnection(ticket, "the broker failed to serve it"),
    ]
    assert "could not be served to its end" in caplog.text
    assert len(ask_metadata(broker).topics) == SIZE
    broker.close()


def test_the_catalog_is_forced_to_disk_once_for_what_was_changed_meanwhile(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    broker.ask(Api.CREATE_TOPICS, creating(names(10 * SIZE)))
    assert [job.tag for job in broker.jobs] == [("sync-catalog",)]
    (job,) = broker.jobs
    broker.jobs.clear()
    broker.take(broker.core.on_job(job.tag, job.job(), broker.now))
    assert [job.tag for job in broker.jobs] == [("sync-catalog",)], "what has changed since the first was ordered"
    broker.run_jobs()
    assert broker.core.catalog.close_catalog() == []
    broker.close()


def test_describing_a_topic_without_records_takes_no_log(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    broker.ask(Api.CREATE_TOPICS, creating(names(100)))
    assert len(ask_metadata(broker).topics) == 100
    assert not list(broker.core.catalog.logs)
    assert codes(broker.ask(Api.DELETE_TOPICS, deleting(names(100)))) == [ErrorCode.none] * 100
    assert not [job for job in broker.jobs if isinstance(job, RunJob) and job.tag[0] == "delete-topic"]
    broker.close()


def expiring(path: Path, count: int, **settings: Any) -> CoreUnderTest:
    """A broker with so many topics whose records have all expired."""
    broker = CoreUnderTest(path, **{"log.retention.ms": 1, "log.segment.delete.delay.ms": 10_000, **settings})
    broker.ask(Api.CREATE_TOPICS, creating(names(count)))
    for name in names(count):
        assert produce(broker, batch(timestamp=START.wall - HOUR), topic=name).error_code is ErrorCode.none
    broker.run_jobs()
    return broker


def test_retention_looks_at_logs_in_slices_and_waits_for_the_disk_in_between(tmp_path: Path) -> None:
    broker = expiring(tmp_path, 2 * LOGS_IN_A_SLICE + 1)
    logs = list(broker.core.catalog.logs)
    broker.pass_time(300_000)
    assert sum(log.start_offset > 0 for log in logs) == LOGS_IN_A_SLICE, "a turn of the loop is a slice"
    # Every log of the slice may hold a few descriptors until its jobs are done.
    assert sum(job.tag[0] in ("mark-deleted", "seal") for job in broker.jobs) <= 2 * LOGS_IN_A_SLICE
    broker.run_jobs()
    assert all(log.start_offset > 0 for log in logs)
    broker.pass_time(300_000)
    assert not [job for job in broker.jobs if job.tag[0] == "mark-deleted"], "the next round has nothing to do"
    broker.close()


def test_a_round_goes_on_after_a_log_that_fails_and_without_those_that_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = expiring(tmp_path, 2 * LOGS_IN_A_SLICE)
    logs = list(broker.core.catalog.logs)
    with monkeypatch.context() as patch:
        patch.setattr(logs[0].producers, "remove_expired", None, raising=False)
        with pytest.raises(TypeError):
            broker.pass_time(300_000)
    broker.take([])
    gone = names(2 * LOGS_IN_A_SLICE)[-1]
    assert codes(broker.ask(Api.DELETE_TOPICS, deleting([gone]))) == [ErrorCode.none]
    broker.run_jobs()
    assert [log.start_offset for log in logs[LOGS_IN_A_SLICE:]] == [1] * (LOGS_IN_A_SLICE - 1) + [0]
    broker.close()


def test_a_timer_during_a_round_does_not_begin_another(tmp_path: Path) -> None:
    broker = expiring(tmp_path, LOGS_IN_A_SLICE + 1, **{"log.retention.check.interval.ms": 10})
    broker.pass_time(100)
    assert [job.tag for job in broker.jobs if job.tag[0] == "expire"] == [("expire",)]
    broker.run_jobs()
    assert all(log.start_offset > 0 for log in broker.core.catalog.logs)
    broker.close()


def test_files_to_be_removed_take_no_descriptors_while_they_wait(tmp_path: Path) -> None:
    broker = expiring(tmp_path, 300, **{"log.segment.delete.delay.ms": 1_000})
    broker.pass_time(300_000)
    broker.run_jobs()
    before = len(os.listdir("/dev/fd"))
    broker.pass_time(1_000)
    assert sum(job.tag[0] == "remove-files" for job in broker.jobs) == 300
    assert len(os.listdir("/dev/fd")) < before + 50
    broker.run_jobs()
    assert not list(tmp_path.glob("*/*.deleted"))
    broker.close()


def test_what_waits_for_the_disk_takes_no_descriptors(tmp_path: Path) -> None:
    """``flush.messages=1`` and a request to thousands of partitions, or thousands of logs that roll in the same turn."""
    broker = CoreUnderTest(tmp_path, **{"log.flush.interval.messages": 1, "log.roll.ms": 1})
    wanted = names(300)
    broker.ask(Api.CREATE_TOPICS, creating(wanted))
    for timestamp in (START.wall, START.wall + 10):
        before = len(os.listdir("/dev/fd"))
        ticket = broker.send(Api.PRODUCE, producing(wanted, batch(timestamp=timestamp)), version=12)
        assert len(os.listdir("/dev/fd")) <= before + 256
        broker.run_jobs()
        assert {row.partition_responses[0].error_code for row in broker.replies[ticket].responses} == {ErrorCode.none}
    assert {log.recovery_point for log in broker.core.catalog.logs} == {2}
    broker.close()


def producing(wanted: Sequence[str], data: bytes) -> produce_request.ProduceRequest:
    partition = produce_request.PartitionProduceData(index=0, records=data)
    return produce_request.ProduceRequest(
        acks=-1,
        timeout=IN_TIME,
        topic_data=tuple(produce_request.TopicProduceData(name=name, partition_data=(partition,)) for name in wanted),
    )


def test_answers_on_their_way_keep_few_files_open(tmp_path: Path) -> None:
    broker = CoreUnderTest(tmp_path)
    before = len(os.listdir("/dev/fd"))
    wanted = names(700)
    broker.ask(Api.CREATE_TOPICS, creating(wanted))
    broker.ask(Api.PRODUCE, producing(wanted, batch(size=40_000)), version=12)
    partition = fetch_request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    fetching = fetch_request.FetchRequest(
        max_wait=timedelta(0),
        min_bytes=1,
        topics=tuple(fetch_request.FetchTopic(topic=name, partitions=(partition,)) for name in wanted),
        forgotten_topics_data=(),
    )
    answer = broker.ask(Api.FETCH, fetching, version=12)
    assert [len(topic.partitions[0].records) for topic in answer.responses] == [len(batch(size=40_000))] * len(wanted)
    assert len(os.listdir("/dev/fd")) <= before + 2 * 256
    broker.close()


def test_at_the_limit_of_open_files_a_fetch_response_is_short_and_immediate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read into memory keeps other clients waiting, and takes as much memory for each slow client."""
    monkeypatch.setattr(log_files, "_MAX_OPEN", 2)
    broker = CoreUnderTest(tmp_path)
    wanted = names(8)
    broker.ask(Api.CREATE_TOPICS, creating(wanted))
    for _ in range(5):
        broker.ask(Api.PRODUCE, producing(wanted, batch(size=900_000)), version=12)

    def fetched(*topics: str, wait: int = 0) -> list[Any]:
        partition = fetch_request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 30)
        fetching = fetch_request.FetchRequest(
            max_wait=timedelta(milliseconds=wait),
            min_bytes=20_000_000 if wait else 1,
            topics=tuple(fetch_request.FetchTopic(topic=name, partitions=(partition,)) for name in topics),
            forgotten_topics_data=(),
        )
        ticket = broker.send(Api.FETCH, fetching, version=12)
        return [topic.partitions[0].records for topic in broker.replies.pop(ticket).responses]

    whole = 5 * len(batch(size=900_000))
    on_their_way = fetched(*wanted[:3])
    on_their_way += fetched(*wanted[3:])
    assert sum(isinstance(one, log_files.DiskRange) for one in on_their_way) == 4
    copied = [one for one in on_their_way if isinstance(one, bytes)]
    assert sum(map(len, copied)) <= 8 << 20
    assert len(copied[0]) == whole, "what comes first is whole"
    short = fetched(*wanted, wait=1_000)
    assert [len(short[0]), *map(len, short[2:])] == [whole, *[0] * 6]
    assert 0 < len(short[1]) < whole
    del on_their_way
    assert list(map(len, fetched(*wanted[:3]))) == [whole] * 3
    broker.close()


def test_records_are_written_and_read_while_files_are_scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is closed after its use is not closed before."""
    monkeypatch.setattr(log_files, "_MAX_OPEN", 2)
    open_files = log_files.OpenFiles()
    segments = []
    for number in range(6):
        path = tmp_path / str(number)
        path.touch()
        segments.append(log_files.DiskSegment(path, open_files))
        segments[-1].append([b"first" * 10_000])
    ranges = [segment.range(0, segment.size) for segment in segments]
    assert open_files.has_too_many_open_files
    torn = log_files.DiskSegment(segments[0].path, open_files)
    for segment in segments:
        segment.append([b"second"])
        assert segment.read(50_000, 6) == b"second"
        segment.truncate(50_003)
        assert segment.path.read_bytes()[50_000:] == b"sec"
    torn._torn = True
    torn.repair()
    assert torn.path.stat().st_size == torn.size
    assert sum(isinstance(one, log_files.DiskRange) for one in ranges) == 4
