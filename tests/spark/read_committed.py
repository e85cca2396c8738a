"""What a consumer of committed records reads."""

from __future__ import annotations

import time
from collections import Counter

import confluent_kafka

from tests.spark.conftest import Kafka


def counts(kafka: Kafka, topic: str) -> Counter[int]:
    """How often each number is in a topic, for a reader of committed records that waits for open transactions."""
    ends = kafka.ends(topic)
    settings = {"bootstrap.servers": kafka.servers, "group.id": "none", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for _, number in ends])
    found: Counter[int] = Counter()
    deadline = time.monotonic() + 60
    while True:
        found.update(int(message.value() or b"") for message in consumer.consume(10_000, 0.5) if message.error() is None)
        positions = consumer.position([confluent_kafka.TopicPartition(topic, number) for _, number in ends])
        if all(max(0, each.offset) >= ends[topic, each.partition] for each in positions):
            consumer.close()
            return found
        assert time.monotonic() < deadline, "a transaction is still open"
