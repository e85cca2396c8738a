"""``ottla pipeline``: runs and checks jobs of Spark, files with ``def queries(spark)``.

Owns the options and their checks. Must not know Spark, nor how a job is run. Invariant: nothing of PySpark is imported before the
options are correct.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.clients import connected_admin
from ottla.cli.lag import lag_behind
from ottla.cli.options import Format, OutputFormat, Settings, SingleValueCommand, compared_with, parse_pairs, parse_path
from ottla.cli.output import CommandFailed, print_error, print_line, print_progress, print_rows, print_warning
from ottla.errors import ConfigError, OttlaError
from ottla.spark.jobs.check import CheckedQuery, CheckSettings, check_job
from ottla.spark.jobs.job_file import JobError
from ottla.spark.jobs.job_run import JobRun, Observer, run_job
from ottla.spark.jobs.project import write_project
from ottla.spark.jobs.runner import RunSettings
from ottla.spark.jobs.session import REMOTE
from ottla.spark.jobs.state_file import default_checkpoints
from ottla.spark.jobs.status import QueryStatus, status_of
from ottla.spark.jobs.stopping import stop_requests
from ottla.spark.locations import is_url

app = typer.Typer(
    help="Run, check and start projects of jobs of Spark: files with def queries(spark).",
    no_args_is_help=True,
    add_completion=False,
)

UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
REPORT_EVERY, REPORT_EVERY_IN_LOG = 5.0, 60.0
"""Seconds between two lines about a query, on a terminal and elsewhere."""
RESTARTS = 5
SAMPLE = 1000
CHECK_COLUMNS = ("query", "sink", "output_mode", "checkpoint", "records", "seconds", "result")
STATUS_COLUMNS = ("query", "state", "batch", "time", "rows_per_second", "batch_seconds", "lag", "restarts", "error")
REQUIRED_MODULES = ("pyspark", "pyarrow")
INSTALL_COMMAND = 'pip install "ottla[spark]"'

JobFile = Annotated[Path, typer.Argument(metavar="FILE", parser=parse_path, help="The job: a file with def queries(spark).")]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints", metavar="DIR", help="Directory of the checkpoints; default: checkpoints/NAME, beside the file NAME.py."
    ),
]
Master = Annotated[str | None, typer.Option("--master", metavar="MASTER", help="Spark's master, for example local[4].")]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark, for example spark.driver.memory=4g; may be repeated."),
]


@app.callback()
def pipeline_group() -> None:
    """Run, check and start projects of jobs of Spark: files with def queries(spark)."""


@app.command(cls=SingleValueCommand)
def run(
    file: JobFile,
    once: Annotated[bool, typer.Option("--once", help="End when the records that exist now are processed.")] = False,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="Begin a batch so often: 500ms, 10s, 5m or 1h.")
    ] = None,
    master: Master = None,
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="URL", help="Run on a server of Spark Connect: sc://HOST:PORT.")
    ] = None,
    checkpoints: Checkpoints = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="HTTP port of /metrics for Prometheus; 0: any free one.")
    ] = None,
    restarts: Annotated[
        int, typer.Option("--restarts", metavar="N", min=0, help="Start a failed query again so often before the job fails.")
    ] = RESTARTS,
    settings: SparkSettings = None,
) -> None:
    """Run the queries of a job until SIGTERM or Ctrl-C, or with --once until all records are processed."""
    if once and every is not None:
        raise typer.BadParameter("cannot be used with --once", param_hint="--every")
    if master is not None and remote is not None:
        raise typer.BadParameter("cannot be used with --master", param_hint="--remote")
    if master is None and remote is None:
        remote = os.environ.get(REMOTE) or None
    interval = None if every is None else parse_interval(every)
    report_every = REPORT_EVERY if sys.stderr.isatty() else REPORT_EVERY_IN_LOG
    given = JobRun(
        file,
        location(file, checkpoints),
        RunSettings(once, interval, restarts, report_every),
        master,
        remote,
        metrics_port,
        parse_pairs(settings, "--conf"),
    )
    check_modules()
    with stop_requests() as stop:
        try:
            code = run_job(given, stop, Observer(print_progress, _complain))
        except JobError as error:
            raise CommandFailed(str(error), [f"  {line}" for line in error.details]) from error
    raise typer.Exit(code)


@app.command(cls=SingleValueCommand)
def check(
    file: JobFile,
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=0, max=10**9, help="Run each query on N of the latest records; 0: on none.")
    ] = SAMPLE,
    master: Master = None,
    checkpoints: Checkpoints = None,
    settings: SparkSettings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Check the queries of a job, and run them on real records without writing anything; exit code 1 if something is wrong."""
    given = CheckSettings(file, location(file, checkpoints), sample, master, parse_pairs(settings, "--conf"))
    check_modules()
    with stop_requests() as stop:
        try:
            checked = list(check_job(given, lambda: stop.count > 0))
        except JobError as error:
            raise CommandFailed(str(error), [f"  {line}" for line in error.details]) from error
        if stop.signal is not None:
            raise typer.Exit(128 + stop.signal)
    print_rows([_checked_row(query, sample) for query in checked], CHECK_COLUMNS, output)
    problems = [(query.name, *problem) for query in checked for problem in query.problems]
    for name, message, details in problems:
        _complain(f"query {name}: {message}", details)
    raise typer.Exit(1 if problems else 0)


