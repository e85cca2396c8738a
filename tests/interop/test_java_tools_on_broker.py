"""Kafka's own Java clients and tools on our broker."""

from __future__ import annotations

import re

import pytest

from ottla import Broker
from tests.interop.real_kafka import KafkaTool

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LINES = [f"line {number}" for number in range(200)]


@pytest.mark.timeout(180)
def test_a_topic_s_life_with_kafka_s_own_tools(kafka_broker: Broker, kafka_tool: KafkaTool) -> None:
    server = ("--bootstrap-server", kafka_broker.bootstrap_servers)
    kafka_tool(TOPICS, *server, "--create", "--topic", "java", "--partitions", "3", "--config", "retention.ms=100000")
    described = kafka_tool(TOPICS, *server, "--describe", "--topic", "java")
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=100000" in described

    # The Java producer is idempotent by default, and its fetches open sessions.
    kafka_tool("org.apache.kafka.tools.ConsoleProducer", *server, "--topic", "java", stdin="\n".join(LINES) + "\n")
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    wanted = ("--topic", "java", "--group", "javas", "--from-beginning", "--max-messages", str(len(LINES)), "--timeout-ms", "20000")
    assert sorted(kafka_tool(consumer, *server, *wanted).splitlines()) == sorted(LINES)

    offsets = kafka_tool("org.apache.kafka.tools.GetOffsetShell", *server, "--topic", "java")
    assert sum(int(line.rsplit(":", 1)[1]) for line in offsets.splitlines()) == len(LINES)
    group = kafka_tool(GROUPS, *server, "--describe", "--group", "javas")
    rows = re.findall(r"^javas +java +(\d) +(\d+) +(\d+) +(\d+)", group, re.MULTILINE)
    assert {(row[0], row[3]) for row in rows} == {("0", "0"), ("1", "0"), ("2", "0")}, "nothing is left to read"
    kafka_tool(GROUPS, *server, "--group", "javas", "--topic", "java", "--reset-offsets", "--to-earliest", "--execute")
    group = kafka_tool(GROUPS, *server, "--describe", "--group", "javas")
    assert sum(int(row[3]) for row in re.findall(r"^javas +java +(\d) +(\d+) +(\d+) +(\d+)", group, re.MULTILINE)) == len(LINES)

    kafka_tool(TOPICS, *server, "--delete", "--topic", "java")
    assert "java" not in kafka_tool(TOPICS, *server, "--list").split()
