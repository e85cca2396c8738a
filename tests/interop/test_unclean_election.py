"""An unclean leader election: a leader dies with records that no other replica has, and a replica that is not in sync takes over.

The records are lost and other records get their offsets: Kafka allows this with ``unclean.leader.election.enable``. A consumer must
not continue at its position in the new log, because it would skip the records that replaced those it had read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import Consumer, TopicPartition
from ottla.errors import LogTruncationError
from ottla.spark.data_loss import DataLossError
from ottla.spark.options import parse_options
from ottla.spark.planning import OffsetRange
from ottla.spark.reading import read_ranges
from tests.interop.cluster.cluster_admin import Operator, patiently
from tests.interop.real_kafka import KafkaCluster, KafkaTool

TOPIC = "cut"
TP = TopicPartition(TOPIC, 0)
PATIENCE = 120.0
"""Seconds."""
KEPT, LOST, NEW, MORE = 100, 50, 200, 50
"""Records that both replicas have, that the dead leader alone had, that the next one got, and that came when the first was back."""
FIRST = [b"first %d" % number for number in range(KEPT + LOST)]
SECOND = [b"second %d" % number for number in range(NEW)]
THIRD = [b"third %d" % number for number in range(MORE)]
Found = list[tuple[int, bytes]]
"""Offset and value of each record, in order."""


class Reader:
    """One of our consumers, its records, and the truncation errors that it raised."""

    def __init__(self, servers: str, group: str, policy: str, **settings: Any) -> None:
        self.consumer = Consumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset=policy,
            enable_auto_commit=False,
            metadata_max_age_ms=1_000,
            **settings,
        )
        self.found: Found = []
        self.truncations: list[LogTruncationError] = []
        if policy == "none":  # of a group without commits it would know no beginning
            self.consumer.assign([TP])
            self.consumer.seek(TP, 0)
        else:
            self.consumer.subscribe([TOPIC])

    def poll(self) -> None:
        """One poll, and one commit of what it gave."""
        try:
            records = self.consumer.poll(0.2)
        except LogTruncationError as error:
            self.truncations.append(error)
            return
        self.found += [(record.offset, record.value) for record in records]
        if records:
            self.consumer.commit(timeout=PATIENCE)

    def close(self) -> None:
        self.consumer.close()


def spark_task(servers: str, fails: bool) -> Iterator[bytes]:
    """The values that a task of Spark returns, which was planned with the log of the first leader, when that got more records."""
    given = {
        "kafka.bootstrap.servers": servers,
        "subscribe": TOPIC,
        "failOnDataLoss": str(fails),
        "kafka.metadata.max.age.ms": "1000",
    }
    for rows in read_ranges([OffsetRange(TOPIC, 0, 0, KEPT + NEW)], ("value",), parse_options(given).for_stream()):
        yield from rows.column("value").to_pylist()


@pytest.fixture
def cluster(kafka_tool: KafkaTool) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(3)
    try:
        yield cluster
    finally:
        cluster.stop()


def poll_until(readers: Sequence[Reader], done: Callable[[Reader], bool]) -> None:
    """Poll each reader until it is done."""
    until = time.monotonic() + PATIENCE
    while left := [reader for reader in readers if not done(reader)]:
        assert time.monotonic() < until, [(reader.consumer, reader.found[-3:], reader.truncations) for reader in left]
        for reader in left:
            reader.poll()


def produce(servers: str, values: Sequence[bytes], acks: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": acks})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(PATIENCE) == 0


def isr(operator: Operator) -> list[int]:
    return sorted(operator.partition(TOPIC, 0).isr)


@pytest.mark.interop
@pytest.mark.timeout(600)
def test_all_consumers_read_the_records_that_replace_lost_ones(cluster: KafkaCluster) -> None:
    servers = cluster.bootstrap_servers
    with closing(Operator(servers)) as operator, ExitStack() as readers:

        def reader(group: str, policy: str, **settings: Any) -> Reader:
            return readers.enter_context(closing(Reader(servers, group, policy, **settings)))

        old, new = create(servers, operator)
        consumer = reader("consumer", "earliest", group_protocol="consumer")
        classic = reader("classic", "latest", group_protocol="classic")
        strict = reader("strict", "none")
        slow = reader("slow", "earliest", max_poll_records=10)
        absent = reader("absent", "earliest")
        consumers = [consumer, classic, strict, slow, absent]
        poll_until(consumers, lambda one: one.consumer.assignment() == {TP} and one.consumer.position(TP, timeout=PATIENCE) == 0)

        produce(servers, FIRST[:KEPT], "all")
        cluster.end(new)
        patiently("see one replica in sync", lambda: isr(operator) == [old] or None)
        produce(servers, FIRST[KEPT:], "1")
        poll_until([slow], lambda one: len(one.found) >= KEPT + 20)
        poll_until([consumer, classic, strict, absent], lambda one: one.found == list(enumerate(FIRST)))
        absent.close()
        tasks = [spark_task(servers, fails) for fails in (True, False)]
        for task in tasks:
            assert [next(task) for _ in FIRST] == FIRST

        cluster.kill(old)
        cluster.again(new)
        patiently("see the other replica lead", lambda: operator.leader(TOPIC, 0) == new or None)
        produce(servers, SECOND, "all")

        with pytest.raises(DataLossError, match=f"offsets {KEPT} to {len(FIRST) - 1} cannot be read: .* lost with a broker"):
            next(tasks[0])
        assert list(tasks[1]) == SECOND[LOST:], "failOnDataLoss is false"
        poll_until([strict], lambda one: bool(one.truncations))
        assert (strict.truncations[0].offset, strict.truncations[0].divergent_offset) == (len(FIRST), KEPT)
        assert strict.found == list(enumerate(FIRST)), "it waits for a seek"
        strict.consumer.seek(TP, KEPT)
        back = reader("absent", "latest")  # with its commit of a position that the log does not have
        consumers = [consumer, classic, strict, slow, back]
        poll_until(consumers, lambda one: (KEPT + NEW - 1, SECOND[-1]) in one.found)

        cluster.again(old)
        patiently("see both in sync", lambda: isr(operator) == sorted((old, new)) or None)
        operator.prefer()
        patiently("see the first leader lead", lambda: operator.leader(TOPIC, 0) == old or None)
        produce(servers, THIRD, "all")
        poll_until(consumers, lambda one: (KEPT + NEW + MORE - 1, THIRD[-1]) in one.found)

    then = list(enumerate(SECOND + THIRD, KEPT))
    for one in (consumer, classic, strict):
        assert one.found == [*enumerate(FIRST), *then]
    seen = len(slow.found) - len(then)
    assert seen >= KEPT + 20
    assert slow.found == [*enumerate(FIRST[:seen]), *then], "what it had before the election, and all that came after"
    assert back.found == then


def create(servers: str, operator: Operator) -> tuple[int, int]:
    """Make the topic; the nodes of its leader and of its other replica."""
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, 2, config=settings)])[TOPIC].result(PATIENCE)
    leader, other = patiently("see both replicas in sync", lambda: _leader_first(operator))
    return leader, other


def _leader_first(operator: Operator) -> tuple[int, ...] | None:
    found = operator.partition(TOPIC, 0)
    whole = found.leader == found.replicas[0] and sorted(found.isr) == sorted(found.replicas)
    return found.replicas if whole else None
