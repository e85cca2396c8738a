"""What is left of a step that fails halfway: the effects of what was done before it, and work that is tried again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.catalog import SYNC_CATALOG, BrokerCatalog
from ottla.broker.effects import CloseConnection
from ottla.broker.log import PartitionLog
from ottla.broker.log_loader import load_log
from ottla.broker.log_manager import LogManager
from ottla.broker.ports import CatalogChange, TopicDeleted
from ottla.broker.segment import Segment
from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import delete_records_request, delete_topics_request, describe_log_dirs_request, produce_request
from ottla.records import NewRecord, encode_batch, iter_records
from ottla.runtime.folders import PinnedFolder
from ottla.runtime.log_files import PartitionFolder
from ottla.simulation.clock import START
from ottla.simulation.requests import produce_message
from ottla.types import TopicPartition
from tests.simulation.broker import CoreUnderTest
from tests.simulation.requests import fetch_message
from tests.unit.broker.group_requests import commit, committed, started
from tests.unit.broker.harness import append, batch, clean, header_of, open_log, reload, stored
from tests.unit.broker.requests import create, delete, fetched, produce

ROLLING = {"segment_ms": "1"}
EIO = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    yield core
    core.close()


def failing(*args: Any, **keywords: Any) -> Any:
    raise EIO


def stamped(number: int) -> bytes:
    """Batches that roll where ``segment.ms`` is 1."""
    return batch(timestamp=START.wall + 10 * number)


def produce_two(broker: CoreUnderTest, records: bytes, *topics: str) -> int:
    """One request that writes to several topics; returns its ticket."""
    message = produce_request.ProduceRequest(
        acks=-1,
        timeout=timedelta(seconds=1),
        topic_data=tuple(
            produce_request.TopicProduceData(
                name=topic, partition_data=(produce_request.PartitionProduceData(index=0, records=records),)
            )
            for topic in topics
        ),
    )
    return broker.send(Api.PRODUCE, message, version=12)


# A log.


def test_a_write_that_fails_after_a_roll_keeps_the_sealing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=header_of(batch()).size)
    append(log, batch())
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", failing)
        with pytest.raises(OSError, match="Input/output"):
            append(log, batch())
    assert [segment.base_offset for segment in log.segments] == [0, 1], "it has rolled"
    (sealing,) = log.take_sealings()
    sealing.job()
    log.sealed(sealing, None)
    assert log.recovery_point == 1
    append(log, batch())
    assert [header.base_offset for header in stored(log)] == [0, 1]


def test_a_sealing_that_cannot_be_prepared_is_a_job_that_fails_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, segment_bytes=header_of(batch()).size)
    append(log, batch())
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "seal", failing)
        log.append(batch(), header_of(batch()), START.wall)
    (sealing,) = log.take_sealings()
    with pytest.raises(OSError, match="Input/output") as raised:
        sealing.job()
    assert not log.is_unsealed
    log.sealed(sealing, raised.value)
    assert log.is_unsealed
    append(log, batch())
    assert (log.recovery_point, log.is_unsealed) == (2, False)


def test_a_roll_that_fails_leaves_no_file_that_would_end_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = header_of(batch(2)).size
    log = open_log(tmp_path, segment_bytes=size + header_of(batch()).size)
    append(log, batch(2))
    real = os.close

    def close(fd: int) -> None:
        real(fd)
        raise EIO

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        with pytest.raises(OSError, match="Input/output"):
            log.append(batch(2), header_of(batch(2)), START.wall)
    append(log, batch())
    assert reload(log, recovery_point=2)[0].end_offset == 3, "the smaller batch still went into the first segment"


def test_a_torn_write_is_cut_off_before_the_next_segment_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=2 * header_of(batch()).size)
    append(log, batch())
    real = os.writev

    def half(fd: int, pieces: list[bytes]) -> int:
        real(fd, [b"".join(pieces)[:30]])
        raise EIO

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", half)
        patch.setattr(os, "ftruncate", failing)
        with pytest.raises(OSError, match="Input/output"):
            append(log, batch())
    append(log, batch(2))
    assert [header.base_offset for header in stored(log)] == [0, 1]
    assert (tmp_path / "t-0" / "00000000000000000000.log").stat().st_size == log.segments[0].size


def test_a_flush_covers_segments_whose_sealing_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, durable=True, segment_bytes=header_of(batch()).size)
    for _ in range(2):
        log.append(batch(), header_of(batch()), START.wall)
    (sealing,) = log.take_sealings()
    log.sealed(sealing, EIO)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    log.flush()()
    folder = tmp_path / "t-0"
    assert {(folder / f"{base:020d}.log").stat().st_ino for base in (0, 1)} <= set(synced)


def test_indexes_that_could_not_be_loaded_are_loaded_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=4 * header_of(batch()).size, index_interval_bytes=0)
    for _ in range(6):
        append(log, batch())
    log.seal().job()
    again, _ = reload(log, clean=True)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionFolder, "read_small", failing)
        with pytest.raises(OSError, match="Input/output"):
            _ = again.segments[0].index
    assert len(again.segments[0].index) == len(log.segments[0].index) > 0


# Compaction.


@pytest.mark.parametrize("step", range(7))
def test_a_swap_that_fails_halfway_loses_nothing_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    log = open_log(tmp_path, cleanup_policy="compact", segment_bytes=160, min_cleanable_dirty_ratio=0.0)
    for number in range(8):
        append(log, encode_batch([NewRecord(b"k%d" % (number % 3), b"%d" % number, timestamp=START.wall)]))
    newest = {b"k%d" % (number % 3): b"%d" % number for number in range(8)}

    def latest(log: PartitionLog) -> dict[bytes | None, bytes | None]:
        found: dict[bytes | None, bytes | None] = {}
        for segment in log.segments:
            data = segment.file.read(0, segment.size)
            found |= {record.key: record.value for record in iter_records(data)}
        return found

    count = 0
    real = os.rename

    def rename(*args: Any, **keywords: Any) -> None:
        nonlocal count
        count += 1
        if count == step + 1:
            raise EIO
        real(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        clean(log)
    assert count > step, "there is no such step"
    assert latest(log) == newest
    shutil.copytree(tmp_path / "t-0", tmp_path / "killed" / "t-0")
    killed = open_log(tmp_path / "killed", cleanup_policy="compact")
    assert load_log(killed, recovery_point=0, log_start=0, clean=False, now=START.wall) == []
    assert killed.end_offset == 8
    assert latest(killed) == newest
    while clean(log):
        pass
    assert log.swap is None
    assert latest(log) == newest
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.suffix in (".swap", ".cleaned")]


# The logs of a broker.


def test_what_a_swap_that_retention_completes_has_replaced_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CoreUnderTest(tmp_path, **{"log.cleaner.backoff.ms": 200_000, "log.retention.check.interval.ms": 300_000})
    create(broker, "t", 1, cleanup_policy="compact,delete", min_cleanable_dirty_ratio="0.0", **ROLLING)
    for number in range(4):
        produce(broker, stamped(number), topic="t")
    broker.run_jobs()
    real = os.rename

    def rename(source: Any, target: Any, **keywords: Any) -> None:
        if str(source).endswith(".log.swap"):
            raise EIO
        real(source, target, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        broker.pass_time(200_000)
        broker.run_jobs()
    assert broker.core.catalog.log("t", 0).swap is not None
    assert list((tmp_path / "t-0").glob("*.deleted"))
    broker.pass_time(100_000)
    broker.run_jobs()
    assert broker.core.catalog.log("t", 0).swap is None
    broker.pass_time(60_000)
    broker.run_jobs()
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    broker.close()


def test_retention_goes_on_after_a_failure_and_for_other_logs_at_once(
    broker: CoreUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        create(broker, name, 1, retention_ms="1000", **ROLLING)
        for number in range(2):
            produce(broker, stamped(number), topic=name)
    broker.run_jobs()
    real = PartitionFolder.pin

    def pin(self: PartitionFolder) -> Any:
        if self.path.name == "bad-0":
            raise EIO
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionFolder, "pin", pin)
        broker.pass_time(300_000)
        broker.run_jobs()
    assert broker.core.catalog.log("good", 0).start_offset == 2
    assert not list((tmp_path / "good-0").glob("*00.log"))
    assert list((tmp_path / "bad-0").glob("*00.log"))
    broker.pass_time(300_000)
    broker.run_jobs()
    assert not list((tmp_path / "bad-0").glob("*00.log"))
    broker.pass_time(60_000)
    broker.run_jobs()
    assert not list(tmp_path.glob("*-0/*.deleted"))


def test_what_a_roll_leaves_to_do_is_done_at_once_also_where_the_write_after_it_fails(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "orders", 1, **ROLLING)
    produce(broker, stamped(0))
    broker.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", failing)
        assert produce(broker, stamped(1)).error_code is ErrorCode.kafka_storage_error
    assert [job.tag[0] for job in broker.jobs] == ["seal"]
    broker.run_jobs()
    assert broker.core.catalog.log("orders", 0).recovery_point == 1


@pytest.mark.parametrize("kind", ["start_retention", "checkpoint", "clean"])
def test_periodic_work_is_due_again_whatever_it_raises(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    calls = []

    def broken(*args: object) -> None:
        calls.append(args)
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(LogManager, kind, broken)
        for count in (1, 2):
            with pytest.raises(RuntimeError, match="a defect"):
                broker.pass_time(300_000)
            assert len(calls) == count
            broker.take([])  # the turn ends
    broker.pass_time(300_000)


def test_what_was_done_before_an_exception_has_its_effects(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        create(broker, name)
        produce(broker, batch(), topic=name)
    waiting = broker.send(Api.FETCH, fetch_message(1, topic="first", wait=60_000), version=12)
    real = type(broker.store).change_catalog

    def change(self: object, *changes: CatalogChange) -> None:
        if TopicDeleted("second") in changes:
            raise RuntimeError("a defect")
        real(self, *changes)

    both = tuple(delete_topics_request.DeleteTopicState(name=name, topic_id=None) for name in ("first", "second"))
    with monkeypatch.context() as patch:
        patch.setattr(type(broker.store), "change_catalog", change)
        request = delete_topics_request.DeleteTopicsRequest(topics=both, timeout=timedelta(seconds=1))
        ticket = broker.send(Api.DELETE_TOPICS, request)
    assert [effect.ticket for effect in broker.others if isinstance(effect, CloseConnection)] == [ticket]
    assert broker.core.catalog.topics.get("first") is None
    assert ("delete-topic", "first") in [job.tag for job in broker.jobs]
    assert fetched(broker.replies[waiting]).error_code is ErrorCode.unknown_topic_or_partition


def test_what_was_written_before_an_exception_has_its_effects(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker, "first", 1, **ROLLING)
    create(broker, "second")
    produce(broker, stamped(0), topic="first")
    waiting = broker.send(Api.FETCH, fetch_message(1, topic="first", wait=60_000), version=12)
    real = BrokerCatalog.append

    def append_to(self: BrokerCatalog, log: PartitionLog, *args: Any) -> Any:
        if log.topic_partition.topic == "second":
            raise RuntimeError("a defect")
        return real(self, log, *args)

    broker.run_jobs()
    with monkeypatch.context() as patch:
        patch.setattr(BrokerCatalog, "append", append_to)
        with pytest.raises(RuntimeError, match="a defect"):
            produce_two(broker, stamped(1), "first", "second")
    broker.take([])  # the turn ends
    assert [job.tag[0] for job in broker.jobs] == ["seal"]
    assert len(fetched(broker.replies[waiting]).records) > 0


def test_a_catalog_that_could_not_be_forced_to_disk_is_with_the_next_checkpoint(broker: CoreUnderTest) -> None:
    create(broker)
    broker.run_jobs()
    create(broker, "others")
    (job,) = [job for job in broker.jobs if job.tag == SYNC_CATALOG]
    broker.jobs.remove(job)
    broker.take(broker.core.on_job(job.tag, EIO, broker.now))
    assert not broker.jobs
    broker.pass_time(60_000)
    assert SYNC_CATALOG in [job.tag for job in broker.jobs]


def test_a_change_that_cannot_be_stored_is_in_the_log_once(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients that create a topic by their metadata request, a group or a transaction are not told the reason."""
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "change_catalog", failing)
            for name in ("one", "two"):
                with pytest.raises(ApiError):
                    broker.core.catalog.get_or_create_topic(name)
        assert [record.getMessage() for record in caplog.records] == [
            "a change of topics or settings could not be stored: [Errno 5] Input/output error"
        ]
        caplog.clear()
        broker.core.catalog.get_or_create_topic("one")
        broker.core.catalog.delete_topic(broker.core.catalog.topic("one"))


