"""The figures and lines of a run, its state file, and its metrics."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import typer

from ottla.cli.pipeline import location, parse_interval
from ottla.errors import OttlaError
from ottla.spark.jobs.metrics import serve_metrics
from ottla.spark.jobs.reports import listed, progress_line, read_progress
from ottla.spark.jobs.state_file import MOST_BYTES, RunDirectory

PROGRESS: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-11-26T19:22:25.660Z",
    "batchDuration": 417,
    "numInputRows": 1200,
    "processedRowsPerSecond": 2877.7,
    "sources": [{"endOffset": {"orders": {"0": 10, "1": 5}}, "latestOffset": {"orders": {"0": 12, "1": 5, "2": 1}}}],
}


def test_a_report_of_spark() -> None:
    report = read_progress(PROGRESS)
    assert (report.number, report.rows, report.seconds, report.lag, report.rows_per_second) == (7, 1200, 0.417, 2, 2877.7)
    line = progress_line("orders", report, 2, 1900)
    assert line == "orders: batch 7, 1,900 rows in 2 batches, 2,878 rows/s, batch time 0.42 s, lag 2"


def test_figures_that_spark_does_not_give_are_left_out() -> None:
    report = read_progress({"batchId": 0, "processedRowsPerSecond": "NaN", "sources": [{"endOffset": "0", "latestOffset": None}]})
    assert (report.rows, report.rows_per_second, report.seconds, report.lag) == (0, None, None, None)
    assert progress_line("rate", report, 1, 0) == "rate: batch 0, 0 rows in 1 batch"


def test_lists() -> None:
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


@pytest.mark.parametrize(("text", "expected"), [("500ms", "500 milliseconds"), ("10s", "10 seconds"), ("1h", "1 hours")])
def test_intervals(text: str, expected: str) -> None:
    assert parse_interval(text) == expected


@pytest.mark.parametrize("text", ["", "10", "0s", "10 s", "-1s", "1d", "1.5s"])
def test_other_intervals_are_bad_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        parse_interval(text)


def test_the_directory_of_the_checkpoints(tmp_path: Path) -> None:
    job = tmp_path / "orders.py"
    assert location(job, None) == str(tmp_path / "checkpoints" / "orders")
    assert location(job, "s3a://bucket/orders") == "s3a://bucket/orders"
    assert location(job, "hdfs:/orders") == "hdfs:/orders"
    assert location(job, "file:/orders") == "file:/orders"
    assert location(job, "here") == str(Path.cwd() / "here")
    assert location(job, "c:/here") == str(Path.cwd() / "c:/here")
    for prefix in ("", "file:", "file://"):
        directory = RunDirectory(job, f"{prefix}{tmp_path}/x")
        assert (directory.path, directory.is_local) == (tmp_path / "x" / "_pipeline", True)


def test_runs_with_other_urls_have_other_directories(tmp_path: Path) -> None:
    job = tmp_path / "orders.py"
    directories = [RunDirectory(job, url) for url in ("s3a://bucket/orders", "s3a://bucket/orders/", "hdfs:/orders")]
    names = [directory.path.name for directory in directories]
    assert names == ["_pipeline-1b7aaf9c", "_pipeline-1b7aaf9c", names[2]]
    assert names[2] != names[0]
    assert {directory.path.parent for directory in directories} == {tmp_path / "checkpoints" / "orders"}
    with directories[0].locked(), directories[2].locked():
        assert not any(directory.is_local for directory in directories)


def test_a_second_run_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "job.py", str(tmp_path / "checkpoints"))
    assert not directory.is_running()
    with directory.locked():
        directory.write({"process": 4711})
        other = RunDirectory(tmp_path / "job.py", str(tmp_path / "checkpoints"))
        assert other.is_running()
        with pytest.raises(OttlaError, match="the job runs already, as process 4711"), other.locked():
            pass
    assert not directory.is_running()
    assert directory.read() == {"process": 4711}


def test_a_second_run_is_refused_also_if_the_state_is_damaged(tmp_path: Path) -> None:
    directory, other = RunDirectory(tmp_path / "job.py", str(tmp_path)), RunDirectory(tmp_path / "job.py", str(tmp_path))
    with directory.locked():
        (directory.path / "state.json").write_text("{")
        with pytest.raises(OttlaError, match="the job runs already, as process unknown"), other.locked():
            pass


def test_a_look_at_the_status_keeps_no_run_from_starting(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "job.py", str(tmp_path))
    directory.path.mkdir()
    look = (directory.path / "lock").open("w")
    fcntl.flock(look, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, look.close)
    timer.start()
    with directory.locked():
        assert directory.is_running()
    timer.join()


def test_the_lock_ends_with_the_process_that_has_it(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from ottla.spark.jobs.state_file import MOST_BYTES, RunDirectory
with RunDirectory(Path("job.py"), {str(tmp_path)!r}).locked():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    assert not RunDirectory(tmp_path / "job.py", str(tmp_path)).is_running()


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = RunDirectory(tmp_path / "job.py", str(tmp_path / "file"))
    with pytest.raises(OttlaError, match=r"cannot write to .*file/_pipeline: Not a directory"), directory.locked():
        pass


def test_a_state_that_is_not_json_is_an_error(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "job.py", str(tmp_path))
    assert directory.read() == {}
    directory.path.mkdir()
    (directory.path / "state.json").write_text("{")
    with pytest.raises(OttlaError, match=r"cannot read .*state\.json"):
        directory.read()


def test_metrics_of_the_queries() -> None:
    figures = {"state": "running", "rows": 1200, "batch": 7, "batch_seconds": 0.4, "rows_per_second": None, "lag": 2, "restarts": 1}
    with serve_metrics(lambda: {"orders": figures}, 0) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        with pytest.raises(OttlaError, match=f"cannot serve metrics on port {server.port}: Address already in use"):
            serve_metrics(dict, server.port)
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
    label = '{query="orders"}'
    assert samples == {
        f"ottla_pipeline_rows_total{label}": 1200,
        f"ottla_pipeline_batch{label}": 7,
        f"ottla_pipeline_batch_seconds{label}": 0.4,
        f"ottla_pipeline_lag_records{label}": 2,
        f"ottla_pipeline_restarts_total{label}": 1,
        f"ottla_pipeline_running{label}": 1,
    }


def test_errors_are_appended_to_the_log(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "job.py", str(tmp_path))
    directory.add_error("orders", "lost: the directory does not exist")
    with directory.locked():
        directory.add_error("orders", "first\n")
        directory.add_error("bills", json.dumps("second"))
    lines = directory.error_log.read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["orders", "first", "", "bills", '"second"', ""]
    directory.error_log.write_text("x" * (MOST_BYTES + 1))
    directory.add_error("orders", "third")
    assert directory.error_log.read_text().endswith(" orders\nthird\n\n")
    assert directory.error_log.with_name("errors.log.1").stat().st_size == MOST_BYTES + 1
