"""Kafka's own tools on several embedded brokers in a ZooKeeper: a central group, and a producer with a transactional id."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from ottla import Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import BrokerCluster, cluster_of, until
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.polling_members import members
from tests.interop.real_kafka import TOOL, KafkaTool

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def cluster(kafka_tool: KafkaTool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    with ZooKeeperServer(settings={"tickTime": 500}) as server, cluster_of(2, server.connect_string, folder) as cluster:
        yield cluster


@pytest.mark.timeout(300)
def test_kafka_consumer_groups_on_a_central_group(cluster: BrokerCluster, kafka_tool: KafkaTool) -> None:
    def rows(*arguments: str) -> list[list[str]]:
        """The columns of each row, without those of the header."""
        printed = kafka_tool(GROUPS, "--bootstrap-server", servers[1], *arguments)
        return [line.split() for line in printed.splitlines() if line.strip() and not line.startswith("GROUP ")]

    def reset() -> list[list[str]]:
        return rows("--group", "g", "--reset-offsets", "--to-earliest", "--topic", "t", "--execute")

    servers = [broker.bootstrap_servers for broker in cluster.brokers]
    cluster.create_topic("t", 2)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(6):
            producer.send("t", b"x", partition=number % 2)
    with members(Member(servers, "t", consumer_id="a", client_id="living")) as (one,):
        until(lambda: len(one.handled) == 6)
        until(lambda: [cluster.json("consumers", "g", "offsets", "t", number) for number in (0, 1)] == [3, 3])
        assert rows("--list") == [["g"]]
        assert rows("--list", "--state") == [["g", "Stable"]]
        assert rows("--list", "--type", "classic") == [["g", "Classic"]]
        described = ["g_a", "/127.0.0.1", "living"]
        assert sorted(rows("--describe", "--group", "g")) == [
            ["g", "t", "0", "3", "3", "0", *described],
            ["g", "t", "1", "3", "3", "0", *described],
        ]
        (member,) = rows("--describe", "--group", "g", "--members")
        assert member[:5] == ["g", *described, "2"]
        (state,) = rows("--describe", "--group", "g", "--state")
        assert [state[0], *state[3:]] == ["g", "range", "Stable", "1"]
        assert ["Error:", "Assignments", "can", "only", "be", "reset"] in [row[:6] for row in reset()]
    assert [cluster.json("consumers", "g", "offsets", "t", number) for number in (0, 1)] == [3, 3]
    assert sorted(reset()) == [["g", "t", "0", "0"], ["g", "t", "1", "0"]]
    assert [cluster.json("consumers", "g", "offsets", "t", number) for number in (0, 1)] == [0, 0]
    assert ["g", "t", "0", "0", "3", "3", "-", "-", "-"] in rows("--describe", "--group", "g")
    assert [" ".join(row) for row in rows("--group", "g", "--delete")] == [
        "Deletion of requested consumer groups ('g') was successful."
    ]
    assert cluster.children("consumers", "g") == []
    assert rows("--list") == []


def test_java_s_producer_shows_why_a_transactional_id_is_refused(cluster: BrokerCluster) -> None:
    options = ("--topic", "any", "--num-records", "1", "--record-size", "10", "--throughput", "-1", "--transactional-id", "x")
    address = ("--bootstrap-server", cluster.brokers[0].bootstrap_servers)
    done = subprocess.run(
        [TOOL, "run", "org.apache.kafka.tools.ProducerPerformance", *options, *address], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Transactional ids are not served where several of Ottla's brokers share a ZooKeeper" in done.stderr
