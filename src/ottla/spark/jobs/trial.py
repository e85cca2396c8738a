"""The runs of a job in a test: its queries on the records of the test, and the rows that they would have written.

Owns the fixtures' part in Spark. Must not know pytest. Invariants: nothing is written to a sink of the job; a query reads the
topics of the test and no others, if the job takes its cluster from ``OTTLA_BOOTSTRAP_SERVERS``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from ottla.admin import Admin
from ottla.errors import OttlaError, UnknownTopicOrPartitionError
from ottla.producer import Producer
from ottla.runtime.java import find_java
from ottla.spark.jobs.causes import cause_of
from ottla.spark.jobs.job_file import Job, load_job
from ottla.spark.jobs.session import (
    LOCAL_SETTINGS,
    PYTHONS,
    QUERY_SETTINGS,
    SETTINGS,
    SPARK_JAVA,
    set_python,
    use_installed_pyspark,
)
from ottla.spark.jobs.writers import frame_of, settings_of
from ottla.spark.offsets import StreamOffset

TRIAL_SETTINGS = {
    **SETTINGS,
    **QUERY_SETTINGS,
    **LOCAL_SETTINGS,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the seconds that a test takes, the second compiler and a parallel collector cost more than they save."""
TrialSession = SparkSession
"""For the plugin, which must not import PySpark."""
TIMEOUT = 110.0
"""Seconds that a query may take."""


def trial_session(settings: Mapping[str, str], home: Path) -> SparkSession:
    """Return a new session on two cores, with its files in ``home``. Raises ``OttlaError`` without Java."""
    find_java(SPARK_JAVA)
    set_python()
    if not PYTHONS & settings.keys():
        use_installed_pyspark(home)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    own = {**TRIAL_SETTINGS, "spark.sql.warehouse.dir": str(home / "warehouse"), "spark.local.dir": str(home)}
    for name, value in {**own, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class JobTrial:
    """What the fixture ``run_queries`` returns. ``folder`` is that of the test, for files that are named relative to it."""

    def __init__(self, spark: SparkSession, bootstrap_servers: str, checkpoints: Path, folder: Path) -> None:
        self._spark = spark
        self._bootstrap_servers = bootstrap_servers
        self._checkpoints = checkpoints
        self._folder = folder
        self._topics: set[str] = set()
        self._read: set[str] | None = set()
        """The topics that queries have read; ``None`` if a source is not one of topics, so that nothing is known."""

    def __call__(self, file: str | os.PathLike[str], rows: Mapping[str, Iterable[Any]]) -> dict[str, list[Row]]:
        """Produce ``rows``, run the queries of ``file`` until they have read them, and return the rows of each query.

        With the output mode complete these are the rows of the last batch. Raises ``OttlaError`` if the file or a query fails, and
        for records that no query reads.
        """
        self._produce(rows)
        job = load_job(self._path(file))
        output = {name: self._run(job, name, writer) for name, writer in job.writers(self._spark).items()}
        if unread := sorted(topic for topic in rows if self._read is not None and topic not in self._read):
            read = ", ".join(sorted(self._read or ())) or "none"
            raise OttlaError(f"{job.path}: no query reads {', '.join(unread)}", hint=f"the topics that are read: {read}")
        return output

    def _path(self, file: str | os.PathLike[str]) -> Path:
        beside = self._folder / file
        return beside if beside.exists() else Path(file)

    def _produce(self, rows: Mapping[str, Iterable[Any]]) -> None:
        with Admin(bootstrap_servers=self._bootstrap_servers) as admin:
            for topic in rows.keys() - self._topics:
                with contextlib.suppress(UnknownTopicOrPartitionError):
                    admin.delete_topics([topic])  # that of an earlier test
                admin.create_topics({topic: 1})
                self._topics.add(topic)
        with Producer(bootstrap_servers=self._bootstrap_servers) as producer:
            for topic, records in rows.items():
                producer.send_many(topic, records)

    def _run(self, job: Job, name: str, writer: Any) -> list[Row]:
        settings, collected = settings_of(writer), list[Row]()

        def collect(batch: DataFrame, _: int) -> None:
            if settings.output_mode == "complete":
                collected.clear()
            collected.extend(batch.collect())

        # A new writer: Spark refuses foreachBatch with the partitioning of files, which cannot be removed from the job's.
        writer = frame_of(writer).writeStream.outputMode(settings.output_mode).foreachBatch(collect).queryName(name)
        try:
            query = writer.option("checkpointLocation", str(self._checkpoints / name)).trigger(availableNow=True).start()
            has_ended = query.awaitTermination(TIMEOUT)
        except Exception as error:
            cause = cause_of(str(error))
            raise OttlaError("\n  ".join([f"{job.path}: query {name}: {cause.message}", *cause.details]), cause=error) from error
        if not has_ended:
            query.stop()
            raise OttlaError(f"{job.path}: query {name} has not ended within {TIMEOUT:g} s: {query.status['message']}")
        for progress in query.recentProgress:
            self._note(progress)
        return collected

    def _note(self, progress: StreamingQueryProgress) -> None:
        """Add the topics that a query has read."""
        for source in progress.sources:
            if source.endOffset in (None, "null"):  # before the first batch
                continue
            end = StreamOffset.parse(source.endOffset)
            if end is None:
                self._read = None
            elif self._read is not None:
                self._read |= {tp.topic for tp in end.positions}
