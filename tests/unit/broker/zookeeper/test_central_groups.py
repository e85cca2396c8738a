"""Central groups on several brokers and one simulated ZooKeeper: what is stored, what a new coordinator does, what is refused."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from ottla.broker.zookeeper.central_calls import GroupNodes, Malformed, write_records
from ottla.broker.zookeeper.central_lookup import PATIENCE
from ottla.broker.zookeeper.central_store import CentralStore
from ottla.errors import KeeperCode, ZooKeeperError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    consumer_group_describe_request,
    consumer_group_heartbeat_request,
    delete_groups_request,
    delete_topics_request,
    describe_groups_request,
    find_coordinator_request,
    heartbeat_request,
    join_group_request,
    leave_group_request,
    list_groups_request,
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
    register_request,
)
from ottla.simulation.requests import creating
from ottla.simulation.zookeeper import Executed
from ottla.simulation.zookeeper_server import Break
from ottla.types import TopicPartition
from ottla.zookeeper import multis, paths
from ottla.zookeeper.nodes import GenerationNode, MemberRegistration, decode_topic_node, encode_topic
from ottla.zookeeper.operations import Check, Create, Delete, Exists, GetChildren, GetData, Multi, Operation, SetData, Sync
from ottla.zookeeper.session import SessionState
from tests.simulation.central_members import SimCentralMember
from tests.simulation.zookeeper_cluster import SESSION_TIMEOUT, BrokerInCluster, ZooKeeperCluster

SEEDS = range(3)
PARTITIONS = 6


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> ZooKeeperCluster:
    """Three brokers, and a topic with six partitions."""
    cluster = ZooKeeperCluster(request.param)
    cluster.add(1, 2, 3)
    cluster.run()
    cluster.brokers[0].ask(Api.CREATE_TOPICS, creating("t", partitions=PARTITIONS))
    cluster.run()
    return cluster


def coordinator(cluster: ZooKeeperCluster) -> BrokerInCluster:
    """The broker that was elected last; another one may not know yet that an operator has ended its session."""
    elected = [one for one in cluster.brokers if one.up and one.zookeeper.elector.is_elected]
    return max(elected, key=lambda one: one.zookeeper.elector.epoch)


def other(cluster: ZooKeeperCluster) -> BrokerInCluster:
    return next(one for one in cluster.brokers if one.up and not one.zookeeper.elector.is_elected)


def join(cluster: ZooKeeperCluster, *member_ids: str, group: str = "g") -> list[SimCentralMember]:
    members = [SimCentralMember(cluster, member_id, {"t": 1}, group) for member_id in member_ids]
    until(cluster, lambda: shared(members))
    return members


def until(cluster: ZooKeeperCluster, condition: Callable[[], object], milliseconds: int = 10 * SESSION_TIMEOUT) -> None:
    for _ in range(milliseconds // 50):
        if condition():
            return
        cluster.run(50)
    assert condition()


def shared(members: list[SimCentralMember], partitions: int = PARTITIONS) -> bool:
    """Whether the members have all partitions among them, in one generation."""
    held = [tp for member in members for tp in member.held]
    return len({*held}) == len(held) == partitions and len({(one.epoch, one.generation) for one in members}) == 1


def owners(cluster: ZooKeeperCluster, group: str = "g", topic: str = "t") -> dict[TopicPartition, str]:
    path = paths.topic_owners(group, topic)
    return {
        TopicPartition(topic, int(one)): (cluster.model.data(f"{path}/{one}") or b"").decode()
        for one in cluster.model.children(path)
    }


def generation(cluster: ZooKeeperCluster, group: str = "g") -> dict[str, int]:
    found: dict[str, int] = json.loads(cluster.model.data(paths.generation(group)) or b"{}")
    return found


def tree(cluster: ZooKeeperCluster, path: str = paths.CONSUMERS) -> dict[str, bytes | None]:
    found = {path: cluster.model.data(path)}
    for child in cluster.model.children(path):
        found |= tree(cluster, f"{path}/{child}")
    return found


def committing(offset: int, group: str = "g", generation: int = -1, member: str = "", partitions: int = 1) -> Any:
    parts = tuple(
        offset_commit_request.OffsetCommitRequestPartition(partition_index=n, committed_offset=offset, committed_metadata="")
        for n in range(partitions)
    )
    topic = offset_commit_request.OffsetCommitRequestTopic(name="t", partitions=parts)
    return offset_commit_request.OffsetCommitRequest(
        group_id=group, member_id=member, generation_id_or_member_epoch=generation, topics=(topic,)
    )


def commit(broker: BrokerInCluster, offset: int, group: str = "g", **fields: Any) -> ErrorCode:
    response = broker.ask(Api.OFFSET_COMMIT, committing(offset, group, **fields), version=9)
    code: ErrorCode = response.topics[0].partitions[0].error_code
    return code


def fetching(*groups: str) -> Any:
    topic = offset_fetch_request.OffsetFetchRequestTopics(name="t", partition_indexes=(0,))
    asked = tuple(offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(topic,)) for group in groups)
    return offset_fetch_request.OffsetFetchRequest(groups=asked, require_stable=False)


def fetched(broker: BrokerInCluster, *groups: str) -> list[tuple[str, ErrorCode, int | None]]:
    """Group, error and offset of each answer, in order."""
    response = broker.ask(Api.OFFSET_FETCH, fetching(*groups), version=9)
    return [
        (one.group_id, one.error_code, one.topics[0].partitions[0].committed_offset if one.topics else None)
        for one in response.groups
    ]


def know(broker: BrokerInCluster, group: str = "g") -> ErrorCode:
    """Register without topics: the group becomes central."""
    code: ErrorCode = broker.ask(Api.REGISTER, registering(group)).error_code
    return code


def registering(group: str) -> Any:
    return register_request.RegisterRequest(
        group_id=group, member_id="", incarnation="", session_timeout_ms=6000, rebalance_timeout_ms=6000, assignor="range"
    )


def found_coordinator(broker: BrokerInCluster, group: str = "g") -> tuple[ErrorCode, int]:
    message = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
    (answer,) = broker.ask(Api.FIND_COORDINATOR, message).coordinators
    return answer.error_code, answer.node_id


# -- what is stored -------------------------------------------------------------------------------------------------------


def test_members_share_the_partitions_and_zookeeper_has_the_owners(cluster: ZooKeeperCluster) -> None:
    members = join(cluster, "a", "b")
    wanted = {tp: f"{member.member_id}-{thread}" for member in members for tp, thread in member.held.items()}
    assert owners(cluster) == wanted
    found = generation(cluster)
    assert (found["version"], found["members"], found["session_timeout"], found["epoch"]) == (1, 2, 6000, 1)
    assert {member.generation for member in members} == {found["generation"]}
    assert all(cluster.model.owner(paths.owner("g", *tp)) == 0 for tp in wanted)
    for member in members:
        member.leave()
    until(cluster, lambda: generation(cluster)["members"] == 0)
    assert owners(cluster) == {}


def test_commits_are_stored_as_text_and_fenced_by_the_generation(cluster: ZooKeeperCluster) -> None:
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    assert commit(broker, 17, generation=member.generation, member="a", partitions=6) is ErrorCode.none
    assert [cluster.model.data(paths.offset("g", "t", n)) for n in range(6)] == [b"17"] * 6
    assert commit(broker, 18, generation=member.generation - 1, member="a") is ErrorCode.illegal_generation
    assert commit(broker, 18, generation=member.generation, member="b") is ErrorCode.unknown_member_id
    assert fetched(broker, "g") == [("g", ErrorCode.none, 17)]
    # a commit is one write, without a look: the broker knows which nodes there are
    before = broker.counts()
    assert commit(broker, 19, generation=member.generation, member="a", partitions=6) is ErrorCode.none
    assert broker.counts() - before == {"Multi": 1}


def test_every_write_checks_the_epoch(cluster: ZooKeeperCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of generations, commits and deletions, also if one does not fit into a multi."""
    monkeypatch.setattr(multis, "MULTI_OPERATIONS", 2)
    broker = emptied(cluster, 1)
    assert broker.ask(Api.OFFSET_DELETE, deleting()).error_code is ErrorCode.none
    assert commit(broker, 2, partitions=PARTITIONS) is ErrorCode.none
    deletion = delete_groups_request.DeleteGroupsRequest(groups_names=("g",))
    assert [one.error_code for one in broker.ask(Api.DELETE_GROUPS, deletion).results] == [ErrorCode.none]
    writes = [
        one
        for one in broker.asked
        if isinstance(one, Multi) and any(each.path.startswith("/consumers/g") for each in one.operations)
    ]
    deleted = [[each.path for each in one.operations if isinstance(each, Delete)] for one in writes]
    offset = paths.offset("g", "t", 0)
    assert sum(offset in one for one in deleted) == 2, "of the offset, and of the group"
    assert sum(paths.generation("g") in one for one in deleted) == 1
    assert sum(any(path.startswith(paths.group("g")) for path in one) for one in deleted) > 5
    assert all(one.operations[0] == Check(paths.COORDINATOR_EPOCH, broker.zookeeper.elector._epoch_version) for one in writes)


