"""A consumer reads a topic of a real Kafka from its beginning to its end: ours to records and to Arrow, confluent-kafka beside it.

Method: the same records, each run a fresh consumer with its partitions assigned, from its making to the last record, so that
connecting counts and closing does not; alternating; the median of the runs, after one warm-up each. Key and value of every record
are touched (their lengths are added up), but for the Arrow columns, whose bytes are counted. CRCs are checked on both sides. Ours
runs with default settings but ``max_poll_records``; confluent-kafka, whose defaults are slow for this, at what its documentation
recommends.

    python benchmarks/consumer.py [--records 3000000] [--size 100] [--partitions 4] [--runs 5] [--bootstrap-servers HOST:PORT]

Without ``--bootstrap-servers`` it starts a real Kafka by itself (Java 17 and Maven; see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import confluent_kafka
from _cluster import cluster
from confluent_kafka import admin

from ottla import Consumer, TopicPartition

PORTS = range(19_500, 19_590, 2)
PATIENCE = 60.0
"""Seconds without a record after which a run is given up."""


Reading = tuple[int, int, float]


class Case(NamedTuple):
    """One way to read everything: gives how many records and bytes of keys and values there were, and the seconds it took."""

    name: str
    settings: dict[str, object]
    read: Callable[[str, str, int, int, dict[str, object]], Reading]
    target: tuple[str, float] | None = None
    """To be at least so many times as fast as another case."""


def assigned(servers: str, topic: str, partitions: int, settings: dict[str, object]) -> Consumer:
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings)
    consumer.assign(TopicPartition(topic, number) for number in range(partitions))
    return consumer


def read_records(servers: str, topic: str, partitions: int, count: int, settings: dict[str, object]) -> Reading:
    """Ours, every record an object."""
    seen, size, began = 0, 0, time.perf_counter()
    with assigned(servers, topic, partitions, settings) as consumer:
        while seen < count:
            records = consumer.poll(PATIENCE)
            if not records:
                break
            for record in records:
                size += len(record.key) + len(record.value)
            seen += len(records)
        took = time.perf_counter() - began
    return seen, size, took


def read_arrow(servers: str, topic: str, partitions: int, count: int, settings: dict[str, object]) -> Reading:
    """Ours, all columns of Spark's schema as Arrow."""
    seen, size, began = 0, 0, time.perf_counter()
    with assigned(servers, topic, partitions, settings) as consumer:
        while seen < count:
            table = consumer.poll(PATIENCE).to_arrow()
            if not table.num_rows:
                break
            seen += table.num_rows
            size += _bytes(table.column("key")) + _bytes(table.column("value"))
        took = time.perf_counter() - began
    return seen, size, took


def _bytes(column: object) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(column)).as_py())


def read_confluent(servers: str, topic: str, partitions: int, count: int, settings: dict[str, object]) -> Reading:
    """confluent-kafka's ``consume(500)``."""
    seen, size, began = 0, 0, time.perf_counter()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest", **settings}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    while seen < count:
        messages = consumer.consume(500, PATIENCE)
        if not messages:
            break
        for message in messages:
            size += len(message.key()) + len(message.value())
        seen += len(messages)
    took = time.perf_counter() - began
    consumer.close()
    return seen, size, took


TUNED = {
    "check.crcs": True,
    "enable.auto.commit": False,
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_048_576,
}
PEER = "confluent consume(500), tuned"
CASES = [
    Case(PEER, TUNED, read_confluent),
    Case("ours, records", {"max_poll_records": 5_000}, read_records, (PEER, 1.5)),
    Case("ours, Arrow", {"max_poll_records": 100_000}, read_arrow, (PEER, 4.0)),
]


def fill(servers: str, records: int, size: int, partitions: int) -> str:
    """A topic of that name, produced now unless it is there."""
    topic = f"bench-{records}-{size}-{partitions}"
    client = admin.AdminClient({"bootstrap.servers": servers})
    if topic in client.list_topics(timeout=10).topics:
        return topic
    client.create_topics([admin.NewTopic(topic, partitions, 1)])[topic].result(10)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 131_072, "queue.buffering.max.messages": 1_000_000}
    )
    value = random.Random(1).randbytes(size)
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, b"%08d" % number, number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    return topic


def main() -> None:
    """Run all cases in turn and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bootstrap-servers")
    options = parser.parse_args()
    with cluster(options.bootstrap_servers, PORTS) as servers:
        topic = fill(servers, options.records, options.size, options.partitions)
        rates: dict[str, list[float]] = {case.name: [] for case in CASES}
        for run in range(options.runs + 1):
            for case in CASES:
                seen, size, took = case.read(servers, topic, options.partitions, options.records, case.settings)
                assert (seen, size) == (options.records, options.records * (options.size + 8)), (case.name, seen, size)
                if run:
                    rates[case.name].append(seen / took)
    report(rates)


def report(rates: dict[str, list[float]]) -> None:
    """The medians, and what they are compared with."""
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for case in CASES:
        versus = ""
        if case.target is not None:
            peer, least = case.target
            versus = f"   {medians[case.name] / medians[peer]:5.2f} x {peer} (wanted: {least:g} x)"
        print(f"{case.name:32} {medians[case.name] / 1e6:6.2f} M records/s{versus}   {case.settings}")


if __name__ == "__main__":
    main()
