"""Many partitions, a long backlog and long records: the memory of Spark's Python processes does not grow with them.

With ``OTTLA_SPARK_BACKLOG=50000000`` this gave the figures of ``docs/spark.md``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla import Producer
from tests.interop.real_kafka import OwnKafka
from tests.spark.conftest import Kafka
from tests.spark.driver_process import driver, result_of
from tests.spark.memory_of_workers import KINDS, MemorySampler, thirds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BACKLOG = int(os.environ.get("OTTLA_SPARK_BACKLOG", "4000000"))
PARTITIONS = 1000
MOST = 256
"""MiB of each process: 50 MiB of fetched records, 32 MiB of records to send, and 100 MiB of Python with PySpark and pyarrow."""

MOST_WITH_LONG_RECORDS = 512
"""MiB of a worker, of which Spark's Arrow batch and its copies are the most."""

LENGTH = 10_000_000
"""Bytes of a long record."""


@pytest.fixture
def kafka(own_kafka: OwnKafka) -> Kafka:
    """A node for a single test, so that the next one does not have its data."""
    return Kafka(own_kafka.address)


def run(home: Path, script: str, kafka: Kafka, topic: str) -> tuple[Any, dict[str, list[int]]]:
    """Return the result of a driver, and the memory of its Python processes in the meantime."""
    sampler = MemorySampler(home)
    sampler.start()
    try:
        done = result_of(driver(home, script, kafka.servers, topic), timeout=3000)
    finally:
        memory = sampler.stop()
    return json.loads(done), memory


def show(memory: dict[str, list[int]]) -> None:
    for kind, samples in memory.items():
        print(f"{kind}: at most {max(samples)} MiB, in thirds of the time {thirds(samples)}")


def test_a_long_backlog_of_many_partitions(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(PARTITIONS)
    kafka.create(8, name=f"{topic}-copy")
    count = BACKLOG // PARTITIONS
    with Producer(bootstrap_servers=kafka.servers, linger_ms=50) as producer:
        for partition in range(PARTITIONS):
            numbers = pa.array([partition] * count, pa.int32())
            producer.send_arrow(pa.table({"partition": numbers, "value": [b"0123456789"] * count}), topic).result(300)
    script = f"""
    kafka = {{"kafka.bootstrap.servers": servers}}
    counted = load().count()
    reader = spark.readStream.format("ottla").options(**kafka, subscribe=topic, startingOffsets="earliest", groupId="limits")
    stream = reader.option("maxOffsetsPerTrigger", {BACKLOG // 10}).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", home + "/checkpoint")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(2400)
    load().select("value").write.format("ottla").options(**kafka, topic=topic + "-copy").mode("append").save()
    print(json.dumps([counted, sum(each["numInputRows"] for each in query.recentProgress)]))
    """
    found, memory = run(tmp_path, script, kafka, topic)
    expected = count * PARTITIONS
    assert found == [expected, expected]
    assert sum(kafka.ends(f"{topic}-copy").values()) == expected
    show(memory)
    assert memory.keys() == KINDS.keys()
    for kind, samples in memory.items():
        assert max(samples) < MOST, kind


def test_long_records(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(2, max_message_bytes=str(LENGTH + 1000))
    script = f"""
    settings = {{"kafka.bootstrap.servers": servers, "kafka.max.request.size": "{LENGTH + 1_000_000}", "topic": topic}}

    def write(rows, length):
        frame = spark.range(rows, numPartitions=2).selectExpr("CAST(id AS STRING) AS key", f"repeat('x', {{length}}) AS value")
        frame.write.format("ottla").options(**settings).mode("append").save()

    write(100, {LENGTH})
    lengths = load().selectExpr("length(value) AS length").groupBy("length").count().collect()
    try:
        write(1, {LENGTH + 2000})
    except Exception as error:
        refused = str(error)
    print(json.dumps([[tuple(row) for row in lengths], refused]))
    """
    (lengths, refused), memory = run(tmp_path, script, kafka, topic)
    assert lengths == [[LENGTH, 100]]
    assert f"[MESSAGE_TOO_LARGE] (topic '{topic}', key '0') (see max.message.bytes of the topic)" in refused
    show(memory)
    assert max(memory["worker"]) < MOST_WITH_LONG_RECORDS
