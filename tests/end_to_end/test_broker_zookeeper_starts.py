"""Starts of brokers in a real ZooKeeper that are refused, and a ZooKeeper that is not theirs."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from ottla import Broker
from ottla.errors import ConfigError, ConnectionFailedError, StorageError
from ottla.runtime import broker_node
from ottla.runtime.data_dir import DataDir
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.zookeeper.nodes import encode_broker
from tests.closed_ports import closed_port
from tests.end_to_end.broker_cluster import (
    PATIENCE,
    SETTINGS,
    VALUES,
    cluster_of,
    folders,
    nodes_of,
    produce,
    read_values,
    until,
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


def broker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ottla-broker")]


def test_no_zookeeper_at_the_start(tmp_path: Path) -> None:
    with closed_port() as port:
        nowhere = f"127.0.0.1:{port}"
        with pytest.raises(ConnectionFailedError, match=f"no connection to ZooKeeper within 2 s: {nowhere}: .*refused"):
            Broker(tmp_path / "data", zookeeper=nowhere, settings={"zookeeper.connection.timeout.ms": 2000})
    assert broker_threads() == []
    assert not (tmp_path / "data").exists()
    Broker(tmp_path / "data").close()


def test_a_directory_of_another_cluster(server: ZooKeeperServer, tmp_path: Path) -> None:
    for chroot in ("one", "two"):
        Broker(tmp_path / chroot, zookeeper=f"{server.connect_string}/wrong/{chroot}").close()
    with pytest.raises(StorageError, match=r"the data directory belongs to cluster .*, and ZooKeeper to cluster "):
        Broker(tmp_path / "one", zookeeper=f"{server.connect_string}/wrong/two")
    with pytest.raises(StorageError, match=r"the data directory belongs to cluster .*, and ZooKeeper knows no cluster"):
        Broker(tmp_path / "one", zookeeper=f"{server.connect_string}/wrong/three")
    assert broker_threads() == []


def test_a_directory_of_a_broker_that_ran_alone(server: ZooKeeperServer, tmp_path: Path) -> None:
    Broker(tmp_path).close()
    with pytest.raises(StorageError, match="ZooKeeper knows no cluster") as raised:
        Broker(tmp_path, zookeeper=f"{server.connect_string}/alone")
    assert raised.value.hint is not None
    assert "A broker that ran without ZooKeeper cannot join" in raised.value.hint


def test_a_topic_that_the_last_process_creates_while_the_next_one_starts(
    server: ZooKeeperServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A broker starts on the directory of another process, and joins. 2. That one creates a topic, and ends. 3. The broker has
    the directory."""
    with cluster_of(1, server.connect_string, tmp_path) as cluster:
        first = cluster.brokers[0]

        def opened(*args: Any, **more: Any) -> DataDir:
            if not first_has_ended:
                cluster.create_topic("t", 1)
                produce(first, "t", VALUES[:10], partitions=1)
                first.close()
                first_has_ended.append(True)
            return DataDir(*args, **more)

        first_has_ended: list[bool] = []
        monkeypatch.setattr(broker_node, "DataDir", opened)
        cluster.brokers.append(Broker(first.data_dir, zookeeper=cluster.connect, settings=SETTINGS))
        assert first_has_ended
        assert read_values(cluster.brokers[1], "t", 10) == VALUES[:10]


