"""The run of a job: starts its queries, watches them, starts failed ones again, and ends them.

Owns the loop and the calls into Spark. Must not know when a query is restarted, nor how a line looks. Invariants: a query is
stopped between two batches, unless a second signal interrupts it; the exit code is 0 only if no query has failed.

How a run ends: the file of ``runner_environment.DRAIN`` appears, so the sources offer no more records. A query whose trigger is not
active after that has finished its batch, and every later trigger finds nothing to do: it can be stopped. One with ``availableNow``
ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ottla.errors import OttlaError
from ottla.spark.jobs.causes import Cause, cause_of
from ottla.spark.jobs.jvm import ENDED as JVM_ENDED, JVM_END, ends_within
from ottla.spark.jobs.reports import BatchReport, has_new_records, listed, progress_line, read_progress
from ottla.spark.jobs.state_file import RunDirectory
from ottla.spark.jobs.stopping import StopRequests
from ottla.spark.jobs.supervision import ENDED, QueryState, Supervision

DONE, FAILED = 0, 1
SIGNAL = 128
"""The exit code is this plus the number of the signal that has interrupted batches."""
POLL = 0.2
"""Seconds between two looks at the queries."""
PLANNING = "Getting offsets"
"""The beginning of Spark's status message while a trigger asks the sources for their ends."""
PLANNING_GRACE = 5.0
"""Seconds after which a query that still plans is stopped when the job ends: its cluster does not answer."""
BATCHES_OF_OTHERS = 2
"""Batches with new records, finished since the drain, after which a query is stopped in its next one. A drained source has at most
one: that which was planned before the drain. Two prove that a source is not drained."""
INTERRUPT_GRACE = 5.0
"""Seconds for queries to stop after a second signal, or after an error in a call of theirs."""


@dataclass(frozen=True)
class RunSettings:
    """``once``: end with the available records. ``every``: Spark's text of the trigger's interval. With neither, the job's own
    trigger applies. ``restarts``: of one query, without a finished batch between them. ``report_every``: seconds between two
    lines. ``is_remote``: the sources cannot be drained, because their planners run elsewhere."""

    once: bool
    every: str | None
    restarts: int
    report_every: float
    is_remote: bool = False


