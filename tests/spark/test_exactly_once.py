"""Tasks and driver of the sink that writes exactly once, on Apache Kafka and on the embedded broker, without Spark in between.

Each test lets a driver or a task die at some point, which here is a call that does not come, and repeats the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Admin, Broker, Consumer, ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from ottla.admin import TransactionDescription
from ottla.errors import OttlaError, ReplayMismatchError, UnsupportedApiError
from ottla.protocol.group_records import OffsetCommitKey, OffsetCommitValue, decode_record
from ottla.spark.arrow_rows import GROUP_BYTES
from ottla.spark.exactly_once import driver
from ottla.spark.exactly_once.driver import abort_batch, abort_before_batch, commit_batch, open_transactions
from ottla.spark.exactly_once.replay import Marker, SinkName, TaskReport, conflicts
from ottla.spark.exactly_once.stored import RETENTION, store_record
from ottla.spark.exactly_once.tasks import TaskAttempt, write_task
from ottla.spark.exactly_once.transactions import admins, open_ids
from ottla.spark.sink_options import SinkOptions, parse_sink_options
from tests.interop.real_kafka import OwnKafka, free_port_pair
from tests.spark.conftest import Kafka, cluster_of

_numbers = itertools.count(1)

COLUMNS = ("value", "topic")
"""What the tasks write: with the option ``topic``, a column ``topic`` has no effect."""


class Query:
    """A streaming query with a sink, whose batches a test writes."""

    def __init__(self, kafka: Kafka, **options: str) -> None:
        self.kafka = kafka
        self.topic = kafka.create(2)
        self.name = SinkName(f"query-{next(_numbers)}-{time.monotonic_ns()}", "sink")
        self.options = self.with_options(**options)

    def with_options(self, **options: str) -> SinkOptions:
        """The options of the sink."""
        given = {"kafka.bootstrap.servers": self.kafka.servers, "topic": self.topic, "exactlyOnce": "true"}
        given |= {name.replace("__", "."): value for name, value in options.items()}
        return parse_sink_options(given)

    def task(
        self,
        batch: int | None,
        number: int,
        *values: str,
        run: str = "run",
        earlier: tuple[TransactionDescription, ...] = (),
        topic: str = "",
    ) -> TaskReport:
        """Write the rows of a task."""
        rows = pa.RecordBatch.from_pydict({"value": list(values), "topic": [topic or self.topic] * len(values)})
        attempt = TaskAttempt(self.name, batch, run, number, earlier)
        columns = COLUMNS if self.options.topic is None else ("value",)
        return write_task(self.options, columns, iter([rows.slice(0, 1), rows.slice(1)]), attempt)

    def prepare(self, batch: int | None, *tasks: Sequence[str], run: str = "run") -> list[TaskReport]:
        """Write the rows of all tasks."""
        return [self.task(batch, number, *values, run=run) for number, values in enumerate(tasks)]

    def commit(self, reports: Sequence[TaskReport], *, is_every_batch: bool = True) -> None:
        """What the driver does when all tasks have succeeded."""
        commit_batch(self.options, reports, is_every_batch=is_every_batch)

    def write(self, batch: int | None, *tasks: Sequence[str], run: str = "run") -> None:
        """Write a batch."""
        self.commit(self.prepare(batch, *tasks, run=run))

    def die_after_first_commit(self, reports: Sequence[TaskReport]) -> None:
        """Commit only the transaction of task 0."""

        def commit_first(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport]) -> None:
            admin.end_transactions([report.prepared for report in reports[:1] if report.prepared is not None], commit=True)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "_commit", commit_first)
            self.commit(reports)

    def committed(self, topic: str = "") -> list[str]:
        """What a reader of committed records finds, which another client is."""
        return sorted(value.decode() for value in self.kafka.values(topic or self.topic))

    def open_transactions(self) -> list[str]:
        """The ids of the sink with an open transaction."""
        with admins.borrow(self.options.admin) as admin:
            listed = admin.list_transactions(states=["Ongoing"])
        return [each.transactional_id for each in listed if self.name.task_of(each.transactional_id) is not None]

    def await_open_transactions(self, count: int) -> None:
        """Wait until so many transactions are open."""
        deadline = time.monotonic() + 60
        while len(self.open_transactions()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.05)


FIRST_VERSION = ("3.9.1", "3.0.2")
"""Those of Apache Kafka with the first version of transactions."""
OTHERS = [pytest.param(each, marks=pytest.mark.slow) for each in ("broker", *FIRST_VERSION)]


@pytest.fixture(scope="module", params=["kafka", *OTHERS])
def cluster(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    with cluster_of(request, request.param) as kafka:
        yield kafka


@pytest.fixture
def query(cluster: Kafka) -> Query:
    return Query(cluster)


def test_rows_are_visible_when_the_driver_has_committed(query: Query) -> None:
    reports = query.prepare(0, ["a", "b"], ["c"])
    assert query.committed() == []
    query.commit(reports)
    assert query.committed() == ["a", "b", "c"]
    query.write(1, ["d"], ["e", "e"])
    assert query.committed() == ["a", "b", "c", "d", "e", "e"]


def test_a_batch_that_was_committed_is_not_written_again(query: Query) -> None:
    query.write(0, ["a", "b"], ["c"])
    again = [query.task(0, 0, "b", "a", run="next"), query.task(0, 1, "c", run="next")]
    assert [(report.is_committed, report.prepared) for report in again] == [(True, None), (True, None)]
    query.commit(again)
    assert query.committed() == ["a", "b", "c"]


def test_a_task_that_is_repeated_aborts_its_first_attempt(query: Query) -> None:
    query.task(0, 0, "a", "lost with its executor")
    first = query.task(0, 0, "a")
    query.commit([first, query.task(0, 1, "b")])
    assert query.committed() == ["a", "b"]


def test_a_driver_that_dies_between_two_commits(query: Query) -> None:
    query.write(0, ["a"], ["b"])
    query.die_after_first_commit(query.prepare(1, ["c"], ["d"], ["e"]))
    assert query.committed() == ["a", "b", "c"]
    again = query.prepare(1, ["c"], ["d"], ["e"], run="the next run")
    assert [report.is_committed for report in again] == [True, False, False]
    query.commit(again)
    assert query.committed() == ["a", "b", "c", "d", "e"]
    query.write(2, ["f"], run="the next run")
    assert query.committed()[-1] == "f"


def test_a_repeated_commit_does_no_harm(query: Query) -> None:
    reports = query.prepare(0, ["a"], ["b"])
    query.commit(reports)
    query.commit(reports)
    assert query.committed() == ["a", "b"]


@pytest.mark.parametrize("other", [["x"], ["c", "c"], []], ids=["others", "more", "none"])
def test_rows_that_are_not_those_committed_are_refused(query: Query, caplog: pytest.LogCaptureFixture, other: list[str]) -> None:
    query.write(0, ["a"])
    query.die_after_first_commit(query.prepare(1, ["c"], ["d"]))
    with pytest.raises(ReplayMismatchError, match="the rows of task 0 in batch 1 are not those") as raised:
        query.write(1, other, ["d"], run="next")
    assert "onReplayMismatch=repeat" in str(raised.value.hint)
    assert query.committed() == ["a", "c"]  # no transaction is left open either
    query.options = query.with_options(onReplayMismatch="skip")
    with pytest.raises(ReplayMismatchError):
        query.write(1, other, ["d"], run="next")
    query.options = query.with_options(onReplayMismatch="repeat")
    query.write(1, other, ["d"], run="next")
    assert "onReplayMismatch=repeat: rows of batch 1 are written again: the rows of task 0" in caplog.text
    assert query.committed() == sorted(["a", "c", *other, "d"])


def test_a_batch_that_is_committed_in_whole_can_be_skipped(query: Query) -> None:
    query.write(0, ["a"], ["b"], [])
    for tasks in ([["x"], ["y"], []], [["x"]], [["x"], [], [], ["y"]]):
        query.options = query.with_options()
        with pytest.raises(ReplayMismatchError) as raised:
            query.write(0, *tasks, run="next")
        assert "onReplayMismatch=skip" in str(raised.value.hint)
        query.options = query.with_options(onReplayMismatch="skip")
        query.write(0, *tasks, run="next")
        assert query.committed() == ["a", "b"]
        assert query.open_transactions() == []
    query.write(1, ["c"], run="next")
    assert query.committed() == ["a", "b", "c"]


def test_a_batch_with_more_rows_than_were_committed_is_not_skipped(query: Query) -> None:
    """The checkpoint was restored without the batch, and Spark has planned it again, up to a later end."""
    query.write(0, ["a"], ["b"])
    query.options = query.with_options(onReplayMismatch="skip")
    with pytest.raises(ReplayMismatchError, match="1 committed, 2 now") as raised:
        query.write(0, ["a"], ["b", "c"], run="next")
    assert "skip" not in str(raised.value.hint)
    assert query.committed() == ["a", "b"]


def test_a_repeated_batch_does_not_renew_the_age_of_its_markers(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    query.write(0, ["a"])
    query.die_after_first_commit(query.prepare(1, ["c"], ["d"]))
    monkeypatch.setattr("time.time", lambda: now + 5 * 86_400)
    again = query.prepare(1, ["c"], ["d"], run="second")
    with admins.borrow(query.options.admin) as admin:
        admin.fence_producers([query.name.of_task(1)])
    with pytest.raises(OttlaError):
        query.commit(again)
    monkeypatch.setattr("time.time", lambda: now + 8 * 86_400)
    with pytest.raises(ReplayMismatchError, match="an earlier run began to commit batch 1 8 days ago"):
        query.write(1, ["c"], ["d"], run="third")


def test_other_tasks_are_refused_if_some_were_committed(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query.write(0, ["a"])
    query.die_after_first_commit(query.prepare(1, ["c"], ["d"], ["e"]))
    with pytest.raises(ReplayMismatchError, match="batch 1 had 3 tasks, of which 0 is committed, and now has 2"):
        query.write(1, ["c"], ["d", "e"], run="next")
    with pytest.raises(ReplayMismatchError, match="batch 1 had 3 tasks, of which 0 is committed, and now has 4"):
        query.write(1, ["c"], ["d"], ["e"], [], run="next")
    assert query.committed() == ["a", "c"]
    query.options = query.with_options(onReplayMismatch="repeat")
    query.write(1, ["c"], ["d", "e"], run="next")
    assert "onReplayMismatch=repeat: rows of batch 1 are written again: batch 1 had 3 tasks" in caplog.text
    assert query.committed() == ["a", "c", "d", "e"]


def test_a_surplus_task_that_was_committed_is_found(query: Query) -> None:
    query.write(0, ["a"])
    query.die_after_first_commit(query.prepare(1, ["c"], ["d"], ["e"]))
    again = query.prepare(1, ["c"], ["d"], ["e"], run="next")
    assert again[1].prepared is not None
    with admins.borrow(query.options.admin) as admin:
        admin.end_transactions(again[1].prepared, commit=True)
    with pytest.raises(ReplayMismatchError, match="batch 1 had 3 tasks, of which 0, 1 are committed, and now has 1"):
        query.write(1, ["c"], run="next")
    assert query.committed() == ["a", "c", "d"]


def test_other_tasks_are_right_if_none_was_committed(query: Query) -> None:
    query.write(0, ["a"])
    reports = query.prepare(1, ["c"], ["d"], ["e"])
    query.task(1, 0, "a copy of the first task, which aborts it")
    with pytest.raises(OttlaError, match="the batch is not committed: the transactions of"):
        query.commit(reports)
    query.write(1, ["c", "d", "e"], run="next")
    assert query.open_transactions() == []
    assert query.committed() == ["a", "c", "d", "e"]


@pytest.mark.parametrize("first", [["c"], []], ids=["rows", "no rows"])
def test_a_driver_that_was_thought_dead_commits_nothing(query: Query, first: list[str]) -> None:
    query.write(0, ["a"])
    old = query.prepare(1, first, ["d"], ["e"])
    query.write(1, [*first, "d", "e"], run="the next run")
    with pytest.raises(OttlaError):
        query.commit(old)
    query.write(2, ["f"], run="the next run")
    abort_batch(query.options, old)
    assert query.committed() == sorted(["a", *first, "d", "e", "f"])


@pytest.mark.parametrize("first", [["c"], []], ids=["rows", "no rows"])
def test_tasks_of_a_driver_that_was_thought_dead_come_late(query: Query, first: list[str]) -> None:
    query.write(0, ["a"])
    old = [query.task(1, 0, *first)]
    query.write(1, [*first, "d", "e"], run="the next run")
    old += [query.task(1, 1, "d"), query.task(1, 2, "e")]
    with pytest.raises(OttlaError):
        query.commit(old)
    assert query.committed() == sorted(["a", *first, "d", "e"])


def test_a_task_without_rows_and_without_a_marker_protects_nothing(cluster: Kafka) -> None:
    """With the column topic, the first batch of a query has no topic for the marker of a task without rows."""
    query = Query(cluster)
    query.options = dataclasses.replace(query.options, topic=None)
    old = [query.task(0, 0)]
    query.write(0, ["d", "e"], run="the next run")
    old += [query.task(0, 1, "d"), query.task(0, 2, "e")]
    with pytest.raises(ReplayMismatchError, match=r"batch 0 had 1 task, of which 0 is committed, and now has 3|0 now"):
        query.commit(old)
    assert query.committed() == ["d", "e"]


def test_a_task_that_comes_late_is_not_committed_beside_the_batch_of_another_driver(cluster: Kafka) -> None:
    """No other process holds its id: the task of the other driver has no rows, and no topic for a marker, and so no transaction."""
    query = Query(cluster)
    query.options = dataclasses.replace(query.options, topic=None)
    old = query.task(0, 1, "d")
    query.write(0, [], ["c", "d"], run="the next run")
    with pytest.raises(OttlaError, match=r"the batch is not committed: the transactions of .*[.]1 are not open any more"):
        query.commit([query.task(0, 0, "c"), old])
    assert query.committed() == ["c", "d"]
    query.write(1, ["e"], run="the next run")
    assert query.committed() == ["c", "d", "e"]


def test_brokers_that_cannot_say_which_transactions_are_open(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before 3.0. The markers show that another driver has committed the batch."""
    query.options = dataclasses.replace(query.options, topic=None)

    def unsupported(*arguments: Any, **named: Any) -> Any:
        raise UnsupportedApiError("DescribeTransactions")

    monkeypatch.setattr(Admin, "describe_transactions", unsupported)
    old = query.task(0, 1, "d")
    query.write(0, [], ["c", "d"], run="the next run")
    with pytest.raises(OttlaError, match=r"the batch is not committed: the transactions of .*[.]1 are not open any more"):
        query.commit([query.task(0, 0, "c"), old])
    assert query.committed() == ["c", "d"]
    query.die_after_first_commit(query.prepare(1, ["e"], ["f"], run="the next run"))
    query.write(1, ["e"], ["f"], run="the last run")
    assert query.committed() == ["c", "d", "e", "f"]


