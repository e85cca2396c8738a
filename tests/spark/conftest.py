"""One Spark session and one Apache Kafka for all tests of this directory, and helpers to fill topics.

``confluent-kafka`` produces, deletes records and reads committed offsets, so that no test checks Ottla against itself.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import admin
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from ottla import Admin, Broker
from ottla.spark.jobs.session import use_installed_pyspark
from ottla.spark.runner_environment import DRAIN
from tests.interop.real_kafka import QUICK_JVM, OwnKafka, free_port_pair
from tests.spark.standalone import Standalone

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

CONNECTOR = Path(__file__).parents[2] / "tools" / "spark-jvm-connector"

_numbers = itertools.count(1)


class Message(NamedTuple):
    """A message to produce. ``timestamp`` is in milliseconds; 0 is the current time."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


class Kafka:
    """The cluster, through confluent-kafka."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = admin.AdminClient({"bootstrap.servers": servers})

    def create(self, partitions: int = 1, name: str | None = None, replicas: int = 1, **config: str) -> str:
        """Create a topic; settings have Kafka's names with underscores."""
        name = name or f"spark-{os.getpid()}-{next(_numbers)}"
        new = admin.NewTopic(name, partitions, replicas, config={key.replace("_", "."): value for key, value in config.items()})
        self._wait(self._admin.create_topics([new], operation_timeout=60))
        return name

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        self._wait(self._admin.create_partitions([admin.NewPartitions(topic, partitions)], operation_timeout=60))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._wait(self._admin.delete_topics([topic], operation_timeout=60))
        end = time.monotonic() + 60
        while topic in self._admin.list_topics(timeout=60).topics:  # Kafka's brokers hear of it a moment later
            assert time.monotonic() < end
            time.sleep(0.05)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before offset ``before``."""
        self._wait(self._admin.delete_records([confluent_kafka.TopicPartition(topic, partition, before)]))

    def produce(self, topic: str, messages: Sequence[Message], **config: Any) -> None:
        """Produce, and wait for all acknowledgements."""
        producer = self.producer(**config)
        send(producer, topic, messages)

    def producer(self, **config: Any) -> confluent_kafka.Producer:
        """Return a confluent-kafka producer."""
        settings = {"bootstrap.servers": self.servers, "linger.ms": 5}
        return confluent_kafka.Producer({**settings, **{key.replace("_", "."): value for key, value in config.items()}})

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group."""
        request = confluent_kafka.ConsumerGroupTopicPartitions(group)
        found = self._admin.list_consumer_group_offsets([request])[group].result(90)
        return {(each.topic, each.partition): each.offset for each in found.topic_partitions}

    def coordinator(self, group: str) -> int:
        """Return the id of the node that coordinates a group."""
        # Not with the client of all other calls, which would ask the old coordinator for minutes.
        own = admin.AdminClient({"bootstrap.servers": self.servers})
        node: int = own.describe_consumer_groups([group], request_timeout=20)[group].result(90).coordinator.id
        return node

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the id of the node that leads a partition."""
        node: int = self._admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
        return node

    def ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Return the end offsets of a topic."""
        partitions = self._admin.list_topics(topic, timeout=60).topics[topic].partitions
        latest = admin.OffsetSpec.latest()
        asked = self._admin.list_offsets({confluent_kafka.TopicPartition(topic, number): latest for number in partitions})
        return {(each.topic, each.partition): future.result(90).offset for each, future in asked.items()}

    def values(self, topic: str) -> list[bytes]:
        """Return the values of all committed records, up to the last stable offsets."""
        with Admin(bootstrap_servers=self.servers) as own:  # brokers answer EndTxn before readers see the end
            while own.list_transactions(states=["PrepareCommit", "PrepareAbort"]):
                time.sleep(0.01)
        ends = self.ends(topic)
        settings = {"bootstrap.servers": self.servers, "group.id": "none", "enable.partition.eof": True}
        consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for _, number in ends])
        found: list[bytes] = []
        at_end: set[int] = set()
        deadline = time.monotonic() + 30
        while len(at_end) < len(ends):
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.05):
                if message.error() is None:
                    found.append(message.value() or b"")
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    at_end.add(message.partition() or 0)
        consumer.close()
        return found

    @staticmethod
    def _wait(futures: dict[Any, Any]) -> None:
        for future in futures.values():
            future.result(90)


