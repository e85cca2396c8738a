"""The status of a job, while it runs and afterwards.

Owns how the state of the latest run and the checkpoints become one row per query. Must not know Spark, nor a cluster. Invariant: a
run that was killed is not shown as running.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ottla.errors import ConfigError, OttlaError
from ottla.spark.checkpoint import LoggedBatch, read_batches
from ottla.spark.jobs.state_file import RunDirectory
from ottla.spark.jobs.supervision import ENDED
from ottla.types import TopicPartition

KILLED = "killed"
"""The state of a query whose run has ended without saying so."""


class QueryStatus(NamedTuple):
    """One query. ``positions``: where the next batch begins, if a local checkpoint says it."""

    name: str
    state: str
    batch: int | None
    batch_at: str | None
    figures: dict[str, Any]
    positions: dict[TopicPartition, int]


def status_of(job: Path, checkpoints: str) -> list[QueryStatus]:
    """Return the queries of a job's latest run. Raises ``OttlaError`` if there was none, or if it has no queries."""
    directory = RunDirectory(job, checkpoints)
    is_running = directory.is_running()
    state = directory.read()
    if not state:
        raise OttlaError(
            f"{job} has not been run: there is no {directory.path / 'state.json'}",
            hint="if it was run with --checkpoints, pass the same",
        )
    if not state.get("queries"):
        if is_running:
            raise OttlaError(f"the run of {job} is starting: it has no queries yet", hint="look again in a few seconds")
        raise OttlaError(f"the latest run of {job} ended before it started its queries: {state.get('error') or 'it was killed'}")
    return [_status(name, figures, is_running) for name, figures in state["queries"].items()]


def _status(name: str, figures: dict[str, Any], is_running: bool) -> QueryStatus:
    has_ended = figures["state"] in {state.value for state in ENDED}
    state = figures["state"] if is_running or has_ended else KILLED
    last = last_batch(figures["checkpoint"])
    at = figures["batch_at"]
    if last is None:
        return QueryStatus(name, state, figures["batch"], at and _shown(at), figures, {})
    positions = {tp: offset for source in last.sources if source is not None for tp, offset in source.positions.items()}
    if last.number != figures["batch"] and last.written_at is not None:
        at = datetime.fromtimestamp(last.written_at / 1000, UTC).isoformat()
    return QueryStatus(name, state, last.number, at and _shown(at), figures, positions)


def last_batch(checkpoint: str) -> LoggedBatch | None:
    """Return the latest finished batch in a checkpoint; ``None`` if there is none, or if the checkpoint is not on a local disk."""
    path = Path(checkpoint.removeprefix("file://"))
    try:
        batches = read_batches(path)
    except (ConfigError, OSError):
        return None
    return next((batch for batch in reversed(batches) if batch.is_committed), None)


def _shown(time: str) -> str:
    return time.partition(".")[0].replace("T", " ").removesuffix("Z").removesuffix("+00:00")
