"""The central coordinator of brokers in a real ZooKeeper, with members on bare sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Broker, Consumer
from ottla.errors import InvalidSessionTimeoutError, OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_request
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import TopicPartition
from tests.end_to_end.broker_cluster import BrokerCluster, cluster_of, until
from tests.end_to_end.central_members import RawMember, consult
from tests.end_to_end.zookeeper_proxy import lossy_proxy
from tests.raw_client import RawClient

pytestmark = pytest.mark.long

PARTITIONS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(settings={"tickTime": 500}) as server:
        yield server


@pytest.fixture
def cluster(server: ZooKeeperServer, tmp_path: Path) -> Iterator[BrokerCluster]:
    with cluster_of(2, server.connect_string, tmp_path) as cluster:
        cluster.create_topic("t", PARTITIONS)
        yield cluster


def addresses(cluster: BrokerCluster) -> list[str]:
    found = []
    for broker in cluster.open_brokers():
        with suppress(OttlaError):  # it is being closed
            found.append(broker.bootstrap_servers)
    return found


def join(stack: ExitStack, cluster: BrokerCluster, *member_ids: str) -> list[RawMember]:
    members = [RawMember(lambda: addresses(cluster), member_id, "t") for member_id in member_ids]
    for member in members:
        stack.callback(member.close)
    until(lambda: shared(members))
    return members


def shared(members: list[RawMember]) -> bool:
    held = [tp for member in members for tp in member.held]
    return len({*held}) == len(held) == PARTITIONS and len({(one.epoch, one.generation) for one in members}) == 1


def coordinator(cluster: BrokerCluster) -> Broker:
    found = consult(lambda: addresses(cluster))
    assert found is not None
    return cluster.brokers[found.coordinator_id - 1001]


def node(cluster: BrokerCluster, *names: object) -> bytes:
    data: bytes = cluster.zookeeper.get("/".join([cluster.chroot, *map(str, names)]))[0]
    return data


def commit(broker: Broker, member: RawMember, offset: int) -> ErrorCode:
    parts = tuple(
        offset_commit_request.OffsetCommitRequestPartition(partition_index=n, committed_offset=offset, committed_metadata="")
        for n in range(PARTITIONS)
    )
    message = offset_commit_request.OffsetCommitRequest(
        group_id="g",
        member_id=member.member_id,
        generation_id_or_member_epoch=member.generation,
        topics=(offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=parts),),
    )
    with RawClient(broker.bootstrap_servers) as client:
        code: ErrorCode = client.ask(Api.OFFSET_COMMIT, message, 9).topics[0].partitions[0].error_code
        return code


def test_members_share_commit_and_survive_their_coordinator(cluster: BrokerCluster) -> None:
    with ExitStack() as stack:
        first, second = join(stack, cluster, "a", "b")
        elected = coordinator(cluster)
        until(lambda: commit(elected, first, 17) is ErrorCode.none)
        assert node(cluster, "consumers", "g", "offsets", "t", 0) == b"17"
        assert json.loads(node(cluster, "consumers", "g", "generation"))["generation"] == first.generation
        held, stops = (first.held, second.held), (first.stops, second.stops)
        elected.close()
        until(lambda: first.epoch == second.epoch == 2)
        assert (first.held, second.held) == held
        assert (first.stops, second.stops) == stops
        until(lambda: commit(coordinator(cluster), first, 18) is ErrorCode.none)
    assert json.loads(node(cluster, "consumers", "g", "generation"))["members"] == 0
    assert cluster.children("consumers", "g", "owners", "t") == []
    with Admin(bootstrap_servers=coordinator(cluster).bootstrap_servers) as admin:
        assert {one.group_id: one.group_type for one in admin.list_groups()} == {"g": "central"}
        assert admin.describe_groups(["g"])["g"].group_type == "central"
        assert {one.offset for one in admin.group_offsets("g").values()} == {18}
        admin.delete_groups(["g"])
    assert cluster.children("consumers", "g") == []
    assert "g" not in cluster.children("consumers")


def test_a_coordinator_that_is_cut_off_is_followed_by_another(server: ZooKeeperServer, tmp_path: Path) -> None:
    with (
        lossy_proxy(server.connect_string) as proxy,
        cluster_of(1, server.connect_string, tmp_path, through=proxy.connect_string, zookeeper_session_timeout_ms=1000) as cluster,
        ExitStack() as stack,
    ):
        other = stack.enter_context(Broker(tmp_path / "other", zookeeper=f"{server.connect_string}{cluster.chroot}"))
        cluster.brokers.append(other)
        cluster.create_topic("t", PARTITIONS)
        members = join(stack, cluster, "a", "b")
        assert coordinator(cluster) is cluster.brokers[0]
        assert commit(cluster.brokers[0], members[0], 1) is ErrorCode.none
        proxy.cut()
        until(lambda: all(member.epoch == 2 for member in members))
        assert coordinator(cluster) is other
        assert commit(cluster.brokers[0], members[0], 2) is ErrorCode.not_coordinator
        assert commit(other, members[0], 3) is ErrorCode.none
        proxy.restore()
        until(lambda: cluster.ids() == [1001, 1002])
        assert commit(cluster.brokers[0], members[0], 4) is ErrorCode.not_coordinator
        assert node(cluster, "consumers", "g", "offsets", "t", 0) == b"3"


def test_members_of_0_8_and_central_members_never_share_a_group(cluster: BrokerCluster) -> None:
    settings: dict[str, Any] = {"zookeeper_connect": cluster.connect, "group_id": "g", "group_protocol": "zookeeper"}
    with ExitStack() as stack:
        with Consumer(**settings) as old:
            old.subscribe(["t"])
            until(lambda: not old.poll(0.1) and len(old.assignment()) == PARTITIONS)
            member = RawMember(lambda: addresses(cluster), "new", "t")
            stack.callback(member.close)
            until(lambda: member.errors)
            assert {*member.errors} == {ErrorCode.inconsistent_group_protocol}
            assert len(old.assignment()) == PARTITIONS
        until(lambda: shared([member]))
        with Consumer(**settings) as again:
            again.subscribe(["t"])
            again.poll(1.0)
            assert again.assignment() == set()
            assert cluster.children("consumers", "g", "ids") == []
            member.close()
            until(lambda: not again.poll(0.1) and len(again.assignment()) == PARTITIONS)
        assert TopicPartition("t", 0) in member.held


def test_a_session_timeout_that_the_coordinator_does_not_allow(cluster: BrokerCluster) -> None:
    settings: dict[str, Any] = {"group_id": "short", "group_protocol": "central", "session_timeout_ms": 1}
    with Consumer(bootstrap_servers=addresses(cluster), **settings) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(InvalidSessionTimeoutError, match="the session timeout is 1 ms; this broker allows 6000 to 1800000"):
            consumer.poll(20)
