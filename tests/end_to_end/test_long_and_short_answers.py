"""A consumer reads responses of any length, in any order."""

from __future__ import annotations

import time

from confluent_kafka import Producer

from ottla import Consumer, TopicPartition

LENGTHS = (900_000, 10, 300_000, 10, 10, 700_000, 10) * 4


def test_a_short_response_after_a_long_one(served: str) -> None:
    producer = Producer({"bootstrap.servers": served, "message.max.bytes": 2_000_000})
    with Consumer(bootstrap_servers=served) as consumer:
        producer.produce("lengths", value=b"first")
        producer.flush()
        consumer.assign([TopicPartition("lengths", 0)])
        consumer.seek_to_beginning()
        assert len(consumer.poll(timeout=60)) == 1
        for length in LENGTHS:
            producer.produce("lengths", value=bytes(length))
            producer.flush()
            began = time.monotonic()
            assert [len(record.value or b"") for record in consumer.poll(timeout=100)] == [length]
            assert time.monotonic() - began < 50
