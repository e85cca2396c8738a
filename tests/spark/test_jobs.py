"""The runner of jobs, on real queries: how they end, and what happens to those that fail."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ottla import Broker
from ottla.spark.jobs import check
from ottla.spark.jobs.check import CheckSettings, check_job
from ottla.spark.jobs.job_file import JobError, check_checkpoints, load_job
from ottla.spark.jobs.runner import Runner, RunSettings
from ottla.spark.jobs.state_file import RunDirectory
from ottla.spark.jobs.status import last_batch
from ottla.spark.jobs.stopping import StopRequests
from ottla.spark.jobs.trial import JobTrial
from ottla.spark.jobs.writers import settings_of
from ottla.spark.runner_environment import DRAIN, SAMPLE
from tests.spark.conftest import Kafka, Load, numbered

JOB = Path("job.py")
TERM = int(signal.SIGTERM)


class Run:
    """A run of queries in the session of the tests, with what it prints."""

    def __init__(self, home: Path) -> None:
        self.stop = StopRequests()
        self.said: list[str] = []
        self.errors: list[tuple[str, tuple[str, ...]]] = []
        self.state: dict[str, Any] = {}
        self._home = home

    def __call__(self, writers: dict[str, Any], *, once: bool = True, every: str | None = None, restarts: int = 0) -> int:
        checkpoints = {name: f"{self._home}/{name}" for name in writers}
        directory = RunDirectory(JOB, str(self._home))
        directory.path.mkdir(parents=True, exist_ok=True)
        drain = Path(os.environ[DRAIN])
        runner = Runner(
            writers, checkpoints, RunSettings(once, every, restarts, 60), directory, drain,
            say=self.said.append,
            complain=lambda error, details: self.errors.append((error, details)),
            keep=self.state.update,
            is_alive=lambda: True,
        )  # fmt: skip
        try:
            return runner.run(self.stop)
        finally:
            drain.unlink(missing_ok=True)


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    """Runs queries; nothing of them is left after the test."""
    yield Run(tmp_path / "checkpoints")
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def orders(kafka: Kafka, load_stream: Load) -> Callable[..., DataFrame]:
    """``orders(100)``: a stream of a new topic with a hundred records; ``.topic`` is on the function."""

    def make(count: int, **options: str) -> DataFrame:
        topic = kafka.create()
        kafka.produce(topic, numbered(count))
        return load_stream(subscribe=topic, startingOffsets="earliest", **options)

    return make


@pytest.mark.slow
def test_once_with_two_queries(run: Run, orders: Callable[..., DataFrame], tmp_path: Path) -> None:
    frame = orders(100, maxOffsetsPerTrigger="50")
    lake = frame.writeStream.format("parquet").option("path", f"{tmp_path}/lake")
    assert run({"lake": lake, "noop": frame.writeStream.format("noop")}) == 0
    assert [line.partition(" rows in ")[0] for line in run.said] == ["lake: batch 1, 100", "noop: batch 1, 100"]
    assert (run.state["lake"]["state"], run.state["lake"]["lag"], run.state["lake"]["rows"]) == ("done", 0, 100)
    assert run.errors == []


def test_a_signal_ends_the_job_after_the_running_batch(
    spark: SparkSession, kafka: Kafka, load_stream: Load, run: Run, tmp_path: Path
) -> None:
    topic = kafka.create()
    kafka.produce(topic, numbered(20))
    frame = load_stream(subscribe=topic, startingOffsets="earliest")
    batches: list[list[int]] = []

    def write(rows: DataFrame, _: int) -> None:
        values = [int(row.value) for row in rows.select("value").collect()]
        if 0 in values:
            run.stop.handle(TERM, None)
            kafka.produce(topic, numbered(5, 20))
            until_drained = threading.Event()
            while not Path(os.environ[DRAIN]).exists():
                until_drained.wait(0.01)
            assert rows.count() == 20  # a batch that is interrupted cannot run jobs
        batches.append(values)

    assert run({"orders": frame.writeStream.foreachBatch(write)}, once=False) == 0
    assert [sorted(values) for values in batches] == [list(range(20))]
    assert run.state["orders"]["state"] == "done"
    assert run.said[0] == "SIGTERM: waiting for the running batches to end; a second signal interrupts them"
    run.stop, batches[:] = StopRequests(), []
    assert run({"orders": frame.writeStream.foreachBatch(write)}) == 0
    assert [sorted(values) for values in batches] == [list(range(20, 25))]


def test_a_second_signal_interrupts_the_batch(run: Run, orders: Callable[..., DataFrame]) -> None:
    done = threading.Event()

    def write(rows: DataFrame, _: int) -> None:
        run.stop.handle(TERM, None)
        run.stop.handle(TERM, None)
        done.wait(60)  # Spark cannot interrupt it

    assert run({"orders": orders(10).writeStream.foreachBatch(write)}, once=False) == 128 + TERM
    done.set()


def test_a_source_that_always_has_records_is_stopped_as_well(spark: SparkSession, run: Run) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()

    def write(rows: DataFrame, number: int) -> None:
        if number == 1:
            run.stop.handle(TERM, None)
        rows.count()

    assert run({"rate": frame.writeStream.foreachBatch(write)}, once=False) == 0
    assert run.state["rate"]["state"] == "done"


@pytest.mark.slow
def test_a_query_that_fails_forever_is_restarted_and_the_others_end(
    spark: SparkSession, run: Run, orders: Callable[..., DataFrame]
) -> None:
    frame = orders(10)
    spark.udf.register("price", price)
    writers = {
        "good": frame.writeStream.format("noop"),
        "bad": frame.selectExpr("price(CAST(value AS STRING))").writeStream.format("noop"),
        "idle": orders(0).writeStream.format("noop"),
    }
    assert run(writers, once=False, restarts=1) == 1
    assert {name: query["state"] for name, query in run.state.items()} == {"good": "done", "bad": "failed", "idle": "done"}
    first, second = run.errors
    assert first[0] == second[0] == "query bad failed: KeyError: 'tea'"
    assert first[1][0].endswith(f"{Path(__file__).name}:{price.__code__.co_firstlineno + 1}, in price")
    assert first[1][1].startswith("restart 1 of 1 in 1 s; all of Spark's text: ")
    assert second[1][1].startswith("not started again after 1 restarts; ")
    assert (run.state["bad"]["restarts"], run.state["bad"]["error"]) == (1, "KeyError: 'tea'")
    assert run.said[-1] == "failed: bad; ended: good and idle"


def price(_: str) -> str:
    return {"coffee": "3"}["tea"]


def test_a_plan_that_spark_refuses_is_not_started_again(run: Run, orders: Callable[..., DataFrame]) -> None:
    counted = orders(1).groupBy("key").count().writeStream.format("noop").outputMode("append")
    assert run({"counted": counted}, restarts=5) == 1
    ((error, details),) = run.errors
    assert "Invalid streaming output mode: append" in error
    assert details[-1].startswith("not started again; ")


def test_a_wrong_option_of_a_source_is_named(spark: SparkSession, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": "localhost:9", "subscribe": "orders", "startingOffset": "earliest"}
    text = f"spark.readStream.format('ottla').options(**{options}).load()"
    (tmp_path / "job.py").write_text(f"def queries(spark):\n    return {{'orders': {text}.writeStream.format('noop')}}\n")
    with pytest.raises(JobError, match=r"queries\(spark\) raised ottla.errors.ConfigError: .*startingOffset") as refused:
        load_job(tmp_path / "job.py").writers(spark)
    assert refused.value.details[0].startswith(f"{tmp_path / 'job.py'}:2, in queries")


def test_checkpoints_are_where_the_state_says_whatever_the_session_has_been_set_to(
    spark: SparkSession, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    writers = {
        "noop": frame.writeStream.format("noop"),
        "memory": frame.writeStream.format("memory"),
        "batch": frame.writeStream.foreachBatch(lambda rows, number: None),
    }
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "elsewhere"))
    try:
        assert run(writers) == 0
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert not (tmp_path / "elsewhere").exists()
    for name in writers:
        batch = last_batch(run.state[name]["checkpoint"])
        assert batch is not None
        assert batch.number == 0


def test_an_exception_of_java_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def queries(spark):\n    spark.read.parquet('s3a://bucket/prices')\n")
    with pytest.raises(JobError, match=r"raised Py4JJavaError: java\.lang\.[\w.]+: .*S3AFileSystem"):
        load_job(tmp_path / "job.py").writers(spark)


PARTITIONED = """
def queries(spark):
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "6").load().selectExpr("value", "value % 3 AS day")
    days = frame.writeStream.format("parquet").partitionBy("day").option("path", PATH)
    counts = frame.groupBy("day").count().writeStream.format("memory").outputMode("complete")
    return {"days": days, "counts": counts}
