"""Kafka 1.1.1's own tools on embedded brokers in a ZooKeeper: ``kafka-topics --zookeeper`` creates, describes, changes, lists and
deletes topics, and the old consumer meets a central group.

The former writes to ZooKeeper and does not wait; the brokers follow.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin, Broker, Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import (
    PATIENCE,
    BrokerCluster,
    cluster_of,
    described,
    led_partitions,
    nodes_of,
    partitions_of,
    read_values,
    until,
    until_each,
)
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.polling_members import members
from tests.interop.real_kafka import FETCH_TIMEOUT, KafkaTool, run_tool
from tests.interop.zookeeper.old_consumer import VERSION, old_consumer

pytestmark = pytest.mark.interop

VALUES = [b"%04d" % number for number in range(60)]


@pytest.fixture(scope="module")
def cluster(kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    run_tool("fetch", version=VERSION, timeout=FETCH_TIMEOUT)
    folder: Path = tmp_path_factory.mktemp("brokers")
    with ZooKeeperServer() as server, cluster_of(3, server.connect_string, folder) as cluster:
        yield cluster


def kafka_topics(cluster: BrokerCluster, *arguments: str) -> str:
    """The output of ``kafka-topics``."""
    tool = ("run", "kafka.admin.TopicCommand", "--zookeeper", cluster.connect)
    return run_tool(*tool, *arguments, version=VERSION, timeout=PATIENCE)


def leaders_in(output: str) -> dict[int, int]:
    """Partition -> leader, as ``kafka-topics --describe`` prints them."""
    rows = re.findall(r"Partition: (\d+)\tLeader: (-?\d+)\tReplicas: ([\d,]+)\tIsr: ([\d,-]+)", output)
    for _, leader, replicas, isr in rows:
        assert replicas == isr == leader
    return {int(partition): int(leader) for partition, leader, _, _ in rows}


def leaders_on(broker: Broker, topic: str) -> dict[int, int | None]:
    return {one.partition: one.leader for one in partitions_of(broker, topic)}


def topic_id_on(broker: Broker, topic: str) -> uuid.UUID | None:
    found = described(broker, topic)
    return None if found is None else found.topic_id


def produce(broker: Broker, topic: str, partitions: int, values: list[bytes] = VALUES) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for delivery in [producer.send(topic, value, partition=number % partitions) for number, value in enumerate(values)]:
            delivery.result(PATIENCE)


def test_it_describes_and_lists_a_topic_of_ours(cluster: BrokerCluster) -> None:
    cluster.create_topic("ours", 6, retention_ms="86400000")
    output = kafka_topics(cluster, "--describe", "--topic", "ours")
    assert "PartitionCount:6\tReplicationFactor:1\tConfigs:retention.ms=86400000" in output
    assert leaders_in(output) == leaders_on(cluster.brokers[0], "ours")
    assert len({*leaders_in(output).values()}) == 3
    assert "ours" in kafka_topics(cluster, "--list").splitlines()
    assert "ours" not in kafka_topics(cluster, "--describe", "--unavailable-partitions")


def test_a_topic_that_it_creates_is_served(cluster: BrokerCluster) -> None:
    kafka_topics(
        cluster,
        "--create",
        "--topic",
        "theirs",
        "--partitions",
        "6",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=5000000",
    )
    cluster.wait_for_leaders("theirs")
    first, *others = [described(broker, "theirs") for broker in cluster.brokers]
    assert first is not None
    assert first.topic_id is not None
    assert others == [first, first]
    assert cluster.json("brokers", "topics", "theirs")["topic_id"]
    until(lambda: leaders_in(kafka_topics(cluster, "--describe", "--topic", "theirs")) == leaders_on(cluster.brokers[0], "theirs"))
    with Admin(bootstrap_servers=cluster.brokers[2].bootstrap_servers) as admin:
        assert admin.describe_configs("topic", "theirs")["retention.ms"].value == "5000000"
    produce(cluster.brokers[1], "theirs", 6)
    assert read_values(cluster.brokers[2], "theirs", len(VALUES)) == VALUES


def test_partitions_that_it_adds(cluster: BrokerCluster) -> None:
    """It writes the topic's node again, without the id that it does not know. The topic is still the same."""
    cluster.create_topic("grows", 2)
    produce(cluster.brokers[0], "grows", 2)
    before = [topic_id_on(broker, "grows") for broker in cluster.brokers]
    kafka_topics(cluster, "--alter", "--topic", "grows", "--partitions", "6")
    cluster.wait_for_leaders("grows", 6)
    until(lambda: "topic_id" in cluster.json("brokers", "topics", "grows"))
    assert [topic_id_on(broker, "grows") for broker in cluster.brokers] == before
    produce(cluster.brokers[2], "grows", 6, [b"more"] * 6)
    assert read_values(cluster.brokers[1], "grows", len(VALUES) + 6) == [*VALUES, *[b"more"] * 6]


