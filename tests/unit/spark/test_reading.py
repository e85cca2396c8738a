"""A task without Spark: its work grows linearly with the number of partitions, and its errors name options."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from confluent_kafka import Producer

import ottla
from ottla import Admin, Broker
from ottla.client.calls.mailbox import Mailbox
from ottla.errors import ConnectionFailedError
from ottla.spark import reading
from ottla.spark.options import SourceOptions, parse_options
from ottla.spark.planning import OffsetRange
from ottla.spark.reading import read_ranges
from tests.work_counter import work

PARTITIONS = 240


def read(partitions: int, options: SourceOptions) -> int:
    ranges = [OffsetRange("wide", number, 0, 2) for number in range(partitions)]
    return sum(batch.num_rows for batch in read_ranges(ranges, ("value",), options))


def test_an_error_names_the_option_also_when_a_range_is_held_against_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.reading.STALL_CHECK_INTERVAL", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
    given = {"kafka.bootstrap.servers": address, "subscribe": "wide", "kafkaConsumer.pollTimeoutMs": "2000"}
    with pytest.raises(ConnectionFailedError, match=r"check kafka\.bootstrap\.servers and that"):
        read(1, parse_options(given).for_batch())


def test_many_partitions_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Mailbox.ask

    def counted(self: Mailbox, command: object, what: str, *rest: object, **named: Any) -> object:
        asked.append(what)
        return ask(self, command, what, *rest, **named)  # type: ignore[arg-type]

    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"wide": PARTITIONS})
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(2 * PARTITIONS):
            producer.produce("wide", b"x", partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        options = parse_options({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "wide"}).for_batch()
        few, many = (work(lambda count=count: read(count, options)) for count in (PARTITIONS // 8, PARTITIONS))  # type: ignore[misc]
        assert many.lines < 16 * few.lines
        monkeypatch.setattr(Mailbox, "ask", counted)
        assert read(PARTITIONS, options) == 2 * PARTITIONS
    assert len(asked) < 40


def test_a_task_fetches_little_more_than_its_range() -> None:
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics({"backlog": 2})
        with ottla.Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=10_000) as producer:
            for number in range(60_000):
                producer.send("backlog", bytes(100), partition=number % 2)
        options = parse_options({"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "backlog"}).for_batch()
        ranges = [OffsetRange("backlog", partition, 5_000, 5_500) for partition in range(2)]
        assert sum(batch.num_rows for batch in read_ranges(ranges, ("value",), options)) == 1_000
        with reading.consumers.borrow(options.client) as consumer:
            fetched = next(value for name, value in consumer.metrics().items() if name.name == "bytes-fetched-total")
    assert fetched <= 2 * 1_000 * 112 + 2 * 10_000
