"""A consumer with a thousand partitions, of which one has records: processor time, and latency of the records.

Method: a process produces single records with timestamps to one partition. Ottla and confluent-kafka read it in turn, each in a
separate process, with all partitions assigned at their ends and with default settings. The figures are the CPU seconds (user and
system) of that process, and the time from timestamp to handler, as medians of alternating runs. Exits with 1 if Ottla needs more
CPU.

    python benchmarks/partitions.py [--partitions 1000] [--seconds 8] [--rate 200] [--runs 3] [--bootstrap-servers HOST:PORT]

Without ``--bootstrap-servers`` it starts Apache Kafka (which needs Java 17 and Maven; see ``tools/kafka``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import confluent_kafka
from _cluster import cluster
from confluent_kafka import admin

from ottla import Consumer, TopicPartition

PORTS = range(19_800, 19_890, 2)
ACTIVE = 7
"""The partition with records."""

CONSUMERS = ("confluent", "ours")


def ours(servers: str, topic: str, partitions: int) -> Iterator[bytes | None]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="latest") as consumer:
        consumer.assign(TopicPartition(topic, number) for number in range(partitions))
        consumer.seek_to_end()
        consumer.position(TopicPartition(topic, ACTIVE))
        while True:
            for record in consumer.poll(0.5):
                yield record.value
            yield None


def confluent(servers: str, topic: str, partitions: int) -> Iterator[bytes | None]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    end = confluent_kafka.OFFSET_END
    consumer.assign([confluent_kafka.TopicPartition(topic, number, end) for number in range(partitions)])
    while True:
        message = consumer.poll(0.5)
        yield None if message is None else message.value()


def read(name: str, servers: str, topic: str, partitions: int, seconds: float) -> None:
    """Warm up, then measure. Runs in a separate process."""
    values = {"ours": ours, "confluent": confluent}[name](servers, topic, partitions)
    warm_until = time.monotonic() + 3
    for value in values:
        if value is not None and time.monotonic() > warm_until:
            break
    late: list[float] = []
    began, cpu = time.monotonic(), sum(os.times()[:2])
    for value in values:
        if value is not None:
            late.append(time.time() - float(value))
        if time.monotonic() - began > seconds:
            break
    cpu = sum(os.times()[:2]) - cpu
    late.sort()
    print(
        json.dumps({"cpu": cpu, "records": len(late), "p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100]}), flush=True
    )
    os._exit(0)


def produce(servers: str, topic: str, rate: float) -> None:
    """Produce records with timestamps until killed. Runs in a separate process."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "linger.ms": 0})
    while True:
        producer.produce(topic, repr(time.time()).encode(), partition=ACTIVE)
        producer.poll(0)
        time.sleep(1 / rate)


def topic_of(servers: str, partitions: int) -> str:
    topic = f"bench-many-{partitions}"
    client = admin.AdminClient({"bootstrap.servers": servers})
    if topic not in client.list_topics(timeout=30).topics:
        client.create_topics([admin.NewTopic(topic, partitions, 1)], operation_timeout=120, request_timeout=120)[topic].result(120)
    return topic


def main() -> None:
    """Run both clients in turn and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part == "produce":
        return produce(args.bootstrap_servers, topic_of(args.bootstrap_servers, args.partitions), args.rate)
    if args.part:
        topic = topic_of(args.bootstrap_servers, args.partitions)
        return read(args.part, args.bootstrap_servers, topic, args.partitions, args.seconds)
    with cluster(args.bootstrap_servers, PORTS) as servers:
        topic_of(servers, args.partitions)
        command = [sys.executable, __file__, *sys.argv[1:], "--bootstrap-servers", servers, "--part"]
        producing = subprocess.Popen([*command, "produce"])
        try:
            found: dict[str, list[dict[str, float]]] = {name: [] for name in CONSUMERS}
            for _ in range(args.runs):
                for name in CONSUMERS:
                    done = subprocess.run([*command, name], check=True, capture_output=True, text=True)
                    found[name].append(json.loads(done.stdout))
        finally:
            producing.terminate()
    median = {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}
    for name, row in median.items():
        print(
            f"{name:10} {row['cpu'] / args.seconds:6.1%} of a core, {row['records'] / args.seconds:6.0f} records a second,"
            f" {row['p50'] * 1000:5.1f} ms late (p99 {row['p99'] * 1000:5.1f} ms)"
        )
    if median["ours"]["cpu"] > median["confluent"]["cpu"]:
        print("ours needs more CPU", file=sys.stderr)
        raise SystemExit(1)
    return None


if __name__ == "__main__":
    main()
