"""JoinGroup 0 and 1: Apache Kafka and Ottla's broker send the same responses, byte for byte.

The expected exchange is a recording of Apache Kafka.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ottla import Broker
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
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
    sync_group_request,
)
from tests.interop.other_clients import create_topic
from tests.interop.real_kafka import KafkaTool, OwnKafka, free_port_pair
from tests.raw_client import RawClient

OK = ErrorCode.none
PROTOCOL_TYPE = "consumer"
METADATA = b"\0\0\0\0\0\0\xff\xff\xff\xff"
CHECK = 3.0
"""Seconds between two searches for expired offsets, on both brokers."""


class OldMember:
    """A member with a connection of its own."""

    def __init__(self, servers: str, group: str, version: int) -> None:
        self.client = RawClient(servers)
        self.group, self.version = group, version
        self.member_id = ""

    def send_join(self, session: float = 10.0, rebalance: float = 20.0) -> tuple[Api, int]:
        request = join_group_request.JoinGroupRequest(
            group_id=self.group,
            session_timeout=timedelta(seconds=session),
            rebalance_timeout=timedelta(seconds=rebalance),
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(join_group_request.JoinGroupRequestProtocol(name="range", metadata=METADATA),),
        )
        return self.client.send(Api.JOIN_GROUP, request, self.version)

    def joined(self, sent: tuple[Api, int]) -> Any:
        answer = self.client.receive(*sent)[1]
        self.member_id = answer.member_id
        return answer

    def sync(self, generation: int, given: dict[str, bytes] | None = None) -> tuple[Api, int]:
        request = sync_group_request.SyncGroupRequest(
            group_id=self.group,
            generation_id=generation,
            member_id=self.member_id,
            assignments=tuple(
                sync_group_request.SyncGroupRequestAssignment(member_id=one, assignment=share)
                for one, share in (given or {}).items()
            ),
        )
        return self.client.send(Api.SYNC_GROUP, request, min(self.version, 1))

    def beat(self, generation: int) -> ErrorCode:
        request = heartbeat_request.HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=self.member_id)
        return ErrorCode(self.client.ask(Api.HEARTBEAT, request, min(self.version, 1)).error_code)

    def leave(self) -> ErrorCode:
        gone = (leave_group_request.MemberIdentity(member_id=self.member_id, group_instance_id=None),)
        request = leave_group_request.LeaveGroupRequest(group_id=self.group, members=gone)
        return ErrorCode(self.client.ask(Api.LEAVE_GROUP, request, min(self.version, 1)).error_code)

    def commit(self, topic: str, generation: int = -1) -> ErrorCode:
        partition = offset_commit_request.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        request = offset_commit_request.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=self.member_id,
            topics=(offset_commit_request.OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
        )
        return ErrorCode(self.client.ask(Api.OFFSET_COMMIT, request, 2).topics[0].partitions[0].error_code)

    def state(self) -> tuple[str, list[str]]:
        """The state of the group as it is described, and as it is listed."""
        described = describe_groups_request.DescribeGroupsRequest(groups=(self.group,), include_authorized_operations=False)
        (result,) = self.client.ask(Api.DESCRIBE_GROUPS, described, 5).groups
        listed = self.client.ask(Api.LIST_GROUPS, list_groups_request.ListGroupsRequest(states_filter=(), types_filter=()), 5)
        return result.group_state, [one.group_state for one in listed.groups if one.group_id == self.group]


def ready(servers: str) -> str:
    """The address of a broker whose group coordinator is there."""
    with RawClient(servers) as client:
        wanted = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("unknown",))
        client.ask(Api.FIND_COORDINATOR, wanted)
        unknown = heartbeat_request.HeartbeatRequest(group_id="unknown", generation_id=1, member_id="unknown")
        while client.ask(Api.HEARTBEAT, unknown).error_code is not ErrorCode.unknown_member_id:
            time.sleep(0.1)
    return servers


@pytest.fixture(params=["kafka", "ours"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """A real Kafka, then our broker."""
    if request.param == "kafka":
        yield ready(request.getfixturevalue("real_kafka"))
        return
    with Broker() as broker:
        yield ready(broker.bootstrap_servers)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1), (0, 9), (1, 9)])
def test_a_group_of_old_members(servers: str, first: int, second: int) -> None:
    group = f"old-{uuid.uuid4()}"
    a, b = OldMember(servers, group, first), OldMember(servers, group, second)
    alone = a.joined(a.send_join())
    assert (alone.error_code, alone.generation_id, alone.protocol_name) == (OK, 1, "range")
    assert alone.leader == a.member_id
    assert [(one.member_id, one.metadata) for one in alone.members] == [(a.member_id, METADATA)]
    assert a.client.receive(*a.sync(1, {a.member_id: b"all"}))[1].assignment == b"all"
    assert a.beat(1) is OK
    sent = b.send_join()
    if second >= 4:
        assert b.joined(sent).error_code is ErrorCode.member_id_required
        sent = b.send_join()
    while (code := a.beat(1)) is OK:
        time.sleep(0.01)
    assert code is ErrorCode.rebalance_in_progress
    again, other = a.joined(a.send_join()), b.joined(sent)
    assert (again.generation_id, other.generation_id) == (2, 2)
    assert (again.leader, other.leader) == (a.member_id, a.member_id)
    assert {one.member_id for one in again.members} == {a.member_id, b.member_id}
    assert other.members == ()
    waiting = b.sync(2)
    assert a.client.receive(*a.sync(2, {a.member_id: b"1", b.member_id: b"2"}))[1].assignment == b"1"
    assert b.client.receive(*waiting)[1].assignment == b"2"
    assert (a.beat(1), a.beat(2), b.beat(2)) == (ErrorCode.illegal_generation, OK, OK)
    assert a.leave() is OK
    assert a.beat(2) is ErrorCode.unknown_member_id
    assert b.beat(2) is ErrorCode.rebalance_in_progress
    assert b.leave() is OK
    assert b.state()[0] == "Empty"


@pytest.mark.parametrize(("version", "least", "most"), [(0, 0.8, 2.5), (1, 2.6, 8.0)])
def test_how_long_an_old_member_is_waited_for(version: int, least: float, most: float) -> None:
    # Version 0 has one time-out, the session's, for rebalances too; the others say how long their members are waited for (KIP-62).
    with Broker(settings={"group.min.session.timeout.ms": 500}) as broker:
        servers = ready(broker.bootstrap_servers)
        a, b = OldMember(servers, "g", version), OldMember(servers, "g", version)
        a.joined(a.send_join(session=1.0, rebalance=3.0))
        a.client.receive(*a.sync(1))
        sent = b.send_join(session=1.0, rebalance=3.0)
        begin = time.monotonic()
        beats = 0
        b.client.sock.settimeout(0.1)
        while True:
            try:
                answer = b.joined(sent)
                break
            except TimeoutError:
                beats += a.beat(1) is ErrorCode.rebalance_in_progress  # alive, and busy with its records
        assert beats
        assert (answer.error_code, answer.leader) == (OK, b.member_id)
        assert least <= time.monotonic() - begin <= most


@pytest.mark.interop
@pytest.mark.parametrize("broker", ["kafka", "ours"])
def test_a_group_that_has_lost_its_last_offset_is_empty_until_the_next_check(broker: str, kafka_tool: KafkaTool) -> None:
    # With Kafka 3 it was Dead at once.
    settings = {"offsets.retention.check.interval.ms": int(CHECK * 1000), "offsets.topic.num.partitions": 1}
    if broker == "ours":
        with Broker(settings=settings) as ours:
            lose_last_offsets(ready(ours.bootstrap_servers))
        return
    node = OwnKafka(free_port_pair(), *(f"{name}={value}" for name, value in settings.items()))
    try:
        lose_last_offsets(ready(node.address))
    finally:
        node.stop()


def lose_last_offsets(servers: str) -> None:
    """Groups that have had a member and groups that have not, by OffsetDelete and with their topic."""
    for with_member in (True, False):
        for by_request in (True, False):
            others, group = emptied(servers, with_member=False), emptied(servers, with_member=with_member)
            lose_offset(*others, by_request=True)
            gone(others[0])  # there has been a check just now
            lose_offset(*group, by_request=by_request)
            assert group[0].state() == ("Empty", ["Empty"])
            assert gone(group[0]) > CHECK / 2


def emptied(servers: str, *, with_member: bool) -> tuple[OldMember, str]:
    """Someone who can ask about a group without members, and the topic of its only offset."""
    topic = f"t-{uuid.uuid4()}"
    create_topic(servers, topic, 1)
    one = OldMember(servers, f"g-{uuid.uuid4()}", 1)
    if with_member:
        one.joined(one.send_join())
        one.client.receive(*one.sync(1))
    while one.commit(topic, 1 if with_member else -1) is not OK:
        time.sleep(0.1)  # the coordinator does not know the topic yet
    if with_member:
        assert one.leave() is OK
    assert one.state() == ("Empty", ["Empty"])
    return one, topic


def lose_offset(one: OldMember, topic: str, *, by_request: bool) -> None:
    """Delete the offset, or its topic; returns when it is gone."""
    if by_request:
        partition = offset_delete_request.OffsetDeleteRequestPartition(partition_index=0)
        topics = (offset_delete_request.OffsetDeleteRequestTopic(name=topic, partitions=(partition,)),)
        request = offset_delete_request.OffsetDeleteRequest(group_id=one.group, topics=topics)
        assert one.client.ask(Api.OFFSET_DELETE, request, 0).error_code is OK
    else:
        name = delete_topics_request.DeleteTopicState(name=topic, topic_id=None)
        deletion = delete_topics_request.DeleteTopicsRequest(topics=(name,), timeout=timedelta(seconds=10))
        assert one.client.ask(Api.DELETE_TOPICS, deletion).responses[0].error_code is OK
    wanted = offset_fetch_request.OffsetFetchRequestGroup(group_id=one.group, topics=None)
    every = offset_fetch_request.OffsetFetchRequest(groups=(wanted,), require_stable=False)
    while one.client.ask(Api.OFFSET_FETCH, every, 9).groups[0].topics:
        time.sleep(0.02)


def gone(one: OldMember) -> float:
    """Wait until a group is gone; returns how many seconds that took."""
    begin = time.monotonic()
    while one.state() != ("Dead", []):
        assert time.monotonic() < begin + 4 * CHECK
        time.sleep(0.02)
    return time.monotonic() - begin
