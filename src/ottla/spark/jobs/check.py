"""The check of a job, which writes nothing.

Owns the order: the options and columns of each sink, its output mode, its checkpoint; then the latest records through the plan of
each query, with the sink ``noop`` and a temporary checkpoint. Must not know the command line. Invariants: a query is tried only if
its checks have found nothing; one query at a time runs.

The functions of ``foreachBatch`` and ``foreach`` are not called, as they would write.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.errors import ConfigError, OttlaError
from ottla.spark.jobs.causes import cause_of
from ottla.spark.jobs.job_file import JobError, check_checkpoints, load_job
from ottla.spark.jobs.jvm import ENDED as JVM_ENDED, has_ended, required, without_tracebacks_of_py4j
from ottla.spark.jobs.session import SessionSettings, create_session, prepare_environment
from ottla.spark.jobs.stopping import own_handlers_kept
from ottla.spark.jobs.writers import WriterSettings, frame_of, settings_of
from ottla.spark.runner_environment import SAMPLE

FILES = ("csv", "json", "orc", "parquet", "text", "avro", "xml")
"""Sinks that write files."""
FUNCTIONS = ("foreachBatch", "foreach")
POLL = 0.2
"""Seconds between two looks at the query."""


@dataclass
class CheckedQuery:
    """What the check has found of one query."""

    name: str
    sink: str
    output_mode: str
    checkpoint: str | None
    problems: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Errors, each with lines of details."""
    records: int | None = None
    """Records that were read for the sample; ``None`` without one."""
    seconds: float | None = None

    @property
    def is_function(self) -> bool:
        """Whether a function writes the rows, which the check does not call."""
        return self.sink in FUNCTIONS


@dataclass(frozen=True)
class CheckSettings:
    """What to check. ``sample``: records of each query's sources, 0 for none."""

    path: Path
    checkpoints: str
    sample: int
    master: str | None
    settings: Mapping[str, str]


def check_job(given: CheckSettings, is_stopped: Callable[[], bool]) -> Iterator[CheckedQuery]:
    """Check each query of a job. ``is_stopped()`` is true when the check has to end.

    Raises ``OttlaError`` if the file cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="ottla-pipeline-") as scratch:
        session_settings = SessionSettings(
            given.path.stem, Path(scratch, "spark.log"), Path(scratch, "drain"), given.master, settings=given.settings
        )
        os.environ[SAMPLE] = str(given.sample)
        prepare_environment(session_settings)
        with own_handlers_kept():  # the file may create a session
            job = load_job(given.path)
        session = create_session(session_settings)
        with without_tracebacks_of_py4j():
            try:
                with own_handlers_kept():
                    writers = job.writers(session)
                with required(session):  # all of them before the first is tried, which may end the JVM
                    checked = _all_checked(given, writers)
                for query, writer in zip(checked, writers.values(), strict=True):
                    if given.sample and not query.problems and not is_stopped():
                        _try(query, writer, session, Path(scratch, "checkpoints", query.name), is_stopped)
                    yield query
            finally:
                with contextlib.suppress(Exception):  # a JVM that has ended: the queries' problems say so
                    session.stop()


def _all_checked(given: CheckSettings, writers: Mapping[str, Any]) -> list[CheckedQuery]:
    shared = _shared(given, writers)
    checked = [_checked(name, writer, given.checkpoints) for name, writer in writers.items()]
    for query in checked:
        if shared is not None and repr(query.name) in shared:
            query.problems.append((shared, ()))
    return checked


def _shared(given: CheckSettings, writers: Mapping[str, Any]) -> str | None:
    try:
        check_checkpoints(given.path, writers, given.checkpoints)
    except JobError as error:
        return str(error)
    return None


def _checked(name: str, writer: Any, checkpoints: str) -> CheckedQuery:
    settings = settings_of(writer)
    query = CheckedQuery(name, settings.sink, settings.output_mode, settings.checkpoint or f"{checkpoints}/{name}")
    try:
        check_sink(settings, frame_of(writer))
    except OttlaError as error:
        query.problems.append((str(error), ()))
    return query


def check_sink(settings: WriterSettings, frame: Any) -> None:
    """Check the sink of a writer, as far as the sink is known. Raises ``OttlaError``."""
    if not frame.isStreaming:
        raise ConfigError("the DataFrame is not a stream", hint="read it with spark.readStream")
    sink, mode = settings.sink.lower(), settings.output_mode  # format() does not regard case
    if sink in FILES:
        if "path" not in settings.options:
            raise ConfigError(f"the sink {sink} has no option path")
        if mode != "append":
            raise ConfigError(f"the sink {sink} supports the output mode append, not {mode}")
    if sink == "ottla":
        from ottla.spark.source import OttlaDataSource

        if mode == "update":
            hint = "use foreachBatch and the batch sink"
            raise ConfigError("the sink ottla supports the output modes append and complete, not update", hint=hint)
        # What Spark calls when the query starts: the check refuses whatever that does.
        OttlaDataSource(dict(settings.options)).streamWriter(frame.schema, overwrite=mode == "complete")


def _try(query: CheckedQuery, writer: Any, session: Any, checkpoint: Path, is_stopped: Callable[[], bool]) -> None:
    """Run the plan on the latest records."""
    began = time.monotonic()
    records = 0
    try:
        trial = writer.format("noop").queryName(query.name).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        running = trial.start()
        while running.isActive and not is_stopped():
            time.sleep(POLL)
        error = running.exception()
        running.stop()
        records = sum(int(json.loads(progress.json).get("numInputRows", 0)) for progress in running.recentProgress)
    except Exception as raised:
        if has_ended(session, raised):
            query.problems.append((JVM_ENDED, ()))
            return
        error = raised
    if error is not None:
        cause = cause_of(str(error))
        query.problems.append((cause.message, cause.details))
        return
    query.seconds = round(time.monotonic() - began, 1)
    query.records = records
