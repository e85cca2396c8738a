"""The runner of jobs where Spark's answers come at unlucky moments, with queries that stand for those of Spark; the signals."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cli.app import run as ottla
from ottla.errors import OttlaError
from ottla.spark.jobs import check, job_run, runner
from ottla.spark.jobs.check import CheckSettings, check_job
from ottla.spark.jobs.job_file import JobError
from ottla.spark.jobs.job_run import JobRun, Observer, run_job
from ottla.spark.jobs.jvm import without_tracebacks_of_py4j
from ottla.spark.jobs.runner import Runner, RunSettings
from ottla.spark.jobs.session import SessionSettings
from ottla.spark.jobs.state_file import RunDirectory, job_of, locked_checkpoints
from ottla.spark.jobs.status import status_of
from ottla.spark.jobs.stopping import StopRequests, own_handlers_kept, stop_requests
from ottla.spark.runner_environment import DRAIN, SAMPLE

TERM = int(signal.SIGTERM)
set_handler = signal.signal
FINISHED = {"runId": "1", "timestamp": "2026-11-26T19:22:25.660Z", "batchId": 3, "numInputRows": 20, "durationMs": {"addBatch": 5}}
ENVIRONMENT = (
    "PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME",
    DRAIN, SAMPLE, "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED",
)  # fmt: skip
"""What a run sets before it loads the file."""


class Query:
    """A query of Spark: active until it is stopped, or has failed. ``status`` calls ``on_status`` first."""

    def __init__(
        self, on_status: Callable[[Query], None] = lambda query: None, on_stop: Callable[[Query], None] = lambda query: None
    ) -> None:
        self.error: Exception | None = None
        self.reports: list[Mapping[str, Any]] = []
        self.is_stopped = self.is_busy = self.was_interrupted = False
        self._on_status, self._on_stop = on_status, on_stop

    @property
    def isActive(self) -> bool:
        return self.error is None and not self.is_stopped

    @property
    def recentProgress(self) -> list[Any]:
        return [Report(report) for report in self.reports]

    @property
    def status(self) -> dict[str, Any]:
        self._on_status(self)
        return {"isTriggerActive": self.is_busy, "message": "Waiting for data"}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.is_stopped, self.was_interrupted = True, self.is_busy
        self._on_stop(self)


class Report:
    def __init__(self, progress: Mapping[str, Any]) -> None:
        self.json = json.dumps(progress)


class Writer:
    """Starts the given queries, one after the other."""

    def __init__(self, *queries: Query) -> None:
        self._queries = list(queries)
        self.options: dict[str, str] = {}

    def queryName(self, name: str) -> Writer:
        return self

    def option(self, name: str, value: str) -> Writer:
        self.options[name] = value
        return self

    def start(self) -> Query:
        return self._queries.pop(0)


def batch(number: int, start: int | None, end: int) -> dict[str, Any]:
    """A report of a finished batch with the records from ``start`` to ``end``."""
    source = {"startOffset": None if start is None else {"orders": {"0": start}}, "endOffset": {"orders": {"0": end}}}
    return {**FINISHED, "timestamp": f"2026-11-26T19:22:{number:02}.660Z", "batchId": number, "sources": [source]}


class Run:
    """A run of one query, ``orders``, that gets SIGTERM as soon as ``is_due`` is true for its state."""

    def __init__(
        self, home: Path, *queries: Query, restarts: int = 0, report_every: float = 60.0, others: Mapping[str, Writer] = {}
    ) -> None:
        self.stop = StopRequests()
        self.said: list[str] = []
        self.errors: list[str] = []
        self.state: dict[str, Any] = {}
        self.is_due: Callable[[], bool] = lambda: self.state["state"] == "running"
        self.signals = 1
        """How many are sent: each time that ``is_due``, until it is so many."""
        self.writers = {"orders": Writer(*queries), **others}
        directory = RunDirectory(home / "job.py", str(home / "checkpoints"))
        self.runner = Runner(
            self.writers, dict.fromkeys(self.writers, "here"), RunSettings(False, None, restarts, report_every),
            directory, directory.path / "drain",
            say=self.said.append,
            complain=lambda error, details: self.errors.append(error),
            keep=self._keep,
            is_alive=lambda: True,
        )  # fmt: skip

    def _keep(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state["orders"])
        if self.stop.count < self.signals and self.is_due():
            self.stop.handle(TERM, None)

    def __call__(self) -> int:
        return self.runner.run(self.stop)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL", 0.001)
    monkeypatch.setattr(runner, "JVM_END", 0.0)


def test_a_last_batch_that_fails_just_before_the_stop(tmp_path: Path) -> None:
    def fail(query: Query) -> None:
        query.error = RuntimeError("no price for tea")

    run = Run(tmp_path, Query(fail))
    assert run() == 1
    assert (run.state["state"], run.errors) == ("failed", ["query orders failed: no price for tea"])


def test_a_last_batch_that_ends_just_before_the_stop_is_counted(tmp_path: Path) -> None:
    query = Query(lambda query: query.reports.append(FINISHED))
    run = Run(tmp_path, query)
    assert (run(), query.is_stopped) == (0, True)
    assert (run.state["state"], run.state["batch"], run.state["rows"]) == ("done", 3, 20)


def test_a_second_signal_is_in_the_exit_code(tmp_path: Path) -> None:
    query = Query(lambda query: run.stop.handle(TERM, None))
    query.is_busy = True
    run = Run(tmp_path, query)
    assert (run(), query.is_stopped, run.state["state"]) == (128 + TERM, True, "draining")


def test_batches_that_end_just_before_the_drain_do_not_interrupt_the_running_one(tmp_path: Path) -> None:
    """Two that Spark has reported since the last look, and, of a stateful query, the running one and that without records."""

    def is_due() -> bool:
        query.is_busy = True
        query.reports += [batch(1, None, 10), batch(2, 10, 20)]
        return True

    def on_status(query: Query) -> None:
        looks.append(len(looks) + 1)
        if looks[-1] in (3, 6):
            query.reports.append(batch(3, 20, 30) if looks[-1] == 3 else batch(6, 30, 30))
        query.is_busy = looks[-1] < 9

    looks: list[int] = []
    query = Query(on_status)
    run = Run(tmp_path, query)
    run.is_due = is_due
    assert (run(), query.is_stopped, query.was_interrupted, run.state["batch"]) == (0, True, False, 6)


def test_a_source_that_is_not_drained_is_interrupted_in_its_third_batch(tmp_path: Path) -> None:
    query = Query(lambda query: query.reports.append(batch(len(query.reports), 10 * len(query.reports), 99)))
    query.is_busy = True
    assert (Run(tmp_path, query)(), query.was_interrupted, len(query.reports)) == (0, True, 3)


def test_a_second_signal_interrupts_the_stop_of_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark waits in ``stop()`` for a function in ``foreachBatch``, whatever time it takes."""
    monkeypatch.setattr(runner, "INTERRUPT_GRACE", 0.01)
    released = threading.Event()

    def wait(query: Query) -> None:
        released.wait(5)

    query = Query(on_stop=wait)
    run = Run(tmp_path, query)
    run.is_due = lambda: run.stop.count == 0 or query.is_stopped
    run.signals = 2
    assert (run(), run.state["state"]) == (128 + TERM, "draining")
    released.set()


