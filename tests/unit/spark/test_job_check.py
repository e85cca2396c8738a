"""What a check refuses before it runs a query, which records are a sample, and the status of a run from its files."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from ottla.cli.app import run
from ottla.errors import ConfigError, OttlaError
from ottla.spark.jobs import check, job_run
from ottla.spark.jobs.check import check_sink
from ottla.spark.jobs.project import write_project
from ottla.spark.jobs.state_file import RunDirectory
from ottla.spark.jobs.status import last_batch
from ottla.spark.jobs.writers import WriterSettings
from ottla.spark.runner_environment import SAMPLE, sample_starts
from ottla.spark.source import OttlaDataSource
from ottla.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
TOPIC = {**SERVERS, "topic": "invoices", "checkpointlocation": "here"}
ONCE = {**TOPIC, "exactlyonce": "true"}
FIGURES = {
    "state": "running",
    "batch": 4,
    "batch_at": "2026-11-26T19:22:25.660Z",
    "batch_seconds": 0.4,
    "rows": 100,
    "rows_per_second": 250.4,
    "lag": 7,
    "restarts": 1,
    "error": None,
}


def frame(*columns: str, is_stream: bool = True) -> Any:
    return SimpleNamespace(isStreaming=is_stream, schema=StructType([StructField(name, StringType()) for name in columns]))


@pytest.mark.parametrize(
    ("sink", "options", "mode", "columns", "reason"),
    [
        ("ottla", TOPIC, "update", ["value"], "supports the output modes append and complete, not update"),
        ("Ottla", TOPIC, "append", ["key"], "there is no column 'value', only 'key'"),
        ("parquet", {}, "append", ["value"], "the sink parquet has no option path"),
        ("Parquet", {}, "append", ["value"], "the sink parquet has no option path"),
        ("json", {"path": "x"}, "complete", ["value"], "the sink json supports the output mode append, not complete"),
    ],
)
def test_sinks_that_cannot_work(sink: str, options: dict[str, str], mode: str, columns: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_sink(WriterSettings(sink, options, mode), frame(*columns))


@pytest.mark.parametrize(
    ("options", "columns", "reason"),
    [
        ({"topic": "x"}, ["value"], "option kafka.bootstrap.servers is missing"),
        ({**TOPIC, "topik": "x"}, ["value"], "topik"),
        ({**TOPIC, "topic": " "}, ["value"], "option topic is empty"),
        ({**TOPIC, "kafka.acks": "2"}, ["value"], "acks=.2.: expected all or 1"),
        ({**ONCE, "exactlyonce": "yes"}, ["value"], "option exactlyOnce must be true or false"),
        ({**ONCE, "sinkid": "a.b"}, ["value"], "option sinkId must be 1 to 100 letters"),
        ({**ONCE, "onreplaymismatch": "retry"}, ["value"], "option onReplayMismatch must be fail, skip or repeat"),
        ({**ONCE, "txnversion": "1"}, ["value"], "options txnAppId and txnVersion need each other"),
        ({**TOPIC, "txnappid": "a", "txnversion": "1"}, ["value"], "options txnAppId and txnVersion need exactlyOnce=true"),
        ({**ONCE, "txnappid": "a", "txnversion": "1"}, ["value"], "are for foreachBatch and for batch jobs, not for writeStream"),
        (TOPIC, ["key"], "there is no column 'value', only 'key'"),
        (SERVERS, ["value"], "there is no topic"),
        (TOPIC, ["value", "partition"], "column 'partition' is string; expected: int"),
        (TOPIC, ["value", "headers"], "column 'headers' is string"),
    ],
)
def test_the_check_refuses_what_the_sink_refuses_when_a_query_starts(
    options: dict[str, str], columns: list[str], reason: str
) -> None:
    written = frame(*columns)
    with pytest.raises(ConfigError, match=reason) as at_start:
        OttlaDataSource(dict(options)).streamWriter(written.schema, overwrite=False)
    with pytest.raises(ConfigError, match=re.escape(str(at_start.value))):
        check_sink(WriterSettings("ottla", options, "append"), written)


@pytest.mark.parametrize(
    ("sink", "options", "mode"), [("ottla", TOPIC, "complete"), ("delta", {}, "complete"), ("csv", {"path": "x"}, "append")]
)
def test_sinks_that_may_work(sink: str, options: dict[str, str], mode: str) -> None:
    check_sink(WriterSettings(sink, options, mode), frame("value"))


def test_a_frame_that_is_no_stream() -> None:
    with pytest.raises(ConfigError, match=r"not a stream \(read it with spark.readStream\)"):
        check_sink(WriterSettings("noop", {}, "append"), frame(is_stream=False))


JOB = """
from types import SimpleNamespace
from pyspark.sql.types import StructType

