"""Brokers that are one cluster in a real ZooKeeper: who leads what, what survives, what is refused."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import confluent_kafka.admin
import pytest

from ottla import Admin, Broker, Consumer, Producer, TopicPartition
from ottla.errors import InvalidRequestError, OttlaError
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import uuid_text
from tests.closed_ports import closed_port
from tests.end_to_end.broker_cluster import (
    PATIENCE,
    SETTINGS,
    VALUES,
    BrokerCluster,
    cluster_of,
    described,
    folders,
    led_partitions,
    node_id_of,
    nodes_of,
    produce,
    read_values,
    until,
    until_each,
)
from tests.end_to_end.broker_process import Writer, everything, stored
from tests.end_to_end.programs import LISTENING, ottla, started
from tests.end_to_end.zookeeper_proxy import lossy_proxy
from tests.interop.other_clients import read_all

pytestmark = pytest.mark.long

Protocol = Literal["classic", "consumer"]


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture
def cluster(server: ZooKeeperServer, tmp_path: Path) -> Iterator[BrokerCluster]:
    server.start()
    with cluster_of(3, server.connect_string, tmp_path) as cluster:
        yield cluster


# -- the cluster ----------------------------------------------------------------------------------------------------------


def test_three_brokers_are_one_cluster_and_each_leads_its_share(cluster: BrokerCluster) -> None:
    assert cluster.ids() == [1001, 1002, 1003]
    assert [node_id_of(broker) for broker in cluster.brokers] == [1001, 1002, 1003]
    cluster.create_topic("t", broker=1)
    first, *others = [described(broker, "t") for broker in cluster.brokers]
    assert first is not None
    assert others == [first, first]
    leaders = [one.leader for one in first.partitions]
    assert sorted(leaders) == [1001, 1001, 1002, 1002, 1003, 1003]
    produce(cluster.brokers[0], "t")
    for number, broker in enumerate(cluster.brokers):
        assert folders(broker, "t") == {f"t-{partition}" for partition, leader in enumerate(leaders) if leader == 1001 + number}


def test_the_nodes_in_zookeeper_are_those_of_kafka(cluster: BrokerCluster) -> None:
    cluster.create_topic("t", retention_ms="86400000")
    found = described(cluster.brokers[0], "t")
    assert found is not None
    leaders = [one.leader for one in found.partitions]
    topic = cluster.json("brokers", "topics", "t")
    assert topic["topic_id"] == uuid_text(found.topic_id)
    assert topic["partitions"] == {str(partition): [leader] for partition, leader in enumerate(leaders)}
    assert cluster.json("config", "topics", "t")["config"] == {"retention.ms": "86400000"}
    for partition, leader in enumerate(leaders):
        state = cluster.json("brokers", "topics", "t", "partitions", partition, "state")
        assert (state["leader"], state["isr"], state["leader_epoch"]) == (leader, [leader], 0)
    for number, broker in enumerate(cluster.brokers):
        assert cluster.json("brokers", "ids", 1001 + number)["endpoints"] == [f"PLAINTEXT://{broker.bootstrap_servers}"]
    with Admin(bootstrap_servers=cluster.brokers[1].bootstrap_servers) as admin:
        assert admin.describe_cluster().cluster_id == cluster.json("cluster", "id")["id"]


def test_records_go_from_any_broker_to_any(cluster: BrokerCluster) -> None:
    cluster.create_topic("t")
    produce(cluster.brokers[0], "t")
    assert read_values(cluster.brokers[2], "t", len(VALUES)) == VALUES


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_other_clients_see_an_ordinary_cluster(cluster: BrokerCluster, client: str) -> None:
    cluster.create_topic("t")
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.brokers[0].bootstrap_servers, "enable.idempotence": True})
    for number, value in enumerate(VALUES):
        producer.produce("t", value, partition=number % 6)
    assert producer.flush(PATIENCE) == 0
    found = read_all(cluster.brokers[1].bootstrap_servers, "t", client, len(VALUES))
    assert sorted(one.value or b"" for one in found) == VALUES


def test_producer_ids_are_unique_in_the_cluster(cluster: BrokerCluster) -> None:
    cluster.create_topic("t")
    for broker in (*cluster.brokers, *cluster.brokers):
        produce(broker, "t", VALUES[:6])
    with Admin(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as admin:
        states = admin.describe_producers([TopicPartition("t", 0)])
        seen = [state.producer_id for state in states[TopicPartition("t", 0)]]
    assert len(seen) == len({*seen}) == 6


def test_producers_of_a_broker_that_has_lost_its_directory_lose_no_record(server: ZooKeeperServer, tmp_path: Path) -> None:
    """The other brokers still know the sequences of the producers that it had before."""
    with cluster_of(1, server.connect_string, tmp_path, node_id=2) as cluster:
        cluster.create_topic("t", 1)
        for start in range(3):
            with Broker(None, zookeeper=cluster.connect, settings={**SETTINGS, "node.id": 1}) as without_directory:
                for number in range(4):
                    produce(without_directory, "t", [b"%d-%d" % (start, number)], partitions=1)
                until(lambda: len(cluster.ids()) == 2)
        found = read_values(cluster.brokers[0], "t", 12)
    assert sorted(found) == [b"%d-%d" % (start, number) for start in range(3) for number in range(4)]


def retention(broker: Broker, topic: str) -> str | None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return admin.describe_configs("topic", topic)["retention.ms"].value


def test_topics_are_changed_by_any_broker(cluster: BrokerCluster) -> None:
    cluster.create_topic("t", 2)
    produce(cluster.brokers[0], "t", partitions=2)
    with Admin(bootstrap_servers=cluster.brokers[2].bootstrap_servers) as admin:
        admin.create_partitions({"t": 6})
        admin.alter_configs("topic", "t", {"retention.ms": "86400000"})
    cluster.wait_for_leaders("t", 6)
    until_each(cluster.brokers, lambda broker: retention(broker, "t") == "86400000")
    assert read_values(cluster.brokers[1], "t", len(VALUES)) == VALUES


def test_a_topic_that_one_broker_deletes_is_gone_on_all_and_may_be_created_again(cluster: BrokerCluster) -> None:
    cluster.create_topic("t")
    before = described(cluster.brokers[0], "t")
    produce(cluster.brokers[0], "t")
    with Admin(bootstrap_servers=cluster.brokers[2].bootstrap_servers) as admin:
        admin.delete_topics(["t"])
    until_each(cluster.brokers, lambda broker: described(broker, "t") is None and not folders(broker, "t"))
    until(lambda: "t" not in cluster.children("brokers", "topics") and not cluster.children("admin", "delete_topics"))
    assert cluster.json("config", "topics", "t") is None
    cluster.create_topic("t", broker=1)
    after = described(cluster.brokers[0], "t")
    assert before is not None
    assert after is not None
    assert before.topic_id != after.topic_id
    produce(cluster.brokers[1], "t", VALUES[:60])
    assert read_values(cluster.brokers[2], "t", 60) == VALUES[:60]


def test_transactions_are_refused_with_the_reason(cluster: BrokerCluster, caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka does not pass the reason on, so for its users it is in the broker's log."""
    reason = "Transactional ids are not served where several of Ottla's brokers share a ZooKeeper"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.brokers[0].bootstrap_servers, "transactional.id": "x", "transaction.timeout.ms": 10_000}
    )
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(5)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError._TIMED_OUT
    assert f"a transaction was refused: {reason}" in caplog.text
    address = cluster.brokers[0].bootstrap_servers
    with Producer(bootstrap_servers=address, transactional_id="x") as ours, pytest.raises(InvalidRequestError, match=reason):
        ours.initialize()


