"""Other clients' consumers with fetch sessions on Ottla's broker: they read all records, also after the broker has evicted the
session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest

from ottla import Admin, Broker
from ottla.broker.fetch_sessions import FetchSessionCache
from ottla.types import Now
from tests.interop.other_clients import produce_confluent
from tests.interop.real_kafka import KafkaTool, free_port_pair

PARTITIONS = 12
EACH = 40


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, port=free_port_pair()) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics({"sessions": PARTITIONS})
        yield running


def produce(broker: Broker, number: int) -> None:
    rows = [(partition, None, b"%d" % number, 1_700_000_000_000, ()) for partition in range(PARTITIONS) for _ in range(EACH)]
    produce_confluent(broker.bootstrap_servers, "sessions", rows)


def sessions(broker: Broker) -> int:
    assert broker._node is not None
    return len(broker._node._core.state.fetch_sessions)


def test_kafka_python(broker: Broker) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, max_poll_records=100, fetch_max_wait_ms=100)
    consumer.assign([kafka.TopicPartition("sessions", partition) for partition in range(PARTITIONS)])
    consumer.seek_to_beginning()
    seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

    def read(count: int) -> None:
        for _ in range(300):
            for tp, records in consumer.poll(200).items():
                seen[tp.partition] += [record.offset for record in records]
            if all(len(offsets) >= count for offsets in seen.values()):
                return

    try:
        for round_ in range(1, 4):
            produce(broker, round_)
            read(round_ * EACH)
            assert seen == {partition: list(range(round_ * EACH)) for partition in range(PARTITIONS)}
            assert sessions(broker) == 1
            if round_ == 2:
                broker.close()
                broker.start()
    finally:
        consumer.close()


def test_the_java_client(broker: Broker, kafka_tool: KafkaTool, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []
    begin = FetchSessionCache.full_request

    def watched(self: FetchSessionCache, request: Any, by_id: bool, now: Now) -> Any:
        epochs.append(request.session_epoch)
        return begin(self, request, by_id, now)

    monkeypatch.setattr(FetchSessionCache, "full_request", watched)
    produce(broker, 1)
    wanted = PARTITIONS * EACH
    printed = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.bootstrap_servers,
        "--topic",
        "sessions",
        "--from-beginning",
        "--max-messages",
        str(wanted),
        "--command-property",
        "fetch.max.bytes=2000",
    )
    assert printed.split() == ["1"] * wanted
    assert epochs[0] == 0
    assert max(epochs) > 1
    assert sessions(broker) == 0  # it ends its session when it is closed
