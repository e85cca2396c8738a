"""One run of a job file, from the lock to the end of the session.

Owns the order of the steps and the state file. Must not know the command line. Invariant: however the run ends, the session is
stopped, and the state file says how it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ottla.spark.jobs.job_file import check_checkpoints, check_file, load_job
from ottla.spark.jobs.jvm import is_alive, required, without_tracebacks_of_py4j
from ottla.spark.jobs.metrics import serve_metrics
from ottla.spark.jobs.reports import listed
from ottla.spark.jobs.runner import DONE, SIGNAL, Runner, RunSettings
from ottla.spark.jobs.session import SessionSettings, create_session, prepare_environment
from ottla.spark.jobs.state_file import ENDED, FAILED, RUNNING, RunDirectory, locked_checkpoints
from ottla.spark.jobs.stopping import StopRequests, own_handlers_kept


@dataclass(frozen=True)
class JobRun:
    """What to run, and how. ``checkpoints``: the directory of the checkpoints, for Spark."""

    path: Path
    checkpoints: str
    run: RunSettings
    master: str | None = None
    remote: str | None = None
    metrics_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Observer:
    """Whom a run keeps informed."""

    say: Callable[[str], None]
    """Takes a line about what happens."""
    complain: Callable[[str, tuple[str, ...]], None]
    """Takes an error, and lines of details."""
    watch: Callable[[Mapping[str, Any]], None] = lambda queries: None
    """Takes the state of the queries, several times per second."""
    finish: Callable[[Any], None] = lambda session: None
    """Takes the session after a run without a failure."""


def run_job(given: JobRun, stop: StopRequests, observer: Observer) -> int:
    """Run a job and return the exit code. Raises ``OttlaError`` if it cannot be started."""
    check_file(given.path)  # before a directory is created
    directory = RunDirectory(given.path, given.checkpoints)
    with directory.locked():
        directory.drain.unlink(missing_ok=True)  # that of the run before
        state = _RunState(given, directory, observer)
        with (
            state.kept(), without_tracebacks_of_py4j(), _metrics(given.metrics_port, state.queries, observer.say),
            contextlib.ExitStack() as locks,  # until the session has ended, and all queries with it
        ):  # fmt: skip
            session_settings = SessionSettings(
                name=given.path.stem,
                log=directory.spark_log,
                drain=directory.drain,
                master=given.master,
                remote=given.remote,
                settings=given.settings,
                is_local=directory.is_local,
            )
            stop.announcement = "the job ends as soon as Spark has started"
            prepare_environment(session_settings)
            with own_handlers_kept():  # the file may create a session
                job = load_job(given.path)
            session = create_session(session_settings)
            try:
                if stop.count:
                    state.exit_code = DONE
                    return DONE
                with own_handlers_kept():
                    writers = job.writers(session)
                with required(session, f"the JVM's log is {directory.spark_log}"):
                    checkpoints = check_checkpoints(given.path, writers, given.checkpoints)
                    locks.enter_context(locked_checkpoints(checkpoints))
                    runner = Runner(
                        writers, checkpoints, replace(given.run, is_remote=given.remote is not None), directory, directory.drain,
                        say=observer.say, complain=observer.complain, keep=state.write, is_alive=lambda: is_alive(session),
                    )  # fmt: skip
                observer.say(f"{given.path.name}: running {listed(writers)}; checkpoints in {given.checkpoints}")
                stop.announcement = None
                state.exit_code = runner.run(stop)
                if state.exit_code > SIGNAL:
                    state.interrupted()
                if state.exit_code == DONE:
                    observer.finish(session)
            finally:
                with contextlib.suppress(Exception):
                    session.stop()
        return state.exit_code


class _RunState:
    """What the state file says of the run."""

    def __init__(self, given: JobRun, directory: RunDirectory, observer: Observer) -> None:
        self.exit_code = 1
        self._directory = directory
        self._observer = observer
        self._was_written = True
        self._state: dict[str, Any] = {
            "job": str(given.path.resolve()),
            "process": os.getpid(),
            "started_at": int(time.time() * 1000),
            "ended_at": None,
            "state": RUNNING,
            "error": None,
            "queries": {},
        }

    def queries(self) -> Mapping[str, Any]:
        """The state of the queries."""
        queries: Mapping[str, Any] = self._state["queries"]
        return queries

    def interrupted(self) -> None:
        """A second signal has ended the run."""
        self._state["error"] = f"interrupted by {signal.Signals(self.exit_code - SIGNAL).name}"

    def write(self, queries: Mapping[str, Any]) -> None:
        """Write the state with that of the queries."""
        self._state["queries"] = dict(queries)
        self._observer.watch(queries)
        try:
            self._directory.write(self._state)
            self._was_written = True
        except OSError as error:  # a full disk is no reason to end the queries
            if self._was_written:
                self._observer.say(f"the status is not up to date: {error.filename}: {error.strerror}")
            self._was_written = False

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Write the state at the beginning and at the end of the ``with``."""
        self._directory.write(self._state)
        try:
            yield
        except BaseException as error:
            self._state["error"] = str(error) or type(error).__name__
            raise
        finally:
            self._state["state"] = ENDED if self.exit_code == DONE else FAILED
            self._state["ended_at"] = int(time.time() * 1000)
            with contextlib.suppress(OSError):
                self._directory.write(self._state)


@contextlib.contextmanager
def _metrics(port: int | None, state: Callable[[], Mapping[str, Any]], say: Callable[[str], None]) -> Iterator[None]:
    if port is None:
        yield
        return
    with serve_metrics(state, port) as server:
        say(f"metrics: http://localhost:{server.port}/metrics")
        yield
