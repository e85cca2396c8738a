"""The names of a sink, its markers, and the judgement of a repeated batch."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings, strategies as st

from ottla import Prepared
from ottla.errors import OttlaError
from ottla.spark.exactly_once.replay import UNKNOWN_RUN, Batch, BatchRecord, Conflict, Marker, SinkName, TaskReport, conflicts
from tests.example_counts import examples

NAME = SinkName("query", "sink")
MARKER = Marker(5, 1, 7)
counts = st.integers(0, 2**40)


def report(task: int, rows: int = 1, marker: Marker | None = None) -> TaskReport:
    prepared = None if marker is not None else Prepared(NAME.of_task(task), 1, 1, 2)
    return TaskReport(NAME, 5, "run", task, rows, 7 * rows, marker, prepared, "topic", 0.0)


def test_the_names_of_a_sink_and_of_its_tasks() -> None:
    assert (NAME.group, NAME.of_task(3)) == ("ottla.query.sink", "ottla.query.sink.3")
    assert NAME.task_of("ottla.query.sink.12") == 12
    for other in (
        "ottla.query.sink",
        "ottla.query.sink.",
        "ottla.query.sink2.1",
        "ottla.query.sink.1.2",
        "ottla.query.sink.x",
        "1",
    ):
        assert NAME.task_of(other) is None


@settings(max_examples=examples(50))
@given(counts, counts, st.integers(0, 2**64 - 1))
def test_markers_and_records_are_read_as_they_were_written(batch: int, number: int, fingerprint: int) -> None:
    marker, record = Marker(batch, number, fingerprint), BatchRecord(batch, number, "run", 5)
    assert Marker.loads(marker.dumps(), "group") == marker
    assert BatchRecord.loads(record.dumps(), "group") == record


@pytest.mark.parametrize("text", ["", "5", "{}", "[]", '{"batch": "x"}', '{"batch": 1, "rows": 2, "tasks": 1}', "null"])
def test_what_another_program_has_committed_is_refused(text: str) -> None:
    for kind in (Marker, BatchRecord):
        with pytest.raises(OttlaError, match="the group 'group' has an offset that the sink has not stored"):
            kind.loads(text, "group")


def found(
    reports: list[TaskReport],
    record: BatchRecord | None,
    *surplus: tuple[int, Marker],
    run: str = "the next run",
    number: int = 5,
    now: float = 1000.0,
    least_record: int | None = 4,
) -> list[Conflict]:
    return conflicts(Batch(number, run, reports, record, surplus, now), least_record=least_record)


@pytest.mark.parametrize(
    ("record", "surplus", "reports"),
    [
        (BatchRecord(4, 9, "run", 0), [], [report(0), report(1)]),
        (BatchRecord(5, 2, "run", 0), [], [report(0, 1, MARKER), report(1)]),
        (BatchRecord(5, 3, "run", 0), [(2, Marker(4, 1, 7))], [report(0), report(1)]),
        (BatchRecord(5, 1, "run", 0), [], [report(0), report(1)]),
    ],
    ids=["the next batch", "a repeated one", "fewer tasks, none committed", "more tasks, none committed"],
)  # fmt: skip
def test_a_batch_without_conflicts(record: BatchRecord, surplus: list[tuple[int, Marker]], reports: list[TaskReport]) -> None:
    assert found(reports, record, *surplus) == []


@pytest.mark.parametrize(
    ("record", "surplus", "reports", "text", "hint"),
    [
        (BatchRecord(5, 2, "run", 0), [], [report(0, 1, Marker(5, 2, 7)), report(1)], "task 0 .*: 2 committed, 1 now", "repeat"),
        (BatchRecord(5, 1, "run", 0), [], [report(0, 1, Marker(5, 1, 8))], "task 0 .*: as many, 1, with other content", "skip"),
        (BatchRecord(5, 1, "run", 0), [], [report(0, 0, Marker(5, 1, 8))], "task 0 .*: 1 committed, 0 now", "skip"),
        (BatchRecord(4, 1, "run", 0), [], [report(0, 1, Marker(6, 1, 7))], "task 0 has committed batch 6", "older copy"),
        (BatchRecord(6, 1, "run", 0), [], [report(0)], "batch 6 was committed before, and .* batch 5", "older copy"),
        (BatchRecord(5, 1, "run", 0), [], [report(0, 1, MARKER), report(1, 0)], "had 1 task, of which 0 is .* now has 2", "skip"),
        (BatchRecord(5, 1, "run", 0), [], [report(0, 1, MARKER), report(1)], "had 1 task, of which 0 is .* now has 2", "repeat"),
        (BatchRecord(5, 4, "run", 0), [(2, MARKER), (3, MARKER)], [report(0), report(1)], "of which 2, 3 are committed", "repeat"),
        (BatchRecord(3, 1, "run", 0), [], [report(0)], "a record of batch 3, and of none after it", "exactlyOnce is new"),
        (None, [], [report(0)], "a record of no batch", "exactlyOnce is new"),
    ],
)  # fmt: skip
def test_a_batch_with_a_conflict(
    record: BatchRecord | None, surplus: list[tuple[int, Marker]], reports: list[TaskReport], text: str, hint: str
) -> None:
    (conflict,) = found(reports, record, *surplus)
    assert re.search(text, conflict.text)
    assert hint in conflict.hint


def test_two_sinks_with_one_id_are_noticed_in_one_run() -> None:
    (conflict,) = found([report(0, 1, Marker(5, 1, 8))], BatchRecord(5, 1, "run", 0), run="run")
    assert "two sinks of one query have the same sinkId" in conflict.hint


def test_a_record_that_may_have_outlived_its_markers() -> None:
    old, now = BatchRecord(5, 1, "run", 0), 6.5 * 86_400
    (conflict,) = found([report(0)], old, now=now)
    assert "an earlier run began to commit batch 5 6 days ago" in conflict.text
    assert found([report(0)], old, now=now, run="run") == []
    assert found([report(0)], BatchRecord(4, 1, "run", 0), now=now) == []


def test_a_complete_batch() -> None:
    both = [report(0, 1, Marker(5, 9, 9)), report(1, 1, MARKER)]
    for tasks, reports, surplus, expected in (
        (2, both, [], True),
        (3, both, [(2, MARKER)], True),
        (3, both, [], False),
        (1, [report(0, 1, MARKER), report(1, 0)], [], True),
        (1, [report(0, 1, MARKER), report(1)], [], False),
        (2, [report(0, 1, MARKER), report(1)], [], False),
    ):
        batch = Batch(5, "the next run", reports, BatchRecord(5, tasks, "run", 0), surplus, 0.0)
        assert batch.is_complete is expected
    assert not Batch(5, "run", both, BatchRecord(5, 2, "run", 0), [], 0.0).is_complete


def test_without_the_run_a_second_sink_looks_like_a_repeated_batch() -> None:
    reports = [report(0, 1, Marker(5, 9, 9))]
    unknown = Batch(5, UNKNOWN_RUN + "second write", reports, BatchRecord(5, 1, UNKNOWN_RUN + "first write", 0), [], 0.0)
    assert not unknown.is_complete
    (conflict,) = conflicts(unknown, least_record=4)
    assert "or two of its sinks have the same sinkId" in conflict.hint
    assert "skip" not in conflict.hint


def test_the_first_batch_needs_no_record_and_foreach_batch_may_skip_some() -> None:
    assert found([report(0)], None, number=0) == []
    assert found([report(0)], BatchRecord(2, 1, "run", 0), least_record=0) == []
    assert found([report(0)], None, least_record=0) != []
    assert found([report(0)], None, least_record=None) == []