def _checked_row(query: CheckedQuery, sample: int) -> dict[str, object]:
    if query.problems:
        result = "failed"
    elif not sample:
        result = "not tried"
    elif query.records == 0:
        result = "not tried: there are no records"
    else:
        result = "ok, without its function" if query.is_function else "ok"
    return {
        "query": query.name,
        "sink": query.sink,
        "output_mode": query.output_mode,
        "checkpoint": query.checkpoint,
        "records": query.records,
        "seconds": query.seconds,
        "result": result,
    }


@app.command(cls=SingleValueCommand)
def status(
    file: JobFile,
    checkpoints: Checkpoints = None,
    bootstrap_servers: Annotated[str | None, compared_with("the lag at this moment instead of that of the latest report")] = None,
    client_settings: Settings = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Show the queries of a job that runs, or of its latest run: the latest batch, the lag, the restarts."""
    found = status_of(file, location(file, checkpoints))
    rows = [
        {
            "query": each.name,
            "state": each.state,
            "batch": each.batch,
            "time": each.batch_at,
            "rows_per_second": _rounded(each.figures["rows_per_second"]),
            "batch_seconds": each.figures["batch_seconds"],
            "lag": each.figures["lag"],
            "restarts": each.figures["restarts"],
            "error": each.figures["error"],
        }
        for each in found
    ]
    if bootstrap_servers is not None and any(each.positions for each in found):
        for each, row, lag in zip(found, rows, _lags(found, bootstrap_servers, client_settings), strict=True):
            row["lag"] = lag if each.positions else row["lag"]
    print_rows(rows, STATUS_COLUMNS, output)


def _lags(queries: Sequence[QueryStatus], bootstrap_servers: str, client_settings: Sequence[str] | None) -> list[int | None]:
    """The lag of each query now. A cluster that does not respond is a warning: -b may come from the environment."""
    try:
        with connected_admin(bootstrap_servers, client_settings) as admin:
            return [lag_behind(admin, query.positions) if query.positions else None for query in queries]
    except ConfigError:
        raise
    except OttlaError as error:
        print_warning(f"the lag at this moment is not known: {error}")
        return [None] * len(queries)


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


@app.command(cls=SingleValueCommand)
def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", parser=parse_path, help="The directory, which must be new or empty.")],
) -> None:
    """Write a new project: a job, its test, and what they need."""
    for path in write_project(folder):
        print_line(f"wrote {path}")
    print_line(f"next: cd {folder}, pip install -e '.[dev]', pytest")


def parse_interval(text: str) -> str:
    """Return Spark's text for ``10s``. Raises ``typer.BadParameter``."""
    found = re.fullmatch(r"([1-9][0-9]{0,8})(ms|s|m|h)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time, such as 500ms, 10s, 5m or 1h", param_hint="--every")
    return f"{found[1]} {UNITS[found[2]]}"


def location(file: Path, checkpoints: str | None) -> str:
    """Return the directory of the checkpoints, as an absolute path unless it is a URL: the JVM may have another directory."""
    if checkpoints is None:
        return default_checkpoints(file)
    if is_url(checkpoints):
        return checkpoints
    return str(parse_path(checkpoints).absolute())


def check_modules() -> None:
    """Raise ``CommandFailed`` if PySpark is missing."""
    missing = [name for name in REQUIRED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandFailed(f"jobs of Spark need {' and '.join(missing)}: {INSTALL_COMMAND}")


def _complain(message: str, details: tuple[str, ...]) -> None:
    print_error(message, [f"  {line}" for line in details])
