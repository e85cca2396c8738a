"""``flush.ms``: how long a record may wait until its log is forced to disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.effects import RunJob
from ottla.broker.log import PartitionLog
from ottla.protocol import ErrorCode
from tests.simulation.broker import CoreUnderTest
from tests.unit.broker.harness import batch
from tests.unit.broker.requests import create, delete, produce
from tests.unit.broker.setting_requests import SET, TOPIC, change


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = CoreUnderTest(tmp_path)
    create(core, flush_ms="500")
    core.run_jobs()
    yield core
    core.close()


def written(broker: CoreUnderTest) -> PartitionLog:
    assert produce(broker, batch(2)).error_code is ErrorCode.none
    (log,) = broker.core.catalog.logs
    return log


def flushes(broker: CoreUnderTest) -> list[RunJob]:
    return [job for job in broker.jobs if job.tag[0] == "flush-log"]


def test_a_log_is_forced_to_disk_when_its_first_record_has_waited_so_long(broker: CoreUnderTest) -> None:
    log = written(broker)
    broker.pass_time(300)
    written(broker)
    broker.pass_time(199)
    assert not flushes(broker)
    broker.pass_time(1)
    assert len(flushes(broker)) == 1
    written(broker)  # while it is forced to disk: not known to be there
    broker.run_jobs()
    assert (log.recovery_point, log.end_offset) == (4, 6)
    broker.pass_time(500)
    broker.run_jobs()
    assert log.recovery_point == 6
    broker.pass_time(5_000)
    assert not flushes(broker), "nothing was written since"


def test_what_something_else_has_forced_to_disk_is_not_forced_there_again(broker: CoreUnderTest) -> None:
    log = written(broker)
    log.flush()()
    log.flushed(log.end_offset)
    broker.pass_time(500)
    assert not flushes(broker)


def test_a_flush_that_fails_is_tried_again(broker: CoreUnderTest) -> None:
    log = written(broker)
    broker.pass_time(500)
    (job,) = flushes(broker)
    broker.jobs.clear()
    broker.take(broker.core.on_job(job.tag, OSError(errno.EIO, "Input/output error"), broker.now))
    assert log.recovery_point == 0
    broker.pass_time(1_000)
    broker.run_jobs()
    assert log.recovery_point == 2


def test_a_log_that_was_deleted_meanwhile_is_left_alone(broker: CoreUnderTest) -> None:
    written(broker)
    broker.pass_time(500)
    assert delete(broker, "orders").error_code is ErrorCode.none
    broker.run_jobs()
    create(broker, flush_ms="500")
    log = written(broker)
    broker.pass_time(500)
    broker.run_jobs()
    assert log.recovery_point == 2


def test_what_a_killed_broker_has_not_forced_to_disk_does_not_wait_for_the_next_record(tmp_path: Path) -> None:
    killed = CoreUnderTest(tmp_path)
    create(killed, flush_ms="500")
    written(killed)
    killed.kill()
    again = CoreUnderTest(tmp_path)
    (log,) = again.core.catalog.logs
    assert (log.recovery_point, log.end_offset) == (0, 2)
    again.pass_time(500)
    again.run_jobs()
    assert log.recovery_point == 2
    again.close()


def test_it_can_be_set_while_the_broker_runs(broker: CoreUnderTest) -> None:
    assert change(broker, TOPIC, "orders", ("flush.ms", SET, "9223372036854775807")).error_code is ErrorCode.none
    log = written(broker)
    broker.pass_time(1_000)
    assert not flushes(broker)
    assert change(broker, TOPIC, "orders", ("flush.ms", SET, "0")).error_code is ErrorCode.none
    written(broker)
    broker.pass_time(0)
    broker.run_jobs()
    assert log.recovery_point == 4


def test_a_flush_that_fails_is_not_tried_again_at_once(broker: CoreUnderTest) -> None:
    change(broker, TOPIC, "orders", ("flush.ms", SET, "0"))
    log = written(broker)
    broker.pass_time(0)
    attempts = 0
    while broker.jobs:
        job = broker.jobs.pop(0)
        outcome = OSError(errno.EIO, "Input/output error") if job.tag[0] == "flush-log" else job.job()
        broker.take(broker.core.on_job(job.tag, outcome, broker.now))
        attempts += job.tag[0] == "flush-log"
        assert attempts < 10
        broker.pass_time(1)
    assert attempts == 1
    broker.pass_time(1_000)
    broker.run_jobs()
    assert log.recovery_point == 2


@pytest.mark.parametrize("before", ["3600000", "9223372036854775807"])
def test_a_shorter_time_holds_for_what_was_written_before(broker: CoreUnderTest, before: str) -> None:
    change(broker, TOPIC, "orders", ("flush.ms", SET, before))
    log = written(broker)
    broker.pass_time(10)
    change(broker, TOPIC, "orders", ("flush.ms", SET, "100"))
    broker.pass_time(100)
    broker.run_jobs()
    assert log.recovery_point == 2


def test_many_logs_that_are_due_at_once_do_not_take_all_descriptors(broker: CoreUnderTest) -> None:
    for number in range(100):
        create(broker, f"t{number}", flush_ms="500")
        assert produce(broker, batch(), topic=f"t{number}").error_code is ErrorCode.none
    broker.run_jobs()
    before = len(os.listdir("/dev/fd"))
    broker.pass_time(500)
    assert len(os.listdir("/dev/fd")) < before + 10
    broker.run_jobs()
    assert all(log.recovery_point == log.end_offset for log in broker.core.catalog.logs)