def writer(location):
    options = {} if location is None else {"checkpointLocation": location}
    request = SimpleNamespace(format="noop", options=options, output_mode="", HasField=lambda name: False)
    frame = SimpleNamespace(isStreaming=True, schema=StructType([]))
    return SimpleNamespace(_write_proto=request, _df=frame, foreachBatch=None)

def queries(spark):
    return {"orders": writer(None), "bills": writer(LOCATION), "drafts": writer("elsewhere")}
"""
"""Writers as those of Spark Connect."""


@pytest.fixture
def without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of ``JOB`` needs no session. The environment is as before after the test."""
    monkeypatch.setattr(check, "prepare_environment", lambda settings: None)
    monkeypatch.setattr(check, "create_session", lambda settings: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in (SAMPLE, "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("location", ["{}/orders", "{}/orders/", "file:{}/orders", "checkpoints/x/../job/orders", "link/orders"])
def test_two_queries_with_one_checkpoint_however_it_is_spelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], location: str
) -> None:
    location = location.format(tmp_path / "checkpoints" / "job")
    (tmp_path / "link").symlink_to(tmp_path / "checkpoints" / "job")
    (tmp_path / "job.py").write_text(f"LOCATION = {location!r}\n{JOB}")
    assert run(["pipeline", "check", "job.py", "--sample", "0", "--format", "json"]) == 1
    printed = capsys.readouterr()
    assert [row["result"] for row in json.loads(printed.out)] == ["failed", "failed", "not tried"]
    reason = f"job.py: the queries 'orders' and 'bills' have the same checkpoint {location} ("
    assert [line.partition("each query")[0] for line in printed.err.splitlines()] == [
        f"error: query orders: {reason}",
        f"error: query bills: {reason}",
    ]


@pytest.mark.usefixtures("without_spark")
def test_several_checkpoints_that_queries_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locations = {"a": "x", "b": "y", "c": "x", "d": "z", "e": "y/", "f": "x"}
    queries = f"{{name: writer(at) for name, at in {locations!r}.items()}}"
    (tmp_path / "job.py").write_text(f"LOCATION = 'x'\n{JOB}\ndef queries(spark):\n    return {queries}\n")
    assert run(["pipeline", "check", "job.py", "--sample", "0", "--format", "json"]) == 1
    printed = capsys.readouterr()
    assert [row["result"] for row in json.loads(printed.out)] == [*["failed"] * 3, "not tried", *["failed"] * 2]
    reason = "the queries 'a', 'c' and 'f' have the same checkpoint x; the queries 'b' and 'e' have the same checkpoint y/ ("
    assert reason in printed.err


@pytest.mark.usefixtures("without_spark")
def test_two_queries_with_checkpoints_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.py").write_text(f"LOCATION = 'checkpoints/orders'\n{JOB}")
    assert run(["pipeline", "check", "job.py", "--sample", "0"]) == 0
    assert not capsys.readouterr().err


DEADLY = """
from types import SimpleNamespace
from pyspark.sql.types import StructType

class Writer:
    foreachBatch = None
    _df = SimpleNamespace(isStreaming=True, schema=StructType([]))

    def __init__(self, spark):
        self.spark = spark
        self._write_proto = SimpleNamespace(format="noop", options={}, output_mode="", HasField=self._has_field)

    def _has_field(self, name):
        self._call()
        return False

    def _call(self, *args, **options):
        if self.spark.has_ended:
            raise ConnectionRefusedError(111, "Connection refused")
        return self

    format = queryName = option = trigger = _call

    def start(self):
        self.spark.has_ended = True
        return self._call()

def queries(spark):
    spark.has_ended = EARLY
    return {"orders": Writer(spark), "bills": Writer(spark)}
"""
"""Writers whose JVM ends with the first query that is started, or ``EARLY``, before they are checked."""