def test_a_parked_fetch_that_fails_ends_its_connection_and_no_other(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker)
    produce(broker, batch())
    bad = broker.send(Api.FETCH, fetch_message(1, wait=60_000, epoch=0), version=12, connection=7)
    good = broker.send(Api.FETCH, fetch_message(1, wait=60_000), version=12, connection=8)
    log = broker.core.catalog.log("orders", 0)
    real = type(log).check_leader_epoch

    def check(self: object, epoch: int) -> None:
        if epoch == 0:
            raise RuntimeError("a defect")
        real(self, epoch)

    monkeypatch.setattr(type(log), "check_leader_epoch", check)
    produce(broker, batch())
    assert [effect.ticket for effect in broker.others if isinstance(effect, CloseConnection)] == [bad]
    assert len(fetched(broker.replies[good]).records) > 0
    broker.pass_time(60_000)


def test_one_log_that_cannot_be_forced_to_disk_is_not_acknowledged_and_the_others_are(
    broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        create(broker, name, 1, flush_messages="1")
    with monkeypatch.context() as patch:
        real = PartitionFolder.job
        patch.setattr(PartitionFolder, "job", lambda self, work: failing if self.path.name == "bad-0" else real(self, work))
        ticket = produce_two(broker, batch(), "bad", "good")
        broker.run_jobs()
    codes = [topic.partition_responses[0].error_code for topic in broker.replies[ticket].responses]
    assert codes == [ErrorCode.kafka_storage_error, ErrorCode.none]
    assert [broker.core.catalog.log(name, 0).recovery_point for name in ("bad", "good")] == [0, 1]


def test_a_batch_that_is_sent_again_is_acknowledged_only_when_it_is_on_disk(broker: CoreUnderTest) -> None:
    create(broker, "orders", 1, flush_messages="1")
    data = batch(producer_id=0, producer_epoch=0, base_sequence=0)
    first = broker.send(Api.PRODUCE, produce_message(data), version=12)
    (job,) = [job for job in broker.jobs if job.tag[0] == "flush"]
    broker.jobs.remove(job)
    broker.take(broker.core.on_job(job.tag, EIO, broker.now))
    assert broker.replies[first].responses[0].partition_responses[0].error_code is ErrorCode.kafka_storage_error
    second = broker.send(Api.PRODUCE, produce_message(data), version=12)
    assert second not in broker.replies
    broker.run_jobs()
    answer = broker.replies[second].responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    assert broker.core.catalog.log("orders", 0).recovery_point == 1


def test_a_job_that_fails_with_any_exception_has_failed(broker: CoreUnderTest) -> None:
    create(broker, "orders", 1, flush_messages="1")
    ticket = broker.send(Api.PRODUCE, produce_message(batch()), version=12)
    (job,) = [job for job in broker.jobs if job.tag[0] == "flush"]
    broker.jobs.remove(job)
    broker.take(broker.core.on_job(job.tag, ValueError("a defect"), broker.now))
    assert broker.replies[ticket].responses[0].partition_responses[0].error_code is ErrorCode.kafka_storage_error
    assert broker.core.catalog.log("orders", 0).recovery_point == 0


def test_a_deletion_of_records_that_could_not_be_stored_is_stored_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker)
    produce(broker, batch(3))
    partition = delete_records_request.DeleteRecordsPartition(partition_index=0, offset=2)
    topic = delete_records_request.DeleteRecordsTopic(name="orders", partitions=(partition,))
    request = delete_records_request.DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        (answer,) = broker.ask(Api.DELETE_RECORDS, request).topics[0].partitions
    assert answer.error_code is ErrorCode.kafka_storage_error
    (answer,) = broker.ask(Api.DELETE_RECORDS, request).topics[0].partitions
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 2)
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.log("orders", 0).start_offset == 2
    again.close()


