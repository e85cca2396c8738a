"""A driver that copies a topic exactly once, in a process of its own that a test kills.

The argument is JSON: ``servers``, ``source``, ``target``, ``checkpoint``, ``master``, ``home``, ``kind`` (``stream``, ``foreach``),
``kill`` (after how many commits of a batch's transactions, at most, the driver kills itself, before the last one; 0: never),
``rows`` (the most records of a batch), ``stalls`` (whether the first attempt of a task waits) and ``settings`` of Spark. It prints
the process id of the JVM when there is a session, a line when it starts the query, each batch that has ended, at last ``null``, and
how many copies of tasks Spark has started so far because of ``spark.speculation``.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from ottla import Admin
from ottla.spark.exactly_once import driver as of_sink
from ottla.spark.source import OttlaDataSource

given = json.loads(sys.argv[1])


class KillingDataSource(OttlaDataSource):
    """Kills the driver, of which this process is a child, when some transactions of a batch are committed and others are not."""

    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        commits = int(self.options.pop("kill"))
        driver = int(self.options.pop("driver"))

        def commit(admin: Admin, options: Any, reports: Any) -> None:
            prepared = [report.prepared for report in reports if report.prepared is not None]
            if len(prepared) < 2:  # the last one of a repeated batch
                admin.end_transactions(prepared, commit=True)
                return
            admin.end_transactions(prepared[: min(commits, len(prepared) - 1)], commit=True)
            os.kill(driver, signal.SIGKILL)
            os._exit(1)

        of_sink._commit = commit
        return super().streamWriter(schema, overwrite)


builder = SparkSession.builder.master(given["master"]).config("spark.local.dir", given["home"])
for name, value in given["settings"].items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
jvm = spark.sparkContext._gateway.proc.pid
print(json.dumps({"jvm": jvm}), flush=True)
kafka = {"kafka.bootstrap.servers": given["servers"]}
reader = spark.readStream.format("ottla").options(**kafka, subscribe=given["source"], startingOffsets="earliest", minPartitions=4)
frame = reader.option("maxOffsetsPerTrigger", given["rows"]).load().select("key", "value")
sink = {**kafka, "topic": given["target"], "exactlyOnce": "true"}
if given["kill"]:
    spark.dataSource.register(KillingDataSource)
    sink |= {"kill": str(given["kill"]), "driver": str(jvm)}


def stall(batches: Iterator[Any]) -> Iterator[Any]:
    """Let the first attempt of the first task wait for up to a second, so that Spark starts a copy."""
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(random.random())
    yield from batches


if given["stalls"]:
    frame = frame.mapInArrow(stall, frame.schema)


def write(batch: DataFrame, number: int) -> None:
    batch.write.format("ottla").options(**sink).mode("append").save()


def speculative() -> int:
    """Return how many copies of tasks have run in the stages of which Spark still has the tasks."""
    store = spark.sparkContext._jsc.sc().statusStore()
    found = 0
    for stage in itertools.count():
        tasks = store.taskList(stage, 0, 1000)
        if tasks.isEmpty():  # there is no such stage
            break
        found += sum(tasks.apply(number).speculative() for number in range(tasks.size()))
    return found


writer = frame.writeStream.option("checkpointLocation", given["checkpoint"])
writer = (
    writer.foreachBatch(write)
    if given["kind"] == "foreach"
    else writer.format("killing" if given["kill"] else "ottla").options(**sink)
)
print(json.dumps({"starts": True}), flush=True)
query = writer.start()
ended = -1
while query.isActive:
    if (progress := query.lastProgress) is not None and progress["batchId"] > ended and progress["numInputRows"]:
        ended = progress["batchId"]
        print(json.dumps({"batch": ended, "rows": progress["numInputRows"], "speculative": speculative()}), flush=True)
    time.sleep(0.05)
print(json.dumps({"batch": None, "speculative": speculative()}), flush=True)
query.awaitTermination()
