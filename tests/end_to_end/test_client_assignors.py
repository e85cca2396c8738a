"""Members that run the assignor themselves, over the wire: a minimal member against a broker that supports it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.assignors import SERVER_ASSIGNORS, GroupSpec, MemberSpec, TopicSpec
from ottla.protocol import ErrorCode, duration
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    api_versions_request,
    consumer_group_heartbeat_request as heartbeat,
    consumer_group_install_assignment_request as install,
    consumer_group_prepare_assignment_request as prepare,
)
from tests.interop.other_clients import create_topic
from tests.raw_client import RawClient

OURS = {int(Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT), int(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT)}


class Driver:
    """A member that sends heartbeats, owns its target assignment, and runs ``range`` when a heartbeat's response requests it."""

    def __init__(self, servers: str, member_id: str) -> None:
        self.client = RawClient(servers)
        self.member_id = member_id
        self.epoch = 0
        self.owned: dict[Any, tuple[int, ...]] = {}
        self.installed = 0
        self.metadata = b""

    def beat(self) -> None:
        """Send one full heartbeat and act on its response."""
        answer = self.client.ask(
            Api.CONSUMER_GROUP_HEARTBEAT,
            heartbeat.ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout=duration(10_000),
                subscribed_topic_names=("orders",),
                topic_partitions=()
                if self.epoch == 0
                else tuple(heartbeat.TopicPartitions(topic_id=one, partitions=numbers) for one, numbers in self.owned.items()),
                client_assignors=(heartbeat.ClientAssignor(name="driver", metadata=self.member_id.encode()),),
            ),
        )
        assert answer.error_code is ErrorCode.none, answer.error_message
        self.epoch = answer.member_epoch
        self.metadata = answer.metadata or self.metadata
        if answer.assignment is not None:
            self.owned = {one.topic_id: one.partitions for one in answer.assignment.topic_partitions if one.partitions}
        if answer.should_compute_assignment:
            self.compute()

    def compute(self) -> None:
        """Prepare, run the assignor, install."""
        who = {"group_id": "g", "member_id": self.member_id, "member_epoch": self.epoch}
        shown = self.client.ask(
            Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
            prepare.ConsumerGroupPrepareAssignmentRequest(**who),  # type: ignore[arg-type]
        )
        assert (shown.error_code, shown.assignor_name) == (ErrorCode.none, "driver")
        assert {one.member_id.encode() for one in shown.members} == {one.metadata for one in shown.members}
        group = GroupSpec(
            {one.member_id: MemberSpec(frozenset(one.subscribed_topic_ids)) for one in shown.members},
            {one.member_id: {topic.topic_id: topic.partitions for topic in one.topic_partitions} for one in shown.members},
            {one.topic_id: TopicSpec(one.topic_name, one.num_partitions) for one in shown.topics},
        )
        request = install.ConsumerGroupInstallAssignmentRequest(
            **who,  # type: ignore[arg-type]
            group_epoch=shown.group_epoch,
            members=tuple(
                install.Member(
                    member_id=member_id,
                    topic_partitions=tuple(install.TopicPartitions(topic_id=one, partitions=some) for one, some in target.items()),
                    metadata=b"by " + self.member_id.encode(),
                )
                for member_id, target in SERVER_ASSIGNORS["range"](group).items()
            ),
        )
        assert self.client.ask(Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT, request).error_code is ErrorCode.none
        self.installed += 1


def beat_until_shared(members: list[Driver], shares: list[list[int]]) -> None:
    """Send heartbeats of all members until they own these partitions."""
    until = time.monotonic() + 60
    while [sorted(number for some in one.owned.values() for number in some) for one in members] != shares:
        assert time.monotonic() < until, [one.owned for one in members]
        for member in members:
            member.beat()


@pytest.fixture
def servers() -> Iterator[str]:
    with Broker(settings={"group.consumer.client.assignors.enable": True}) as broker:
        create_topic(broker.bootstrap_servers, "orders", 5)
        yield broker.bootstrap_servers


def advertised(servers: str) -> set[int]:
    request = api_versions_request.ApiVersionsRequest(client_software_name="driver", client_software_version="1")
    with RawClient(servers) as client:
        return {one.api_key for one in client.ask(Api.API_VERSIONS, request).api_keys}


def test_members_share_an_assignment_that_one_of_them_computed(servers: str) -> None:
    first, second = Driver(servers, "m1"), Driver(servers, "m2")
    with first.client, second.client:
        beat_until_shared([first], [[0, 1, 2, 3, 4]])
        beat_until_shared([first, second], [[0, 1, 2], [3, 4]])
        assert (first.installed, second.installed) == (2, 0)
        assert (first.metadata, second.metadata) == (b"by m1", b"by m1")
    assert advertised(servers) >= OURS


def test_a_broker_without_the_setting_does_not_support_it() -> None:
    with Broker() as broker:
        create_topic(broker.bootstrap_servers, "orders", 5)
        assert not advertised(broker.bootstrap_servers) & OURS
        member = Driver(broker.bootstrap_servers, "m1")
        with member.client:
            beat_until_shared([member], [[0, 1, 2, 3, 4]])
            assert (member.installed, member.metadata) == (0, b"")
            member.client.send(
                Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT,
                prepare.ConsumerGroupPrepareAssignmentRequest(group_id="g", member_id="m1", member_epoch=2),
            )
            assert member.client.is_closed()