def delete_records(broker: CoreUnderTest, offset: int) -> int:
    """Have the records of ``orders`` before an offset deleted; returns the ticket."""
    partition = delete_records_request.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = delete_records_request.DeleteRecordsTopic(name="orders", partitions=(partition,))
    request = delete_records_request.DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=1))
    return broker.send(Api.DELETE_RECORDS, request)


def restart_before_recreation(broker: CoreUnderTest, path: Path) -> CoreUnderTest:
    """Delete the topic and kill the broker; the next broker creates it."""
    delete(broker, "orders")
    broker.kill()
    return CoreUnderTest(path)


def retention_has_caught_up(broker: CoreUnderTest, path: Path) -> CoreUnderTest:
    """The files say where the log begins; the checkpoint that also says it has not been replaced yet."""
    for number in range(1, 5):
        produce(broker, stamped(number))
    broker.core.catalog.logs.start_retention(broker.now, 1 << 40)
    broker.core.catalog.log("orders", 0).pending_deletes.clear()
    assert not broker.core.catalog.log("orders", 0).needs_start_checkpoint
    delete(broker, "orders")
    return broker


def late_checkpoint(broker: CoreUnderTest, path: Path) -> CoreUnderTest:
    """The disk thread is about to write a checkpoint when the topic is deleted."""
    broker.run_jobs()
    broker.take(broker.core.on_timer(("checkpoint",), broker.now))
    delete(broker, "orders")
    return broker


