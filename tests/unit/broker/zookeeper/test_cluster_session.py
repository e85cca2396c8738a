"""Brokers whose ZooKeeper has lost its data, or is another one."""

from __future__ import annotations

import logging
import uuid

import pytest

from ottla.zookeeper import paths
from ottla.zookeeper.nodes import encode_cluster_id
from tests.simulation.zookeeper_cluster import CLUSTER_ID, SESSION_TIMEOUT, BrokerInCluster, ZooKeeperCluster

ID = uuid.UUID(int=1 << 100)
FOREIGN = encode_cluster_id("another")


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def brokers_with_topic(seed: int = 0) -> tuple[ZooKeeperCluster, BrokerInCluster, BrokerInCluster]:
    cluster = ZooKeeperCluster(seed)
    one, two = cluster.add(1, 2)
    cluster.create_topic("t", (1, 2), ID)
    cluster.run()
    cluster.check()
    return cluster, one, two


def come_back_without_data(cluster: ZooKeeperCluster, broker: BrokerInCluster, cluster_id: bytes | None) -> None:
    """End the session of a broker, and let it find a ZooKeeper without topics."""
    cluster.network.isolate(broker.host)
    cluster.run(2 * SESSION_TIMEOUT)
    cluster.delete_topic("t")
    cluster.remove(paths.CLUSTER_ID)
    if cluster_id is not None:
        cluster.put(paths.CLUSTER_ID, cluster_id)
    cluster.network.rejoin(broker.host)


def give_data_back(cluster: ZooKeeperCluster) -> None:
    cluster.put(paths.CLUSTER_ID, encode_cluster_id(CLUSTER_ID))
    cluster.create_topic("t", (1, 2), ID)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("found", "says"), [(None, "knows no cluster"), (FOREIGN, "belongs to cluster another"), (b"{", "has a damaged one")]
)
def test_a_broker_keeps_its_topics_and_stays_away_until_it_finds_its_cluster(
    seed: int, found: bytes | None, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, one, two = brokers_with_topic(seed)
    two.kill()
    come_back_without_data(cluster, one, found)
    kept, asked = one.catalog.topics.get("t"), len(one.asked)
    nodes = {path: cluster.model.data(path) for path in (*paths.CLUSTER_ROOTS, paths.COORDINATOR_EPOCH)}
    cluster.run(100_000)
    assert one.catalog.topics.get("t") is kept is not None
    assert {operation.path for operation in one.asked[asked:]} == {"/", paths.CLUSTER_ID}
    assert not one.zookeeper.is_registered
    assert not cluster.model.children(paths.BROKER_IDS)
    assert not cluster.model.children(paths.TOPICS)
    assert nodes == {path: cluster.model.data(path) for path in nodes}
    (error,) = errors(caplog)
    assert says in error
    assert f"this broker belongs to cluster {CLUSTER_ID}" in error
    assert "Restore its data, or stop the broker" in error
    give_data_back(cluster)
    two.start()
    cluster.run(60_000)
    cluster.check()
    assert one.catalog.topics.get("t") is kept


def test_the_back_off_of_the_check_grows() -> None:
    cluster, one, _ = brokers_with_topic()
    come_back_without_data(cluster, one, None)
    cluster.run(10_000)
    many = len([operation for operation in one.asked if operation.path == paths.CLUSTER_ID])
    cluster.run(100_000)
    assert 4 < many < 10
    assert len([operation for operation in one.asked if operation.path == paths.CLUSTER_ID]) <= many + 4


def test_a_topic_is_not_created_in_another_zookeeper() -> None:
    cluster, one, two = brokers_with_topic()
    two.kill()
    come_back_without_data(cluster, one, FOREIGN)
    change = one.catalog.changes.create("u", 1, {})
    one.step()
    cluster.run(100_000)
    assert change.is_done
    assert not cluster.model.children(paths.TOPICS)


@pytest.mark.parametrize("after", range(12))
def test_a_connection_that_breaks_during_the_check(after: int) -> None:
    cluster, one, _ = brokers_with_topic(after)
    one.expire_session()
    while one.zookeeper.is_registered:
        cluster.run(1)
    cluster.run(after)
    one.disconnect()
    cluster.run(2 * SESSION_TIMEOUT)
    cluster.check()


def test_a_server_that_does_not_answer_the_check_is_left() -> None:
    cluster, one, _ = brokers_with_topic()
    one.expire_session()
    connection = one.client.connection
    while one.client.connection < connection + 2:
        cluster.run(1)
    one.hold(20 * SESSION_TIMEOUT)
    cluster.run(2 * SESSION_TIMEOUT)
    cluster.check()