"""


def test_a_test_of_a_job_that_partitions_its_files(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(f"PATH = {str(tmp_path / 'lake')!r}\n{PARTITIONED}")
    with Broker() as broker:
        output = JobTrial(spark, broker.bootstrap_servers, tmp_path / "checkpoints", tmp_path)("job.py", {})
    assert sorted((row.value, row.day) for row in output["days"]) == [(value, value % 3) for value in range(6)]
    assert sorted((row.day, row["count"]) for row in output["counts"]) == [(day, 2) for day in range(3)]
    assert not (tmp_path / "lake").exists()


def test_what_a_writer_has_been_set_to(orders: Callable[..., DataFrame]) -> None:
    frame = orders(1)
    plain = frame.writeStream.format("parquet").option("path", "p").option("checkpointLocation", "here")
    assert settings_of(plain) == ("parquet", {"path": "p", "checkpointlocation": "here"}, "append")
    batch = frame.writeStream.foreachBatch(lambda rows, number: None).outputMode("update")
    assert settings_of(batch) == ("foreachBatch", {}, "update")
    other = frame.writeStream.format("noop")
    found = check_checkpoints(JOB, {"a": plain, "b": other}, "/checkpoints")
    assert found == {"a": "here", "b": "/checkpoints/b"}
    same = frame.writeStream.format("noop").option("checkpointLocation", "file:/checkpoints/b/")
    with pytest.raises(JobError, match="the queries 'b' and 'c' have the same checkpoint"):
        check_checkpoints(JOB, {"b": other, "c": same}, "/checkpoints")


REFUSED = {
    "stream": ({"endingOffsets": "latest"}, "value binary", "option endingOffsets has no effect for a stream"),
    "column": ({}, "price int", "there is no column 'price'"),
}
"""Query -> options and a schema that the source refuses when the query starts, and the reason."""
SOURCES = """
from pyspark.sql import SparkSession

def writer(more, schema, reason):
    reader = SparkSession.active().readStream.format("ottla").options(**OPTIONS, **more)
    return reader.schema(schema).load().writeStream.format("noop")

def queries(spark):
    return {name: writer(*each) for name, each in REFUSED.items()}
"""


def test_the_check_refuses_what_the_source_refuses_when_a_query_starts(
    kafka: Kafka, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": kafka.create()}
    (tmp_path / "job.py").write_text(f"OPTIONS, REFUSED = {options}, {REFUSED}\n{SOURCES}")
    monkeypatch.setenv(SAMPLE, "5")
    monkeypatch.setattr(check, "prepare_environment", lambda settings: None)  # the session of the tests goes on
    monkeypatch.setattr(check, "create_session", lambda settings: SimpleNamespace(stop=lambda: None))
    checked = list(check_job(CheckSettings(tmp_path / "job.py", str(tmp_path), 5, None, {}), lambda: False))
    assert [query.name for query in checked] == list(REFUSED)
    for query in checked:
        ((problem, _),) = query.problems
        assert REFUSED[query.name][2] in problem
