"""The status of a job, while it runs and afterwards.

Owns how the state of the latest run and the checkpoints become one row per query. Must not know Spark, nor a cluster. Invariant: a
run that was killed is not shown as running.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ottla.errors import ConfigError, OttlaError
from ottla.spark.checkpoint import LoggedBatch, read_batches
from ottla.spark.jobs.job_file import check_file
from ottla.spark.jobs.state_file import RUNNING, RunDirectory
from ottla.spark.jobs.supervision import ENDED
from ottla.spark.locations import local_path
from ottla.types import TopicPartition

KILLED = "killed"
"""The state of a query whose run has ended without saying so."""
UNKNOWN = "unknown"
FIGURES: Mapping[str, Any] = {
    "state": str,
    "checkpoint": str,
    "batch": int,
    "batch_at": str,
    "batch_seconds": int | float,
    "rows_per_second": int | float,
    "lag": int,
    "restarts": int,
    "error": str,
}
"""What a run writes of a query. Another version of Ottla may leave some out."""


class QueryStatus(NamedTuple):
    """One query. ``positions``: where the next batch begins, if a local checkpoint says it."""

    name: str
    state: str
    batch: int | None
    batch_at: str | None
    figures: dict[str, Any]
    positions: dict[TopicPartition, int]


def status_of(job: Path, checkpoints: str) -> list[QueryStatus]:
    """Return the queries of a job's latest run. Raises ``OttlaError`` if there was none, or if it has no queries. The job's file
    may be gone by now."""
    directory = RunDirectory(job, checkpoints)
    is_running = directory.is_running()
    state = directory.read()
    if not state:
        check_file(job)
        raise OttlaError(
            f"{job} has not been run: there is no {directory.path / 'state.json'}",
            hint="if it was run with --checkpoints, pass the same",
        )
    queries = state.get("queries")
    if not queries:
        if is_running:
            raise OttlaError(f"the run of {job} is starting: it has no queries yet", hint="look again in a few seconds")
        raise OttlaError(f"the latest run of {job} ended before it started its queries: {state.get('error') or 'it was killed'}")
    try:
        checked = {name: _checked(figures) for name, figures in queries.items()}
    except (AttributeError, TypeError) as error:
        raise OttlaError(
            f"{directory.path / 'state.json'} has another form: a run of another version of Ottla has written it",
            hint="the next run writes it again", cause=error,
        ) from error  # fmt: skip
    return [_status(name, figures, state, is_running) for name, figures in checked.items()]


def _checked(figures: Any) -> dict[str, Any]:
    """Return the figures of a query, those that are missing as ``None``. Raises ``TypeError`` for others than those of a run."""
    if not isinstance(figures, dict):
        raise TypeError(f"{figures!r} is not a dictionary")
    for name, kind in FIGURES.items():
        if not isinstance(figures.get(name), kind | None):
            raise TypeError(f"{name} is {figures[name]!r}")
    return {name: figures.get(name) for name in FIGURES}


def _status(name: str, figures: dict[str, Any], run: dict[str, Any], is_running: bool) -> QueryStatus:
    state = figures["state"] or UNKNOWN
    if not is_running and state not in {state.value for state in ENDED}:
        # A run that was not killed has said how it has ended: its JVM did, or a second signal arrived.
        state = KILLED if run.get("state") in (None, RUNNING) else str(run["state"])
        figures = {**figures, "error": figures["error"] or run.get("error")}
    last = last_batch(figures["checkpoint"]) if figures["checkpoint"] else None
    at = figures["batch_at"]
    if last is None:
        return QueryStatus(name, state, figures["batch"], at and _shown(at), figures, {})
    positions = {tp: offset for source in last.sources if source is not None for tp, offset in source.positions.items()}
    if last.number != figures["batch"] and last.written_at is not None:
        at = datetime.fromtimestamp(last.written_at / 1000, UTC).isoformat()
    return QueryStatus(name, state, last.number, at and _shown(at), figures, positions)


def last_batch(checkpoint: str) -> LoggedBatch | None:
    """Return the latest finished batch in a checkpoint; ``None`` if there is none, or if the checkpoint is not on a local disk."""
    path = local_path(checkpoint)
    try:
        batches = [] if path is None else read_batches(Path(path))
    except (ConfigError, OSError):
        return None
    return next((batch for batch in reversed(batches) if batch.is_committed), None)


def _shown(time: str) -> str:
    return time.partition(".")[0].replace("T", " ").removesuffix("Z").removesuffix("+00:00")
