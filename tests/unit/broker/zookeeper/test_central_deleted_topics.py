"""Topics that are deleted, and created again, while there is no central coordinator that could see it: their offsets are gone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    delete_topics_request,
    offset_commit_request,
    offset_fetch_request,
)
from ottla.simulation.requests import creating
from ottla.zookeeper import paths
from ottla.zookeeper.nodes import MemberRegistration
from tests.simulation.central_members import SimCentralMember
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, BrokerInCluster, ZooKeeperCluster

PARTITIONS = 2
OFFSET = paths.offset("g", "t", 0)


@pytest.fixture(params=range(3))
def cluster(request: pytest.FixtureRequest) -> ZooKeeperCluster:
    return cluster_of(3, request.param)


def cluster_of(brokers: int, seed: int | None = None) -> ZooKeeperCluster:
    """Brokers, and two topics."""
    cluster = ZooKeeperCluster(seed)
    cluster.add(*range(1, brokers + 1))
    cluster.run()
    create(cluster.brokers[0], "t")
    create(cluster.brokers[0], "u")
    cluster.run()
    return cluster


def create(broker: BrokerInCluster, name: str) -> None:
    broker.ask(Api.CREATE_TOPICS, creating(name, partitions=PARTITIONS))


def deleting(name: str = "t") -> Any:
    topic = delete_topics_request.DeleteTopicState(name=name, topic_id=None)
    return delete_topics_request.DeleteTopicsRequest(topics=(topic,), timeout=timedelta(seconds=1))


def delete(broker: BrokerInCluster) -> None:
    assert broker.ask(Api.DELETE_TOPICS, deleting()).responses[0].error_code is ErrorCode.none


def elected(cluster: ZooKeeperCluster) -> list[BrokerInCluster]:
    return [one for one in cluster.brokers if one.up and one.zookeeper.elector.is_elected]


def other(cluster: ZooKeeperCluster) -> BrokerInCluster:
    return next(one for one in cluster.brokers if one.up and not one.zookeeper.elector.is_elected)


def until(cluster: ZooKeeperCluster, condition: Callable[[], object]) -> None:
    for _ in range(10 * SESSION_TIMEOUT // 50):
        if condition():
            return
        cluster.run(50)
    assert condition()


def committed(cluster: ZooKeeperCluster, offset: int = 100) -> SimCentralMember:
    """A member that has committed an offset of each partition of both topics."""
    member = SimCentralMember(cluster, "a", {"t": 1, "u": 1}, "g")
    until(cluster, lambda: len(member.held) == 2 * PARTITIONS)
    parts = tuple(
        offset_commit_request.OffsetCommitRequestPartition(partition_index=n, committed_offset=offset, committed_metadata="")
        for n in range(PARTITIONS)
    )
    request = offset_commit_request.OffsetCommitRequest(
        group_id="g",
        member_id="a",
        generation_id_or_member_epoch=member.generation,
        topics=tuple(offset_commit_request.OffsetCommitRequestTopic(name=name, partitions=parts) for name in ("t", "u")),
    )
    response = elected(cluster)[0].ask(Api.OFFSET_COMMIT, request, version=9)
    assert {one.error_code for topic in response.topics for one in topic.partitions} == {ErrorCode.none}
    return member


def fetched(cluster: ZooKeeperCluster, topic: str = "t") -> list[int]:
    """The committed offset of each partition; -1: none."""
    asked = offset_fetch_request.OffsetFetchRequestTopics(name=topic, partition_indexes=tuple(range(PARTITIONS)))
    group = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=(asked,))
    request = offset_fetch_request.OffsetFetchRequest(groups=(group,), require_stable=False)
    (found,) = elected(cluster)[0].ask(Api.OFFSET_FETCH, request, version=9).groups
    assert found.error_code is ErrorCode.none
    return [one.committed_offset for one in found.topics[0].partitions]


def stored(cluster: ZooKeeperCluster, topic: str = "t") -> list[bytes | None]:
    return [cluster.model.data(paths.offset("g", topic, number)) for number in range(PARTITIONS)]


def fail_over(cluster: ZooKeeperCluster, meanwhile: Callable[[BrokerInCluster], object] = lambda broker: None) -> None:
    """Kill the coordinator, and wait for the next one."""
    elected(cluster)[0].kill()
    meanwhile(other(cluster))
    until(cluster, lambda: elected(cluster))
    cluster.run(3_000)


def test_a_topic_that_is_deleted_while_there_is_no_coordinator_loses_its_offsets(cluster: ZooKeeperCluster) -> None:
    committed(cluster)
    fail_over(cluster, delete)
    assert stored(cluster) == [None, None]
    create(other(cluster), "t")
    cluster.run(1_000)
    assert fetched(cluster) == [-1, -1]
    assert fetched(cluster, "u") == [100, 100]


def test_a_topic_that_is_created_again_while_there_is_no_coordinator_has_no_offsets(cluster: ZooKeeperCluster) -> None:
    committed(cluster)

    def recreate(broker: BrokerInCluster) -> None:
        delete(broker)
        until(cluster, lambda: cluster.model.data(paths.topic("t")) is None)
        create(broker, "t")

    fail_over(cluster, recreate)
    assert stored(cluster) == [None, None]
    assert fetched(cluster) == [-1, -1]
    assert fetched(cluster, "u") == [100, 100]
    committed(cluster, 5)
    fail_over(cluster)
    assert fetched(cluster) == [5, 5], "these are of the new topic"


@pytest.mark.parametrize("is_loaded", [False, True], ids=["committed here", "loaded"])
def test_a_topic_that_is_created_again_while_the_coordinator_is_cut_off_has_no_offsets(
    cluster: ZooKeeperCluster, is_loaded: bool
) -> None:
    committed(cluster)
    if is_loaded:
        fail_over(cluster)
    (broker,) = elected(cluster)
    cluster.network.isolate(broker.host)
    delete(other(cluster))
    create(other(cluster), "t")
    cluster.run(100)
    cluster.network.rejoin(broker.host)
    cluster.run(10_000)
    assert fetched(cluster) == [-1, -1]
    assert fetched(cluster, "u") == [100, 100]


@pytest.mark.parametrize("delay", range(0, 8, 2))
def test_a_broker_that_is_killed_while_it_deletes_a_topic_deletes_its_offsets_later(delay: int) -> None:
    cluster = cluster_of(1)
    (broker,) = cluster.brokers
    committed(cluster).leave()
    cluster.run(1_000)
    broker.send(Api.DELETE_TOPICS, deleting())
    while cluster.model.data(paths.deleted_topic("t")) is None:
        cluster.run(1)
    cluster.run(delay)
    broker.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    broker.start()
    until(cluster, lambda: elected(cluster))
    cluster.run(3_000)
    assert stored(cluster) == [None, None]
    create(broker, "t")
    cluster.run(1_000)
    assert fetched(cluster) == [-1, -1]


@pytest.mark.parametrize("is_known", [True, False], ids=["last known", "unknown"])
@pytest.mark.parametrize("key", [b"partitions", b"topic_id"])
def test_a_topic_that_the_coordinator_cannot_read_keeps_its_offsets(cluster: ZooKeeperCluster, key: bytes, is_known: bool) -> None:
    committed(cluster)
    data = cluster.model.data(paths.topic("t"))
    assert data is not None
    cluster.put(paths.topic("t"), data.replace(key, b"other"))
    cluster.run(1_000)
    if not is_known:
        other(cluster).kill()
        other(cluster).restart()
    fail_over(cluster)
    cluster.run(10_000)
    assert stored(cluster) == [b"100", b"100"]
    cluster.put(paths.topic("t"), data)
    cluster.run(1_000)
    assert fetched(cluster) == [100, 100]


def test_what_a_member_of_0_8_has_committed_for_the_new_topic_is_kept(cluster: ZooKeeperCluster) -> None:
    committed(cluster).leave()
    cluster.run(1_000)

    def recreate(broker: BrokerInCluster) -> None:
        delete(broker)
        until(cluster, lambda: cluster.model.data(paths.topic("t")) is None)
        create(broker, "t")
        cluster.put(OFFSET, b"7")

    fail_over(cluster, recreate)
    assert stored(cluster) == [b"7", None]
    assert fetched(cluster) == [7, -1]


def test_outdated_offsets_that_are_left_to_members_of_0_8_are_none_of_the_group(cluster: ZooKeeperCluster) -> None:
    """No central write deletes them, but they are not read either."""
    committed(cluster).leave()
    cluster.run(1_000)
    cluster.put(paths.member("g", "old"), MemberRegistration({"t": 1}).encode())
    fail_over(cluster, delete)
    create(other(cluster), "t")
    cluster.run(1_000)
    assert stored(cluster) == [b"100", b"100"]
    assert fetched(cluster) == [-1, -1]
    cluster.put(OFFSET, b"9")
    assert fetched(cluster) == [9, -1]
