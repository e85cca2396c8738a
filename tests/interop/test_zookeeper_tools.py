"""``ottla group --zookeeper`` beside Kafka's own tools, on Kafka 1.1.1: both say the same about groups of Java's old consumers.

What one side changes, the other side sees: committed offsets, deleted groups, and offsets that were migrated.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, NamedTuple

import pytest

from ottla import Admin, Consumer, TopicPartition, ZooKeeperAdmin
from tests.end_to_end.programs import ottla
from tests.interop.other_clients import create_topic, produce_confluent
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, OwnKafka, free_port_pair, run_tool
from tests.interop.zookeeper.old_consumer import LIMIT, VERSION, old_consumer

pytestmark = pytest.mark.interop

OLDEST = "0.8.2.2"
PARTITIONS = 5
GROUPS_TOOL = "kafka.admin.ConsumerGroupCommand"
_numbers = count()

Rows = list[tuple[str, int, int | None, int | None, int | None, str | None]]
"""Topic, partition, committed offset, end of the log, lag, and the member that owns the partition."""


class Kafka(NamedTuple):
    """The addresses of a node of Kafka 1.1.1."""

    broker: str
    zookeeper: str


@pytest.fixture(scope="module")
def kafka(kafka_tool: KafkaTool) -> Iterator[Kafka]:
    for version in (VERSION, OLDEST):
        run_tool("fetch", version=version, timeout=FETCH_TIMEOUT)
    port = free_port_pair()
    node = OwnKafka(port, version=VERSION)
    try:
        yield Kafka(node.address, f"127.0.0.1:{port + 1}")
    finally:
        node.stop()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic with 100 records in five partitions."""
    name = f"orders-{next(_numbers)}"
    create_topic(kafka.broker, name, PARTITIONS)
    produce(kafka, name, 100)
    return name


@pytest.fixture
def group() -> str:
    return f"bar-{next(_numbers)}"


def produce(kafka: Kafka, topic: str, number: int) -> None:
    produce_confluent(
        kafka.broker, topic, [(index % PARTITIONS, b"k", b"v%d" % index, 1_700_000_000_000, ()) for index in range(number)]
    )


def java(tool: str, *arguments: str, version: str = VERSION) -> str:
    return run_tool("run", tool, *arguments, version=version, timeout=LIMIT)


def described_by_java(kafka: Kafka, group: str) -> Rows:
    lines = java(GROUPS_TOOL, "--zookeeper", kafka.zookeeper, "--describe", "--group", group).splitlines()
    rows: Rows = []
    for topic, partition, committed, end, lag, member in (line.split() for line in lines if line and not line.startswith("TOPIC")):
        rows.append((topic, int(partition), number(committed), number(end), number(lag), None if member == "-" else member))
    return sorted(rows, key=lambda row: row[:2])


def checked_by_java(kafka: Kafka, group: str) -> Rows:
    """What ConsumerOffsetChecker of 0.8.2.2 says; its owners are threads."""
    lines = java("kafka.tools.ConsumerOffsetChecker", "--zookeeper", kafka.zookeeper, "--group", group, version=OLDEST).splitlines()
    rows: Rows = []
    for _, topic, partition, committed, end, lag, owner in (line.split() for line in lines[1:]):
        rows.append((topic, int(partition), number(committed), number(end), number(lag), None if owner == "none" else owner))
    return sorted(rows, key=lambda row: row[:2])


def number(cell: str) -> int | None:
    return None if cell in ("-", "unknown") else int(cell)


def described_by_ottla(kafka: Kafka, group: str, *, threads: bool = False) -> Rows:
    done = ottla("group", "describe", group, "--zookeeper", kafka.zookeeper, "--format", "json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return [
        (row["topic"], row["partition"], row["committed"], row["end_offset"], row["lag"], owner_of(row["owner"], threads))
        for row in document["partitions"]
    ]


def owner_of(thread: str | None, threads: bool) -> str | None:
    return thread if thread is None or threads else thread.rpartition("-")[0]


