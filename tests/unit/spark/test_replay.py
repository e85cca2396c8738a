"""The names of a sink, its markers, and the judgement of a repeated batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from ottla import Prepared
from ottla.errors import OttlaError
from ottla.spark.replay import BatchRecord, Marker, SinkName, TaskReport, conflicts
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
    marker, record = Marker(batch, number, fingerprint), BatchRecord(batch, number, "run")
    assert Marker.loads(marker.dumps(), "group") == marker
    assert BatchRecord.loads(record.dumps(), "group") == record


@pytest.mark.parametrize("text", ["", "5", "{}", "[]", '{"batch": "x"}', '{"batch": 1, "rows": 2, "tasks": 1}', "null"])
def test_what_another_program_has_committed_is_refused(text: str) -> None:
    for kind in (Marker, BatchRecord):
        with pytest.raises(OttlaError, match="the group 'group' has an offset that the sink has not stored"):
            kind.loads(text, "group")


@pytest.mark.parametrize(
    ("record", "surplus", "reports"),
    [
        (BatchRecord(4, 9, "run"), [], [report(0), report(1)]),
        (BatchRecord(5, 2, "run"), [], [report(0, 1, MARKER), report(1)]),
        (BatchRecord(5, 3, "run"), [(2, Marker(4, 1, 7))], [report(0), report(1)]),
        (BatchRecord(5, 1, "run"), [], [report(0), report(1)]),
    ],
    ids=["the next batch", "a repeated one", "fewer tasks, none committed", "more tasks, none committed"],
)  # fmt: skip
def test_a_batch_without_conflicts(record: BatchRecord, surplus: list[tuple[int, Marker]], reports: list[TaskReport]) -> None:
    assert conflicts(reports, 5, record, surplus, is_every_batch=True) == []


@pytest.mark.parametrize(
    ("record", "surplus", "reports", "text"),
    [
        (BatchRecord(5, 1, "run"), [], [report(0, 1, Marker(5, 2, 7))], "the rows of task 0 .*: 2 committed, 1 now"),
        (BatchRecord(5, 1, "run"), [], [report(0, 1, Marker(5, 1, 8))], "the rows of task 0 .*: 1 with other content"),
        (BatchRecord(5, 1, "run"), [], [report(0, 0, Marker(5, 1, 8))], "the rows of task 0 .*: 1 committed, 0 now"),
        (BatchRecord(4, 1, "run"), [], [report(0, 1, Marker(6, 1, 7))], "task 0 has committed batch 6, and .* batch 5"),
        (BatchRecord(6, 1, "run"), [], [report(0)], "batch 6 was committed before, and .* batch 5"),
        (BatchRecord(5, 1, "run"), [], [report(0, 1, MARKER), report(1)], "had 1 tasks, of which 0 is committed, and .* 2"),
        (BatchRecord(5, 4, "run"), [(2, MARKER), (3, MARKER)], [report(0), report(1)], "of which 2, 3 are committed"),
        (BatchRecord(3, 1, "run"), [], [report(0)], "a record of batch 3 as the latest"),
        (None, [], [report(0)], "a record of no batch"),
    ],
)  # fmt: skip
def test_a_batch_with_a_conflict(
    record: BatchRecord | None, surplus: list[tuple[int, Marker]], reports: list[TaskReport], text: str
) -> None:
    (found,) = conflicts(reports, 5, record, surplus, is_every_batch=True)
    with pytest.raises(OttlaError, match=text):
        raise OttlaError(found.text)
    assert found.hint


def test_the_first_batch_needs_no_record_and_foreach_batch_may_skip_some() -> None:
    assert conflicts([report(0)], 0, None, [], is_every_batch=True) == []
    assert conflicts([report(0)], 5, BatchRecord(2, 1, "run"), [], is_every_batch=False) == []
    assert conflicts([report(0)], 5, None, [], is_every_batch=False) != []