def test_a_broker_that_was_down_meanwhile_keeps_its_records(cluster: BrokerCluster) -> None:
    """The tool writes the node without the id, and the broker finds the partitions that it got meanwhile."""
    cluster.create_topic("missed", 2)
    produce(cluster.brokers[0], "missed", 2)
    before = topic_id_on(cluster.brokers[0], "missed")
    leader = partitions_of(cluster.brokers[0], "missed")[0].leader
    assert leader is not None
    home = cluster.brokers[leader - 1001]
    home.close()
    kafka_topics(cluster, "--alter", "--topic", "missed", "--partitions", "4")
    home.start()
    cluster.wait_for_leaders("missed", 4)
    until(lambda: "topic_id" in cluster.json("brokers", "topics", "missed"))
    assert [topic_id_on(broker, "missed") for broker in cluster.brokers] == [before] * 3
    assert read_values(home, "missed", len(VALUES)) == VALUES


def test_settings_that_it_changes(cluster: BrokerCluster) -> None:
    cluster.create_topic("settings", 2)
    run_tool(
        *("run", "kafka.admin.ConfigCommand", "--zookeeper", cluster.connect),
        *("--alter", "--entity-type", "topics", "--entity-name", "settings", "--add-config", "retention.ms=7000000"),
        version=VERSION,
        timeout=PATIENCE,
    )

    def is_changed(broker: Broker) -> bool:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            return admin.describe_configs("topic", "settings")["retention.ms"].value == "7000000"

    until_each(cluster.brokers, is_changed)


def test_a_topic_that_it_deletes(cluster: BrokerCluster) -> None:
    cluster.create_topic("ends", 6)
    produce(cluster.brokers[0], "ends", 6)
    kafka_topics(cluster, "--delete", "--topic", "ends")
    until_each(cluster.brokers, lambda broker: described(broker, "ends") is None)
    until(lambda: "ends" not in kafka_topics(cluster, "--list"))
    assert not cluster.children("admin", "delete_topics")
    kafka_topics(cluster, "--create", "--topic", "ends", "--partitions", "2", "--replication-factor", "1")
    cluster.wait_for_leaders("ends", 2)
    produce(cluster.brokers[1], "ends", 2, VALUES[:4])
    assert read_values(cluster.brokers[0], "ends", 4) == VALUES[:4]


def test_partitions_of_a_broker_that_is_down(cluster: BrokerCluster) -> None:
    cluster.create_topic("partly", 6)
    # Each broker has its share of all partitions, those included of which the deletion is not finished; so not always two of these.
    down = [one.partition for one in partitions_of(cluster.brokers[0], "partly") if one.leader == 1002]
    assert down
    cluster.brokers[1].close()
    try:
        until(lambda: len(led_partitions(cluster.brokers[0], "partly")) == 6 - len(down))
        output = kafka_topics(cluster, "--describe", "--topic", "partly", "--unavailable-partitions")
        assert sorted(map(int, re.findall(r"Partition: (\d+)", output))) == down
    finally:
        cluster.brokers[1].start()
    cluster.wait_for_leaders("partly", 6)
    assert sorted(nodes_of(cluster.brokers[0])) == [1001, 1002, 1003]


def test_its_old_consumer_in_a_central_group_gets_nothing_and_stops_no_one(cluster: BrokerCluster) -> None:
    """It registers without a look at the group's ``generation``, and finds each partition owned whenever it tries to take some."""
    cluster.create_topic("shared", 4)
    servers = [broker.bootstrap_servers for broker in cluster.brokers]
    with members(Member(servers, "shared", group_id="mixed", consumer_id="a")) as (first,):
        until(lambda: len(first.owned) == 4)
        # It tries to get partitions all the time.
        with old_consumer(cluster.connect, "mixed", "shared", rebalance_backoff_ms=100, rebalance_max_retries=10_000):
            until(lambda: cluster.children("consumers", "mixed", "ids"))
            with members(Member(servers, "shared", group_id="mixed", consumer_id="b")) as (second,):
                until(lambda: len(first.owned) == len(second.owned) == 2)
                assert cluster.children("consumers", "mixed", "ids"), "it is still registered"
                produce(cluster.brokers[0], "shared", 4)
                until(lambda: len({*first.handled, *second.handled}) == len(VALUES))
                assert first.errors == second.errors == []