def test_a_stop_that_fails_is_an_error_of_the_query(tmp_path: Path) -> None:
    def fail(query: Query) -> None:
        raise TimeoutError("the stream thread has not stopped")

    run = Run(tmp_path, Query(on_stop=fail))
    assert (run(), run.state["state"]) == (1, "failed")
    assert run.errors == ["query orders failed: the stream thread has not stopped"]


def test_signals_after_a_failure_are_answered(tmp_path: Path) -> None:
    """The failure has asked the other queries to end. A supervisor may send its signal then as well, and interrupts nothing."""
    bad, busy = Query(), Query()
    bad.error, busy.is_busy = RuntimeError("no price for tea"), True
    run = Run(tmp_path, bad, others={"bills": Writer(busy)})
    run.is_due = lambda: run.state["state"] == "failed" and len(run.said) == 1 + run.stop.count
    run.signals = 2
    assert (run(), busy.was_interrupted) == (128 + TERM, True)
    assert run.said == [
        "orders failed for good: waiting for the running batches to end; two signals interrupt them",
        "SIGTERM: waiting for the running batches to end; a second signal interrupts them",
    ]


def test_a_query_that_waits_for_its_restart_at_the_end_has_failed(tmp_path: Path) -> None:
    query = Query()
    query.error = RuntimeError("no price for tea")
    run = Run(tmp_path, query, restarts=5)
    run.is_due = lambda: run.state["state"] == "waiting"
    assert (run(), run.state["state"], run.said[-1]) == (1, "failed", "failed: orders")