def old_member(kafka: Kafka, group: str, topic: str, **settings: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Java's old consumer.

    A group without offsets in ZooKeeper begins with the first record. (The program refuses ``smallest`` for any other group.)
    """
    reset = "largest" if committed(kafka, group) else "smallest"
    return old_consumer(kafka.zookeeper, group, topic, auto_offset_reset=reset, auto_commit_interval_ms=200, **settings)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def committed(kafka: Kafka, group: str) -> int:
    """The sum of the offsets in ZooKeeper."""
    with ZooKeeperAdmin(kafka.zookeeper) as zookeeper:
        return sum(at.offset for at in zookeeper.group_offsets(group).values())


def ottla_group(*arguments: str) -> str:
    done = ottla("group", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("store", ["zookeeper", "kafka", "both"])
def test_a_group_at_work_and_at_rest_is_described_as_by_kafkas_tools(kafka: Kafka, topic: str, group: str, store: str) -> None:
    settings = {
        "offsets.storage": "zookeeper" if store == "zookeeper" else "kafka",
        "dual.commit.enabled": str(store == "both").lower(),
    }
    with old_member(kafka, group, topic, **settings) as process:
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(100)]) == 100
        until(lambda: sum(row[2] or 0 for row in described_by_ottla(kafka, group)) == 100)
        rows = described_by_ottla(kafka, group)
        assert len(rows) == PARTITIONS
        assert all(owner is not None and owner.startswith(f"{group}_") for *_, owner in rows)
        assert described_by_java(kafka, group) == rows
        assert checked_by_java(kafka, group) == described_by_ottla(kafka, group, threads=True)
        listed = json.loads(ottla_group("list", "--zookeeper", kafka.zookeeper, "--format", "json"))
        assert {"group": group, "state": "Active", "protocol": "zookeeper"} in listed
        refused = ottla("group", "delete", group, "--execute", "--zookeeper", kafka.zookeeper)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "is Active in ZooKeeper: its members must leave first" in refused.stderr
        assert "its consumers are still active" in java(GROUPS_TOOL, "--zookeeper", kafka.zookeeper, "--delete", "--group", group)
    produce(kafka, topic, 10)
    rows = described_by_ottla(kafka, group)
    assert [(lag, owner) for *_, lag, owner in rows] == [(2, None)] * PARTITIONS
    assert described_by_java(kafka, group) == rows
    assert checked_by_java(kafka, group) == rows
    listed_by_java = java(GROUPS_TOOL, "--zookeeper", kafka.zookeeper, "--list").split()
    listed = json.loads(ottla_group("list", "--zookeeper", kafka.zookeeper, "--format", "json"))
    assert sorted(listed_by_java) == [row["group"] for row in listed]


def test_javas_consumer_continues_where_a_reset_has_sent_it(kafka: Kafka, topic: str, group: str) -> None:
    with old_member(kafka, group, topic) as process:
        until(lambda: committed(kafka, group) == 100)
        assert process.poll() is None
    ottla_group("reset-offsets", group, "-o", "18", "--execute", "--zookeeper", kafka.zookeeper)
    with old_member(kafka, group, topic) as process:
        assert process.stdout is not None
        again = sorted(process.stdout.readline().strip() for _ in range(2 * PARTITIONS))
        assert again == sorted(f"v{index}" for index in range(90, 100))
        until(lambda: committed(kafka, group) == 100)


def test_a_group_that_ottla_has_made_is_one_for_java(kafka: Kafka, topic: str, group: str) -> None:
    ottla_group("reset-offsets", group, "-t", topic, "-o", "19", "--execute", "--zookeeper", kafka.zookeeper)
    assert group in java(GROUPS_TOOL, "--zookeeper", kafka.zookeeper, "--list").split()
    described_by_java(kafka, group)  # its table is empty before there were owners, but it is no error
    with old_member(kafka, group, topic) as process:
        assert process.stdout is not None
        read = sorted(process.stdout.readline().strip() for _ in range(PARTITIONS))
        assert read == [f"v{index}" for index in range(95, 100)]
        until(lambda: committed(kafka, group) == 100)
    assert described_by_java(kafka, group) == described_by_ottla(kafka, group)


def test_a_group_or_a_topic_that_ottla_has_deleted_is_gone_for_java(kafka: Kafka, topic: str, group: str) -> None:
    with old_member(kafka, group, topic):
        until(lambda: committed(kafka, group) == 100)
    ottla_group("delete", group, "-t", topic, "--execute", "--zookeeper", kafka.zookeeper)
    assert described_by_java(kafka, group) == []
    ottla_group("delete", group, "--execute", "--zookeeper", kafka.zookeeper)
    done = java(GROUPS_TOOL, "--zookeeper", kafka.zookeeper, "--describe", "--group", group)
    assert f"The consumer group '{group}' does not exist." in done
    with old_member(kafka, group, topic) as process:
        assert process.stdout is not None
        assert len([process.stdout.readline() for _ in range(100)]) == 100


def test_a_group_moves_to_kafka_and_back(kafka: Kafka, topic: str, group: str) -> None:
    with old_member(kafka, group, topic):
        until(lambda: committed(kafka, group) == 100)
        refused = ottla("group", "migrate", group, "--from", "zookeeper", "--to", "kafka", "--zookeeper", kafka.zookeeper)
        assert refused.returncode == 1
    ottla_group("migrate", group, "--from", "zookeeper", "--to", "kafka", "--execute", "--zookeeper", kafka.zookeeper)
    lines = java(GROUPS_TOOL, "--bootstrap-server", kafka.broker, "--describe", "--group", group).splitlines()
    moved = [line.split()[:5] for line in lines if line.startswith(topic)]
    assert sorted(moved) == [[topic, str(partition), "20", "20", "0"] for partition in range(PARTITIONS)]
    produce(kafka, topic, 10)
    with Consumer(bootstrap_servers=kafka.broker, group_id=group) as consumer:
        consumer.subscribe([topic])
        values: list[bytes | None] = []
        deadline = time.monotonic() + LIMIT
        while len(values) < 10:
            assert time.monotonic() < deadline
            values += [record.value for record in consumer.poll(1)]
        consumer.commit()
        for source, target in (("zookeeper", "kafka"), ("kafka", "zookeeper")):
            refused = ottla("group", "migrate", group, "--from", source, "--to", target, "--zookeeper", kafka.zookeeper)
            assert refused.returncode == 1
            assert "in Kafka: its members must leave first" in refused.stderr
    assert sorted(values, key=repr) == sorted((b"v%d" % index for index in range(10)), key=repr)
    ottla_group("migrate", group, "--from", "kafka", "--to", "zookeeper", "--execute", "--zookeeper", kafka.zookeeper)
    produce(kafka, topic, 5)
    with old_member(kafka, group, topic) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline().strip() for _ in range(5)) == [f"v{index}" for index in range(5)]
        until(lambda: committed(kafka, group) == 115)
    with Admin(bootstrap_servers=kafka.broker) as admin:
        assert admin.group_offsets(group)[TopicPartition(topic, 0)].offset == 22
    ahead = json.loads(
        ottla_group("migrate", group, "--from", "kafka", "--to", "zookeeper", "--zookeeper", kafka.zookeeper, "--format", "json")
    )
    assert {row["action"] for row in ahead} == {"keep"}


def test_java_members_that_join_during_changes_see_all_of_a_change_or_nothing(kafka: Kafka, topic: str, group: str) -> None:
    """A member that starts while offsets are reset over and over: some reset is the last one, and then none succeeds."""
    with ZooKeeperAdmin(kafka.zookeeper) as zookeeper:
        written = {TopicPartition(topic, partition): 10 for partition in range(PARTITIONS)}
        zookeeper.alter_group_offsets(group, written)
        with old_member(kafka, group, topic) as process:
            resets, refused = 0, None
            deadline = time.monotonic() + LIMIT
            while refused is None and time.monotonic() < deadline:
                resets += 1
                try:
                    zookeeper.alter_group_offsets(group, dict.fromkeys(written, 10 + resets % 2))
                except Exception as error:
                    refused = error
            assert type(refused).__name__ == "NonEmptyGroupError"
            last = {at.offset for at in zookeeper.group_offsets(group).values()}
            assert resets > 10
            assert process.stdout is not None
            first = process.stdout.readline().strip()
            assert first in {f"v{offset * PARTITIONS + partition}" for offset in (10, 11) for partition in range(PARTITIONS)}
            assert last <= {10, 11} or min(last) > 11
            until(lambda: committed(kafka, group) == 100)