def session_of_a_jvm() -> Any:
    session = SimpleNamespace(_jvm=None, has_ended=False, stop=lambda: None)
    process = SimpleNamespace(poll=lambda: 137 if session.has_ended else None)
    session.sparkContext = SimpleNamespace(_gateway=SimpleNamespace(proc=process))
    return session


@pytest.mark.usefixtures("without_spark")
def test_a_jvm_that_ends_during_a_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "create_session", lambda settings: session_of_a_jvm())
    (tmp_path / "job.py").write_text(f"EARLY = False\n{DEADLY}")
    assert run(["pipeline", "check", "job.py", "--format", "json"]) == 1
    printed = capsys.readouterr()
    assert [(row["query"], row["result"]) for row in json.loads(printed.out)] == [("orders", "failed"), ("bills", "failed")]
    assert printed.err.splitlines() == [f"error: query {name}: Spark's JVM has ended" for name in ("orders", "bills")]


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_jvm_that_ends_before_the_queries_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for module in (check, job_run):
        monkeypatch.setattr(module, "prepare_environment", lambda settings: None)
        monkeypatch.setattr(module, "create_session", lambda settings: session_of_a_jvm())
    (tmp_path / "job.py").write_text(f"EARLY = True\n{DEADLY}")
    assert run(["pipeline", command, "job.py"]) == 1
    assert capsys.readouterr().err.startswith("error: Spark's JVM has ended")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), max_size=6), st.integers(0, 300))
def test_a_sample_has_the_latest_records_as_evenly_as_possible(logs: list[tuple[int, int]], count: int) -> None:
    begins = {TopicPartition("t", number): begin for number, (begin, _) in enumerate(logs)}
    ends = {TopicPartition("t", number): begin + size for number, (begin, size) in enumerate(logs)}
    taken = {tp: ends[tp] - start for tp, start in sample_starts(begins, ends, count).items()}
    assert sum(taken.values()) == min(count, sum(size for _, size in logs))
    assert all(0 <= taken[tp] <= ends[tp] - begins[tp] for tp in ends)
    cut = [taken[tp] for tp in ends if taken[tp] < ends[tp] - begins[tp]]
    assert max(taken.values(), default=0) <= min(cut, default=10**9) + 1


def with_state(folder: Path, state: dict[str, Any]) -> Path:
    """A job whose latest run has left ``state``."""
    directory = RunDirectory(folder / "job.py", str(folder / "checkpoints" / "job"))
    directory.path.mkdir(parents=True)
    directory.write(state)
    return folder / "job.py"


