"""The reports of a run: what Spark says of a query's batches, and the lines that are printed.

Owns the figures of a query and their words. Must not know a query or a file. Invariant: a figure that Spark does not give is
``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.errors import ConfigError
from ottla.spark.offsets import StreamOffset


@dataclass(frozen=True)
class BatchReport:
    """What Spark reports of a query's latest finished batch."""

    number: int
    rows: int
    rows_per_second: float | None
    seconds: float | None
    """From the beginning of the batch to its end."""
    lag: int | None
    """Records between the end of the batch and the ends of the logs, as known when it began; ``None`` without a Kafka source."""
    at: str
    """When the batch began, as Spark writes it."""


def read_progress(progress: Mapping[str, Any]) -> BatchReport:
    """Return the report in the JSON of a ``StreamingQueryProgress``."""
    sources = progress.get("sources", ())
    lags = [lag for source in sources if (lag := _lag(source)) is not None]
    milliseconds = progress.get("batchDuration")
    if milliseconds is None:
        milliseconds = progress.get("durationMs", {}).get("triggerExecution")
    return BatchReport(
        number=int(progress.get("batchId", 0)),
        rows=int(progress.get("numInputRows", sum(source.get("numInputRows", 0) for source in sources))),
        rows_per_second=_number(progress.get("processedRowsPerSecond")),
        seconds=None if milliseconds is None else int(milliseconds) / 1000,
        lag=sum(lags) if lags else None,
        at=str(progress.get("timestamp", "")),
    )


def has_new_records(progress: Mapping[str, Any]) -> bool:
    """Whether a source has offered new records for the batch: its end is not its start. ``numInputRows`` does not say it: it is 0
    where a function in ``foreachBatch`` does not read the rows."""
    return any(source.get("startOffset") != source.get("endOffset") for source in progress.get("sources", ()))


def _number(value: Any) -> float | None:
    """Spark writes ``NaN`` and ``Infinity`` as texts, or leaves them out."""
    return float(value) if isinstance(value, int | float) and value == value and abs(value) != float("inf") else None


def _lag(source: Mapping[str, Any]) -> int | None:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(max(0, latest.positions[tp] - end) for tp, end in ends.positions.items() if tp in latest.positions)


def _offsets(value: Any) -> StreamOffset | None:
    """Read an offset, which is JSON inside the JSON, or a text of it."""
    if isinstance(value, str):
        return StreamOffset.parse(value)
    try:
        return StreamOffset.from_json(value) if isinstance(value, Mapping) else None
    except ConfigError:  # of a source that is not Kafka
        return None


def progress_line(name: str, report: BatchReport, batches: int, rows: int) -> str:
    """Return the line about a query that has finished ``batches`` batches with ``rows`` rows since its previous line."""
    parts = [f"batch {report.number}", f"{rows:,} rows in {batches} {'batch' if batches == 1 else 'batches'}"]
    if report.rows_per_second is not None:
        parts.append(f"{report.rows_per_second:,.0f} rows/s")
    if report.seconds is not None:
        parts.append(f"batch time {report.seconds:.2f} s")
    if report.lag is not None:
        parts.append(f"lag {report.lag:,}")
    return f"{name}: {', '.join(parts)}"


def listed(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
