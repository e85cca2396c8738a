"""Kafka 0.8.2.2: ``tools/kafka`` starts it with its ZooKeeper, and runs its tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, OwnKafka, free_port_pair, run_tool

pytestmark = pytest.mark.interop

VERSION = "0.8.2.2"
LIMIT = 60.0


class Old(NamedTuple):
    """The addresses of a node of 0.8."""

    broker: str
    zookeeper: str


@pytest.fixture
def old(kafka_tool: KafkaTool) -> Iterator[Old]:
    run_tool("fetch", version=VERSION, timeout=FETCH_TIMEOUT)
    port = free_port_pair()
    node = OwnKafka(port, version=VERSION)
    try:
        yield Old(node.address, f"127.0.0.1:{port + 1}")
    finally:
        node.stop()


def run(tool: str, *arguments: str, stdin: str = "") -> str:
    return run_tool("run", tool, *arguments, stdin=stdin, version=VERSION, timeout=LIMIT)


def test_a_group_of_its_consumer_is_seen_by_its_offset_checker(old: Old, tmp_path: Path) -> None:
    run(
        "kafka.admin.TopicCommand",
        *("--zookeeper", old.zookeeper, "--create", "--topic", "orders", "--partitions", "1", "--replication-factor", "1"),
    )
    run("kafka.tools.ConsoleProducer", "--broker-list", old.broker, "--topic", "orders", stdin="tea\ncoffee\nwater\n")
    group = tmp_path / "group.properties"
    group.write_text("group.id=bar\n")
    read = run(
        "kafka.tools.ConsoleConsumer",
        *("--zookeeper", old.zookeeper, "--topic", "orders", "--from-beginning", "--max-messages", "2"),
        *("--consumer.config", str(group)),
    )
    assert read.split() == ["tea", "coffee"]
    checked = run("kafka.tools.ConsumerOffsetChecker", "--zookeeper", old.zookeeper, "--group", "bar")
    assert checked.splitlines()[1].split() == ["bar", "orders", "0", "2", "3", "1", "none"]
