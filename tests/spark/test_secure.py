"""The source over TLS and SASL with the options of Spark's own connector, on Apache Kafka: driver and workers connect."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla import Admin
from tests.secure.kafka import PASSWORD, USER, Secured, secured

__all__ = ["secured"]

pytestmark = pytest.mark.slow  # it takes a Kafka of its own beside Spark

COUNT = 40
Options = dict[str, str]


@pytest.fixture(scope="module")
def topic(secured: Secured) -> str:
    """``COUNT`` numbers in 2 partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=secured.addresses["PLAINTEXT"]) as admin:
        admin.create_topics({name: 2})
    producer = Producer({"bootstrap.servers": secured.addresses["PLAINTEXT"], "log_level": 0})
    for number in range(COUNT):
        producer.produce(name, str(number), partition=number % 2)
    assert producer.flush(60) == 0
    return name


def scram(secured: Secured, password: str = PASSWORD) -> Options:
    """SCRAM over TLS, configured as for Spark's connector."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "kafka.bootstrap.servers": secured.addresses["LOGINTLS"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(secured.authority.file),
    }


def certificate(secured: Secured) -> Options:
    """A client certificate."""
    return {
        "kafka.bootstrap.servers": secured.addresses["MUTUAL"],
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(secured.authority.file),
        "kafka.ssl.keystore.location": str(secured.authority.issue("client")),
    }


@pytest.mark.parametrize("way", [scram, certificate])
def test_a_batch_is_read(spark: SparkSession, secured: Secured, topic: str, way: Callable[[Secured], Options]) -> None:
    options = way(secured)
    rows = spark.read.format("ottla").options(**options).option("subscribe", topic).load().collect()
    assert sorted(int(row.value) for row in rows) == list(range(COUNT))


def test_a_stream_is_read_and_its_progress_committed(spark: SparkSession, secured: Secured, topic: str, tmp_path: Path) -> None:
    group = f"group-of-{topic}"
    source = {**scram(secured), "subscribe": topic, "startingOffsets": "earliest", "groupId": group}
    frame = spark.readStream.format("ottla").options(**source).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    written = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(row.value) for row in written) == list(range(COUNT))
    found = secured.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    assert {each.partition: each.offset for each in found.topic_partitions} == {0: COUNT // 2, 1: COUNT // 2}
    assert PASSWORD not in (tmp_path / "checkpoint" / "metadata").read_text()


def test_a_wrong_password_fails_the_query_and_says_so_without_it(spark: SparkSession, secured: Secured, topic: str) -> None:
    options = {**scram(secured, "guessed wrong"), "kafka.default.api.timeout.ms": "20000", "kafka.request.timeout.ms": "10000"}
    with pytest.raises(PySparkException) as failed:
        spark.read.format("ottla").options(**options).option("subscribe", topic).load().collect()
    assert "SCRAM-SHA-512" in str(failed.value)
    assert "guessed wrong" not in str(failed.value)
