"""The fixtures with Apache Kafka work."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.real_kafka import KafkaCluster, KafkaTool


def test_a_peer_client_reaches_the_real_kafka(real_kafka: str) -> None:
    metadata = AdminClient({"bootstrap.servers": real_kafka}).list_topics(timeout=60)
    assert [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()] == [real_kafka]


def test_kafkas_own_tools_run(real_kafka: str, kafka_tool: KafkaTool) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    kafka_tool(topics, "--bootstrap-server", real_kafka, "--create", "--topic", "tool-made", "--partitions", "3")
    described = kafka_tool(topics, "--bootstrap-server", real_kafka, "--describe", "--topic", "tool-made")
    assert "PartitionCount: 3" in described


@pytest.mark.interop
def test_a_cluster_goes_on_without_one_of_its_nodes(kafka_cluster: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic("spread", 6, 3)])["spread"].result(60)
    leaders = {one.leader for one in admin.list_topics("spread", timeout=60).topics["spread"].partitions.values()}
    assert leaders == {1, 2, 3}
    kafka_cluster.kill(2)
    until = time.monotonic() + 60
    while leaders - {-1} != {1, 3}:
        assert time.monotonic() < until, f"led by {leaders}"
        leaders = {one.leader for one in admin.list_topics("spread", timeout=60).topics["spread"].partitions.values()}
    kafka_cluster.again(2)
    assert not kafka_cluster.down
