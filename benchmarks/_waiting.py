"""Latencies: the time to the first record, and the time from producing a record to its handler.

Each client is used idiomatically: Ottla with ``for record in consumer``, confluent-kafka with ``poll()``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import confluent_kafka

from ottla import Consumer, TopicPartition

PACER = """
import sys, time
import confluent_kafka
servers, topic, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
producer.list_topics(topic, 10)
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
for number in range(round(rate * seconds)):
    while (left := began + number / rate - time.monotonic()) > 0:
        time.sleep(left)
    producer.produce(topic, b"%d" % time.monotonic_ns(), partition=0)
    producer.poll(0)
producer.flush(30)
"""
"""The program of a process that produces ``rate`` records per second to partition 0. Their values are the time in nanoseconds."""


class Waits(NamedTuple):
    """Milliseconds from produce to handler, the median and the 99th percentile, and the seconds of processor time."""

    median: float
    p99: float
    cpu: float


Follow = Callable[[str, str, int], Iterator[bytes]]
"""Servers, topic and number of partitions -> the values of new records, after an empty one when the consumer is ready."""


def follow_ottla(servers: str, topic: str, partitions: int) -> Iterator[bytes]:
    """``for record in consumer``, from the end of the log."""
    with Consumer(bootstrap_servers=servers, auto_offset_reset="latest") as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        consumer.position((topic, 0), timeout=60)  # type: ignore[arg-type]
        consumer.poll(1.0)
        yield b""
        for record in consumer:
            yield record.value


def follow_confluent(servers: str, topic: str, partitions: int) -> Iterator[bytes]:
    """``poll()``, from the end of the log."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=60)
    others = [confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_END) for number in range(1, partitions)]
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, end), *others])
    consumer.poll(1.0)
    yield b""
    try:
        while True:
            message = consumer.poll(1.0)
            if message is not None:
                yield message.value()
    finally:
        consumer.close()


def waits(follow: Follow, servers: str, topic: str, partitions: int, rate: int, seconds: float) -> Waits:
    """Follow a topic while records are produced, and return the latencies."""
    latencies: list[float] = []
    records = follow(servers, topic, partitions)
    assert next(records) == b""
    command = [sys.executable, "-c", PACER, servers, topic, str(rate), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pacer:
        assert pacer.stdin is not None
        assert pacer.stdout is not None
        pacer.stdout.readline()
        used = time.process_time()
        pacer.stdin.write(b"\n")
        pacer.stdin.flush()
        for value in records:
            latencies.append((time.monotonic_ns() - int(value)) / 1e6)
            if len(latencies) == round(rate * seconds):
                break
        used = time.process_time() - used
        pacer.wait()
    records.close()  # type: ignore[attr-defined]
    quantiles = statistics.quantiles(latencies, n=100)
    return Waits(statistics.median(latencies), quantiles[98], used)


def first_of_ottla(servers: str, topic: str) -> float:
    """Return the seconds from the creation of a consumer to the first record of its group."""
    began = time.perf_counter()
    with Consumer(bootstrap_servers=servers, group_id=str(uuid.uuid4()), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        next(iter(consumer))
        return time.perf_counter() - began


def first_of_confluent(servers: str, topic: str) -> float:
    """Return the same for confluent-kafka, with the protocol that joins faster."""
    began = time.perf_counter()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": str(uuid.uuid4()),
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while consumer.poll(1.0) is None:
        pass
    took = time.perf_counter() - began
    consumer.close()
    return took
