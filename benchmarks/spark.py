"""Spark with Ottla's source and sink, and with Spark's own JVM connector, in one session on a real Apache Kafka.

Method: all of a row's competitors do the same work, alternating, after warm-ups; the figures are medians of the runs. Ottla and the
connector have default settings; ``tuned`` is the connector with ``kafka.max.poll.records=100000`` and
``kafka.max.partition.fetch.bytes=8388608``. All share the session, whose settings are printed; ``--plain-session`` leaves out those
that tune Spark itself, and has Python import PySpark from Spark's zip. All check CRCs. ``Python alone`` is what Spark's part of a
Python source or sink takes: a source that hands out batches it already has, and a sink that drops its rows. The rows:

* ``batch``, ``value``: a batch of all records into ``noop``, with all columns, or with ``value`` only.
* ``available-now``: a stream with ``trigger(availableNow=True)``, all records in one batch, into ``noop``: the batch alone, as
  Spark reports it, and with the start and the end of the query.
* ``micro-batch``: batches of 1,000 records from 2 partitions into ``noop``: the time of a trigger.
* ``sink``: a million generated rows with keys of 8 bytes and values of 100 into a topic, at least once.
* ``exactly-once``: streams with a million rows a batch into a topic, with ``exactlyOnce`` and without: the time of a trigger.
* ``latency``: the same with 1,000 rows a batch.

    python benchmarks/spark.py [--rows batch,value,...] [--records 3000000] [--runs 5] [--plain-session] \\
        [--bootstrap-servers HOST:PORT]

Without ``--bootstrap-servers`` it starts Apache Kafka (which needs Java 17 and Maven; see ``tools/kafka``). The exit code is 1 if a
target of the documentation is missed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import _python_alone
import confluent_kafka
from _cluster import cluster, tool
from confluent_kafka import admin
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from ottla.spark.jobs.session import use_installed_pyspark

WARM_UPS = 8
PORTS = range(19_600, 19_690, 2)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}
TUNED_SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": "1048576",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
SOURCES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ottla": ("ottla", {}),
    "connector": ("kafka", {}),
    "connector, tuned": ("kafka", {"kafka.max.poll.records": "100000", "kafka.max.partition.fetch.bytes": "8388608"}),
}
PYTHON_ALONE = "Python alone"
ROWS = ("batch", "value", "available-now", "micro-batch", "sink", "exactly-once", "latency")
MILLION = 1_000_000
TARGETS: Mapping[str, tuple[float, ...]] = {
    # the least ratios to the connector at its defaults, and tuned; or the most milliseconds by which p50 and p95 may be longer
    "batch, all columns": (3.6, 2.5),
    "batch, value": (5.2, 3.8),
    "AvailableNow, one batch": (3.3,),
    "sink, at least once": (2.0,),
    "stream into a topic, 1,000 rows a batch": (90, 200),
}
SPEEDS = {"micro-batch of 1,000 records": 1.0, "stream into a topic, 1,000,000 rows a batch": 0.7}
"""The least ratio of the first median to the others."""

FigureT = TypeVar("FigureT")

_numbers = itertools.count(1)


def fill(servers: str, topic: str, records: int, size: int, partitions: int) -> None:
    """Produce ``records`` values of ``size`` bytes with keys of 8 bytes, evenly over the partitions."""
    create(servers, topic, partitions)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "linger.ms": 20, "batch.size": 200_000, "queue.buffering.max.messages": 1_000_000}
    )
    value = random.Random(1).randbytes(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, key=number.to_bytes(8, "big"), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(60) == 0


def create(servers: str, topic: str, partitions: int) -> None:
    """Create a topic."""
    control = admin.AdminClient({"bootstrap.servers": servers})
    for created in control.create_topics([admin.NewTopic(topic, partitions, 1)]).values():
        created.result(20)


def session(cores: int, settings: Mapping[str, str]) -> SparkSession:
    """Create a session with both sources."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{cores}]").appName("ottla benchmark").config("spark.jars", tool("spark-jvm-connector"))
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    cloudpickle.register_pickle_by_value(_python_alone)  # type: ignore[no-untyped-call]
    spark.dataSource.register(_python_alone.PythonAlone)
    return spark


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(runs: int, works: Mapping[str, Callable[[], FigureT]], warm_ups: int = WARM_UPS) -> dict[str, list[FigureT]]:
    """Run the competitors alternately, after warm-ups, and return their figures.

    The warm-ups alternate, too: Spark ends Python workers that are idle for a minute, so after the warm-ups of all others the first
    run of a Python source started new ones.
    """
    for _ in range(warm_ups):
        for work in works.values():
            work()
    found: dict[str, list[FigureT]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            found[name].append(work())
    return found


class Benchmark:
    """The rows, each of which prints its figures. ``missed``: how many targets were not reached."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, records: int, runs: int) -> None:
        self._spark, self._servers, self._topic, self._records, self._runs = spark, servers, topic, records, runs
        self.missed = 0

    def batch(self, columns: str = "") -> None:
        """Read a batch of all columns, or only some."""

        def work(name: str) -> float:
            source, options = ("python-alone", {"rows": self._records}) if name == PYTHON_ALONE else SOURCES[name]
            reader = self._spark.read.format(source).options(**{"kafka.bootstrap.servers": self._servers, "subscribe": self._topic})
            if columns and source != "kafka":
                reader = reader.schema(f"{columns} binary")  # Spark does not tell a Python source which columns a query uses
            frame = reader.options(**options).load()
            frame = frame.select(columns) if columns else frame
            return self._records / seconds(lambda: frame.write.format("noop").mode("overwrite").save())

        works = {name: functools.partial(work, name) for name in (*SOURCES, PYTHON_ALONE)}
        self._rates(f"batch, {columns or 'all columns'}", compare(self._runs, works))

    def value(self) -> None:
        """Read only the values."""
        self.batch("value")

    def available_now(self) -> None:
        """Read all records as a stream of one batch."""

        def work(name: str) -> tuple[float, float]:
            begun = time.perf_counter()
            frame = self._stream(name, self._topic, rows=self._records)
            writer = frame.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp())
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            whole = time.perf_counter() - begun
            [batch] = [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress if each["numInputRows"]]
            return self._records / batch, self._records / whole

        found = compare(self._runs, {name: functools.partial(work, name) for name in (*SOURCES, PYTHON_ALONE)})
        self._rates("AvailableNow, one batch", {name: [batch for batch, _ in each] for name, each in found.items()})
        self._rates("AvailableNow, with start and end", {name: [whole for _, whole in each] for name, each in found.items()})

    def micro_batch(self) -> None:
        """Read batches of 1,000 records from 2 partitions."""
        topic = f"{self._topic}-micro"
        fill(self._servers, topic, 200_000, 100, 2)

        def work(name: str) -> list[float]:
            return self._triggers(self._stream(name, topic, rows=1000, maxOffsetsPerTrigger=1000), "noop", {}, 60)

        works = {name: functools.partial(work, name) for name in ("connector", "ottla", PYTHON_ALONE)}
        found = compare(2, works, WARM_UPS // 2)
        self._times("micro-batch of 1,000 records", {name: list(itertools.chain(*each)) for name, each in found.items()})

    def sink(self) -> None:
        """Write a million rows, at least once."""
        frame = self._rows(self._spark.range(MILLION))
        target = self._target()

        def work(source: str) -> float:
            writer = frame.write.format(source).options(**{"kafka.bootstrap.servers": self._servers, "topic": target})
            return MILLION / seconds(lambda: writer.mode("append").save())

        works = {"ottla": lambda: work("ottla"), "connector": lambda: work("kafka"), PYTHON_ALONE: lambda: work("python-alone")}
        self._rates("sink, at least once", compare(self._runs, works))

    def exactly_once(self, rows: int = MILLION, batches: int = 12) -> None:
        """Write streams exactly once, and at least once."""
        options = {"kafka.bootstrap.servers": self._servers, "topic": self._target()}

        def work(**more: str) -> list[float]:
            rate = self._spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=2).load()
            return self._triggers(self._rows(rate.withColumnRenamed("value", "id")), "ottla", {**options, **more}, batches)

        found: dict[str, list[float]] = {"at least once": [], "exactly once": []}
        for _ in range(2):
            found["at least once"] += work()
            found["exactly once"] += work(exactlyOnce="true")
        self._times(f"stream into a topic, {rows:,} rows a batch", found)

    def latency(self) -> None:
        """Write small batches."""
        self.exactly_once(1000, 60)

    def _stream(self, name: str, topic: str, rows: int, **more: int) -> DataFrame:
        """Return a stream; ``rows`` are those of a batch of Python alone."""
        if name == PYTHON_ALONE:
            return self._spark.readStream.format("python-alone").option("rows", rows).load()
        source, options = SOURCES[name]
        given = {"kafka.bootstrap.servers": self._servers, "subscribe": topic, "startingOffsets": "earliest", **options}
        return self._spark.readStream.format(source).options(**given, **more).load()

    def _rows(self, numbers: DataFrame) -> DataFrame:
        return numbers.selectExpr("lpad(CAST(id AS STRING), 8, '0') AS key", "rpad(CAST(id AS STRING), 100, 'abcdefgh') AS value")

    def _target(self) -> str:
        name = f"{self._topic}-target-{next(_numbers)}"
        create(self._servers, name, 4)
        return name

    def _triggers(self, frame: DataFrame, sink: str, options: Mapping[str, str], batches: int) -> list[float]:
        """Return the durations of the triggers of a query, in seconds, without those of its first quarter."""
        query = frame.writeStream.format(sink).options(**options).option("checkpointLocation", tempfile.mkdtemp()).start()
        found: dict[int, float] = {}
        while len(found) < batches:
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    found[progress["batchId"]] = progress["durationMs"]["triggerExecution"] / 1000
            if not query.isActive:
                query.awaitTermination()
            time.sleep(0.05)
        query.stop()
        return [found[batch] for batch in sorted(found)[batches // 4 : batches]]

    def _rates(self, title: str, found: Mapping[str, list[float]]) -> None:
        medians = {name: statistics.median(each) for name, each in found.items()}
        print(title)
        targets = iter(TARGETS.get(title, ()))
        for name, each in found.items():
            ratio = ""
            if name != "ottla":
                ratio = self._verdict(medians["ottla"] / medians[name], next(targets, None))
            runs = ", ".join(f"{rate / 1e6:.2f}" for rate in each)
            print(f"  {name:18} {medians[name] / 1e6:6.2f} M rows/s{ratio}   (runs: {runs})")

    def _verdict(self, ratio: float, target: float | None) -> str:
        """The words about a ratio, which should be at least ``target``."""
        if target is None:
            return f"   ratio {ratio:.2f}"
        is_missed = round(ratio, 1) < target
        self.missed += is_missed
        return f"   ratio {ratio:.2f}, target {target:.1f}: {'missed' if is_missed else 'reached'}"

    def _times(self, title: str, found: Mapping[str, list[float]]) -> None:
        """Print times, and how much longer they are than those of the first."""
        print(title)
        first = _percentiles(next(iter(found.values())))
        for name, each in found.items():
            p50, p95 = _percentiles(each)
            compared = ""
            if each is not next(iter(found.values())):
                more = 1e3 * (p50 - first[0]), 1e3 * (p95 - first[1])
                compared = f"   ratio {p50 / first[0]:.2f}, {more[0]:+.0f} / {more[1]:+.0f} ms"
                if name == PYTHON_ALONE:
                    pass
                elif title in TARGETS:
                    is_missed = any(longer > most for longer, most in zip(more, TARGETS[title], strict=True))
                    self.missed += is_missed
                    most = " / ".join(f"{each:+.0f}" for each in TARGETS[title])
                    compared += f", target {most} ms: {'missed' if is_missed else 'reached'}"
                elif title in SPEEDS:
                    compared += self._verdict(first[0] / p50, SPEEDS[title])
            print(f"  {name:18} p50 {1e3 * p50:6.0f} ms   p95 {1e3 * p95:6.0f} ms{compared}   ({len(each)} batches)")


def _percentiles(times: list[float]) -> tuple[float, float]:
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS), help="which rows, with commas between them")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plain-session", action="store_true", help="leave out the settings that tune Spark")
    parser.add_argument("--bootstrap-servers")
    given = parser.parse_args()
    if unknown := set(given.rows.split(",")) - set(ROWS):
        parser.error(f"unknown rows {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    settings = SETTINGS if given.plain_session else SETTINGS | TUNED_SESSION
    with cluster(given.bootstrap_servers, PORTS) as servers:
        topic = f"benchmark-spark-{os.getpid()}"
        print(f"{given.records:,} records of {given.size} B in {given.partitions} partitions of a real Kafka, local[{given.cores}]")
        print("session:", ", ".join(f"{name}={value}" for name, value in settings.items()), flush=True)
        fill(servers, topic, given.records, given.size, given.partitions)
        if not given.plain_session:
            use_installed_pyspark(Path(tempfile.mkdtemp()))
        spark = session(given.cores, settings)
        benchmark = Benchmark(spark, servers, topic, given.records, given.runs)
        for row in given.rows.split(","):
            getattr(benchmark, row.replace("-", "_"))()
            sys.stdout.flush()
        spark.stop()
    return int(benchmark.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