def test_a_group_with_thousands_of_partitions_is_written_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    cluster.run()
    broker.ask(Api.CREATE_TOPICS, creating("t", partitions=2500))
    members = [SimCentralMember(cluster, one, {"t": 1}) for one in ("a", "b")]
    until(cluster, lambda: shared(members, 2500))
    assert len(owners(cluster)) == 2500
    parts = [one for one in broker.asked if isinstance(one, Multi) and one.operations[0].path == paths.COORDINATOR_EPOCH]
    assert max(len(one.operations) for one in parts) < 1010
    last = max(index for index, one in enumerate(parts) if any(each.path == paths.generation("g") for each in one.operations))
    assert all(not any("/owners/" in each.path for each in one.operations) for one in parts[last + 1 :])
    assert commit(broker, 5, partitions=2500, member="a", generation=members[0].generation) is ErrorCode.none
    broker.restart()
    until(cluster, lambda: shared(members, 2500) and members[0].epoch == 2)
    assert [offset for _, _, offset in fetched(broker, "g")] == [5]
    assert "failed" not in caplog.text


def test_a_group_of_0_8_keeps_its_offsets_when_it_becomes_central(cluster: ZooKeeperCluster) -> None:
    cluster.put(paths.offset("g", "t", 0), b"33")
    cluster.put(paths.offset("g", "t", 1), b"x")
    cluster.put(paths.ids("g"))
    broker = coordinator(cluster)
    join(cluster, "a")
    assert fetched(broker, "g") == [("g", ErrorCode.none, 33)]
    broker.expire_session()
    until(
        cluster, lambda: [one for one in cluster.brokers if one.zookeeper.elector.epoch == 2 and one.zookeeper.elector.is_elected]
    )
    until(cluster, lambda: fetched(coordinator(cluster), "g") == [("g", ErrorCode.none, 33)])


def test_nodes_that_an_operator_has_deleted_are_created_again(cluster: ZooKeeperCluster) -> None:
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    assert commit(broker, 1, generation=member.generation, member="a") is ErrorCode.none
    cluster.remove(paths.offsets("g"))
    assert commit(broker, 2, generation=member.generation, member="a") is ErrorCode.none
    assert cluster.model.data(paths.offset("g", "t", 0)) == b"2"
    cluster.put(f"{paths.owner('g', 't', 0)}/child")  # and an owner has a child, so it cannot be deleted as it is
    member.leave()
    until(cluster, lambda: generation(cluster)["members"] == 0)
    assert owners(cluster) == {}


# -- failover -------------------------------------------------------------------------------------------------------------


def test_a_failover_disturbs_no_member(cluster: ZooKeeperCluster) -> None:
    members = join(cluster, "a", "b", "c")
    first, before, held = coordinator(cluster), generation(cluster), [member.held for member in members]
    commit(first, 7, generation=members[0].generation, member="a")
    for member in members:
        member.pushed.clear()
    first.kill()
    until(cluster, lambda: all(member.epoch == 2 for member in members))
    cluster.run(2 * SESSION_TIMEOUT)
    assert coordinator(cluster) is not first
    assert [member.held for member in members] == held
    assert generation(cluster)["generation"] == before["generation"]
    assert all(api is not Api.STOP for member in members for api, _ in member.pushed)
    assert fetched(coordinator(cluster), "g") == [("g", ErrorCode.none, 7)]
    assert commit(coordinator(cluster), 8, generation=members[0].generation, member="a") is ErrorCode.none


def test_a_member_that_does_not_come_back_loses_its_partitions_after_one_session(cluster: ZooKeeperCluster) -> None:
    members = join(cluster, "a", "b")
    members[1].is_silent = True
    coordinator(cluster).kill()
    until(cluster, lambda: shared(members[:1]))
    assert set(owners(cluster).values()) == {"a-0"}


@pytest.mark.parametrize("delay", range(0, 30, 2))
def test_the_connection_breaks_while_a_generation_is_written(delay: int) -> None:
    """Before or after the multi is executed: the generation begins once, and is the one in ZooKeeper."""
    cluster = ZooKeeperCluster()
    (broker,) = cluster.add(1)
    cluster.run()
    broker.ask(Api.CREATE_TOPICS, creating("t", partitions=PARTITIONS))
    members = [SimCentralMember(cluster, one, {"t": 1}) for one in ("a", "b")]

    def writes_owners() -> bool:
        multis = [one for one in broker.asked if isinstance(one, Multi)]
        return any("/owners/" in each.path for one in multis for each in one.operations)

    while not writes_owners():
        cluster.run(1)
    cluster.run(delay)
    broker.disconnect()
    until(cluster, lambda: shared(members))
    wanted = {tp: f"{member.member_id}-{thread}" for member in members for tp, thread in member.held.items()}
    assert owners(cluster) == wanted
    assert generation(cluster)["generation"] == members[0].generation