def test_a_query_that_ends_just_before_the_stop_is_done(tmp_path: Path) -> None:
    def end(query: Query) -> None:
        query.is_stopped = True
        query.reports.append(FINISHED)

    run = Run(tmp_path, Query(end))
    assert (run(), run.state["state"], run.state["rows"]) == (0, "done", 20)


@pytest.mark.parametrize("removed", [True, False])
def test_the_directory_of_the_drain_file_may_be_gone(tmp_path: Path, removed: bool) -> None:
    run = Run(tmp_path, Query())
    if not removed:
        (tmp_path / "checkpoints").touch()  # it cannot be made either
    assert run() == 0
    assert (tmp_path / "checkpoints" / "_pipeline" / "drain").exists() is removed
    assert any("a batch may be interrupted: cannot write " in line for line in run.said) is not removed


def test_a_query_is_stopped_before_it_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.jobs.supervision.FIRST_PAUSE", 0.0)
    lost, second = Query(), Query()
    lost.reports = [{"timestamp": object()}]  # json.dumps() refuses it, as a call into the JVM may fail
    run = Run(tmp_path, lost, second, restarts=1)
    run.is_due = lambda: run.state["restarts"] == 1 and run.state["state"] == "running"
    assert run() == 0
    assert (lost.is_stopped, second.is_stopped, len(run.errors)) == (True, True, 1)


def test_a_line_about_a_query_whose_status_cannot_be_read(tmp_path: Path) -> None:
    def lost(query: Query) -> None:
        if not run.stop.count:
            raise ConnectionRefusedError

    run = Run(tmp_path, Query(lost), report_every=0.0)
    assert run() == 0
    assert run.said[0] == "orders: no batch yet (Spark does not answer)"


def test_a_query_has_the_checkpoint_that_the_status_shows(tmp_path: Path) -> None:
    """Spark's setting for all queries may be another one by then, from the file."""
    run = Run(tmp_path, Query())
    run()
    assert run.writers["orders"].options == {"checkpointLocation": run.state["checkpoint"]}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment and ``sys.path``, which are as before after the test."""
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return monkeypatch


def test_a_handler_of_pyspark_does_not_replace_those_of_the_command() -> None:
    """A new SparkContext installs one, and raises in it: also while the rest of the file is loaded, or the session is created."""
    of_pyspark: list[int] = []
    with stop_requests() as stop, own_handlers_kept():
        signal.signal(signal.SIGINT, lambda number, frame: of_pyspark.append(number))
        signal.raise_signal(signal.SIGINT)
        assert (stop.count, stop.signal, of_pyspark) == (1, signal.SIGINT, [])
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.signal(signal.SIGUSR1, before) is signal.SIG_IGN
    assert signal.signal is set_handler


def test_the_jvm_ignores_ctrl_c_and_a_third_signal_kills() -> None:
    """PySpark sets the JVM's handler in the child process that becomes the JVM."""
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    with own_handlers_kept():
        child = subprocess.run(
            [sys.executable, "-c", show],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            capture_output=True, text=True,
        )  # fmt: skip
    assert child.stdout == "True\n", child.stderr
    kill = """if True:
        import signal
        from ottla.spark.jobs.stopping import own_handlers_kept, stop_requests
        with stop_requests(), own_handlers_kept():
            for _ in range(3): signal.raise_signal(signal.SIGTERM)
    """
    assert subprocess.run([sys.executable, "-c", kill]).returncode == -TERM


