"""A standalone cluster with two workers, on three nodes of Apache Kafka: executors, drivers and brokers die; no record is lost.

Three queries copy one topic while it is written: to files and with ``exactlyOnce`` to a topic, which have each record once, and to
another topic, which has each at least once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.interop.real_kafka import KafkaCluster, KafkaTool
from tests.spark.conftest import Kafka, numbered
from tests.spark.driver_process import SOURCE_AND_SINK, driver, result_of
from tests.spark.read_committed import counts
from tests.spark.standalone import SETTINGS_OF_CLUSTER, Standalone
from tests.spark.stream_progress import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 3
ROWS_OF_BATCH = 500

COPIES = f"""
import threading
kafka = {{"kafka.bootstrap.servers": servers}}
reader = spark.readStream.format("ottla").options(**kafka, subscribe=topic, startingOffsets="earliest")
limited = reader.option("maxOffsetsPerTrigger", {ROWS_OF_BATCH})

def start(name, writer, group):
    values = limited.option("groupId", group).load().select("value") if group else limited.load().select("value")
    return writer(values.writeStream.queryName(name).option("checkpointLocation", f"{{home}}/checkpoint-{{name}}")).start()

queries = [
    start("files", lambda to: to.format("parquet").option("path", f"{{home}}/files"), f"{{topic}}-group"),
    start("records", lambda to: to.format("ottla").options(**kafka, topic=f"{{topic}}-copy"), None),
    start("once", lambda to: to.format("ottla").options(**kafka, topic=f"{{topic}}-once", exactlyOnce="true"), None),
]

def watch(query):
    try:
        query.awaitTermination()
    except Exception as error:  # Spark's log is off, so nothing else would show it
        print(f"query {{query.name}} has failed: {{error}}", file=sys.stderr, flush=True)
        os._exit(1)

for query in queries:
    threading.Thread(target=watch, args=(query,), daemon=True).start()