def test_a_deposed_coordinator_that_wakes_up_changes_nothing(cluster: ZooKeeperCluster) -> None:
    """1. A commit waits at a coordinator that is cut off. 2. Another one is elected, and accepts a commit. 3. The first is back."""
    join(cluster, "a")
    first = coordinator(cluster)
    assert commit(first, 1, generation=1, member="a") is ErrorCode.none
    cluster.network.isolate(first.host)
    cluster.brokers.sort(key=lambda one: one is first)  # the member asks the first one in the list for the coordinator
    late = first.send(Api.OFFSET_COMMIT, committing(2, generation=1, member="a"), version=9)
    until(cluster, lambda: any(one is not first and one.zookeeper.elector.is_elected for one in cluster.brokers))
    second = coordinator(cluster)
    assert second is not first
    assert first.replies.pop(late).topics[0].partitions[0].error_code is ErrorCode.not_coordinator
    assert first.channels == {}
    cluster.run(2 * SESSION_TIMEOUT)
    assert commit(second, 3, generation=1, member="a") is ErrorCode.none
    before = tree(cluster)
    cluster.network.rejoin(first.host)
    cluster.run(2 * SESSION_TIMEOUT)
    assert tree(cluster) == before
    assert cluster.model.data(paths.offset("g", "t", 0)) == b"3"


def test_the_write_of_a_broker_that_believes_to_be_elected_fails(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Another election has happened, and its watch has not arrived yet: the write itself finds it out."""
    join(cluster, "a")
    first = coordinator(cluster)
    elector = first.zookeeper.elector
    elector.on_event = lambda event, now: None  # type: ignore[method-assign]
    cluster.put(paths.COORDINATOR_EPOCH, b"7")
    assert elector.is_elected
    before = cluster.model.data(paths.offset("g", "t", 0))
    assert commit(first, 5, generation=1, member="a") is ErrorCode.not_coordinator
    assert cluster.model.data(paths.offset("g", "t", 0)) == before
    assert "is not that of this coordinator any more" in caplog.text
    cluster.run()
    assert elector.epoch == 8


def test_malformed_nodes_are_reported_and_cost_nothing_else(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    first = coordinator(cluster)
    for group in ("g", "h", "i"):
        assert know(first, group) is ErrorCode.none
        assert commit(first, 4, group) is ErrorCode.none
    cluster.put(paths.offset("g", "t", 1), b"x")
    cluster.put(f"{paths.topic_offsets('g', 't')}/one", b"1")
    cluster.put(paths.owner("g", "t", 1), b"stranger")
    cluster.put(paths.generation("h"), b"{")
    cluster.put(paths.generation("i"), GenerationNode(2**31 - 1, 1, 6000, 1).encode())
    cluster.put("/consumers/groups/generation", b"{}")
    cluster.put("/consumers/foreign/child", b"")
    first.kill()
    cluster.run(3 * SESSION_TIMEOUT)
    assert fetched(coordinator(cluster), "g", "h", "i") == [(group, ErrorCode.none, 4) for group in ("g", "h", "i")]
    for path in (
        paths.offset("g", "t", 1),
        f"{paths.topic_offsets('g', 't')}/one",
        paths.owner("g", "t", 1),
        paths.generation("h"),
        paths.generation("i"),
    ):
        assert path in caplog.text
    assert not coordinator(cluster).core.state.central.is_central("foreign")


# -- requests -------------------------------------------------------------------------------------------------------------


def test_the_elected_broker_is_found_for_central_groups_alone(cluster: ZooKeeperCluster) -> None:
    assert know(coordinator(cluster)) is ErrorCode.none
    for broker in cluster.brokers:
        assert found_coordinator(broker) == (ErrorCode.none, coordinator(cluster).node_id)
    until(cluster, lambda: found_coordinator(cluster.brokers[0], "classic")[0] is ErrorCode.none)
    cluster.run()
    assert len({found_coordinator(broker, "classic") for broker in cluster.brokers}) == 1
    first = coordinator(cluster)
    rest = [broker for broker in cluster.brokers if broker is not first]
    first.kill()
    until(cluster, lambda: found_coordinator(rest[0])[1] in {broker.node_id for broker in rest})


def test_the_coordinator_is_found_from_memory_while_zookeeper_is_away(cluster: ZooKeeperCluster) -> None:
    assert know(coordinator(cluster)) is ErrorCode.none
    found = [found_coordinator(broker) for broker in cluster.brokers]
    cluster.zookeeper.stop()
    cluster.run(10)
    assert [found_coordinator(broker) for broker in cluster.brokers] == found


def test_a_broker_that_is_not_elected_serves_no_central_group(cluster: ZooKeeperCluster) -> None:
    assert know(coordinator(cluster)) is ErrorCode.none
    stranger = other(cluster)
    found_coordinator(stranger)
    assert know(stranger) is ErrorCode.not_coordinator
    assert commit(stranger, 1) is ErrorCode.not_coordinator
    assert fetched(stranger, "g")[0][1] is ErrorCode.not_coordinator


def joining(group: str) -> Any:
    protocol = join_group_request.JoinGroupRequestProtocol(name="range", metadata=b"")
    return join_group_request.JoinGroupRequest(
        group_id=group,
        session_timeout=timedelta(seconds=6),
        rebalance_timeout=timedelta(seconds=6),
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )


def join_classic(broker: BrokerInCluster, group: str) -> str:
    """Let a member join a classic group; returns its id."""
    join = dataclasses.replace(joining(group), session_timeout=timedelta(minutes=1), rebalance_timeout=timedelta(minutes=1))
    member_id: str = broker.ask(Api.JOIN_GROUP, join).member_id
    assert broker.ask(Api.JOIN_GROUP, dataclasses.replace(join, member_id=member_id)).error_code is ErrorCode.none
    return member_id


def home(cluster: ZooKeeperCluster) -> str:
    """A group that is not central, and whose partition the coordinator has."""
    for number in range(100):
        name = f"classic-{number}"
        with suppress(AssertionError):
            until(cluster, lambda: found_coordinator(coordinator(cluster), name)[0] is ErrorCode.none, 1000)  # noqa: B023
            if found_coordinator(coordinator(cluster), name) == (ErrorCode.none, coordinator(cluster).node_id):
                return name
    raise AssertionError("no group")


def test_requests_about_several_groups_are_answered_in_order(cluster: ZooKeeperCluster) -> None:
    broker, classic = coordinator(cluster), home(cluster)
    until(cluster, lambda: commit(broker, 3, classic) is ErrorCode.none)
    for group in ("g", "h"):
        assert know(broker, group) is ErrorCode.none
    assert commit(broker, 1, "g") is ErrorCode.none
    assert commit(broker, 2, "h") is ErrorCode.none
    groups = ("g", classic, "h")
    assert [offset for _, _, offset in fetched(broker, *groups)] == [1, 3, 2]
    described = broker.ask(
        Api.DESCRIBE_GROUPS, describe_groups_request.DescribeGroupsRequest(groups=groups, include_authorized_operations=False)
    )
    assert [one.group_id for one in described.groups] == list(groups)
    asked = consumer_group_describe_request.ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False)
    described = broker.ask(Api.CONSUMER_GROUP_DESCRIBE, asked)
    assert {one.error_code for one in described.groups} == {ErrorCode.group_id_not_found}
    listed = broker.ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest())
    assert {(one.group_id, one.is_central) for one in listed.groups} == {("g", True), ("h", True), (classic, False)}
    listed = other(cluster).ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest())
    assert listed.groups == ()
    deleted = broker.ask(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=(classic, "g", "g", "nothing")))
    assert [(one.group_id, one.error_code) for one in deleted.results][:2] == [(classic, ErrorCode.none), ("g", ErrorCode.none)]
    assert cluster.model.data(paths.group("g")) is None
    assert not broker.core.state.central._parts


def test_other_protocols_are_refused_in_a_central_group(cluster: ZooKeeperCluster) -> None:
    broker = coordinator(cluster)
    assert know(broker) is ErrorCode.none
    heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, topic_partitions=None
    )
    for unknown in (broker, other(cluster)):
        found_coordinator(unknown)
        code = ErrorCode.inconsistent_group_protocol if unknown is broker else ErrorCode.not_coordinator
        refused = unknown.ask(Api.CONSUMER_GROUP_HEARTBEAT, heartbeat)
        assert refused.error_code is code
        assert ("group 'g' is central: set group.protocol=central" in (refused.error_message or "")) is (unknown is broker)
        assert unknown.ask(Api.JOIN_GROUP, joining("g")).error_code is code
    leaving = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert broker.ask(Api.HEARTBEAT, leaving).error_code is ErrorCode.unknown_member_id
    assert broker.ask(Api.JOIN_GROUP, joining("other")).error_code is not ErrorCode.inconsistent_group_protocol


def test_a_group_with_classic_members_gets_no_central_member(cluster: ZooKeeperCluster) -> None:
    """If its coordinator is the elected broker: of groups of other brokers that one does not know."""
    name, broker = home(cluster), coordinator(cluster)
    member_id = join_classic(broker, name)
    refused = broker.ask(Api.REGISTER, registering(name))
    assert refused.error_code is ErrorCode.inconsistent_group_protocol
    assert refused.error_message == f"group '{name}' has 1 member that is not central: use another group id, or stop them first"
    assert generation(cluster, name) == {}
    leaving = leave_group_request.LeaveGroupRequest(
        group_id=name, members=(leave_group_request.MemberIdentity(member_id=member_id, group_instance_id=None),)
    )
    assert broker.ask(Api.LEAVE_GROUP, leaving).error_code is ErrorCode.none
    assert know(broker, name) is ErrorCode.none


def test_who_is_not_elected_does_not_say_that_a_group_has_classic_members(cluster: ZooKeeperCluster) -> None:
    """The client would take that for an answer of the coordinator, and stay."""
    broker = coordinator(cluster)
    for one in cluster.brokers:
        if one is not broker:
            one.kill()
    cluster.run(2 * SESSION_TIMEOUT)
    name = home(cluster)
    join_classic(broker, name)
    broker.expire_session()
    until(cluster, lambda: not broker.zookeeper.elector.is_elected)
    codes: dict[ErrorCode, None] = {}

    def answered() -> ErrorCode:
        codes[code := know(broker, name)] = None
        return code

    until(cluster, lambda: answered() is ErrorCode.inconsistent_group_protocol)
    codes.pop(ErrorCode.coordinator_load_in_progress, None)  # the groups may be read between two questions
    assert [*codes] == [ErrorCode.not_coordinator, ErrorCode.inconsistent_group_protocol]


def test_a_group_with_members_of_0_8_gets_no_central_member(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for path in (paths.ids("g"), paths.owners("g"), paths.offsets("g")):
        cluster.put(path)
    tool = cluster.model.open(1 << 40, cluster.clock.now)
    cluster.zookeeper.execute(tool, Create(paths.member("g", "old"), MemberRegistration({"t": 1}).encode(), ephemeral=True))
    cluster.zookeeper.execute(tool, Create(paths.topic_owners("g", "t")))
    cluster.zookeeper.execute(tool, Create(paths.owner("g", "t", 0), b"old-0", ephemeral=True))
    member = SimCentralMember(cluster, "new", {"t": 1})
    until(cluster, lambda: member.errors)
    assert member.errors[0] is ErrorCode.inconsistent_group_protocol
    assert "group 'g' has members of Kafka 0.8 in ZooKeeper: old" in caplog.text
    assert generation(cluster) == {}
    cluster.remove(paths.member("g", "old"))  # its owner disappears later, with the session
    until(cluster, lambda: shared([member]))
    cluster.zookeeper.fire(cluster.model.close(tool))
    assert len(owners(cluster)) == PARTITIONS


def register_old_member(cluster: ZooKeeperCluster, *owned: str, partition: int = 0) -> int:
    """Let a consumer of Kafka 0.8 register as Java's does, and own this partition of these topics. Return its session."""
    session = cluster.model.open(1 << 40, cluster.clock.now)
    data = MemberRegistration({"t": 1}).encode()
    for path in (paths.group("g"), paths.ids("g"), paths.owners("g")):
        cluster.zookeeper.execute(session, Create(path))
    cluster.zookeeper.execute(session, Create(paths.member("g", "old"), data, ephemeral=True))
    for topic in owned:
        cluster.zookeeper.execute(session, Create(paths.topic_owners("g", topic)))
        cluster.zookeeper.execute(session, Create(paths.owner("g", topic, partition), b"old-0", ephemeral=True))
        assert cluster.model.owner(paths.owner("g", topic, partition)) == session
    return session


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)


