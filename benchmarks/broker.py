"""The same confluent-kafka producer and consumer on Ottla's broker and on Apache Kafka, alternating in one run.

Each round produces all records to a new topic of each broker and reads them back, in separate processes, so that no broker shares
an interpreter with a client. The figures are medians of the rounds; the ratio is that of the medians. Both brokers have default
settings, and a fresh data directory on the same disk; the clients' settings are printed.

    python benchmarks/broker.py [--records 2000000] [--size 100] [--partitions 4] [--rounds 5]

Apache Kafka needs Java 17 and Maven (see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from _cluster import TOOLS, cluster
from confluent_kafka.admin import AdminClient, NewTopic

PORTS = range(19_300, 19_390, 2)
TARGET = 0.8

PRODUCER = {
    "linger.ms": 5,
    "queue.buffering.max.messages": 1_000_000,
    "batch.size": 1_000_000,
    "compression.type": "none",
    "acks": -1,
}
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 2,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_000_000,
}

BROKER = """
import sys
from ottla import Broker
with Broker(sys.argv[1]) as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.read()
"""


def produce(servers: str, topic: str, records: int, size: int) -> float:
    """Return the seconds until all records are acknowledged."""
    from confluent_kafka import Producer

    failed: list[object] = []
    value = os.urandom(size)

    def note(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": servers, **PRODUCER, "on_delivery": note})
    producer.list_topics(topic, 10)
    begin = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    producer.flush(120)
    seconds = time.perf_counter() - begin
    assert not failed, failed[0]
    return seconds


def consume(servers: str, topic: str, records: int, partitions: int) -> float:
    """Return the seconds to read all records and access every value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "benchmark", **CONSUMER})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    begin = time.perf_counter()
    found = total = 0
    while found < records:
        messages = consumer.consume(500, 10)
        assert messages, f"{found} of {records} records came"
        for message in messages:
            total += len(message.value())
        found += len(messages)
    seconds = time.perf_counter() - begin
    consumer.close()
    assert found == records
    return seconds


@contextmanager
def ottla(folder: str) -> Iterator[str]:
    """Ottla's broker in a separate process."""
    process = subprocess.Popen([sys.executable, "-c", BROKER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def in_process(verb: str, *arguments: object) -> float:
    """Run one measurement in a fresh process."""
    command = [sys.executable, __file__, "--measure", verb, *map(str, arguments)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def measure(verb: str, servers: str, topic: str, records: str, other: str) -> None:
    """Run one measurement and print it. Runs in a fresh process."""
    print(json.dumps({"produce": produce, "consume": consume}[verb](servers, topic, int(records), int(other))))


def main() -> int:
    """Print the table. The exit code is 1 if a target is missed."""
    if sys.argv[1:2] == ["--measure"]:
        measure(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[tuple[str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=TOOLS.parent) as folder,
        ottla(folder) as ours,
        cluster(None, PORTS) as theirs,
    ):
        brokers = {"ottla": ours, "kafka": theirs}
        for number in range(options.rounds + 1):
            topic = f"round-{number}"
            for name, servers in brokers.items():
                admin = AdminClient({"bootstrap.servers": servers})
                admin.create_topics([NewTopic(topic, options.partitions, 1)])[topic].result(20)
                figures = {
                    "produce": in_process("produce", servers, topic, options.records, options.size),
                    "consume": in_process("consume", servers, topic, options.records, options.partitions),
                }
                admin.delete_topics([topic])[topic].result(20)
                if number:  # the first round warms up
                    for verb, figure in figures.items():
                        seconds.setdefault((name, verb), []).append(figure)
    client = f"confluent-kafka {version('confluent-kafka')}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {client}")
    print(f"{options.records} records of {options.size} B, {options.partitions} partitions, median of {options.rounds}")
    print(f"producer: {PRODUCER}\nconsumer: {CONSUMER}, consume(500)")
    broken = False
    for verb in ("produce", "consume"):
        rates = {name: options.records / statistics.median(seconds[name, verb]) for name in brokers}
        ratio = rates["ottla"] / rates["kafka"]
        broken |= ratio < TARGET
        print(
            f"{verb}: Ottla {rates['ottla'] / 1e6:.2f} M records/s, Apache Kafka {rates['kafka'] / 1e6:.2f} M records/s: "
            f"{ratio:.2f}x (target {TARGET}x)"
        )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
