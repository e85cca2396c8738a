"""The job of the demo: flights joined with other tables into Parquet, and the delay of each flight into a topic, exactly once.

Owns the two queries. Must not know the demo: ``ottla pipeline run`` takes this file as it is, with the address of the cluster in
``OTTLA_BOOTSTRAP_SERVERS`` and a directory in ``FLIGHTS_OUTPUT``. Invariant: a join never duplicates a flight, because each joined
table has one row per key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming import DataStreamWriter

from ottla.demo import data

SOURCE_TOPIC, DELAYS_TOPIC = "flights", "delays"
GROUPS = {"flights": "flights-to-parquet", "delays": "delays"}
"""Query -> the consumer group that has its progress."""
ROWS_PER_BATCH = 100_000
FLIGHT = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, distance int, "
    "hour int, minute int, time_hour string"
)


def queries(spark: SparkSession) -> dict[str, DataStreamWriter]:
    """The two streams: what ``ottla pipeline run`` starts."""
    output = os.environ["FLIGHTS_OUTPUT"]
    sink = {**cluster(), "topic": DELAYS_TOPIC, "exactlyOnce": "true"}
    return {
        "flights": enriched(spark, stream(spark, "flights")).writeStream.format("parquet").option("path", f"{output}/flights"),
        "delays": delays(spark, stream(spark, "delays")).writeStream.format("ottla").options(**sink),
    }


def stream(spark: SparkSession, query: str) -> DataFrame:
    """The flights as a stream. Each query has its own group for its progress."""
    limits = {"groupId": GROUPS[query], "maxOffsetsPerTrigger": str(ROWS_PER_BATCH)}
    return parsed(spark.readStream.format("ottla").options(**source(), **limits).load())


def cluster() -> Mapping[str, str]:
    """The option for the address of the cluster."""
    return {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP_SERVERS"]}


def source() -> Mapping[str, str]:
    """The options of the source, also for a batch."""
    return {**cluster(), "subscribe": SOURCE_TOPIC, "startingOffsets": "earliest", "includeHeaders": "true"}


def parsed(messages: DataFrame) -> DataFrame:
    """The columns of the flights in ``messages``."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight")
    origin = F.col("headers")[0]["value"].cast("string").alias("header_origin")
    message = (F.col("timestamp").alias("scheduled_departure"), origin, "partition", "offset")
    return messages.select(flight, *message).select("flight.*", "scheduled_departure", "header_origin", "partition", "offset")


def enriched(spark: SparkSession, flights: DataFrame) -> DataFrame:
    """Flights with the name of the airline, the destination and the weather."""
    airports = table(spark, "airports", ["faa"], {"faa": "dest", "name": "dest_airport", "lat": "dest_lat", "lon": "dest_lon"})
    measured = {name: name for name in ("temp", "wind_speed", "precip", "pressure", "visib")}
    weather = table(spark, "weather", ["origin", "time_hour"], measured)
    return (
        flights.join(F.broadcast(airlines(spark)), "carrier", "left")
        .join(F.broadcast(airports), "dest", "left")
        .join(F.broadcast(weather), ["origin", "time_hour"], "left")
    )


def delays(spark: SparkSession, flights: DataFrame) -> DataFrame:
    """One record for each flight that has departed: the key is its carrier, the value JSON."""
    departed = flights.where("dep_delay IS NOT NULL").join(F.broadcast(airlines(spark)), "carrier", "left")
    value = F.to_json(F.struct("carrier", "airline", "origin", "hour", "dep_delay", "partition", "offset"))
    return departed.select(F.col("carrier").alias("key"), value.alias("value"))


def airlines(spark: SparkSession) -> DataFrame:
    """The names of the airlines."""
    return table(spark, "airlines", ["carrier"], {"name": "airline"})


def table(spark: SparkSession, name: str, key: list[str], columns: dict[str, str]) -> DataFrame:
    """Return ``key`` and the renamed ``columns`` of a table of the dataset, with one row per key."""
    kept = data.read_table(name).drop_duplicates(key)[list(dict.fromkeys([*key, *columns]))].rename(columns=columns)
    return spark.createDataFrame(pa.Table.from_pandas(kept, preserve_index=False))