def send(producer: confluent_kafka.Producer, topic: str, messages: Sequence[Message]) -> None:
    """Produce with ``producer``, and wait for all acknowledgements."""
    failed: list[Any] = []
    for each in messages:
        producer.produce(
            topic,
            value=each.value,
            key=each.key,
            partition=each.partition,
            timestamp=each.timestamp,
            headers=list(each.headers) or None,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def numbered(count: int, start: int = 0, partition: int = 0) -> list[Message]:
    """Return messages with the values ``b"start"``, ``b"start + 1"`` ..."""
    return [Message(str(number).encode(), partition=partition) for number in range(start, start + count)]


@functools.cache
def connector_jars() -> str:
    """Return Spark's own Kafka connector as a value for ``spark.jars``; empty without Maven."""
    done = subprocess.run([CONNECTOR], capture_output=True, text=True, timeout=300)
    return done.stdout.strip() if done.returncode == 0 else ""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, no UI."""
    gc.collect()  # Py4J waits by select(), which takes no descriptor above 1023: earlier tests leave some to the collector
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
    home = tmp_path_factory.mktemp("spark")
    os.environ[DRAIN] = str(home / "drain")
    use_installed_pyspark(home)
    builder = SparkSession.builder.master("local[2]").appName("ottla tests").config("spark.sql.warehouse.dir", str(home))
    builder = builder.config("spark.local.dir", str(home))
    if jars := connector_jars():
        builder = builder.config("spark.jars", jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka(real_kafka: str) -> Kafka:
    """Apache Kafka."""
    return Kafka(real_kafka)


@contextlib.contextmanager
def cluster_of(request: pytest.FixtureRequest, kind: str) -> Iterator[Kafka]:
    """The shared Apache Kafka (``"kafka"``), an embedded broker (``"broker"``), or an Apache Kafka of the version ``kind``."""
    if kind == "kafka":
        yield request.getfixturevalue("kafka")
    elif kind == "broker":
        with Broker() as broker:
            yield Kafka(broker.bootstrap_servers)
    else:
        request.getfixturevalue("kafka_tool")
        node = OwnKafka(free_port_pair(), version=kind)
        try:
            yield Kafka(node.address)
        finally:
            node.stop()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone cluster of Spark: a master, and two workers with one core each."""
    cluster = Standalone(tmp_path_factory.mktemp("standalone"))
    yield cluster
    cluster.stop()


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, kafka: Kafka) -> Load:
    """``load(subscribe=topic, startingOffsets=...)``: a batch."""

    def read(schema: str | None = None, source: str = "ottla", **options: Any) -> DataFrame:
        reader = spark.read.format(source).option("kafka.bootstrap.servers", kafka.servers).options(**_by_their_names(options))
        return (reader if schema is None else reader.schema(schema)).load()

    return read


@pytest.fixture
def load_stream(spark: SparkSession, kafka: Kafka) -> Load:
    """``load_stream(subscribe=topic, startingOffsets=...)``: a stream."""

    def read(**options: Any) -> DataFrame:
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", kafka.servers)
        return reader.options(**_by_their_names(options)).load()

    return read


def _by_their_names(options: dict[str, Any]) -> dict[str, Any]:
    """Replace underscores in names of options by dots: ``kafka_isolation_level``."""
    return {name.replace("_", "."): value for name, value in options.items()}


@dataclass(frozen=True)
class Sink:
    """The output of a stream, exactly once: a directory of Parquet files and a checkpoint."""

    spark: SparkSession
    home: Path

    def run(self, frame: DataFrame) -> list[dict[str, Any]]:
        """Write all available records, and return the progress of each batch."""
        query = self._writer(frame).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return [dict(progress) for progress in query.recentProgress]

    def start(self, frame: DataFrame) -> StreamingQuery:
        """Write new records until the query is stopped."""
        return self._writer(frame).start()

    def _writer(self, frame: DataFrame) -> DataStreamWriter:
        writer = frame.writeStream.format("parquet").option("path", str(self.home / "rows"))
        return writer.option("checkpointLocation", str(self.home / "checkpoint"))

    def rows(self) -> list[Row]:
        """Return all rows."""
        return self.spark.read.parquet(str(self.home / "rows")).orderBy("topic", "partition", "offset").collect()

    def values(self) -> list[int]:
        """Return the values as sorted numbers."""
        return sorted(int(row.value) for row in self.rows())


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    """An empty sink."""
    return Sink(spark, tmp_path / "sink")
