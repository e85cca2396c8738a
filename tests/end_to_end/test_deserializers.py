"""The arguments of deserializers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from ottla import Broker, Consumer, TopicPartition


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A broker with a record and a tombstone."""
    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("orders", key="1", value='{"drink": "tea"}')
        producer.produce("orders", key="2", value=None)
        producer.produce("orders", key=None, value="null")
        producer.flush()
        yield broker.bootstrap_servers


def read(servers: str, **settings: Any) -> list[tuple[Any, Any]]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        found: list[tuple[Any, Any]] = []
        while len(found) < 3:
            found += [(record.key, record.value) for record in consumer.poll(timeout=30)]
        return found


def test_deserializers_are_not_called_for_tombstones(servers: str) -> None:
    found = read(servers, key_deserializer=int, value_deserializer=json.loads)
    assert found == [(1, {"drink": "tea"}), (2, None), (None, None)]


def test_deserialize_nulls_calls_deserializers_for_tombstones(servers: str) -> None:
    found = read(servers, value_deserializer=lambda raw: "gone" if raw is None else "there", deserialize_nulls=True)
    assert found == [(b"1", "there"), (b"2", "gone"), (None, "there")]