class WatchedQuery:
    """One query of the job."""

    def __init__(self, name: str, writer: Any, checkpoint: str, restarts: int) -> None:
        self.name, self.checkpoint = name, checkpoint
        self.supervision = Supervision(restarts)
        self.report: BatchReport | None = None
        self.cause: Cause | None = None
        self.batches = self.rows = 0
        """Finished batches, and the rows in them."""
        self.handle: Any = None
        self._writer = writer
        self.stopping: _Stop | None = None
        """The call that stops it, once the job ends."""
        self._reported_batches = self._reported_rows = 0
        self._offered = self._offered_at_drain = 0
        """Finished batches for which a source has offered new records."""
        self._seen: tuple[str, str] | None = None
        """Run id and time of Spark's last report that was taken over."""

    @property
    def state(self) -> QueryState:
        """Where the query is."""
        return self.supervision.state

    def start(self) -> None:
        """Start the query. Raises what PySpark raises."""
        self.handle = self._writer.start()
        self.supervision.started(time.monotonic())

    def look(self) -> None:
        """Take over what Spark reports since the last look."""
        for progress in self._new_progress():
            report = read_progress(progress)
            if "addBatch" in progress.get("durationMs", {}):
                self.batches += 1
                self.rows += report.rows
                self._offered += has_new_records(progress)
                self.report = report
                self.supervision.finished_batch()
            elif self.report is not None and report.lag is not None:  # an idle query reports its lag every 10 s
                self.report = replace(self.report, lag=report.lag)

    def _new_progress(self) -> list[dict[str, Any]]:
        """Spark's reports since the last call, oldest first. Spark keeps the latest hundred."""
        new: list[dict[str, Any]] = []
        for text in _reports_backwards(self.handle):
            progress = json.loads(text)
            at = (str(progress.get("runId")), str(progress.get("timestamp")))
            if at == self._seen:
                break
            new.append(progress)
        if new:
            self._seen = (str(new[0].get("runId")), str(new[0].get("timestamp")))
        return new[::-1]

    def drain(self) -> None:
        """The sources offer no more records from now on.

        1. A batch ends. 2. The sources are drained. 3. The next look finds the batch, which says nothing of the sources. So what is
        reported by now is taken over here: from here on the running batch is the only one that may have been planned before.
        """
        if self.state is QueryState.RUNNING:
            with contextlib.suppress(Exception):  # the next look meets the same error, and reports it
                self.look()
        self._offered_at_drain = self._offered
        self.supervision.drain()

    @property
    def offered_since_drain(self) -> int:
        """Batches with new records that have ended since ``drain()``."""
        return self._offered - self._offered_at_drain

    def line(self) -> str | None:
        """Return the line about what has happened since the last call; ``None`` if there was no batch."""
        batches, rows = self.batches - self._reported_batches, self.rows - self._reported_rows
        if self.report is None or not batches:
            return None
        self._reported_batches, self._reported_rows = self.batches, self.rows
        return progress_line(self.name, self.report, batches, rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the query's part of the state file."""
        report = self.report
        return {
            "state": self.state.value,
            "checkpoint": self.checkpoint,
            "batch": None if report is None else report.number,
            "batch_at": None if report is None else report.at,
            "batch_seconds": None if report is None else report.seconds,
            "rows": self.rows,
            "rows_per_second": None if report is None else report.rows_per_second,
            "lag": None if report is None else report.lag,
            "restarts": self.supervision.restarts,
            "error": None if self.cause is None else self.cause.message,
        }


class Runner:
    """One run. ``say`` prints a line, ``complain`` an error with lines below it, ``keep`` stores the state of the queries."""

    def __init__(
        self,
        writers: Mapping[str, Any],
        checkpoints: Mapping[str, str],
        settings: RunSettings,
        directory: RunDirectory,
        drain: Path,
        *,
        say: Callable[[str], None],
        complain: Callable[[str, tuple[str, ...]], None],
        keep: Callable[[Mapping[str, Any]], None],
        is_alive: Callable[[], bool],
    ) -> None:
        self.queries = [
            WatchedQuery(name, _prepared(name, writer, checkpoints[name], settings), checkpoints[name], settings.restarts)
            for name, writer in writers.items()
        ]
        self._settings, self._directory, self._drain_file = settings, directory, drain
        self._say, self._complain, self._keep, self._is_alive = say, complain, keep, is_alive
        self._drained_at: float | None = None
        self._has_answered = False
        """Whether a line has answered the first signal."""
        self._reported_at = time.monotonic()

    def run(self, stop: StopRequests) -> int:
        """Run until all queries have ended, and return the exit code."""
        while True:
            now = time.monotonic()
            if stop.count > 1:
                return self._interrupt(stop)
            if stop.count and not self._has_answered:
                self._has_answered = True
                self._announce(stop.signal.name if stop.signal else "stopped", "a second signal interrupts")
                self._drain(now)
            for query in self.queries:
                if stop.count > 1:
                    break
                self._step(query, now)
            self._report(now)
            self._keep(self.state())
            if all(query.state in ENDED for query in self.queries):
                return self._finish()
            self._check_spark(0)
            failed = [query.name for query in self.queries if query.state is QueryState.FAILED]
            if self._drained_at is None and failed:
                # A signal that comes later is the first one also then: a supervisor may send it at any time, and loses no batch.
                self._announce(f"{listed(failed)} failed for good", "two signals interrupt")
                self._drain(now)
            stop.wait(POLL)

    def state(self) -> dict[str, Any]:
        """Return the queries' part of the state file."""
        return {query.name: query.as_dict() for query in self.queries}

    def _announce(self, reason: str, interrupts: str) -> None:
        if any(query.state not in ENDED for query in self.queries):
            self._say(f"{reason}: waiting for the running batches to end; {interrupts} them")

    def _drain(self, now: float) -> None:
        if self._drained_at is not None:
            return
        self._drained_at = now
        try:
            self._drain_file.parent.mkdir(parents=True, exist_ok=True)
            self._drain_file.touch()
        except OSError as error:  # a full disk: the queries are stopped as those with sources of others
            self._say(f"a batch may be interrupted: cannot write {self._drain_file}: {error.strerror}")
        for query in self.queries:
            query.drain()

    def _step(self, query: WatchedQuery, now: float) -> None:
        if query.supervision.is_due(now):
            self._start(query)
        elif query.state in (QueryState.RUNNING, QueryState.DRAINING):
            self._watch(query, now)

    def _start(self, query: WatchedQuery) -> None:
        from pyspark.errors import AnalysisException

        try:
            query.start()
        except Exception as error:
            # Spark has checked the plan and the options: another attempt would have the same result.
            self._failed(query, error, is_permanent=isinstance(error, AnalysisException))

    def _watch(self, query: WatchedQuery, now: float) -> None:
        try:
            if query.stopping is not None:
                self._watch_stop(query, query.stopping)
                return
            is_active = query.handle.isActive
            query.look()
            if is_active and query.state is QueryState.DRAINING and self._can_stop(query, now):
                if query.handle.isActive:
                    query.stopping = _Stop(query.handle)
                    return
                is_active = False  # it has ended since the first look, maybe with an error
                query.look()
            error = None if is_active else query.handle.exception()
        except Exception as raised:  # the connection to the JVM, or to the server of Connect, is lost
            self._check_spark(JVM_END)
            _stop_all([query.handle])  # Spark may still run it, and refuses to start it a second time
            is_active, error = False, raised
        if error is not None:
            self._failed(query, error)
        elif not is_active:
            query.supervision.ended()

    def _watch_stop(self, query: WatchedQuery, stopping: _Stop) -> None:
        if stopping.is_running:
            return
        if stopping.error is not None:
            raise stopping.error
        query.look()
        query.supervision.ended()

    def _check_spark(self, timeout: float) -> None:
        """Raise ``OttlaError`` if the JVM has ended, or does so within ``timeout`` seconds."""
        if ends_within(timeout, self._is_alive):
            raise OttlaError(
                f"{JVM_ENDED}, and with it the job",
                hint=f"the next run continues from the checkpoints; the JVM's log is {self._directory.spark_log}",
            )

    def _can_stop(self, query: WatchedQuery, now: float) -> bool:
        status = query.handle.status
        if not status["isTriggerActive"]:
            return True
        # A source that was not drained may always have records: then no look finds the query between two batches.
        if query.offered_since_drain >= (1 if self._settings.is_remote else BATCHES_OF_OTHERS):
            return True
        assert self._drained_at is not None
        return now > self._drained_at + PLANNING_GRACE and str(status["message"]).startswith(PLANNING)

    def _failed(self, query: WatchedQuery, error: BaseException, *, is_permanent: bool = False) -> None:
        query.cause = cause_of(str(error))
        self._directory.add_error(query.name, str(error))
        supervision = query.supervision
        supervision.failed(time.monotonic(), is_permanent=is_permanent or query.cause.is_permanent)
        if query.state is QueryState.WAITING:
            pause = supervision.due_at - time.monotonic()
            end = f"restart {supervision.in_a_row} of {self._settings.restarts} in {max(0.0, pause):.0f} s"
        else:
            end = "not started again" + (f" after {supervision.in_a_row} restarts" if supervision.in_a_row else "")
        where = f"all of Spark's text: {self._directory.error_log}"
        self._complain(f"query {query.name} failed: {query.cause.message}", (*query.cause.details, f"{end}; {where}"))

    def _report(self, now: float, *, at_once: bool = False) -> None:
        if now < self._reported_at + self._settings.report_every and not at_once:
            return
        self._reported_at = now
        for query in self.queries:
            if (line := query.line()) is not None:
                self._say(line)
            elif query.report is None and query.state is QueryState.RUNNING and not at_once:
                self._say(f"{query.name}: no batch yet ({_message(query.handle)})")

    def _finish(self) -> int:
        self._report(time.monotonic(), at_once=True)
        failed = [query.name for query in self.queries if query.state is QueryState.FAILED]
        if not failed:
            return DONE
        done = [query.name for query in self.queries if query.state is QueryState.DONE]
        self._say(f"failed: {listed(failed)}" + (f"; ended: {listed(done)}" if done else ""))
        return FAILED

    def _interrupt(self, stop: StopRequests) -> int:
        """Stop at once. The next run repeats the batches that this interrupts."""
        _stop_all([query.handle for query in self.queries if query.state in (QueryState.RUNNING, QueryState.DRAINING)])
        self._keep(self.state())
        assert stop.signal is not None
        return SIGNAL + stop.signal


class _Stop:
    """A call that stops a query, in a thread: it waits for a function in ``foreachBatch``, which Spark cannot interrupt."""

    def __init__(self, handle: Any) -> None:
        self.error: Exception | None = None
        """What the call has raised."""
        self._handle = handle
        self._thread = threading.Thread(target=self._stop, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the call has not returned yet."""
        return self._thread.is_alive()

    def wait(self, timeout: float) -> None:
        """Wait until the call has returned, or ``timeout`` seconds."""
        self._thread.join(timeout)

    def _stop(self) -> None:
        try:
            self._handle.stop()
        except Exception as error:
            self.error = error


def _stop_all(handles: Sequence[Any]) -> None:
    """Stop queries, whatever they run. Returns after ``INTERRUPT_GRACE`` seconds at the latest."""
    calls = [_Stop(handle) for handle in handles]
    deadline = time.monotonic() + INTERRUPT_GRACE
    for call in calls:
        call.wait(max(0.0, deadline - time.monotonic()))


def _message(handle: Any) -> str:
    """What Spark says of a query now."""
    try:
        return str(handle.status["message"])
    except Exception:  # the next look at the query meets the same error, and reports it
        return "Spark does not answer"


def _reports_backwards(handle: Any) -> Iterator[str]:
    """The JSON of Spark's reports, the latest first. (PySpark's own ``recentProgress`` makes thousands of calls into the JVM.)"""
    if hasattr(handle, "_jsq"):
        reports = handle._jsq.recentProgress()
        yield from (reports[at].json() for at in reversed(range(len(reports))))
    else:
        yield from (progress.json for progress in reversed(handle.recentProgress))


def _prepared(name: str, writer: Any, checkpoint: str, settings: RunSettings) -> Any:
    # As an option: Spark's setting for all queries could be another one by now, which the job file has set in its session.
    writer = writer.queryName(name).option("checkpointLocation", checkpoint)
    if settings.once:
        return writer.trigger(availableNow=True)
    return writer if settings.every is None else writer.trigger(processingTime=settings.every)