# -- brokers that end and come back ---------------------------------------------------------------------------------------


def test_a_closed_broker_takes_its_partitions_along_and_brings_them_back(cluster: BrokerCluster) -> None:
    cluster.create_topic("t")
    produce(cluster.brokers[0], "t")
    cluster.brokers[1].close()
    assert cluster.ids() == [1001, 1003]  # at once
    others = (cluster.brokers[0], cluster.brokers[2])
    until_each(others, lambda broker: len(led_partitions(broker, "t")) == 4)
    for broker in others:
        assert sorted(nodes_of(broker)) == [1001, 1003]
    with Producer(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as producer:  # the others go on
        for delivery in [producer.send("t", b"more", partition=partition) for partition in led_partitions(others[1], "t")]:
            delivery.result(PATIENCE)
    cluster.brokers[1].start()
    cluster.wait_for_leaders("t")
    assert node_id_of(cluster.brokers[1]) == 1002
    assert read_values(cluster.brokers[2], "t", len(VALUES) + 4) == [*VALUES, *[b"more"] * 4]


def test_changes_that_a_broker_has_missed(cluster: BrokerCluster) -> None:
    for topic in ("kept", "deleted", "again"):
        cluster.create_topic(topic)
        produce(cluster.brokers[0], topic, VALUES[:60])
    cluster.brokers[1].close()
    with Admin(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as admin:
        admin.delete_topics(["deleted", "again"])
        until(lambda: cluster.children("brokers", "topics") in (["kept"], ["__consumer_offsets", "kept"]))
        admin.create_topics({"again": 4, "new": 4})
    cluster.brokers[1].start()
    cluster.wait_for_leaders("kept")
    for topic in ("again", "new"):
        cluster.wait_for_leaders(topic, 4)
    for broker in cluster.brokers:
        assert described(broker, "deleted") is None
        assert described(broker, "again") == described(cluster.brokers[0], "again")
    until(lambda: not folders(cluster.brokers[1], "deleted"))
    produce(cluster.brokers[1], "again", VALUES[:8], partitions=4)
    assert read_values(cluster.brokers[1], "again", 8) == VALUES[:8]
    assert read_values(cluster.brokers[1], "kept", 60) == VALUES[:60]


def test_all_brokers_end_and_come_back(cluster: BrokerCluster) -> None:
    cluster.create_topic("t")
    produce(cluster.brokers[0], "t")
    assert read_values(cluster.brokers[0], "t", len(VALUES), group="g") == VALUES
    for broker in cluster.brokers:
        broker.close()
    assert cluster.ids() == []
    for broker in reversed(cluster.brokers):
        broker.start()
    cluster.wait_for_leaders("t")
    assert read_values(cluster.brokers[1], "t", len(VALUES)) == VALUES
    with Admin(bootstrap_servers=cluster.brokers[2].bootstrap_servers) as admin:
        assert sum(one.offset for one in admin.group_offsets("g").values()) == len(VALUES)


def test_a_topic_whose_id_is_removed_while_no_broker_runs_keeps_its_records(cluster: BrokerCluster) -> None:
    """Kafka 1.1.1's tools write the node of a topic without an id. Then only the directories of the brokers know it."""
    cluster.create_topic("t", 2)
    produce(cluster.brokers[0], "t", VALUES[:60], partitions=2)
    before = described(cluster.brokers[0], "t")
    assert before is not None
    for broker in cluster.brokers:
        broker.close()
    partitions = {str(one.partition): list(one.replicas) for one in before.partitions}
    path = f"{cluster.chroot}/brokers/topics/t"
    cluster.zookeeper.set(path, json.dumps({"version": 1, "partitions": {**partitions, "2": [1003]}}).encode())
    for broker in cluster.brokers:
        broker.start()
    cluster.wait_for_leaders("t", 3)
    until(lambda: cluster.json("brokers", "topics", "t").get("topic_id") == uuid_text(before.topic_id))
    assert read_values(cluster.brokers[0], "t", 60) == VALUES[:60]


def test_a_broker_whose_loop_has_failed_is_registered_no_more(cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise SystemExit("the loop of one broker")

    failing = cluster.brokers[1]
    assert failing._node is not None
    monkeypatch.setattr(failing._node._server, "_end_turn", fail)
    until(lambda: cluster.ids() == [1001, 1003])
    with pytest.raises(OttlaError, match="the broker has failed"):
        print(failing.bootstrap_servers)
    failing.close()
    monkeypatch.undo()
    failing.start()
    assert cluster.ids() == [1001, 1002, 1003]


# -- groups ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_coordinated_by_the_broker_of_their_partition(cluster: BrokerCluster, protocol: Protocol) -> None:
    cluster.create_topic("t")
    produce(cluster.brokers[0], "t", VALUES[:60])
    groups = [f"group-{number}" for number in range(8)]
    for number, group in enumerate(groups):
        broker = cluster.brokers[number % 3]
        assert read_values(broker, "t", 60, group=group, group_protocol=protocol) == VALUES[:60]
    for broker in cluster.brokers:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            coordinators = {group.coordinator.node_id for group in admin.describe_groups(groups).values()}
            assert len(coordinators) > 1
            assert {group.group_id for group in admin.list_groups()} >= {*groups}
            for group in groups:
                assert sum(one.offset for one in admin.group_offsets(group).values()) == 60


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_on_different_brokers_share_the_partitions(cluster: BrokerCluster, protocol: Protocol) -> None:
    cluster.create_topic("t")
    with ExitStack() as members:
        consumers = [
            members.enter_context(
                Consumer(
                    bootstrap_servers=broker.bootstrap_servers,
                    group_id="g",
                    group_protocol=protocol,
                    auto_offset_reset="earliest",
                )
            )
            for broker in cluster.brokers
        ]
        values: list[bytes | None] = []
        for consumer in consumers:
            consumer.subscribe(["t"])

        def read_and_share() -> bool:
            for consumer in consumers:
                values.extend(record.value for record in consumer.poll(0.05))
            return all(len(consumer.assignment()) == 2 for consumer in consumers)

        until(read_and_share)
        produce(cluster.brokers[0], "t")
        until(lambda: read_and_share() and len(values) >= len(VALUES))
    assert sorted(value or b"" for value in values) == VALUES


def read_in_a_group(cluster: BrokerCluster) -> tuple[Broker, Broker]:
    """Let group ``g`` read 60 records of ``t``. Return its coordinator, and another broker."""
    cluster.create_topic("t")
    produce(cluster.brokers[0], "t", VALUES[:60])
    assert read_values(cluster.brokers[0], "t", 60, group="g") == VALUES[:60]
    with Admin(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as admin:
        coordinator = admin.describe_groups(["g"])["g"].coordinator.node_id
    home = cluster.brokers[coordinator - 1001]
    other = next(broker for broker in cluster.brokers if broker is not home)
    return home, other


def test_a_group_waits_for_its_coordinator_and_goes_on(cluster: BrokerCluster) -> None:
    home, other = read_in_a_group(cluster)
    home.close()
    restart = threading.Timer(2, home.start)
    restart.start()
    with Consumer(bootstrap_servers=other.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        until(lambda: not consumer.poll(0.1) and len(consumer.assignment()) == 6)  # nothing is read twice
        restart.join()
        cluster.wait_for_leaders("t")
        produce(other, "t", VALUES[60:120])
        values: list[bytes | None] = []

        def read() -> bool:
            values.extend(record.value for record in consumer.poll(0.1))
            return len(values) >= 60

        until(read)
    assert sorted(value or b"" for value in values) == VALUES[60:120]


def test_a_group_is_described_while_a_partition_has_no_leader(cluster: BrokerCluster) -> None:
    home, other = read_in_a_group(cluster)
    other.close()
    until(lambda: len(led_partitions(home, "t")) == 4)
    done = ottla("group", "describe", "g", "-b", home.bootstrap_servers, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["partitions"]
    assert [row["committed"] for row in rows] == [10] * 6
    assert sorted(row["lag"] is None for row in rows) == [False] * 4 + [True] * 2
    assert {row["lag"] for row in rows} == {0, None}


# -- ZooKeeper ends -------------------------------------------------------------------------------------------------------


def test_brokers_serve_while_zookeeper_is_stopped(tmp_path: Path) -> None:
    with ZooKeeperServer(settings={"tickTime": 500}) as server, cluster_of(2, server.connect_string, tmp_path) as cluster:
        cluster.create_topic("t", 2)
        with Writer(cluster.brokers[0].bootstrap_servers, "t") as writer:
            writer.go_on(100)
            server.stop()
            writer.go_on(1000)
            server.start()
            writer.go_on(1000)
        assert not writer.failed
        cluster.create_topic("new", 4, broker=1)
        assert stored(everything(cluster.brokers[1].bootstrap_servers, "t")) == writer.acknowledged


def test_brokers_whose_sessions_have_expired_serve_and_register_again(server: ZooKeeperServer, tmp_path: Path) -> None:
    with (
        lossy_proxy(server.connect_string) as proxy,
        cluster_of(2, server.connect_string, tmp_path, through=proxy.connect_string, zookeeper_session_timeout_ms=1000) as cluster,
    ):
        cluster.create_topic("t", 2)
        with Writer(cluster.brokers[0].bootstrap_servers, "t") as writer:
            writer.go_on(100)
            proxy.cut()
            until(lambda: cluster.ids() == [])
            writer.go_on(1000)
            assert sorted(nodes_of(cluster.brokers[0])) == [1001, 1002]  # what it knew last
            proxy.restore()
            until(lambda: cluster.ids() == [1001, 1002])
            writer.go_on(1000)
        assert not writer.failed
        cluster.create_topic("new", 4, broker=1)
        assert stored(everything(cluster.brokers[1].bootstrap_servers, "t")) == writer.acknowledged


def test_a_broker_that_is_cut_off_learns_what_it_has_missed(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Another broker changes topics while the session of the first has expired."""
    with lossy_proxy(server.connect_string) as proxy, cluster_of(1, server.connect_string, tmp_path) as cluster:
        cut_off = Broker(
            tmp_path / "cut-off",
            zookeeper=f"{proxy.connect_string}{cluster.chroot}",
            settings={**SETTINGS, "zookeeper.session.timeout.ms": 1000},
        )
        cluster.brokers.append(cut_off)
        until(lambda: len(nodes_of(cluster.brokers[0])) == 2)
        for topic in ("deleted", "again", "extended"):
            cluster.create_topic(topic, 2)
        produce(cluster.brokers[0], "extended", VALUES[:60], partitions=2)
        proxy.cut()
        until(lambda: sorted(nodes_of(cluster.brokers[0])) == [1001])
        with Admin(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as admin:
            admin.delete_topics(["deleted", "again"])
            until(lambda: cluster.children("admin", "delete_topics") == [])
            admin.create_topics({"again": 3, "new": 1})
        others = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.brokers[0].bootstrap_servers})
        # Ottla's call waits until all partitions have a leader, also those of the broker that is cut off.
        others.create_partitions([confluent_kafka.admin.NewPartitions("extended", 4)])["extended"].result(PATIENCE)
        proxy.restore()
        for topic, partitions in (("again", 3), ("new", 1), ("extended", 4)):
            cluster.wait_for_leaders(topic, partitions)
            assert described(cut_off, topic) == described(cluster.brokers[0], topic)
        until(lambda: described(cut_off, "deleted") is None)
        assert read_values(cut_off, "extended", 60) == VALUES[:60]


@pytest.mark.slow
def test_a_change_of_topics_without_zookeeper_is_an_error(tmp_path: Path) -> None:
    with (
        ZooKeeperServer(settings={"tickTime": 500}) as server,
        cluster_of(1, server.connect_string, tmp_path, zookeeper_connection_timeout_ms=2000) as cluster,
    ):
        server.stop()
        with Admin(bootstrap_servers=cluster.brokers[0].bootstrap_servers) as admin, pytest.raises(OttlaError):
            admin.create_topics({"t": 1}, timeout=10)
        server.start()
        until(lambda: cluster.ids() == [1001])
        until(lambda: cluster.create_topic("later", 2) is None)


# -- processes ------------------------------------------------------------------------------------------------------------


def start_process(stack: ExitStack, connect: str, folder: Path, port: str = "0") -> tuple[Any, str]:
    options = [f"--set={name}={value}".lower() for name, value in SETTINGS.items()]
    process = stack.enter_context(
        started("broker", "start", "--data-dir", str(folder), "--port", port, "--zookeeper", connect, *options)
    )
    found = LISTENING.fullmatch(process.stdout.readline())
    assert found is not None, process.communicate()[1]
    return process, found[1]


@pytest.mark.slow
def test_killed_processes_come_back_with_their_records(server: ZooKeeperServer, tmp_path: Path) -> None:
    connect = f"{server.connect_string}/processes"
    with ExitStack() as stack:
        running = [start_process(stack, connect, tmp_path / str(number)) for number in range(2)]
        addresses = [address for _, address in running]
        with Admin(bootstrap_servers=addresses[0]) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == 2)
            admin.create_topics({"t": 2})
            until(lambda: all(one.leader is not None for one in admin.describe_topics(["t"])["t"].partitions))
        with Writer(",".join(addresses), "t", message_timeout_ms=120_000, linger_ms=20, batch_num_messages=100) as writer:
            for victim in (0, 1):
                writer.go_on(200)
                process, address = running[victim]
                process.send_signal(signal.SIGKILL)
                process.wait()
                # Its own session, which must end first, is up to 6 s old.
                running[victim] = start_process(stack, connect, tmp_path / str(victim), address.rpartition(":")[2])
                assert running[victim][1] == address
            writer.go_on(200)
        assert not writer.failed
        found = stored(everything(addresses[0], "t"))
        assert {number: found[number] for number in writer.acknowledged} == writer.acknowledged
        for process, _ in running:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_the_command_says_why_a_broker_does_not_start() -> None:
    with closed_port() as port:
        nowhere = f"127.0.0.1:{port}"
        ended = ottla("broker", "start", "--zookeeper", nowhere, "--set", "zookeeper.connection.timeout.ms=1000")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"error: no connection to ZooKeeper within 1 s: {nowhere}: " in ended.stderr


@pytest.mark.slow
def test_a_forked_child_leaves_the_session_alone(server: ZooKeeperServer, tmp_path: Path) -> None:
    with cluster_of(1, server.connect_string, tmp_path) as cluster:
        child = os.fork()
        if not child:
            try:
                cluster.brokers[0].close()
                gc.collect()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        time.sleep(7)  # longer than the session lasts
        assert cluster.ids() == [1001]
        cluster.create_topic("t", 2)
