"""The choice of ``auto`` by itself: what a cluster has to offer, what settings mean, and that answers find who asked."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.client.connections.node_connections import NodeConnection, NodeState
from ottla.client.effects import ToCoordinator
from ottla.client.groups.classic.membership import ClassicMembership
from ottla.client.groups.consumer.membership import ConsumerMembership
from ottla.client.groups.membership import MembershipContext
from ottla.client.groups.protocol import FEATURE, AutoMembership, membership_of
from ottla.client.poll_timer import InHand, PollTimer
from ottla.client.subscription import SubscriptionState
from ottla.errors import DisconnectedError, UnsupportedApiError
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.connection import ClientConnection
from ottla.protocol.messages import describe_groups_response
from tests.unit.client.managers import NO_THROTTLE, Asked, Cluster, FixedCoordinator, Replies, backoff, config


def offering(*, api: bool = True, level: int = 1) -> NodeConnection:
    """The link to a broker that offers this."""
    connection = ClientConnection("test")
    connection.versions = {Api.CONSUMER_GROUP_HEARTBEAT: VersionRange(0, 1)} if api else {}
    connection.features = {FEATURE: level} if level else {}
    return NodeConnection(ToCoordinator(1), "one", 9092, NodeState.READY, connection)


class Auto(Asked):
    def __init__(self, link: NodeConnection | None = None, **settings: Any) -> None:
        self.coordinator = FixedCoordinator()
        self.subscription = SubscriptionState(None)
        self.link = link or offering()
        self.notifications: list[Any] = []
        parsed = config(**settings)
        context = MembershipContext(
            parsed,
            self.subscription,
            self.coordinator,  # type: ignore[arg-type]
            Cluster().manager,
            self.notifications.append,
            backoff(),
            PollTimer(parsed, InHand),
        )
        manager = membership_of(context, connection_to=lambda target: self.link)
        super().__init__(manager)
        self.subscription.subscribe(frozenset({"t"}))
        self.manager.polled(self.now)

    def answer_description(self, state: str = "", members: int = 0, code: int = 0, *, is_central: bool = False) -> None:
        """What kind of group it is."""
        member = describe_groups_response.DescribedGroupMember(
            member_id="m", client_id="c", client_host="h", member_metadata=b"", member_assignment=b""
        )
        group = describe_groups_response.DescribedGroup(
            error_code=ErrorCode(code),
            group_id="g",
            group_state=state,
            protocol_type="consumer",
            protocol_data="",
            members=(member,) * members,
            is_central=is_central,
        )
        answer = describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=(group,))
        self.answer(self.one(Api.DESCRIBE_GROUPS), answer)


def test_the_configured_protocol_is_used() -> None:
    assert isinstance(Auto(group_protocol="classic").manager, ClassicMembership)
    assert isinstance(Auto(group_protocol="consumer").manager, ConsumerMembership)
    assert isinstance(Auto().manager, AutoMembership)


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        (offering(api=False), "does not serve CONSUMER_GROUP_HEARTBEAT"),
        (offering(level=0), "group.version of the cluster is 0"),
    ],
)
def test_without_support_in_the_cluster_the_member_is_classic(
    link: NodeConnection, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    auto = Auto(link)
    auto.answer_description("Dead")
    assert reason in caplog.text
    auto.one(Api.JOIN_GROUP)


@pytest.mark.parametrize(("state", "members", "code"), [("Empty", 0, 0), ("Dead", 0, 0), ("Dead", 0, 69)])
def test_a_group_without_classic_members_is_joined_as_a_consumer_group(state: str, members: int, code: int) -> None:
    auto = Auto()
    assert auto.manager.status.protocol == ""
    auto.answer_description(state, members, code)
    auto.one(Api.CONSUMER_GROUP_HEARTBEAT)
    assert auto.manager.status.protocol == "consumer"


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
def test_a_group_with_classic_members_is_joined_as_a_classic_group(state: str) -> None:
    auto = Auto()
    auto.answer_description(state, 3)
    auto.one(Api.JOIN_GROUP)


def test_a_central_group_refuses_the_member_with_a_text() -> None:
    """Only the refusal of a heartbeat of a consumer group has one."""
    auto = Auto()
    auto.answer_description("Stable", 3, is_central=True)
    auto.one(Api.CONSUMER_GROUP_HEARTBEAT)


def test_a_connection_lost_with_the_response_causes_another_request() -> None:
    auto = Auto(NodeConnection(ToCoordinator(1), "one", 9092))
    auto.answer_description("Dead")
    assert auto.poll(99) == []
    auto.link = offering()
    auto.mono = 100
    auto.answer_description("Dead")
    auto.one(Api.CONSUMER_GROUP_HEARTBEAT)


def test_a_failed_request_is_retried_and_an_unsupported_one_means_classic() -> None:
    auto = Auto()
    auto.fail(auto.one(Api.DESCRIBE_GROUPS), DisconnectedError("gone"))
    assert auto.coordinator.doubts
    auto.coordinator.node_id = 1
    auto.fail(auto.one(Api.DESCRIBE_GROUPS, 100), UnsupportedApiError("no such API"))
    auto.one(Api.JOIN_GROUP)


def test_a_configured_classic_assignor_needs_no_request() -> None:
    Auto(partition_assignment_strategy=["range"]).one(Api.JOIN_GROUP)


def test_a_late_response_chooses_nothing() -> None:
    auto = Auto()
    question = auto.one(Api.DESCRIBE_GROUPS)
    replies = Replies()
    auto.subscription.unsubscribe()
    auto.manager.leave("bye", replies, auto.now)
    assert replies.got == [(None, None)]
    auto.sent.clear()
    auto.answer(question, None)
    assert auto.poll() == []


def test_each_join_makes_its_own_choice() -> None:
    auto = Auto()
    auto.answer_description("Stable", 1)
    join = auto.one(Api.JOIN_GROUP)
    auto.fail(join, DisconnectedError("gone"))
    auto.coordinator.node_id = 1
    auto.mono = 1_000
    auto.answer_description(code=ErrorCode.group_id_not_found)
    auto.one(Api.CONSUMER_GROUP_HEARTBEAT)


def test_a_later_choice_of_classic_warns_about_the_poll_interval(
    caplog: pytest.LogCaptureFixture,
) -> None:
    auto = Auto(max_poll_interval_ms=10_000)
    auto.answer_description("Stable", members=3)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("group 'g': max.poll.interval.ms is 10000, below session.timeout.ms, which is 45000")
    join = auto.one(Api.JOIN_GROUP)
    assert milliseconds(join.message.rebalance_timeout) == 45_000


def test_a_consumer_group_does_not_warn_about_the_session_timeout(caplog: pytest.LogCaptureFixture) -> None:
    auto = Auto(max_poll_interval_ms=10_000)
    auto.answer_description(code=ErrorCode.group_id_not_found)
    beat = auto.one(Api.CONSUMER_GROUP_HEARTBEAT)
    assert milliseconds(beat.message.rebalance_timeout) == 10_000
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
