"""Java's clients on several embedded brokers in a ZooKeeper: an idempotent producer, consumers of both protocols, a producer with a
transactional id, and the tool for groups on a central group."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from ottla import Admin, Producer
from ottla.runtime.zookeeper_server import ZooKeeperServer
from tests.end_to_end.broker_cluster import BrokerCluster, cluster_of, node_id_of, partitions_of, read_values, until
from tests.end_to_end.central_consumers import Member
from tests.end_to_end.polling_members import members
from tests.interop.real_kafka import TOOL, KafkaTool

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCE, CONSUME = "org.apache.kafka.tools.ProducerPerformance", "org.apache.kafka.tools.consumer.ConsoleConsumer"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
PARTITIONS, RECORDS = 4, 1000


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
    done = subprocess.run([TOOL, "run", PRODUCE, *options, *address], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Transactional ids are not served where several of Ottla's brokers share a ZooKeeper" in done.stderr


def producer_ids(cluster: BrokerCluster, topic: str, kafka_tool: KafkaTool) -> set[int]:
    """Those of all batches of a topic, in the logs of all brokers; -1: not idempotent."""
    logs = ",".join(str(path) for path in cluster.folder.glob(f"broker-*/{topic}-*/*.log"))
    return {int(found) for found in re.findall(r"producerId: (-?\d+)", kafka_tool(DUMP, "--files", logs))}


@pytest.mark.timeout(300)
def test_java_s_producer_writes_idempotently_and_consumers_of_both_protocols_read(
    cluster: BrokerCluster, kafka_tool: KafkaTool
) -> None:
    """Both brokers lead partitions of the topic. Each client knows the address of one of them."""
    one, two = cluster.brokers
    cluster.create_topic("java", PARTITIONS)
    options = ("--topic", "java", "--num-records", str(RECORDS), "--record-size", "20", "--throughput", "-1")
    # With the default size of a batch all records would be in one or two partitions.
    settings = ("--command-property", "enable.idempotence=true", "batch.size=500")
    printed = kafka_tool(PRODUCE, *options, *settings, "--bootstrap-server", one.bootstrap_servers)
    assert f"{RECORDS} records sent" in printed
    (producer_id,) = producer_ids(cluster, "java", kafka_tool)
    assert producer_id >= 0
    written = read_values(one, "java", RECORDS)
    with Admin(bootstrap_servers=two.bootstrap_servers) as admin:
        for protocol in ("classic", "consumer"):
            group = ("--group", protocol, "--command-property", f"group.protocol={protocol}")
            until_all = ("--from-beginning", "--max-messages", str(RECORDS))
            printed = kafka_tool(CONSUME, "--bootstrap-server", two.bootstrap_servers, "--topic", "java", *group, *until_all)
            assert sorted(line.encode() for line in printed.splitlines()) == written
            offsets = {tp.partition: each.offset for tp, each in admin.group_offsets(protocol).items()}
            assert sum(offsets.values()) == RECORDS
            assert admin.describe_groups([protocol])[protocol].group_type == protocol
    leaders = {each.partition: each.leader for each in partitions_of(one, "java")}
    assert {leaders[partition] for partition, offset in offsets.items() if offset} == {node_id_of(one), node_id_of(two)}
