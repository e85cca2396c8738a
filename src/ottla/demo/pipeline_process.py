"""The child process that runs the Spark job: it joins flights with other tables, writes Parquet, and computes delays.

Owns the Spark session and the two reads of the topic, as a stream with group ``delays`` and as a batch. Must not know the expected
figures. Invariant: a join never duplicates a flight, because each joined table has one row per key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from ottla.demo import data
from ottla.demo.processes import PROGRESS, Emit

GROUP = "delays"
ROWS_PER_BATCH = 100_000
PROGRESS_EVERY = 1
"""Seconds."""
FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int, "
    "hour int, minute int, time_hour string"
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    # For a job of half a minute, the C1 compiler and the serial collector are faster than C2 and a parallel collector.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
}


def main(arguments: dict[str, Any], emit: Emit) -> None:
    """Run the job once. Reports ``ready``, ``progress``, ``streamed``, ``delays`` and ``batch``."""
    job = Job(arguments["bootstrap_servers"], arguments["topic"], Path(arguments["out"]))
    emit("ready", spark=job.spark.version)
    job.stream(lambda rows: emit(PROGRESS, done=rows))
    emit("streamed", **job.streamed())
    emit("delays", rows=job.delays())
    emit("batch", **job.batch())
    job.spark.stop()


class Job:
    """One run on ``local[*]``."""

    def __init__(self, bootstrap_servers: str, topic: str, out: Path) -> None:
        self._source = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        }
        self._parquet, self._checkpoint = str(out / "flights"), str(out / "checkpoint")
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        scratch = {"spark.local.dir": str(out / "spark"), "spark.sql.warehouse.dir": str(out / "spark" / "warehouse")}
        builder = SparkSession.builder.master("local[*]").appName("ottla demo")
        for name, value in {**SETTINGS, **scratch}.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()

    def stream(self, on_rows: Callable[[int], None]) -> None:
        """Stream the current content of the topic through the joins into Parquet, each flight once."""
        options = {**self._source, "groupId": GROUP, "maxOffsetsPerTrigger": str(ROWS_PER_BATCH)}
        messages = self.spark.readStream.format("ottla").options(**options).load()
        query = (
            self._enriched(messages)
            .writeStream.format("parquet")
            .option("path", self._parquet)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(PROGRESS_EVERY):
            on_rows(sum(progress["numInputRows"] for progress in query.recentProgress))

    def streamed(self) -> dict[str, int]:
        """Return totals of the stream's output. ``whole``: the flights whose timestamp and header match their row."""
        scheduled = F.date_trunc("hour", "scheduled_departure") == F.to_timestamp("time_hour")
        whole = F.count_if(scheduled & (F.col("header_origin") == F.col("origin")))
        return _totals(self.spark.read.parquet(self._parquet), whole.alias("whole"))

    def delays(self) -> list[dict[str, Any]]:
        """Return the number of departed flights and the sum of their delays in minutes, by carrier, origin and hour."""
        departed = self.spark.read.parquet(self._parquet).where(F.col("dep_delay").isNotNull())
        totals = F.count("*").alias("flights"), F.sum("dep_delay").alias("minutes")
        return [row.asDict() for row in departed.groupBy("carrier", "airline", "origin", "hour").agg(*totals).collect()]

    def batch(self) -> dict[str, int]:
        """Return the same totals of a second read of the topic, as a batch."""
        messages = self.spark.read.format("ottla").options(**self._source).load()
        return _totals(_parsed(messages))

    def _enriched(self, messages: DataFrame) -> DataFrame:
        airlines = self._table("airlines", ["carrier"], {"name": "airline"})
        airports = self._table("airports", ["faa"], {"faa": "dest", "name": "dest_airport", "lat": "dest_lat", "lon": "dest_lon"})
        measured = {name: name for name in ("temp", "wind_speed", "precip", "pressure", "visib")}
        weather = self._table("weather", ["origin", "time_hour"], measured)
        return (
            _parsed(messages)
            .join(F.broadcast(airlines), "carrier", "left")
            .join(F.broadcast(airports), "dest", "left")
            .join(F.broadcast(weather), ["origin", "time_hour"], "left")
        )

    def _table(self, name: str, key: list[str], columns: dict[str, str]) -> DataFrame:
        """Return ``key`` and the renamed ``columns`` of a table of the dataset, with one row per key."""
        kept = data.read_table(name).drop_duplicates(key)[list(dict.fromkeys([*key, *columns]))].rename(columns=columns)
        return self.spark.createDataFrame(pa.Table.from_pandas(kept, preserve_index=False))


def _parsed(messages: DataFrame) -> DataFrame:
    flight = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    origin = F.col("headers")[0]["value"].cast("string").alias("header_origin")
    message = (F.col("timestamp").alias("scheduled_departure"), origin, "partition", "offset")
    return messages.select(flight, *message).select("flight.*", "scheduled_departure", "header_origin", "partition", "offset")


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