@pytest.mark.slow
def test_a_node_id_that_another_broker_has(server: ZooKeeperServer, tmp_path: Path) -> None:
    with cluster_of(1, server.connect_string, tmp_path, node_id=7) as cluster:
        settings = {**SETTINGS, "node.id": 7, "zookeeper.session.timeout.ms": 1000}
        cluster.create_topic("t", 1)
        with closed_port() as port:
            address = ("127.0.0.1", port)
        with ThreadPoolExecutor() as pool:
            start = pool.submit(Broker, tmp_path / "second", port=port, zookeeper=cluster.connect, settings=settings)
            until(lambda: len(broker_threads()) > 2)
            while not start.done():
                with socket.socket() as client:
                    assert client.connect_ex(address) == errno.ECONNREFUSED
                time.sleep(0.01)
        with pytest.raises(ConfigError, match=cluster.brokers[0].bootstrap_servers):
            start.result()
        assert cluster.ids() == [7]
        assert nodes_of(cluster.brokers[0]) == {7: cluster.brokers[0].bootstrap_servers}
        assert len(broker_threads()) == 2  # those of the first
        cluster.brokers[0].close()
        Broker(tmp_path / "second", zookeeper=cluster.connect, settings=settings).close()


def test_a_broker_with_another_port_than_its_last_process_serves_when_that_is_gone(server: ZooKeeperServer, tmp_path: Path) -> None:
    with cluster_of(1, server.connect_string, tmp_path, node_id=7) as cluster, closed_port() as port:
        cluster.create_topic("t", 1)
        cluster.brokers[0].close()
        left_over = f"{cluster.chroot}/brokers/ids/7"
        cluster.zookeeper.create(left_over, encode_broker("127.0.0.1", port, 0), ephemeral=True)
        settings = {**SETTINGS, "node.id": 7}
        with ThreadPoolExecutor() as pool:
            start = pool.submit(Broker, tmp_path / "broker-0", zookeeper=cluster.connect, settings=settings)
            time.sleep(2)
            assert not start.done()
            cluster.zookeeper.delete(left_over)
            cluster.brokers.append(start.result(PATIENCE))
        produce(cluster.brokers[1], "t", VALUES[:10], partitions=1)
        assert nodes_of(cluster.brokers[1]) == {7: cluster.brokers[1].bootstrap_servers}


def test_the_setting_and_the_argument() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper='a:1' and zookeeper.connect='b:1' contradict each other"):
        Broker(zookeeper="a:1", settings={"zookeeper.connect": "b:1"})


def test_a_zookeeper_that_has_lost_its_data_costs_no_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It refuses the broker at first, until other clients have made as many transactions as the broker has seen."""
    settings = {"tickTime": 500}
    first = ZooKeeperServer(tmp_path / "first", settings=settings)
    port = int(first.hosts[0].rpartition(":")[2])
    with first, cluster_of(2, first.connect_string, tmp_path) as cluster:
        one, two = cluster.brokers
        cluster.create_topic("t", 6)
        produce(one, "t")
        had = folders(one, "t"), folders(two, "t")
        two.close()
        first.close()
        with ZooKeeperServer(tmp_path / "second", port, settings=settings) as second:
            with pytest.raises(StorageError, match="ZooKeeper knows no cluster"):
                Broker(tmp_path / "broker-1", zookeeper=cluster.connect, settings=SETTINGS)
            other = KazooClient(second.connect_string)
            other.start(PATIENCE)
            for node in (f"{cluster.chroot}/brokers/topics", f"{cluster.chroot}/admin/delete_topics"):
                other.ensure_path(node)

            def is_seen() -> bool:
                for _ in range(100):
                    other.set(cluster.chroot, b"")
                return "belongs to cluster" in caplog.text

            until(is_seen)
            time.sleep(1)
            assert sorted(other.get_children(cluster.chroot)) == ["admin", "brokers"], "no broker has created a node"
            assert (folders(one, "t"), folders(two, "t")) == had
            assert sum("belongs to cluster" in record.getMessage() for record in caplog.records) == 1
            other.stop()
            other.close()
        one.close()  # it has seen newer transactions than the first one has
        with ZooKeeperServer(tmp_path / "first", port, settings=settings):
            cluster.brokers = [
                Broker(tmp_path / name, zookeeper=cluster.connect, settings=SETTINGS) for name in ("broker-0", "broker-1")
            ]
            cluster.wait_for_leaders("t", 6)
            assert read_values(cluster.brokers[0], "t", len(VALUES)) == VALUES
