"""A task's work on an embedded broker: it grows with the number of its partitions, not with their square."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from ottla import Admin, Broker
from ottla.client.calls.mailbox import Mailbox
from ottla.spark import workers
from ottla.spark.options import SourceOptions, parse_options
from ottla.spark.planning import OffsetRange
from ottla.spark.reading import read_ranges
from tests.counting import work

PARTITIONS = 240


def read(partitions: int, options: SourceOptions) -> int:
    ranges = [OffsetRange("wide", number, 0, 2) for number in range(partitions)]
    return sum(batch.num_rows for batch in read_ranges(ranges, ("value",), options))


def test_many_partitions_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Mailbox.ask

    def counted(self: Mailbox, command: object, what: str, *rest: object, **named: object) -> object:
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
        try:
            few, many = (work(lambda count=count: read(count, options)) for count in (PARTITIONS // 8, PARTITIONS))  # type: ignore[misc]
            assert many.lines < 16 * few.lines
            monkeypatch.setattr(Mailbox, "ask", counted)
            assert read(PARTITIONS, options) == 2 * PARTITIONS
        finally:
            for consumer in list(workers._idle.values()):
                workers._close(consumer)
            workers._idle.clear()
    assert len(asked) < 40
