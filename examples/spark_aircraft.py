"""Sessions of aircraft by event time, late reports included: a job for ``ottla pipeline run``, and a consumer of what it writes.

An aircraft's session ends after ten minutes without a report. A report may arrive up to twenty minutes late.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile

from _cluster import cluster
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming import DataStreamWriter

from ottla import Admin, Consumer, Producer, TopicPartition

OPTIONS = ["--once", "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.sql.session.timeZone=UTC"]
FIRST = [("N14228", "10:00"), ("N24211", "10:02"), ("N14228", "10:05"), ("N24211", "10:20")]
LATER = [("N14228", "10:12"), ("N619AA", "09:30"), ("N24211", "11:00")]
"""The first of these belongs to the first session of its aircraft, the second is too late, the third ends what is before 10:40."""


def queries(spark: SparkSession) -> dict[str, DataStreamWriter]:
    """What ``ottla pipeline run`` starts: each session, when it is complete, exactly once into the topic ``sessions``."""
    kafka = {"kafka.bootstrap.servers": os.environ["OTTLA_BOOTSTRAP_SERVERS"]}
    messages = spark.readStream.format("ottla").options(**kafka, subscribe="reports", startingOffsets="earliest").load()
    report = F.from_json(F.col("value").cast("string"), "aircraft string, at timestamp").alias("report")
    reports = messages.select(report).select("report.*").withWatermark("at", "20 minutes")
    sessions = reports.groupBy("aircraft", F.session_window("at", "10 minutes")).agg(
        F.count("*").alias("reports"),
        F.date_format(F.min("at"), "HH:mm").alias("first"),
        F.date_format(F.max("at"), "HH:mm").alias("last"),
    )
    rows = sessions.select(F.col("aircraft").alias("key"), F.to_json(F.struct("reports", "first", "last")).alias("value"))
    return {"sessions": rows.writeStream.format("ottla").options(**kafka, topic="sessions", exactlyOnce="true")}


def main(bootstrap_servers: str, checkpoints: str) -> None:
    """Run the job on the first reports, and again on later ones; then read the sessions."""
    with Admin(bootstrap_servers=bootstrap_servers) as admin:
        admin.create_topics({"reports": 1, "sessions": 1})
    for reports in (FIRST, LATER):
        with Producer(bootstrap_servers=bootstrap_servers) as producer:
            for aircraft, at in reports:
                producer.send("reports", json.dumps({"aircraft": aircraft, "at": f"2013-07-04T{at}:00Z"}), key=aircraft)
        environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVERS": bootstrap_servers}
        subprocess.run(["ottla", "pipeline", "run", __file__, "--checkpoints", checkpoints, *OPTIONS], env=environment, check=True)
    with Consumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition("sessions", 0)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for record in consumer.poll(timeout=1.0):
                assert record.key is not None
                assert record.value is not None
                session = json.loads(record.value)
                print(f"{record.key.decode()}: {session['reports']} reports from {session['first']} to {session['last']}")


if __name__ == "__main__":
    with cluster() as address, tempfile.TemporaryDirectory() as folder:
        main(address, folder)
