"""When a failed query is started again, under a virtual clock, and how its cause is found in Spark's text."""

from __future__ import annotations

import pytest

from ottla.spark.jobs.causes import TRACEBACK, cause_of
from ottla.spark.jobs.supervision import ENDED, HEALTHY, LONGEST_PAUSE, QueryState, Supervision


def start(query: Supervision, now: float) -> None:
    assert query.is_due(now)
    query.started(now)


def pauses(query: Supervision, now: float = 0.0) -> list[float]:
    """The pauses of a query that fails at once, until it has failed for good."""
    found = []
    while query.state is not QueryState.FAILED:
        start(query, now)
        query.failed(now, is_permanent=False)
        if query.state is QueryState.WAITING:
            found.append(query.due_at - now)
            assert not query.is_due(query.due_at - 0.001)
            now = query.due_at
    return found


def test_the_pauses_double_up_to_the_limit() -> None:
    query = Supervision(9)
    assert pauses(query) == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert (query.restarts, query.state in ENDED) == (9, True)


def test_without_restarts_the_first_failure_is_the_last() -> None:
    assert pauses(Supervision(0)) == []


def test_a_finished_batch_begins_the_count_again() -> None:
    query = Supervision(2)
    for now in (0.0, 100.0, 200.0, 300.0):
        start(query, now)
        query.finished_batch()
        query.failed(now, is_permanent=False)
        assert query.due_at == now + 1
    assert query.restarts == 4


def test_a_long_run_without_records_begins_the_count_again() -> None:
    query = Supervision(1)
    start(query, 0)
    query.failed(1, is_permanent=False)
    start(query, 2)
    query.failed(2 + HEALTHY, is_permanent=False)
    assert query.state is QueryState.WAITING
    start(query, 1_000)
    query.failed(1_001, is_permanent=False)
    assert query.state is QueryState.FAILED


def test_a_permanent_error_is_not_tried_again() -> None:
    query = Supervision(5)
    start(query, 0)
    query.failed(0, is_permanent=True)
    assert (query.state, query.restarts) == (QueryState.FAILED, 0)


def test_what_a_drain_makes_of_each_state() -> None:
    new, running, waiting, failed = (Supervision(1) for _ in range(4))
    for query in (running, waiting, failed):
        start(query, 0)
    waiting.failed(0, is_permanent=False)
    failed.failed(0, is_permanent=True)
    for query in (new, running, waiting, failed):
        query.drain()
    assert [each.state.name for each in (new, running, waiting, failed)] == ["DONE", "DRAINING", "FAILED", "FAILED"]
    running.failed(1, is_permanent=False)
    assert running.state is QueryState.FAILED


IN_A_TASK = """\
[STREAM_FAILED] Query [id = 19e2, runId = 7d39] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown from the \
Python worker: Traceback (most recent call last):
  File "/jobs/orders.py", line 30, in price
    return prices[name]
           ~~~~~~^^^^^^
KeyError: 'tea'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/jobs/orders.py", line 33, in price
    raise ValueError(f"no price for {name}") from error
ValueError: no price for tea
in the list of 2026
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: bad [id = 19e2, runId = 7d39]
Logical Plan: ...
"""
IN_THE_SOURCE = """\
[STREAM_FAILED] Query [id = cc54, runId = d49a] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed \
when Python streaming data source perform initialOffset: Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 267, in main
  File "/lib/python3.13/site-packages/ottla/spark/stream.py", line 80, in initialOffset
    starts = starts_of(self._cluster)
  File "/lib/python3.13/site-packages/ottla/client/events.py", line 56, in result
    raise self.error
ottla.errors.ConfigError: startingOffsets names no offset for t-1 (give an offset)
 SQLSTATE: 38000 SQLSTATE: XXKST
"""
IN_THE_JVM = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0: \
java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\tat org.apache.spark.Task.run(Task.scala:1)
\t... 12 more

Driver stacktrace:
"""


def test_an_exception_in_a_task_comes_first_with_its_place_and_its_cause() -> None:
    cause = cause_of(IN_A_TASK)
    assert cause.message == "ValueError: no price for tea"
    assert cause.details == ("in the list of 2026", "/jobs/orders.py:33, in price", "caused by KeyError: 'tea'")
    assert not cause.is_permanent


def test_a_wrong_option_is_permanent_and_shows_no_frame_of_libraries() -> None:
    cause = cause_of(IN_THE_SOURCE)
    assert cause.message == "ottla.errors.ConfigError: startingOffsets names no offset for t-1 (give an offset)"
    assert (cause.details, cause.is_permanent) == ((), True)


def test_an_error_of_the_jvm_has_no_frames() -> None:
    cause = cause_of(IN_THE_JVM)
    assert cause.message.endswith("java.io.IOException: No space left on device")
    assert cause.details == ()


@pytest.mark.parametrize("called", ["calling o32.parquet.\n: ", "calling o32.option. Trace:\n"])
@pytest.mark.parametrize("raised", ["", f"{TRACEBACK}\npy4j.protocol.Py4JJavaError: "])
def test_what_py4j_has_called_is_not_the_cause(raised: str, called: str) -> None:
    cause = cause_of(f"{raised}An error occurred while {called}java.io.IOException: the disk is full\n\tat a.b(C.java:1)\n")
    assert cause.message == raised.removeprefix(f"{TRACEBACK}\n") + "java.io.IOException: the disk is full"
    assert cause.details == ()


def test_a_batch_that_a_sink_refuses_is_permanent() -> None:
    text = f'{TRACEBACK}\n  File "x.py", line 1, in f\nottla.errors.ReplayMismatchError: batch 7 had 4 tasks (restore ...)\n'
    assert cause_of(text).is_permanent
    assert not cause_of(text.replace("ReplayMismatchError", "OttlaTimeoutError")).is_permanent


@pytest.mark.parametrize("text", ["", "\n", "\tat java.lang.Object.wait(Object.java)", "Traceback (most recent call last):\n"])
def test_there_always_is_a_cause(text: str) -> None:
    assert cause_of(text).message