print("started", spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
sys.stdin.readline()
for query in queries:
    query.processAllAvailable()
    query.stop()
values = spark.read.parquet(f"{{home}}/files").selectExpr("CAST(CAST(value AS STRING) AS INT) AS number")
print(json.dumps(sorted(row.number for row in values.collect())))
"""
"""Copies until a line comes in, then all that is left, and prints the numbers in the files."""


@pytest.fixture(scope="module")
def nodes(kafka_tool: KafkaTool) -> Iterator[KafkaCluster]:
    """Three nodes for all tests of this module."""
    cluster = KafkaCluster(3)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def kafka(nodes: KafkaCluster) -> Kafka:
    return Kafka(nodes.bootstrap_servers)


class Numbers(threading.Thread):
    """Produces 0, 1, 2 ... until it is stopped."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = kafka.producer(enable_idempotence=True, delivery_timeout_ms=300_000)
        self._topic = topic
        self._stopped = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            for _ in range(30):
                self._producer.produce(self._topic, str(self.count).encode(), partition=self.count % PARTITIONS)
                self.count += 1
            self._producer.poll(0)

    def stop(self) -> int:
        """Wait for all acknowledgements, and return the first number that was not produced."""
        self._stopped.set()
        self.join()
        assert self._producer.flush(300) == 0
        return self.count


class Copies:
    """The driver with the queries, which can be killed and started again."""

    def __init__(self, home: Path, kafka: Kafka, topic: str, cluster: Standalone) -> None:
        self._home, self._kafka, self.topic, self._cluster = home, kafka, topic, cluster
        self._process, self._jvm = self._start()

    def _start(self) -> tuple[subprocess.Popen[str], int]:
        process = driver(self._home, COPIES, self._kafka.servers, self.topic, self._cluster.url, settings=SETTINGS_OF_CLUSTER)
        assert process.stdout is not None
        line = process.stdout.readline()
        while line and not line.startswith("started "):
            line = process.stdout.readline()
        assert line, "the driver ended"
        return process, int(line.split()[1])

    def restart(self) -> None:
        """SIGKILL the driver, and start another one with its checkpoints."""
        self._process.kill()
        os.kill(self._jvm, signal.SIGKILL)
        self._process.communicate()
        self._process, self._jvm = self._start()

    def written(self) -> int:
        """Return the number of records in the copy."""
        return sum(self._kafka.ends(f"{self.topic}-copy").values())

    def wait_for_more(self) -> None:
        """Wait until at least three more batches are written."""
        before = self.written()

        def are_there() -> bool:
            assert self._process.poll() is None, "the driver has ended: a query has failed"
            return self.written() >= before + 3 * ROWS_OF_BATCH

        wait_until(are_there, 240)

    def finish(self) -> list[int]:
        """Copy what is left, and return the numbers in the files."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        numbers: list[int] = json.loads(result_of(self._process))
        return numbers

    def kill(self) -> None:
        """SIGKILL the driver, if it runs."""
        self._process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._jvm, signal.SIGKILL)


def values(kafka: Kafka, topic: str) -> Counter[int]:
    """How often each number is in a topic."""
    ends = kafka.ends(topic)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.servers, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for _, partition in ends])
    found: list[int] = []

    def all_read() -> bool:
        found.extend(int(message.value()) for message in consumer.consume(10_000, 1) if message.error() is None)
        return len(found) >= sum(ends.values())

    wait_until(all_read)
    consumer.close()
    return Counter(found)


def test_a_batch_a_stream_and_the_sink(kafka: Kafka, standalone: Standalone, tmp_path: Path) -> None:
    topic = kafka.create(2, replicas=3)
    written, copy = (kafka.create(name=f"{topic}-{name}", replicas=3) for name in ("written", "copy"))
    kafka.produce(topic, [*numbered(300), *numbered(300, 300, 1)])
    script = f"{SOURCE_AND_SINK}\nprint(count)"
    done = result_of(driver(tmp_path, script, kafka.servers, topic, standalone.url, settings=SETTINGS_OF_CLUSTER))
    assert int(done) == 600
    assert kafka.ends(written) == {(written, 0): 100}
    assert kafka.ends(copy) == {(copy, 0): 600}
    assert kafka.committed(f"{topic}-first") == kafka.ends(topic)


def kill_an_executor(copies: Copies, cluster: Standalone, kafka: Kafka, nodes: KafkaCluster) -> None:
    cluster.kill_executor()


def kill_the_driver(copies: Copies, cluster: Standalone, kafka: Kafka, nodes: KafkaCluster) -> None:
    copies.restart()


def kill_a_broker(copies: Copies, cluster: Standalone, kafka: Kafka, nodes: KafkaCluster) -> None:
    node = kafka.leader(f"{copies.topic}-copy")
    nodes.kill(node)
    copies.wait_for_more()
    nodes.again(node)


def move_the_coordinator(copies: Copies, cluster: Standalone, kafka: Kafka, nodes: KafkaCluster) -> None:
    node = kafka.coordinator(f"{copies.topic}-group")
    nodes.end(node)
    copies.wait_for_more()

    def is_another() -> bool:
        with contextlib.suppress(confluent_kafka.KafkaException):  # the client may ask the node that has gone
            return kafka.coordinator(f"{copies.topic}-group") != node
        return False

    wait_until(is_another)
    nodes.again(node)


@pytest.mark.parametrize("disaster", [kill_an_executor, kill_the_driver, kill_a_broker, move_the_coordinator])
def test_each_record_arrives(
    kafka: Kafka,
    nodes: KafkaCluster,
    standalone: Standalone,
    tmp_path: Path,
    disaster: Callable[[Copies, Standalone, Kafka, KafkaCluster], Any],
) -> None:
    topic = kafka.create(PARTITIONS, replicas=3, min_insync_replicas="2")
    copy, once = (
        kafka.create(PARTITIONS, name=f"{topic}-{name}", replicas=3, min_insync_replicas="2") for name in ("copy", "once")
    )
    source = Numbers(kafka, topic)
    source.start()
    copies = Copies(tmp_path, kafka, topic, standalone)
    try:
        for _ in range(2):
            copies.wait_for_more()
            disaster(copies, standalone, kafka, nodes)
        copies.wait_for_more()
        count = source.stop()
        assert copies.finish() == list(range(count))
    finally:
        source.stop()
        copies.kill()
    assert set(values(kafka, copy)) == set(range(count))
    assert counts(kafka, once) == Counter(range(count))
    wait_until(lambda: kafka.committed(f"{topic}-group") == kafka.ends(topic))