def at_once(broker: CoreUnderTest, path: Path) -> CoreUnderTest:
    """Nothing happens in between."""
    delete(broker, "orders")
    return broker


@pytest.mark.parametrize("jobs", [False, True], ids=["killed at once", "killed later"])
@pytest.mark.parametrize("how", [at_once, restart_before_recreation, retention_has_caught_up, late_checkpoint])
def test_where_a_deleted_topic_began_says_nothing_of_the_next_one_of_its_name(
    tmp_path: Path, how: Callable[[CoreUnderTest, Path], CoreUnderTest], jobs: bool
) -> None:
    """Its first records would be hidden."""
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, **ROLLING)
    produce(broker, batch(3))
    delete_records(broker, 3)
    broker.run_jobs()
    broker = how(broker, tmp_path)
    create(broker)
    produce(broker, batch(3))
    if jobs:
        broker.run_jobs()
    broker.kill()
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("orders", 0)
    assert (log.start_offset, log.end_offset) == (0, 3)
    again.close()


def test_a_new_topic_waits_for_a_disk_that_cannot_forget_where_the_deleted_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker)
    produce(broker, batch(3))
    delete_records(broker, 3)
    broker.run_jobs()
    delete(broker, "orders")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", failing)
        with pytest.raises(ApiError, match="could not be stored"):
            broker.core.catalog.create_topic("orders", 1, {})
    create(broker)
    assert produce(broker, batch(3)).base_offset == 0
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert again.core.catalog.log("orders", 0).start_offset == 0
    again.close()


