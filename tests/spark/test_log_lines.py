"""The driver's log: each message appears once, with time, level and logger."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest

from tests.interop.real_kafka import QUICK_JVM
from tests.spark.conftest import Kafka, numbered
from tests.spark.stream_progress import wait_until

SCRIPT = """
import sys
import time
from confluent_kafka import Producer
from pyspark.sql import SparkSession
servers, topic, taken, home = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def start(name, **options):
    options = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    stream = spark.readStream.format("ottla").options(**options).load()
    return stream.writeStream.format("noop").option("checkpointLocation", home + "/" + name)

def run(name, **options):
    start(name, **options).trigger(availableNow=True).start().awaitTermination(300)

run("pattern", subscribePattern="no-such-topic-.*", **{"kafka.acks": "all", "kafka.enable.metrics.push": "false"})
run("taken", subscribe=topic, groupId=taken)
starting = '{"%s": {"0": 0, "1": 0}}' % topic
run("lost", subscribe=topic, failOnDataLoss="false", startingOffsets=starting)
queries = [start(name, subscribe=topic, groupId=topic).start() for name in ("one", "two")]
producer = Producer({"bootstrap.servers": servers})
for _ in range(10):  # queries look for each other every 3 s
    producer.produce(topic, b"more", partition=0)
    producer.flush(60)
    for query in queries:
        query.processAllAvailable()
    time.sleep(0.5)
for query in queries:
    query.stop()
spark.stop()
"""


@pytest.mark.timeout(400)  # a JVM of its own, which a busy machine takes minutes for
@pytest.mark.slow
def test_each_thing_is_one_line_with_time_level_and_logger(kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(2)
    kafka.produce(topic, numbered(10) + numbered(10, 10, 1))
    for partition in range(2):
        kafka.delete_records(topic, partition, 4)
    group = f"{topic}-taken"
    member = confluent_kafka.Consumer({"bootstrap.servers": kafka.servers, "group.id": group, "enable.auto.commit": False})
    member.subscribe([topic])
    try:
        wait_until(lambda: member.poll(0.1) is None and member.assignment())
        environment = {"PYSPARK_PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, "-c", SCRIPT, kafka.servers, topic, group, str(tmp_path)]
        environment["SPARK_SUBMIT_OPTS"] = QUICK_JVM
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=360, check=False)
    finally:
        member.close()
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "ottla" in line]
    form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING ottla\.spark\.(\w+): (.*)")
    found = [match.groups() for line in lines if (match := form.fullmatch(line)) is not None]
    assert len(found) == len(lines), lines
    for expected in (
        "ignored options without an effect on a source: kafka.acks, kafka.enable.metrics.push",
        "option subscribePattern 'no-such-topic-.*' matches no topic",
        f"progress is not committed to group '{group}' while it has members",
        f"data loss, and failOnDataLoss is false: {topic}-0: offsets 0 to 3 cannot be read",
        f"data loss, and failOnDataLoss is false: {topic}-1: offsets 0 to 3 cannot be read",
    ):
        assert sum(text.startswith(expected) for _, text in found) == 1, (expected, found)
    shared = sum(text.startswith(f"another query commits to group '{topic}', too") for _, text in found)
    assert shared in (1, 2), found  # at most once for each of the two
    assert not any("rejoin" in text for _, text in found)
