"""The real Kafka that other tests lean on does answer."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tests.interop.real_kafka import KafkaTool


def test_a_peer_client_reaches_the_real_kafka(real_kafka: str) -> None:
    metadata = AdminClient({"bootstrap.servers": real_kafka}).list_topics(timeout=10)
    assert [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()] == [real_kafka]


def test_kafkas_own_tools_run(real_kafka: str, kafka_tool: KafkaTool) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    kafka_tool(topics, "--bootstrap-server", real_kafka, "--create", "--topic", "tool-made", "--partitions", "3")
    described = kafka_tool(topics, "--bootstrap-server", real_kafka, "--describe", "--topic", "tool-made")
    assert "PartitionCount: 3" in described
