"""The child process that runs the Spark job of ``flights_job.py``, as ``ottla pipeline run --once`` does.

Owns the settings of the session, and what is read afterwards: the Parquet files, and the topic as a batch. Must not know the
expected figures. Invariant: it reports figures only after a run without a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from ottla.demo import DemoFailed, flights_job
from ottla.demo.processes import PROGRESS, Emit
from ottla.errors import OttlaError
from ottla.spark.jobs.job_run import JobRun, Observer, run_job
from ottla.spark.jobs.runner import DONE, RunSettings
from ottla.spark.jobs.stopping import StopRequests

PROGRESS_QUERY = "flights"
"""The query whose rows are the progress of the job."""
RESTARTS, REPORT_EVERY = 3, 5.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    # For a job of half a minute, the C1 compiler and the serial collector are faster than C2 and a parallel collector.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Run the job once. Reports ``ready``, ``progress``, ``streamed`` and ``batch``."""
    out = Path(arguments["out"])
    os.environ["OTTLA_BOOTSTRAP_SERVERS"], os.environ["FLIGHTS_OUTPUT"] = arguments["bootstrap_servers"], str(out)
    reports = Reports(emit, out)
    scratch = {"spark.local.dir": str(out / "spark"), "spark.sql.warehouse.dir": str(out / "spark" / "warehouse")}
    job = JobRun(
        Path(flights_job.__file__),
        str(out / "checkpoints"),
        RunSettings(once=True, every=None, restarts=RESTARTS, report_every=REPORT_EVERY),
        master="local[*]",
        settings={**SETTINGS, **scratch},
    )
    try:
        code = run_job(job, StopRequests(), Observer(reports.say, _print_error, reports.watch, reports.finish))
    except OttlaError as error:
        raise DemoFailed(str(error)) from error
    if code != DONE:
        raise DemoFailed("the job has failed")


class Reports:
    """Turns what the run tells into events."""

    def __init__(self, emit: Emit, out: Path) -> None:
        self._emit = emit
        self._parquet = str(out / "flights")
        self._is_ready = False
        self._rows = 0

    def say(self, line: str) -> None:
        """Log a line. The first one is about the start of the queries."""
        print(line, file=sys.stderr)
        if not self._is_ready:
            self._is_ready = True
            self._emit("ready")

    def watch(self, queries: Mapping[str, Any]) -> None:
        """Report the number of rows when it has changed."""
        rows = queries[PROGRESS_QUERY]["rows"]
        if rows != self._rows:
            self._rows = rows
            self._emit(PROGRESS, done=rows)

    def finish(self, spark: SparkSession) -> None:
        """Report the totals of the files, and those of a second read of the topic, as a batch.

        ``whole``: the flights whose timestamp and header match their row.
        """
        scheduled = F.date_trunc("hour", "scheduled_departure") == F.to_timestamp("time_hour")
        whole = F.count_if(scheduled & (F.col("header_origin") == F.col("origin")))
        self._emit("streamed", **_totals(spark.read.parquet(self._parquet), whole.alias("whole")))
        messages = spark.read.format("ottla").options(**flights_job.source()).load()
        self._emit("batch", **_totals(flights_job.parsed(messages)))


def _totals(flights: DataFrame, *more: Column) -> dict[str, int]:
    """Return the number of rows and of distinct flights, and two sums that detect modified flights."""
    totals = flights.agg(
        F.count("*").alias("rows"),
        F.countDistinct("partition", "offset").alias("distinct"),
        F.sum("distance").alias("distance"),
        F.sum("dep_delay").alias("departure_delay"),
        *more,
    ).first()
    assert totals is not None
    return {name: int(value or 0) for name, value in totals.asDict().items()}


def _print_error(message: str, details: tuple[str, ...]) -> None:
    print("\n  ".join([message, *details]), file=sys.stderr)