def status(capsys: pytest.CaptureFixture[str], job: Path) -> list[dict[str, Any]]:
    assert run(["pipeline", "status", str(job), "--format", "json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_the_status_of_a_run_that_was_killed_and_of_one_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "checkpoint"
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
        for number in (4, 5):
            (checkpoint / name / str(number)).write_text('v1\n{"batchTimestampMs":1700000000000}\n{"orders":{"0":12}}')
    (checkpoint / "offsets" / "6").write_text('v1\n{"batchTimestampMs":1700000001000}\n{"orders":{"0":13}}')
    queries = {
        "orders": {**FIGURES, "checkpoint": str(checkpoint)},
        "bills": {**FIGURES, "state": "failed", "checkpoint": "s3a://x/y"},
    }
    job = with_state(tmp_path, {"state": "running", "queries": queries, "error": None})
    orders, bills = status(capsys, job)
    assert (orders["state"], orders["batch"], orders["time"], orders["lag"]) == ("killed", 5, "2023-11-14 22:13:20", 7)
    assert (bills["state"], bills["batch"], bills["time"]) == ("failed", 4, "2026-11-26 19:22:25")
    assert (bills["rows_per_second"], bills["restarts"]) == (250, 1)
    with RunDirectory(job, str(tmp_path / "checkpoints" / "job")).locked():
        assert [row["state"] for row in status(capsys, job)] == ["running", "failed"]


def test_the_status_of_a_run_that_has_ended_before_its_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queries = {
        "orders": {**FIGURES, "checkpoint": f"file:{tmp_path}"},
        "bills": {**FIGURES, "state": "done", "checkpoint": "hdfs:/x"},
        "drafts": {**FIGURES, "checkpoint": "hdfs:/y", "error": "ValueError"},
    }
    job = with_state(tmp_path, {"state": "failed", "queries": queries, "error": "Spark's JVM has ended"})
    assert [(row["state"], row["error"]) for row in status(capsys, job)] == [
        ("failed", "Spark's JVM has ended"),
        ("done", None),
        ("failed", "ValueError"),
    ]


def test_a_checkpoint_as_a_url_of_the_local_disk(tmp_path: Path) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "4").write_text('v1\n{"batchTimestampMs":1700000000000}\n{"orders":{"0":12}}')
    for prefix in ("", "file:", "file://"):
        batch = last_batch(f"{prefix}{tmp_path}")
        assert batch is not None
        assert batch.number == 4
    assert last_batch(f"hdfs:{tmp_path}") is None


def test_figures_that_another_version_does_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = with_state(tmp_path, {"queries": {"orders": {"state": "done"}, "bills": {}}})
    orders, bills = status(capsys, job)
    assert (orders["state"], orders["batch"], orders["lag"], bills["state"]) == ("done", None, None, "killed")


@pytest.mark.parametrize(
    "queries", [["orders"], {"orders": None}, {"orders": {"lag": "7"}}, {"orders": {"state": ["done"]}}, "orders"]
)
def test_a_state_of_another_form(tmp_path: Path, capsys: pytest.CaptureFixture[str], queries: Any) -> None:
    assert run(["pipeline", "status", str(with_state(tmp_path, {"queries": queries}))]) == 1
    assert "state.json has another form" in capsys.readouterr().err


def test_a_state_that_is_no_dictionary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = with_state(tmp_path, {})
    (tmp_path / "checkpoints" / "job" / "_pipeline" / "state.json").write_text("[1]")
    assert run(["pipeline", "status", str(job)]) == 1
    assert "state.json is not the state of a run" in capsys.readouterr().err


def test_the_status_without_a_cluster_has_no_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "4").write_text('v1\n{"batchTimestampMs":1700000000000}\n{"orders":{"0":12}}')
    queries = {"orders": {**FIGURES, "checkpoint": str(tmp_path)}, "bills": {**FIGURES, "checkpoint": "hdfs:/x"}}
    job = with_state(tmp_path, {"queries": queries})
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        servers = ["-b", f"127.0.0.1:{closed.getsockname()[1]}"]
        quickly = ["-X", "default_api_timeout_ms=300"]
        assert run(["pipeline", "status", str(job), "--format", "json", *servers, *quickly]) == 0
    printed = capsys.readouterr()
    assert [row["lag"] for row in json.loads(printed.out)] == [None, 7]
    assert printed.err.startswith("warning: the lag at this moment is not known: ")
    assert run(["pipeline", "status", str(job), *servers, "-X", "no_such_setting=1"]) != 0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"queries": {}, "error": "no Java"}, "ended before it started its queries: no Java"),
        ({"queries": {}, "error": None}, "ended before it started its queries: it was killed"),
    ],
)
def test_the_status_of_a_run_without_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: Any, reason: str) -> None:
    job = with_state(tmp_path, state)
    assert run(["pipeline", "status", str(job)]) == 1
    assert reason in capsys.readouterr().err
    with RunDirectory(job, str(tmp_path / "checkpoints" / "job")).locked():
        assert run(["pipeline", "status", str(job)]) == 1
    assert "is starting" in capsys.readouterr().err


def test_the_status_of_a_job_that_never_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "status", str(tmp_path / "job.py")]) == 1
    assert "job.py does not exist" in capsys.readouterr().err
    (tmp_path / "job.py").touch()
    assert run(["pipeline", "status", str(tmp_path / "job.py")]) == 1
    assert "has not been run: there is no " in capsys.readouterr().err


def test_a_new_project_needs_an_empty_directory_with_the_name_of_a_project(tmp_path: Path) -> None:
    assert [path.name for path in write_project(tmp_path / "pricing")] == [
        "job.py", "test_job.py", "pyproject.toml", "README.md", ".gitignore",
    ]  # fmt: skip
    assert '\nname = "pricing"\n' in (tmp_path / "pricing" / "pyproject.toml").read_text()
    with pytest.raises(OttlaError, match="pricing is not empty"):
        write_project(tmp_path / "pricing")
    with pytest.raises(OttlaError, match="'no name' cannot be the name"):
        write_project(tmp_path / "no name")
    with pytest.raises(OttlaError, match=r"cannot write .*job\.py: (Not a directory|File exists)"):
        write_project(tmp_path / "pricing" / "job.py")