def test_py4j_logs_nothing_during_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """It logs the exception of each function in ``foreachBatch``, with all frames of the JVM, and each call into a dead JVM."""
    with without_tracebacks_of_py4j():
        for name in (None, "py4j.clientserver", "py4j.java_gateway", "orders"):
            for path in ("/lib/py4j/clientserver.py", "/jobs/orders.py"):
                record = logging.LogRecord(str(name), logging.ERROR, path, 1, "from %s", (path,), None)
                logging.getLogger(name).handle(record)
        assert [text for text in caplog.messages if "py4j" in text] == ["from /lib/py4j/clientserver.py"]  # by the job's own logger
        assert len(caplog.messages) == 5


def _runs(path: Path) -> list[Callable[[], object]]:
    checkpoints = str(path.parent / "checkpoints")
    given = JobRun(path, checkpoints, RunSettings(True, None, 0, 60.0))
    return [
        lambda: run_job(given, StopRequests(), Observer(lambda line: None, lambda error, details: None)),
        lambda: list(check_job(CheckSettings(path, checkpoints, 0, None, {}), lambda: False)),
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_creates_a_session_leaves_the_signals_to_the_command(
    tmp_path: Path, environment: pytest.MonkeyPatch, which: int
) -> None:
    """A new SparkContext sets a handler for SIGINT, which cancels all jobs."""
    (tmp_path / "job.py").write_text("import signal\nsignal.signal(signal.SIGINT, lambda number, frame: None)\n")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(JobError, match="has no function queries"):
        _runs(tmp_path / "job.py")[which]()
    after = signal.signal(signal.SIGINT, before)
    assert after is before


@pytest.mark.parametrize("which", [0, 1])
def test_a_session_that_cannot_be_stopped_hides_no_error(tmp_path: Path, environment: pytest.MonkeyPatch, which: int) -> None:
    def stop() -> None:
        raise ConnectionRefusedError("the JVM has ended")

    for module in (check, job_run):
        environment.setattr(module, "create_session", lambda settings: SimpleNamespace(stop=stop))
    (tmp_path / "job.py").write_text("def queries(spark): raise ValueError('no price for tea')\n")
    with pytest.raises(JobError, match="ValueError: no price for tea"):
        _runs(tmp_path / "job.py")[which]()


JOB = """
from types import SimpleNamespace

class Writer:
    _write_proto = SimpleNamespace(format="noop", options={}, output_mode="", HasField=lambda name: False)
    foreachBatch = None

    def queryName(self, name):
        return self

    def option(self, name, value):
        return self

    def start(self):
        status = {"isTriggerActive": True, "message": "Processing new data"}
        return SimpleNamespace(isActive=True, recentProgress=[], status=status, stop=lambda: None)

def queries(spark):
    return {"orders": Writer()}
"""


def test_the_state_says_that_a_second_signal_has_interrupted_the_run(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setattr(job_run, "create_session", lambda settings: SimpleNamespace(stop=lambda: None))
    (tmp_path / "job.py").write_text(JOB)
    given, stop = JobRun(tmp_path / "job.py", str(tmp_path), RunSettings(False, None, 0, 60.0)), StopRequests()
    directory = RunDirectory(given.path, given.checkpoints)
    directory.path.mkdir()
    directory.drain.touch()  # of the run before
    was_draining: list[bool] = []

    def watch(queries: Mapping[str, Any]) -> None:
        was_draining.append(directory.drain.exists())
        if len(was_draining) < 3:
            stop.handle(TERM, None)

    assert run_job(given, stop, Observer(lambda line: None, lambda error, details: None, watch)) == 128 + TERM
    assert was_draining == [False, True, True]
    assert (directory.read()["state"], directory.read()["error"]) == ("failed", "interrupted by SIGTERM")
    (shown,) = status_of(given.path, given.checkpoints)
    assert (shown.state, shown.figures["error"]) == ("failed", "interrupted by SIGTERM")


def test_two_jobs_with_one_checkpoint(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    """The lock of a job does not suffice: this is the same job with other ``--checkpoints``."""
    environment.setattr(job_run, "create_session", lambda settings: SimpleNamespace(stop=lambda: None))
    (tmp_path / "job.py").write_text(JOB.replace("options={}", f"options={{'checkpointLocation': 'file://{tmp_path}/own/orders'}}"))
    stop, refused, converted = StopRequests(), list[str](), list[int]()

    def run_again(queries: Mapping[str, Any]) -> None:
        if stop.count:
            return
        given = JobRun(tmp_path / "job.py", str(tmp_path / "b"), RunSettings(False, None, 0, 60.0))
        with pytest.raises(OttlaError) as error:
            run_job(given, StopRequests(), Observer(lambda line: None, lambda error, details: None))
        refused.append(str(error.value))
        converted.append(ottla(["checkpoint", "convert", str(tmp_path / "own" / "orders"), str(tmp_path / "copy")]))
        for _ in range(2):
            stop.handle(TERM, None)

    given = JobRun(tmp_path / "job.py", str(tmp_path / "a"), RunSettings(False, None, 0, 60.0))
    run_job(given, stop, Observer(lambda line: None, lambda error, details: None, run_again))
    place = f"its checkpoint is file://{tmp_path}/own/orders (stop that run, or set another checkpointLocation)"
    assert refused == [f"the query 'orders' runs already, in process {os.getpid()}: {place}"]
    assert converted == [1]
    assert job_of(tmp_path / "own" / "orders") is None  # the run has ended


@pytest.mark.parametrize("location", ["s3a://bucket/orders", "file/orders"])
def test_a_checkpoint_that_cannot_be_locked_is_left_to_spark(tmp_path: Path, location: str) -> None:
    (tmp_path / "file").touch()
    with locked_checkpoints({"orders": location if ":" in location else str(tmp_path / location)}):
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("options", "remote"), [([], "sc://there"), (["--master", "local[2]"], None), (["--remote", "sc://here"], "sc://here")]
)
def test_a_server_of_connect_in_the_environment(
    tmp_path: Path, environment: pytest.MonkeyPatch, options: list[str], remote: str | None
) -> None:
    given: list[SessionSettings] = []

    def create_session(settings: SessionSettings) -> Any:
        given.append(settings)
        raise JobError("no server")

    environment.setenv("SPARK_REMOTE", "sc://there")
    environment.setattr(job_run, "create_session", create_session)
    (tmp_path / "job.py").write_text(JOB)
    assert ottla(["pipeline", "run", str(tmp_path / "job.py"), *options]) == 1
    assert [settings.remote for settings in given] == [remote]


def test_a_signal_while_spark_starts_is_answered_at_once(
    tmp_path: Path, environment: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The start takes many seconds, and a user who sees nothing presses Ctrl-C again."""
    stop, shown = StopRequests(), []

    def create_session(settings: Any) -> Any:
        stop.handle(TERM, None)
        shown.append(capfd.readouterr().err)
        return SimpleNamespace(stop=lambda: None)

    environment.setattr(job_run, "create_session", create_session)
    (tmp_path / "job.py").write_text(JOB)
    given = JobRun(tmp_path / "job.py", str(tmp_path), RunSettings(False, None, 0, 60.0))
    assert run_job(given, stop, Observer(lambda line: None, lambda error, details: None)) == 0
    assert shown == ["SIGTERM: the job ends as soon as Spark has started\n"]