def test_two_drivers_commit_the_first_batch_at_the_same_time(cluster: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has recorded the batch, and not committed yet; the first task of the other one has no rows, and so no transaction."""
    query = Query(cluster)
    query.options = dataclasses.replace(query.options, topic=None)
    old = [query.task(0, 0)]
    new = query.prepare(0, ["d", "e"], run="the next run")
    commit = driver._commit

    def commit_old_first(*arguments: Any) -> None:
        monkeypatch.setattr(driver, "_commit", commit)
        query.commit([*old, query.task(0, 1, "d"), query.task(0, 2, "e")])
        commit(*arguments)

    monkeypatch.setattr(driver, "_commit", commit_old_first)
    with pytest.raises(OttlaError, match="the batch is not committed, or not in whole"):
        query.commit(new)
    assert query.committed() == ["d", "e"]


def test_two_drivers_record_the_first_batch_at_the_same_time(cluster: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a task without rows, and so without a transaction, where the other one has the rows."""
    query = Query(cluster)
    query.options = dataclasses.replace(query.options, topic=None)
    new = [query.task(0, 0, run="the next run")]
    old = query.prepare(0, ["d", "e"], [])
    new += [query.task(0, 1, "d", "e", run="the next run")]
    store = store_record

    def store_later(*arguments: Any) -> None:
        monkeypatch.setattr(driver, "store_record", store)
        with pytest.raises(OttlaError):
            query.commit(new)
        store(*arguments)

    monkeypatch.setattr(driver, "store_record", store_later)
    with pytest.raises(OttlaError):
        query.commit(old)
    query.write(0, ["d", "e"], [], run="a third")
    assert query.committed() == ["d", "e"]


def test_a_driver_commits_the_first_batch_while_another_one_lists_open_transactions(
    cluster: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has fewer tasks, and had found no record."""
    query = Query(cluster)
    query.options = dataclasses.replace(query.options, topic=None)
    old = query.prepare(0, [], ["d"], ["e"])
    checked, go_on = threading.Event(), threading.Event()
    store, list_open = store_record, open_ids

    def store_later(*arguments: Any) -> None:
        monkeypatch.setattr(driver, "store_record", store)
        checked.set()
        assert go_on.wait(60)
        store(*arguments)

    monkeypatch.setattr(driver, "store_record", store_later)
    with ThreadPoolExecutor(1) as pool:
        committed = pool.submit(query.commit, old)
        assert checked.wait(60)
        new = [query.task(0, 0, "d", "e", run="the next run")]

        def list_later(*arguments: Any) -> list[str]:
            go_on.set()
            committed.result(60)
            return list_open(*arguments)

        monkeypatch.setattr(driver, "open_ids", list_later)
        with pytest.raises(ReplayMismatchError, match="batch 0 had 3 tasks, of which 1, 2 are committed, and now has 1"):
            query.commit(new)
    assert query.committed() == ["d", "e"]


def test_a_batch_job_that_computes_for_long_before_its_first_row(query_of_a_second: Query) -> None:
    query = query_of_a_second

    def rows() -> Iterator[pa.RecordBatch]:
        time.sleep(1.2)  # the wall clock decides
        yield pa.RecordBatch.from_pydict({"value": ["a"]})

    query.commit([write_task(query.options, ("value",), rows(), TaskAttempt(query.name, None, "run", 0, ()))])
    assert query.committed() == ["a"]


def test_a_driver_that_was_cut_off_does_not_replace_a_newer_record(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    query.write(0, ["a"])
    old = query.prepare(1, ["c"])
    monkeypatch.setattr(driver, "LATE", -1.0)

    def cut_off(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(driver, "conflicts", conflicts)
        query.write(1, ["c"], run="the next run")
        query.write(2, ["d"], run="the next run")
        return conflicts(*arguments, **named)

    monkeypatch.setattr(driver, "conflicts", cut_off)
    with pytest.raises(OttlaError, match="batch 1 is not committed: another driver has committed a batch of this query meanwhile"):
        query.commit(old)
    query.write(3, ["e"], run="the next run")
    assert query.committed() == ["a", "c", "d", "e"]


def test_a_driver_that_was_thought_dead_comes_between(query: Query) -> None:
    """It records its batch, and commits the first task, after the new driver's tasks were prepared with another division."""
    query.write(0, ["a"])
    new = query.prepare(1, ["c", "d"], run="the next run")
    old = query.prepare(1, ["c"], ["d"])
    query.commit(old)
    with pytest.raises(OttlaError):
        query.commit(new)
    with pytest.raises(ReplayMismatchError, match="batch 1 had 2 tasks"):
        query.write(1, ["c", "d"], run="the next run")
    assert query.committed() == ["a", "c", "d"]


def test_a_refused_driver_leaves_the_transactions_of_the_other_one(query: Query) -> None:
    query.write(0, ["a"])
    query.write(1, ["b"], run="the next run")
    running = query.prepare(2, ["c"], run="the next run")
    abort_batch(query.options, [dataclasses.replace(running[0], batch=1, run="run", prepared=None)])
    query.commit(running)
    assert query.committed() == ["a", "b", "c"]


def test_the_driver_needs_the_reports_of_all_tasks(query: Query) -> None:
    reports = query.prepare(0, ["a"], ["b"])
    other = query.task(1, 1, "c")
    for some in (reports[1:], [reports[1], reports[0]], [reports[0], other]):
        with pytest.raises(OttlaError, match="Spark did not pass the reports of all tasks of one batch, but task"):
            query.commit(some)
    assert query.committed() == []


def test_an_older_checkpoint_is_refused(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    for batch in range(3):
        query.write(batch, [f"a{batch}"], [f"b{batch}"])
    with pytest.raises(ReplayMismatchError, match="task 0 has committed batch 2, and Spark now writes batch 1"):
        query.write(1, ["a1"], ["b1"])
    with pytest.raises(ReplayMismatchError, match="batch 2 was committed before, and Spark now writes batch 1"):
        query.write(1, [], [], [])
    assert len(query.committed()) == 6
    query.options = query.with_options(onReplayMismatch="repeat")
    query.write(1, ["a1"], ["b1"])
    assert "onReplayMismatch=repeat: rows of batch 1 are written again: task 0 has committed batch 2" in caplog.text
    query.write(2, ["a2"], ["b2"])
    query.options = query.with_options()
    query.write(3, ["a3"], ["b3"])
    assert query.committed() == sorted(["a0", "b0", "a1", "b1", "a2", "b2", "a1", "b1", "a2", "b2", "a3", "b3"])


def test_a_checkpoint_without_a_record_is_refused(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ReplayMismatchError, match="Spark now writes batch 7, and the sink has a record of no batch") as raised:
        query.write(7, ["a"])
    assert "exactlyOnce is new for this checkpoint" in str(raised.value.hint)
    assert query.committed() == []
    query.options = query.with_options(onReplayMismatch="repeat")
    query.write(7, ["a"])
    assert "onReplayMismatch=repeat: rows of batch 7 are written again: Spark now writes batch 7" in caplog.text
    query.options = query.with_options()
    query.write(8, ["b"])
    with pytest.raises(ReplayMismatchError, match="now writes batch 10, and the sink has a record of batch 8, and of none"):
        query.write(10, ["c"])
    query.commit(query.prepare(10, ["c"]), is_every_batch=False)  # in foreachBatch, batch 9 may have written nothing
    assert query.committed() == ["a", "b", "c"]


def test_tasks_without_rows(query: Query) -> None:
    query.write(0, [], [])
    assert query.committed() == []
    query.write(1, [], ["a"])
    query.write(1, [], ["a"])
    query.write(2, [], [])
    query.write(3, ["b"], [])
    assert query.committed() == ["a", "b"]


def test_a_first_batch_without_rows_for_a_topic_that_does_not_exist_yet(cluster: Kafka) -> None:
    query = Query(cluster)
    late = f"late-{query.topic}"
    query.options = query.with_options(topic=late)
    query.write(0, [], [])
    cluster.create(name=late)
    query.write(1, ["a"], [])
    query.write(1, ["a"], [])
    assert query.committed(late) == ["a"]


def test_rows_for_several_topics(cluster: Kafka) -> None:
    query = Query(cluster)
    other = cluster.create()
    query.options = dataclasses.replace(query.options, topic=None)
    query.commit([query.task(0, 0, "a", topic=other)])
    query.commit([query.task(1, 0, "b")])
    again = query.task(1, 0, "b")
    assert again.is_committed
    query.commit([again])
    query.commit([query.task(2, 0, "c", topic=other)])
    assert (query.committed(), query.committed(other)) == (["b"], ["a", "c"])
    with pytest.raises(ReplayMismatchError, match="as many, 1, with other content"):
        query.commit([query.task(2, 0, "c")])  # the same rows for another topic


def test_a_failed_batch_leaves_no_transaction_open(query: Query) -> None:
    query.task(0, 3, "of a task that did not report")
    abort_batch(query.options, query.prepare(0, ["a"], ["b"]))
    assert query.open_transactions() == []
    assert query.committed() == []


def test_a_row_that_cannot_be_sent_aborts_its_transaction(query: Query) -> None:
    with pytest.raises(OttlaError, match="a record of 2000"):
        query.task(0, 0, "a", "b" * 2_000_000)
    assert query.open_transactions() == []
    assert query.committed() == []


def test_a_run_aborts_what_earlier_runs_have_left_open(query: Query, request: pytest.FixtureRequest) -> None:
    query.task(0, 7, "of an earlier run")
    query.task(0, 8, "of an earlier run")
    earlier = open_transactions(query.options)
    assert {query.name.of_task(7), query.name.of_task(8)} <= {each.transactional_id for each in earlier}
    query.task(0, 8, "of a task of this run in another process", run="another")
    query.task(0, 0, "of this run", run="another", earlier=earlier)
    left = [7] if request.node.callspec.params["cluster"] in FIRST_VERSION else []
    assert query.open_transactions() == [query.name.of_task(task) for task in (0, *left, 8)]
    query.task(0, 9, "of a task that this attempt does not have", run="another", earlier=earlier)
    query.commit([query.task(0, 0, "of this run", run="a third")])
    assert query.open_transactions() == []
    assert query.committed() == ["of this run"]


@pytest.mark.parametrize("by", ["driver", "task"])
def test_a_task_whose_rows_a_later_run_has_aborted_commits_no_marker(query: Query, tmp_path: Path, by: str) -> None:
    """Its driver was thought dead. With the marker the repeated task would skip the rows. In the first version of transactions
    EndTxn does not end the epoch of a producer."""
    (tmp_path / "metadata").write_text(json.dumps({"id": query.name.query}))
    options = query.with_options(checkpointLocation=str(tmp_path))
    with Producer(bootstrap_servers=query.kafka.servers, transactional_id=query.name.of_task(0)) as old:
        transaction = old.transaction()
        transaction.begin()
        old.send(query.topic, "a")
        old.flush()
        earlier = open_transactions(options)
        assert query.name.of_task(0) in {each.transactional_id for each in earlier}
        if by == "driver":
            assert query.name.of_task(0) not in {each.transactional_id for each in abort_before_batch(options, earlier)}
            assert query.open_transactions() == []
        else:
            query.task(0, 1, "b", run="the next run", earlier=earlier)
        with contextlib.suppress(OttlaError):
            marker = OffsetAndMetadata(0, Marker(0, 1, 0).dumps())
            transaction.commit_offsets(ConsumerGroupMetadata(query.name.of_task(0)), {TopicPartition(query.topic, 0): marker})
            with admins.borrow(options.admin) as admin:
                admin.end_transactions(transaction.prepare(), commit=True)
    with admins.borrow(options.admin) as admin:
        markers = admin.group_offsets(query.name.of_task(0), require_stable=True)
    assert (len(markers), query.committed()) in [(0, []), (1, ["a"])]
    assert by == "task" or not markers


@pytest.mark.parametrize("apart", [0.0, 0.03, 0.1])
def test_tasks_that_begin_at_the_same_time_do_not_abort_each_other(query: Query, apart: float) -> None:
    """Each of them, in a process of its own, aborts what the earlier run has left open: not what the others have begun since."""
    values = [f"row {number}" for number in range(4)]
    query.prepare(0, *([value] for value in values))
    earlier = open_transactions(query.options)

    def task(number: int) -> TaskReport:
        time.sleep(apart * number)
        report = query.task(0, number, values[number], run=f"process {number}", earlier=earlier)
        return dataclasses.replace(report, run="next")

    with ThreadPoolExecutor(4) as pool:
        query.commit(list(pool.map(task, range(4))))
    assert query.committed() == values


def test_brokers_that_are_gone_have_no_open_transactions() -> None:
    """Then the batch fails because of something else."""
    with Broker() as broker:
        query = Query(Kafka(broker.bootstrap_servers))
    assert open_transactions(query.options) == ()


def test_a_batch_job_commits_once_and_leaves_no_markers(query: Query) -> None:
    query.task(None, 1, "of an attempt that failed")
    query.commit(query.prepare(None, ["a"], ["b"]), is_every_batch=False)
    assert query.committed() == ["a", "b"]
    with Admin(bootstrap_servers=query.kafka.servers) as admin:
        groups = [each.group_id for each in admin.list_groups()]
    assert not [each for each in groups if each.startswith(query.name.group)]


def test_the_record_expires_in_ten_years_and_markers_as_the_brokers_are_set(query: Query) -> None:
    query.write(0, ["a"], ["b"])
    name = query.name
    kept = {group: value.expire_timestamp - value.commit_timestamp for group, value in stored_offsets(query.kafka.servers)}
    assert kept[name.group] == RETENTION / timedelta(milliseconds=1)
    markers = {
        group: value.expire_timestamp for group, value in stored_offsets(query.kafka.servers) if name.task_of(group) is not None
    }
    assert markers == {name.of_task(0): -1, name.of_task(1): -1}


def stored_offsets(servers: str) -> Iterator[tuple[str, OffsetCommitValue]]:
    """The committed offsets as brokers store them, with their groups."""
    with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([TopicPartition(each.topic, each.partition) for each in consumer.partitions_for("__consumer_offsets")])
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            for record in consumer.poll(timeout=1):
                key, value = decode_record(record.key or b"", record.value)
                if isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue):
                    yield key.group, value


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("kafka_tool")
def test_a_query_goes_on_when_its_markers_have_expired() -> None:
    node = OwnKafka(free_port_pair(), "offsets.retention.minutes=1", "offsets.retention.check.interval.ms=1000")
    try:
        query = Query(Kafka(node.address))
        query.write(0, ["a"], ["b"])
        groups = [query.name.of_task(task) for task in (0, 1)] + ["a little later than the record could"]
        with admins.borrow(query.options.admin) as admin:
            admin.alter_group_offsets(groups[-1], {TopicPartition(query.topic, 0): 0}, retention=65)
        for is_there in (True, False):
            deadline = time.monotonic() + 150
            while {bool(query.kafka.committed(group)) for group in groups} != {is_there}:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        query.write(1, ["c"], ["d"], run="next")
        with pytest.raises(ReplayMismatchError, match="batch 1 was committed before, and Spark now writes batch 0"):
            query.write(0, ["a"], ["b"], run="from a copy")
        assert query.committed() == ["a", "b", "c", "d"]
    finally:
        node.stop()


def test_an_offset_of_somebody_else_is_not_taken_for_a_marker(query: Query) -> None:
    query.write(0, ["a"])
    with Admin(bootstrap_servers=query.kafka.servers) as admin:
        admin.alter_group_offsets(query.name.of_task(0), {TopicPartition(query.topic, 1): OffsetAndMetadata(5, "mine")})
    with pytest.raises(OttlaError, match="has an offset that the sink has not stored: its metadata is 'mine'"):
        query.task(1, 0, "b")


@pytest.fixture(params=["broker", pytest.param("kafka", marks=pytest.mark.slow)])
def query_of_a_second(request: pytest.FixtureRequest) -> Iterator[Query]:
    """A query whose transactions may be open for a second. Kafka looks for older ones every ten seconds."""
    with cluster_of(request, request.param) as kafka:
        yield Query(kafka, kafka__transaction__timeout__ms="1000")


def test_a_batch_that_takes_too_long_names_the_option_that_helps(query_of_a_second: Query) -> None:
    query = query_of_a_second
    reports = query.prepare(0, ["a"])
    query.await_open_transactions(0)
    with pytest.raises(OttlaError, match=r"^the batch: its transaction was open for \d+ s; the brokers abort it") as raised:
        query.commit(reports)
    assert "maxOffsetsPerTrigger" in str(raised.value.hint)
    query.write(0, ["a"])
    assert query.committed() == ["a"]


def test_a_batch_of_which_some_transactions_may_have_timed_out_is_not_committed_in_part(query_of_a_second: Query) -> None:
    query = query_of_a_second
    late = query.task(0, 1, "b")
    query.await_open_transactions(0)
    reports = [query.task(0, 0, "a"), late]
    with pytest.raises(OttlaError, match=r"^the batch: its transaction was open for \d+ s; the brokers abort it"):
        query.commit(reports)
    abort_batch(query.options, reports)
    assert query.committed() == []


def test_a_task_that_takes_too_long_names_the_option_that_helps(query_of_a_second: Query) -> None:
    query = query_of_a_second

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["x" * (GROUP_BYTES // 5)] * 6})  # sent before the next one is asked for
        query.await_open_transactions(1)
        query.await_open_transactions(0)
        yield pa.RecordBatch.from_pydict({"value": ["y"]})

    with pytest.raises(OttlaError, match=r"^task 3: its transaction was open for \d+ s; the brokers abort it after 1 s") as raised:
        write_task(query.options, ("value",), rows(), TaskAttempt(query.name, 0, "run", 3, ()))
    assert "maxOffsetsPerTrigger" in str(raised.value.hint)


@pytest.mark.parametrize("sends", [True, False])
def test_a_newer_attempt_fences_an_older_one_that_still_writes(query: Query, sends: bool) -> None:
    """A task on an executor that Spark has given up on goes on writing, or has prepared its transaction."""
    with Producer(bootstrap_servers=query.kafka.servers, transactional_id=query.name.of_task(0)) as old:
        transaction = old.transaction()
        transaction.begin()
        old.send(query.topic, "old")
        old.flush()
        query.write(0, ["new"])
        if sends:
            old.send(query.topic, "old, too")
        with pytest.raises(OttlaError), admins.borrow(query.options.admin) as admin:
            admin.end_transactions(transaction.prepare(), commit=True)
    assert query.committed() == ["new"]


@pytest.mark.parametrize("has_column", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_marker_that_is_about_to_be_committed_is_waited_for(query: Query, is_first: bool, has_column: bool) -> None:
    """A transaction is committed in two steps: its marker may still be pending when the next attempt of its task reads. Kafka says
    so of the first offset of a group only if its partition is named."""
    if has_column:
        query.options = dataclasses.replace(query.options, topic=None)
    if not is_first:
        query.write(0, ["a"])
    group = query.name.of_task(0)
    place = TopicPartition(query.topic, 0)
    with admins.borrow(query.options.admin) as admin:
        assert len(admin.group_offsets(group, [place], require_stable=True)) == (not is_first)
    with Producer(bootstrap_servers=query.kafka.servers, transactional_id=f"other-{group}") as other, ThreadPoolExecutor(1) as pool:
        transaction = other.transaction()
        transaction.begin()
        pending = OffsetAndMetadata(1, metadata=Marker(1, 1, 0).dumps())
        transaction.commit_offsets(ConsumerGroupMetadata(group), {place: pending})
        attempt = pool.submit(query.task, 1, 0, "b")
        with pytest.raises(TimeoutError):
            attempt.result(1)
        transaction.commit()
        assert attempt.result(60).marker == Marker(1, 1, 0)