def test_a_member_of_0_8_that_registers_in_a_central_group_gets_nothing_and_stops_no_one(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Java's consumer does not look at the generation: it registers, finds all partitions owned, and gives up."""
    members = join(cluster, "a")
    session = register_old_member(cluster)
    members += [SimCentralMember(cluster, "b", {"t": 1})]
    until(cluster, lambda: shared(members))
    members += [SimCentralMember(cluster, "c", {"t": 1})]
    until(cluster, lambda: shared(members))
    assert not any(member.errors for member in members)
    assert warnings(caplog, "members of Kafka 0.8 in ZooKeeper: old; they get no partitions") == 1
    assert [*cluster.model.children(paths.ids("g"))] == ["old"]
    cluster.zookeeper.fire(cluster.model.close(session))
    members[0].leave()
    until(cluster, lambda: shared(members[1:]))
    register_old_member(cluster)
    members[1].leave()
    until(cluster, lambda: shared(members[2:]))
    assert warnings(caplog, "they get no partitions") == 2, "it has come again"


def test_what_a_member_of_0_8_owns_is_no_central_members(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that no central member has read until then: the node of its owner is not replaced while that one lives."""
    cluster.brokers[0].ask(Api.CREATE_TOPICS, creating("u", partitions=2))
    members = join(cluster, "a")
    session = register_old_member(cluster, "u")
    members += [SimCentralMember(cluster, "b", {"t": 1, "u": 1})]
    until(cluster, lambda: "own partitions: /consumers/g/owners/u/0" in caplog.text)
    before = coordinator(cluster).counts()
    cluster.run(10_000)
    after = coordinator(cluster).counts()
    assert not any(member.held for member in members)
    assert owners(cluster, topic="u") == {TopicPartition("u", 0): "old-0"}
    assert warnings(caplog, "nothing is written: group 'g' has members of Kafka 0.8") == 1, "tried again twice a second"
    assert after["Exists"] - before["Exists"] in range(10, 25), "of the one owner, and not of all"
    assert after - before == dict.fromkeys(("Exists", "GetChildren"), after["Exists"] - before["Exists"])
    cluster.zookeeper.execute(session, Delete(paths.owner("g", "u", 0)))
    cluster.zookeeper.execute(session, Create(paths.owner("g", "u", 1), b"old-0", ephemeral=True))
    cluster.run(2_000)
    assert warnings(caplog, "own partitions: /consumers/g/owners/u/1") == 1, "it looks at all when that owner is gone"
    cluster.zookeeper.fire(cluster.model.close(session))
    until(cluster, lambda: shared(members, PARTITIONS + 2))


def test_new_partitions_that_a_member_of_0_8_has_taken_stop_the_group_until_it_is_gone(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """1. An idle consumer of Java is beside a central group. 2. The topic grows. 3. It claims a new partition before all stop."""
    members = join(cluster, "a")
    session = register_old_member(cluster)
    node = decode_topic_node(cluster.model.data(paths.topic("t")) or b"", "t")
    cluster.put(paths.topic("t"), encode_topic(node.replicas * 2, node.topic_id))
    cluster.zookeeper.execute(session, Create(paths.owner("g", "t", 7), b"old-0", ephemeral=True))
    cluster.run(10_000)
    assert not members[0].held
    assert warnings(caplog, "own partitions: /consumers/g/owners/t/7") == 1
    cluster.zookeeper.fire(cluster.model.close(session))
    until(cluster, lambda: shared(members, 2 * PARTITIONS))


def test_what_a_member_of_0_8_owns_remains_when_the_last_central_member_leaves(cluster: ZooKeeperCluster) -> None:
    """Without the node, the next member of 0.8 would claim the partition while the first one reads it."""
    cluster.brokers[0].ask(Api.CREATE_TOPICS, creating("u", partitions=2))
    (member,) = join(cluster, "a")
    session = register_old_member(cluster, "u")
    member.leave()
    until(cluster, lambda: generation(cluster)["members"] == 0)
    assert cluster.model.owner(paths.owner("g", "u", 0)) == session
    assert cluster.model.data(paths.topic_owners("g", "t")) is None


# -- answers that are lost, and members of Kafka 0.8 in the meantime ------------------------------------------------------


def generations_written(broker: BrokerInCluster) -> int:
    multis = [one for one in broker.asked if isinstance(one, Multi)]
    return sum(paths.generation("g") in [each.path for each in one.operations] for one in multis)


def stored_members(cluster: ZooKeeperCluster) -> int | None:
    """The members in the generation that the coordinator believes to be stored; ``None``: it knows no such group."""
    central = coordinator(cluster).core.state.central
    assert central is not None
    group = central._coordinator.groups().get("g")
    return None if group is None else group.stored_members


def test_a_lost_answer_when_the_last_member_leaves_takes_no_owner_from_members_of_0_8(cluster: ZooKeeperCluster) -> None:
    """1. The generation says that there are no members, and the answer is lost. 2. One of 0.8 registers, and owns partitions."""
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    cluster.zookeeper.break_in_multi(broker.client.session_id, Break.AFTER)
    before = generations_written(broker)
    member.leave()
    while generation(cluster)["members"]:
        cluster.run(1)
    session = register_old_member(cluster, "t")
    cluster.run(3_000)
    assert coordinator(cluster) is broker
    assert owners(cluster) == {TopicPartition("t", 0): "old-0"}
    assert cluster.model.owner(paths.owner("g", "t", 0)) == session
    assert stored_members(cluster) == generation(cluster)["members"] == 0
    assert generations_written(broker) == before + 1


def test_the_owners_of_an_emptied_group_are_deleted_in_parts_beside_a_member_of_0_8(
    cluster: ZooKeeperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first multi deletes an owner, and its answer is lost. 2. A member of 0.8 claims that one. 3. The rest follows."""
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    monkeypatch.setattr(multis, "MULTI_OPERATIONS", 1)
    cluster.zookeeper.break_in_multi(broker.client.session_id, Break.AFTER)
    member.leave()
    while len(owners(cluster)) == PARTITIONS:
        cluster.run(1)
    (freed,) = {*range(PARTITIONS)} - {one.partition for one in owners(cluster)}
    register_old_member(cluster, "t", partition=freed)
    assert generation(cluster)["members"] == 1
    until(cluster, lambda: generation(cluster)["members"] == 0)
    assert owners(cluster) == {TopicPartition("t", freed): "old-0"}
    cluster.run()
    assert stored_members(cluster) == 0


@pytest.mark.parametrize("lost", ["answer", "offsets"])
def test_a_group_that_became_central_before_a_member_of_0_8_came_is_not_refused(cluster: ZooKeeperCluster, lost: str) -> None:
    """Neither if the answer of the multi is lost, nor if that of the reads after it is."""
    broker = coordinator(cluster)
    member = SimCentralMember(cluster, "a", {"t": 1})
    if lost == "answer":
        cluster.zookeeper.break_in_multi(broker.client.session_id, Break.AFTER)
        while not generation(cluster):
            cluster.run(1)
    else:
        while GetChildren(paths.offsets("g")) not in broker.asked:
            cluster.run(1)
        broker.disconnect()
    assert generation(cluster)["members"] == 1
    register_old_member(cluster)
    until(cluster, lambda: shared([member]))
    assert member.errors == []
    assert stored_members(cluster) == generation(cluster)["members"] == 1


def test_a_group_that_a_member_of_0_8_entered_before_it_became_central_is_refused(cluster: ZooKeeperCluster) -> None:
    """The answer is missing because the multi was not executed."""
    broker = coordinator(cluster)
    cluster.put(paths.ids("g"))
    cluster.zookeeper.break_in_multi(broker.client.session_id, Break.BEFORE)
    member = SimCentralMember(cluster, "a", {"t": 1})
    while broker.zookeeper.session.state is SessionState.CONNECTED:
        cluster.run(1)
    assert generations_written(broker) == 1
    register_old_member(cluster)
    until(cluster, lambda: member.errors)
    assert {*member.errors} == {ErrorCode.inconsistent_group_protocol}
    assert generation(cluster) == {}
    assert stored_members(cluster) is None


@pytest.mark.parametrize("where", Break)
def test_a_generation_whose_answer_is_lost_is_stored_once(cluster: ZooKeeperCluster, where: Break) -> None:
    members = join(cluster, "a")
    broker = coordinator(cluster)
    before = generation(cluster)["generation"]
    cluster.zookeeper.break_in_multi(broker.client.session_id, where)
    written = generations_written(broker)
    members += [SimCentralMember(cluster, "b", {"t": 1})]
    until(cluster, lambda: shared(members))
    assert generation(cluster)["generation"] == before + 1
    assert generations_written(broker) == written + (1 if where is Break.AFTER else 2)


def test_a_deletion_whose_answer_is_lost_is_done_though_a_member_of_0_8_has_come(cluster: ZooKeeperCluster) -> None:
    broker = emptied(cluster, 100)
    cluster.zookeeper.break_in_multi(broker.client.session_id, Break.AFTER)
    ticket = broker.send(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=("g",)))
    while generation(cluster):
        cluster.run(1)
    session = register_old_member(cluster, "t")
    until(cluster, lambda: ticket in broker.replies)
    assert [one.error_code for one in broker.replies.pop(ticket).results] == [ErrorCode.none]
    assert stored_members(cluster) is None
    assert cluster.model.owner(paths.owner("g", "t", 0)) == session
    assert nodes(broker) == {}


def test_an_append_that_may_be_stored_is_not_reported_as_refused(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The answer is lost. 2. The node cannot be read. 3. It can, and the generation was stored."""
    broker = coordinator(cluster)
    execute = cluster.zookeeper.execute
    refused = []

    def refusing(session_id: int, operation: Operation[Any]) -> Executed | None:
        if operation == GetData(paths.generation("g")):
            refused.append(operation)
            return Executed(None, ZooKeeperError(KeeperCode.NOAUTH, operation.path))
        return execute(session_id, operation)

    monkeypatch.setattr(cluster.zookeeper, "execute", refusing)
    cluster.zookeeper.break_in_multi(broker.client.session_id, Break.AFTER)
    member = SimCentralMember(cluster, "a", {"t": 1})
    until(cluster, lambda: len(refused) > 3)
    assert warnings(caplog, "could not be written to ZooKeeper") == 1
    assert member.errors == []
    monkeypatch.undo()
    until(cluster, lambda: shared([member]))
    assert stored_members(cluster) == 1


def test_a_server_that_lags_behind_does_not_say_whether_an_append_is_stored() -> None:
    """The client has connected to another server, which may not have the multi yet."""
    path = paths.generation("g")
    record = path.removeprefix("/consumers/").encode(), GenerationNode(1, 1, 6000, 1).encode()
    known = GroupNodes({paths.ids("g"), path}, is_shared=False)
    steps = write_records("g", [record], 3, known, Malformed())
    assert [type(one) for one in next(steps)] == [Multi]
    with pytest.raises(ZooKeeperError):
        steps.send([ZooKeeperError(KeeperCode.CONNECTIONLOSS, path)])
    steps = write_records("g", [record], 3, known, Malformed())
    assert next(steps) == (Sync(),)
    assert steps.send([None]) == (GetData(path),)


def test_refused_members_and_strange_names_are_logged_once(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    broker = emptied(cluster, 100)
    cluster.put(f"{paths.topic_offsets('g', 't')}/strange", b"1")
    assert [fetched(broker, "g") for _ in range(5)] == [[("g", ErrorCode.none, 100)]] * 5
    assert warnings(caplog, "/strange of ZooKeeper does not have the number of a partition as its name") == 1
    session = register_old_member(cluster)
    member = SimCentralMember(cluster, "new", {"t": 1})
    until(cluster, lambda: len(member.errors) > 20)
    text = "nothing is written: group 'g' has members of Kafka 0.8 in ZooKeeper: old"
    assert warnings(caplog, text) == 1
    cluster.zookeeper.fire(cluster.model.close(session))
    until(cluster, lambda: shared([member]))
    member.leave()
    until(cluster, lambda: generation(cluster)["members"] == 0)
    register_old_member(cluster)
    assert commit(broker, 101) is ErrorCode.unknown_member_id
    assert warnings(caplog, text) == 2, "it has come again"


def test_groups_are_loaded_with_their_names_known(cluster: ZooKeeperCluster) -> None:
    """While groups are loaded, no client learns that a group has committed nothing."""
    first = coordinator(cluster)
    assert know(first) is ErrorCode.none
    assert commit(first, 9) is ErrorCode.none
    first.kill()
    rest = [broker for broker in cluster.brokers if broker.up]
    seen: set[tuple[ErrorCode, int | None]] = set()
    for _ in range(4 * SESSION_TIMEOUT // 20):
        for broker in rest:
            if broker.zookeeper.elector.is_elected:
                seen |= {(code, offset) for _, code, offset in fetched(broker, "g")}
        cluster.run(20)
    assert (ErrorCode.none, 9) in seen
    assert {code for code, offset in seen if offset != 9} <= {ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator}


def test_the_log_says_who_coordinates_and_what_was_read(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    join(cluster, "a", "b")
    assert commit(coordinator(cluster), 3, "h") is not ErrorCode.none  # not central yet
    first = coordinator(cluster)
    first.kill()
    until(cluster, lambda: any(one.up and one.zookeeper.elector.is_elected for one in cluster.brokers))
    cluster.run()
    assert f"broker {coordinator(cluster).node_id} is elected as the central coordinator, in epoch 2" in caplog.text
    assert "has read 1 groups in" in caplog.text
    assert "1 with members, 6 owned partitions, 0 committed offsets" in caplog.text


# -- groups that members of Kafka 0.8 use in between ---------------------------------------------------------------------


def emptied(cluster: ZooKeeperCluster, offset: int, group: str = "g") -> BrokerInCluster:
    """A central group without members, with one offset; returns the coordinator."""
    (member,) = join(cluster, "a", group=group)
    broker = coordinator(cluster)
    assert commit(broker, offset, group, generation=member.generation, member="a") is ErrorCode.none
    member.leave()
    until(cluster, lambda: generation(cluster, group)["members"] == 0)
    return broker


@pytest.mark.parametrize("way", ["emptied", "known", "loaded"])
def test_what_members_of_0_8_have_committed_in_between_is_not_overwritten(cluster: ZooKeeperCluster, way: str) -> None:
    if way == "known":
        broker = coordinator(cluster)
        assert know(broker) is ErrorCode.none
        assert commit(broker, 100, partitions=2) is ErrorCode.none
    else:
        broker = emptied(cluster, 100)
    if way == "loaded":
        broker.expire_session()
        until(
            cluster, lambda: any(one.zookeeper.elector.is_elected and one.zookeeper.elector.epoch == 2 for one in cluster.brokers)
        )
        until(cluster, lambda: fetched(coordinator(cluster), "g")[0][1] is ErrorCode.none)
    cluster.put(paths.offset("g", "t", 0), b"500")
    cluster.put(paths.offset("g", "t", 3), b"7")
    if cluster.model.data(paths.offset("g", "t", 1)) is not None:
        cluster.remove(paths.offset("g", "t", 1))
    join(cluster, "b")
    wanted = {TopicPartition("t", 0): 500, TopicPartition("t", 3): 7}
    central = coordinator(cluster).core.state.central
    assert central is not None
    assert central._coordinator.offsets("g") == wanted
    before = coordinator(cluster).counts()
    assert fetched(coordinator(cluster), "g") == [("g", ErrorCode.none, 500)]
    assert coordinator(cluster).counts() == before  # the group has members: its offsets are known


def test_offsets_of_a_group_without_members_are_read_again(cluster: ZooKeeperCluster) -> None:
    broker, classic = emptied(cluster, 100), home(cluster)
    cluster.put(paths.offset("g", "t", 0), b"500")
    assert fetched(broker, "g", classic, "g") == [
        ("g", ErrorCode.none, 500),
        (classic, ErrorCode.none, -1),
        ("g", ErrorCode.none, 500),
    ]
    # with a commit at the same time, no answer is older than its request
    tickets = [
        broker.send(Api.OFFSET_FETCH, fetching("g"), version=9),
        broker.send(Api.OFFSET_FETCH, fetching("g"), version=9),
        broker.send(Api.OFFSET_COMMIT, committing(600), version=9),
        broker.send(Api.OFFSET_FETCH, fetching("g"), version=9),
    ]
    cluster.run()
    answers = [broker.replies.pop(ticket) for ticket in tickets]
    offsets = [answers[n].groups[0].topics[0].partitions[0].committed_offset for n in (0, 1, 3)]
    assert offsets[:2] in ([500, 500], [500, 600], [600, 600])
    assert offsets[2] == 600
    central = broker.core.state.central
    assert central is not None
    assert not central._fetches
    assert not central._parts


def test_a_fetch_that_waits_for_zookeeper_is_refused_at_the_end_of_the_term(cluster: ZooKeeperCluster) -> None:
    broker = emptied(cluster, 100)
    cluster.network.isolate(broker.host)
    ticket = broker.send(Api.OFFSET_FETCH, fetching("g"), version=9)
    until(cluster, lambda: not broker.zookeeper.elector.is_elected)
    assert broker.replies.pop(ticket).groups[0].error_code is ErrorCode.not_coordinator


def deleting(group: str = "g") -> Any:
    parts = (offset_delete_request.OffsetDeleteRequestPartition(partition_index=0),)
    topic = offset_delete_request.OffsetDeleteRequestTopic(name="t", partitions=parts)
    return offset_delete_request.OffsetDeleteRequest(group_id=group, topics=(topic,))


def test_offsets_of_members_of_0_8_are_not_changed_by_hand(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    broker = emptied(cluster, 100)
    cluster.put(paths.member("g", "old"), MemberRegistration({"t": 1}).encode())
    cluster.put(paths.offset("g", "t", 0), b"500")
    assert commit(broker, 100) is ErrorCode.unknown_member_id
    assert broker.ask(Api.OFFSET_DELETE, deleting()).error_code is ErrorCode.non_empty_group
    deletion = delete_groups_request.DeleteGroupsRequest(groups_names=("g",))
    assert [one.error_code for one in broker.ask(Api.DELETE_GROUPS, deletion).results] == [ErrorCode.non_empty_group]
    assert cluster.model.data(paths.offset("g", "t", 0)) == b"500"
    assert "group 'g' has members of Kafka 0.8 in ZooKeeper: old" in caplog.text
    cluster.remove(paths.member("g", "old"))
    assert commit(broker, 501) is ErrorCode.none
    assert cluster.model.data(paths.offset("g", "t", 0)) == b"501"
    assert broker.ask(Api.OFFSET_DELETE, deleting()).error_code is ErrorCode.none
    assert cluster.model.data(paths.offset("g", "t", 0)) is None


def test_offsets_of_a_deleted_topic_are_left_to_members_of_0_8(cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture) -> None:
    broker = emptied(cluster, 100)
    cluster.put(paths.member("g", "old"), MemberRegistration({"t": 1}).encode())
    topic = delete_topics_request.DeleteTopicState(name="t", topic_id=None)
    deletion = delete_topics_request.DeleteTopicsRequest(topics=(topic,), timeout=timedelta(seconds=1))
    assert broker.ask(Api.DELETE_TOPICS, deletion).responses[0].error_code is ErrorCode.none
    cluster.run(10_000)
    assert caplog.text.count("nothing is written") == 1
    assert cluster.model.data(paths.offset("g", "t", 0)) == b"100"


# -- memory ---------------------------------------------------------------------------------------------------------------


def nodes(broker: BrokerInCluster) -> dict[str, GroupNodes]:
    (store,) = [one for one in broker.zookeeper._managers if isinstance(one, CentralStore)]
    return store._nodes


def test_what_was_deleted_takes_no_memory(cluster: ZooKeeperCluster) -> None:
    broker = coordinator(cluster)
    broker.ask(Api.CREATE_TOPICS, creating("u", partitions=2))
    member = SimCentralMember(cluster, "a", {"t": 1, "u": 1})
    until(cluster, lambda: shared([member], PARTITIONS + 2))
    topic = committing(5, partitions=2).topics[0]
    message = dataclasses.replace(
        committing(5, generation=member.generation, member="a"), topics=(topic, dataclasses.replace(topic, name="u"))
    )
    response = broker.ask(Api.OFFSET_COMMIT, message, version=9)
    assert {one.error_code for answer in response.topics for one in answer.partitions} == {ErrorCode.none}
    gone = {paths.offset("g", "u", 0), paths.offset("g", "u", 1), paths.owner("g", "u", 0), paths.owner("g", "u", 1)}
    assert nodes(broker)["g"].existing >= gone
    deletion = delete_topics_request.DeleteTopicsRequest(
        topics=(delete_topics_request.DeleteTopicState(name="u", topic_id=None),), timeout=timedelta(seconds=1)
    )
    assert broker.ask(Api.DELETE_TOPICS, deletion).responses[0].error_code is ErrorCode.none
    until(cluster, lambda: shared([member]) and cluster.model.data(paths.offset("g", "u", 0)) is None)
    known = nodes(broker)["g"]
    assert not gone & (known.existing | known._looked_for)
    assert known._looked_for <= known.existing
    # what was forgotten is found again
    broker.ask(Api.CREATE_TOPICS, creating("u", partitions=2))
    until(cluster, lambda: shared([member], PARTITIONS + 2))
    assert len(owners(cluster, topic="u")) == 2


def test_groups_that_were_deleted_or_refused_take_no_memory(cluster: ZooKeeperCluster) -> None:
    broker = emptied(cluster, 100)
    cluster.put(paths.member("old", "x"), MemberRegistration({"t": 1}).encode())
    assert know(broker, "old") is ErrorCode.inconsistent_group_protocol
    join(cluster, "b", group="h")
    deletion = delete_groups_request.DeleteGroupsRequest(groups_names=("g", "h"))
    codes = [one.error_code for one in broker.ask(Api.DELETE_GROUPS, deletion).results]
    assert codes == [ErrorCode.none, ErrorCode.non_empty_group]
    assert set(nodes(broker)) == {"h"}


# -- left-overs -----------------------------------------------------------------------------------------------------------


def test_owners_that_are_not_known_are_deleted(cluster: ZooKeeperCluster) -> None:
    """A generation was written in two parts, and the second one failed: its owners are not those of the next one."""
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    cluster.put(paths.owner("g", "t", 77), b"x-0")
    cluster.put(paths.owner("g", "gone", 0), b"x-0")
    broker.expire_session()  # the next coordinator finds them, and waits for x
    until(cluster, lambda: member.epoch == 2 and generation(cluster)["epoch"] == 2)
    until(cluster, lambda: {*owners(cluster)} == {TopicPartition("t", n) for n in range(PARTITIONS)})
    assert cluster.model.data(paths.topic_owners("g", "gone")) is None
    member.leave()
    until(cluster, lambda: generation(cluster)["members"] == 0)
    assert cluster.model.data(paths.owners("g")) is None


def test_a_new_coordinator_waits_for_an_owner_whose_text_is_malformed(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (member,) = join(cluster, "a")
    cluster.put(paths.owner("g", "t", 1), b"stranger")
    coordinator(cluster).kill()
    until(cluster, lambda: member.epoch == 2)
    assert "it counts as one that does not return" in caplog.text
    assert "members did not return to the new coordinator: 'stranger'" in caplog.text
    until(cluster, lambda: shared([member]))
    assert set(owners(cluster).values()) == {"a-0"}


def test_many_commits_that_zookeeper_refuses_for_good_are_reported_once(
    cluster: ZooKeeperCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    tool = cluster.model.open(1 << 40, cluster.clock.now)
    cluster.zookeeper.execute(tool, Create(paths.offsets("g"), ephemeral=True))
    one = committing(7, generation=member.generation, member="a", partitions=2)
    before = broker.counts()
    tickets = [broker.send(Api.OFFSET_COMMIT, one, version=9) for _ in range(100)]
    until(cluster, lambda: all(ticket in broker.replies for ticket in tickets))
    codes = {broker.replies[ticket].topics[0].partitions[0].error_code for ticket in tickets}
    assert codes == {ErrorCode.coordinator_not_available}
    assert (broker.counts() - before)["Multi"] < 50
    lines = [record for record in caplog.records if "could not be written" in record.getMessage()]
    assert [record.levelname for record in lines if record.levelno > logging.DEBUG] == ["ERROR"]


def test_a_commit_that_zookeeper_refuses_for_good_fails_no_other_one(cluster: ZooKeeperCluster) -> None:
    """1. One commit is being stored, and others wait: they share a multi. 2. One of them is for a topic whose node is ephemeral."""
    (member,) = join(cluster, "a")
    broker = coordinator(cluster)
    broker.ask(Api.CREATE_TOPICS, creating("u", partitions=1))
    assert commit(broker, 1, generation=member.generation, member="a") is ErrorCode.none
    tool = cluster.model.open(1 << 40, cluster.clock.now)
    cluster.zookeeper.execute(tool, Create(paths.topic_offsets("g", "u"), ephemeral=True))
    good = committing(7, generation=member.generation, member="a", partitions=2)
    bad = dataclasses.replace(
        good, topics=(dataclasses.replace(good.topics[0], name="u", partitions=good.topics[0].partitions[:1]),)
    )
    before = broker.counts()
    tickets = [broker.send(Api.OFFSET_COMMIT, one, version=9) for one in (good, good, bad, good)]
    until(cluster, lambda: broker.replies.keys() >= {*tickets})
    answers = [broker.replies.pop(ticket).topics[0].partitions[0].error_code for ticket in tickets]
    assert answers == [ErrorCode.none, ErrorCode.none, ErrorCode.coordinator_not_available, ErrorCode.none]
    assert (broker.counts() - before)["Multi"] > 4
    assert [cluster.model.data(paths.offset("g", "t", n)) for n in range(2)] == [b"7"] * 2


def test_a_commit_does_not_look_at_all_nodes_of_a_group() -> None:
    class Nodes(set[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("a commit in a group with 10,000 partitions takes 40 ms")

        def __sub__(self, other: object) -> set[str]:
            raise AssertionError("the same")

    path = paths.offset("g", "t", 0)
    known = GroupNodes(Nodes({paths.ids("g"), path}), is_shared=False)
    steps = write_records("g", [(path.removeprefix("/consumers/").encode(), b"1")], 3, known, Malformed())
    (multi,) = next(steps)
    assert multi == Multi((Check(paths.COORDINATOR_EPOCH, 3), SetData(path, b"1")))


# -- who knows which groups are central -----------------------------------------------------------------------------------


def test_a_deleted_group_is_no_longer_central_anywhere(cluster: ZooKeeperCluster) -> None:
    name = home(cluster)
    emptied(cluster, 1, name)
    for broker in cluster.brokers:
        assert found_coordinator(broker, name) == (ErrorCode.none, coordinator(cluster).node_id)
    broker = coordinator(cluster)
    assert commit(other(cluster), 2, name) is ErrorCode.not_coordinator
    broker.ask(Api.DELETE_GROUPS, delete_groups_request.DeleteGroupsRequest(groups_names=(name,)))
    assert broker.ask(Api.JOIN_GROUP, joining(name)).error_code is ErrorCode.member_id_required
    for one in cluster.brokers:
        if one is not broker:
            assert one.core.state.central is not None
            assert one.core.state.central.is_central(name)
            assert one.ask(Api.JOIN_GROUP, joining(name)).error_code is ErrorCode.not_coordinator
            cluster.run()
            assert not one.core.state.central.is_central(name)  # the refusal has made it look again


def test_the_coordinators_of_many_groups_are_asked_for_in_parts(cluster: ZooKeeperCluster) -> None:
    """The renewals of the lease go between the parts, and so does a question about one group."""
    assert know(coordinator(cluster)) is ErrorCode.none
    broker = other(cluster)
    before = len(broker.asked)
    names = (*(f"group-{n}" for n in range(4999)), "g")
    many = broker.send(Api.FIND_COORDINATOR, find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=names))
    tickets = [
        broker.send(Api.FIND_COORDINATOR, find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), n)
        for n in range(1, 100)
    ]
    most = 0
    while any(ticket not in broker.replies for ticket in tickets):
        cluster.run(1)
        most = max(most, broker.in_flight)
    assert many not in broker.replies
    until(cluster, lambda: many in broker.replies)
    assert most < 1100
    asked = [one.path for one in broker.asked[before:] if isinstance(one, Exists)]
    assert 1 <= asked.count(paths.generation("g")) <= 3
    answers = broker.replies.pop(many).coordinators
    assert [one.key for one in answers] == list(names)
    assert answers[-1].node_id == coordinator(cluster).node_id


def test_a_slow_zookeeper_holds_up_no_client_for_long(cluster: ZooKeeperCluster) -> None:
    assert know(coordinator(cluster)) is ErrorCode.none
    broker = other(cluster)
    found = found_coordinator(broker)
    broker.hold(SESSION_TIMEOUT // 3)
    asking = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))
    tickets = [broker.send(Api.FIND_COORDINATOR, asking, connection) for connection in (1, 2)]
    cluster.run(PATIENCE + 10)
    for ticket in tickets:
        (answer,) = broker.replies.pop(ticket).coordinators
        assert (answer.error_code, answer.node_id) == found
    cluster.run(SESSION_TIMEOUT)
    assert found_coordinator(broker) == found
