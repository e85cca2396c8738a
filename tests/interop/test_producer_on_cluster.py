"""Producers on three Apache Kafka nodes while leaders move, nodes restart one after the other, and nodes are killed.

Owns the troubles and the check: each record is in the log once, at the offset that its delivery has, and the records of a partition
are in the order in which they were sent. Must not know how a producer recovers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow
import pytest

from ottla import AsyncProducer, Delivery, Producer
from tests.interop.cluster.cluster_admin import Operator
from tests.interop.other_clients import read_all
from tests.interop.real_kafka import KafkaCluster, KafkaTool

PARTITIONS = 6
NODES = (1, 2, 3)
TICK = 0.02
"""Seconds between two rounds of writing."""
PATIENCE = 300.0
"""Seconds."""

Written = list[tuple[int, int | None]]
"""Partition of each record, in order, and its offset, where it is known."""
Go = Callable[[], bool]
"""Whether to write more."""


@pytest.fixture
def cluster(kafka_tool: KafkaTool) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(3, "min.insync.replicas=2")
    try:
        yield cluster
    finally:
        cluster.stop()


def value(number: int) -> bytes:
    return b"%08d" % number


def by_send(config: dict[str, Any], topic: str, go: Go, stop: threading.Event) -> Written:
    sent: list[Delivery] = []
    with Producer(config) as producer:
        while go():
            sent += [producer.send(topic, value(len(sent) + n), partition=n % PARTITIONS) for n in range(2 * PARTITIONS)]
            stop.wait(TICK)
        producer.flush(PATIENCE)
    return [(one.result().partition, one.result().offset) for one in sent]


def in_tasks(config: dict[str, Any], topic: str, go: Go, stop: threading.Event) -> Written:
    async def run() -> Written:
        sent: list[Delivery] = []
        async with AsyncProducer(config) as producer:
            while go():
                for n in range(2 * PARTITIONS):
                    sent.append(await producer.send(topic, value(len(sent)), partition=n % PARTITIONS))
                await asyncio.sleep(TICK)
            await producer.flush(PATIENCE)
        return [(one.result().partition, one.result().offset) for one in sent]

    return asyncio.run(run())


def by_arrow(config: dict[str, Any], topic: str, go: Go, stop: threading.Event) -> Written:
    rows = 10 * PARTITIONS
    calls = 0
    with Producer(config) as producer:
        while go():
            numbers = range(calls * rows, (calls + 1) * rows)
            partitions = pyarrow.array([n % PARTITIONS for n in numbers], pyarrow.int32())
            table = pyarrow.table({"partition": partitions, "value": [value(n) for n in numbers]})
            written = producer.send_arrow(table, topic).result(PATIENCE)
            assert [one.rows for one in written] == [10] * PARTITIONS
            calls += 1
            stop.wait(TICK)
    return [(number % PARTITIONS, None) for number in range(calls * rows)]


WRITERS = {"send": by_send, "tasks": in_tasks, "arrow": by_arrow}


@pytest.mark.interop
@pytest.mark.timeout(900)
def test_each_record_is_written_once_and_in_order_while_the_cluster_is_in_trouble(cluster: KafkaCluster) -> None:
    stop = threading.Event()
    written: dict[str, Written] = {}
    failed: list[BaseException] = []
    config = {"bootstrap_servers": cluster.bootstrap_servers, "delivery_timeout": PATIENCE, "max_block": PATIENCE, "linger": 0}

    def run(name: str) -> None:
        try:
            written[name] = WRITERS[name](config, name, lambda: not stop.is_set(), stop)
        except BaseException as error:
            failed.append(error)

    with closing(Operator(cluster.bootstrap_servers)) as operator:
        for name in WRITERS:
            operator.create(name, PARTITIONS, 3)
        threads = [threading.Thread(target=run, args=(name,)) for name in WRITERS]
        for thread in threads:
            thread.start()
        try:
            trouble(cluster, operator)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
    assert failed == []
    for name, records in written.items():
        check(cluster, name, records)


def trouble(cluster: KafkaCluster, operator: Operator) -> None:
    """Move all leaders, restart each node, kill each node."""
    for name in WRITERS:
        operator.move(name, NODES)
    for node in NODES:
        cluster.end(node)
        cluster.again(node)
        operator.wait_until_whole(NODES)
    operator.prefer()
    for node in NODES:
        cluster.kill(node)
        cluster.again(node)
        operator.wait_until_whole(NODES)
        operator.prefer()


def check(cluster: KafkaCluster, name: str, records: Written) -> None:
    assert len(records) > 1_000
    found = read_all(cluster.bootstrap_servers, name, "confluent", len(records), seconds=PATIENCE)
    for partition in range(PARTITIONS):
        sent = [value(number) for number, (place, _) in enumerate(records) if place == partition]
        stored = [one for one in found if one.partition == partition]
        assert [one.value for one in stored] == sent, f"{name}-{partition}"
        where = {one.value: one.offset for one in stored}
        told = {value(number): offset for number, (place, offset) in enumerate(records) if place == partition}
        # Of a batch that was sent twice a broker may say only that it has it.
        wrong = {key: offset for key, offset in told.items() if offset not in (None, -1, where[key])}
        assert wrong == {}, f"{name}-{partition}"