def test_what_was_known_of_a_deleted_log_s_disk_says_nothing_of_the_next_one_of_its_name(tmp_path: Path) -> None:
    """Neither what was forced to disk nor what was compacted."""
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, **{"cleanup.policy": "compact"})
    produce(broker, batch(3))
    log = broker.core.catalog.log("orders", 0)
    log.recovery_point = log.first_dirty_offset = 3
    broker.pass_time(60_000)
    broker.run_jobs()
    assert broker.store.read_checkpoint("recovery-point-offset-checkpoint")[TopicPartition("orders", 0)] == 3
    delete(broker, "orders")
    create(broker, "orders", 1, **{"cleanup.policy": "compact"})
    produce(broker, batch(3))
    broker.kill()
    again = CoreUnderTest(tmp_path)
    log = again.core.catalog.log("orders", 0)
    assert (log.recovery_point, log.first_dirty_offset, log.end_offset) == (0, 0, 3)
    again.close()


def test_a_disk_that_does_not_say_how_full_it_is(broker: CoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    create(broker)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", failing)
        (answer,) = broker.ask(Api.DESCRIBE_LOG_DIRS, describe_log_dirs_request.DescribeLogDirsRequest(topics=None)).results
    assert (answer.error_code, answer.log_dir) == (ErrorCode.kafka_storage_error, broker.store.log_dir)


# Topics.


def test_a_folder_that_a_deleted_topic_has_left_is_not_the_next_one_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = CoreUnderTest(tmp_path)
    create(broker, "orders", 1, **ROLLING)
    for number in range(3):
        produce(broker, stamped(number))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        name = delete_topics_request.DeleteTopicState(name="orders", topic_id=None)
        answer = broker.ask(Api.DELETE_TOPICS, delete_topics_request.DeleteTopicsRequest(topics=(name,), timeout=timedelta(1)))
    assert answer.responses[0].error_code is ErrorCode.none
    create(broker)
    assert produce(broker, batch(5)).base_offset == 0
    broker.run_jobs()
    broker.kill()
    again = CoreUnderTest(tmp_path)
    assert (again.core.catalog.log("orders", 0).end_offset, len(again.core.catalog.log("orders", 0).segments)) == (5, 1)
    again.close()


# Coordinators.


def test_a_commit_that_cannot_be_flushed_is_refused_and_the_group_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = started(tmp_path, **{"log.flush.interval.messages": 1})
    assert commit(broker, 1) is ErrorCode.none
    with monkeypatch.context() as patch:
        patch.setattr(PinnedFolder, "flush", failing)
        assert commit(broker, 2) is ErrorCode.not_coordinator
    assert commit(broker, 3) is ErrorCode.none
    assert committed(broker)[0] == 3
    broker.close()


@pytest.mark.parametrize("error", [EIO, MemoryError()], ids=["disk", "memory"])
def test_groups_that_could_not_be_read_are_read_again(tmp_path: Path, error: Exception) -> None:
    broker = started(tmp_path)
    assert commit(broker, 5) is ErrorCode.none
    broker.kill()
    again = CoreUnderTest(tmp_path, loaded=False)
    loads = [job for job in again.jobs if job.tag[:2] == ("group", "load")]
    assert len(loads) == 1
    again.jobs.clear()
    again.take(again.core.on_job(loads[0].tag, error, again.now))
    assert commit(again, 6) is ErrorCode.coordinator_load_in_progress
    again.pass_time(1_000)
    again.run_jobs()
    assert committed(again)[0] == 5
    again.close()


def test_a_batch_that_cannot_be_written_at_all_does_not_block_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = started(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ottla.broker.group_coordinator_service.encode_batch", lambda *args, **keywords: 1 // 0)
        assert commit(broker, 1) is ErrorCode.unknown_server_error
    assert commit(broker, 2) is ErrorCode.none
    assert committed(broker)[0] == 2
    broker.close()


def test_effects_keep_their_order(broker: CoreUnderTest) -> None:
    create(broker, "orders", 1, flush_messages="2", **ROLLING)
    produce(broker, stamped(0))
    broker.send(Api.PRODUCE, produce_message(stamped(1)), version=12)
    kinds = [job.tag[0] for job in broker.jobs]
    assert kinds[-2:] == ["seal", "flush"], "a rolled segment is on disk before its flush is reported"
