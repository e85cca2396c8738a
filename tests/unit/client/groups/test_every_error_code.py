"""Every error code of the protocol, answered for ever to each request about a group: the application hears of it.

Nor is the broker flooded.

What is heard of it is an error that a poll raises, partitions that are taken away, or the error of the call that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.coordinator import CoordinatorKind, CoordinatorManager, FindCoordinator
from ottla.client.effects import AnySend
from ottla.client.events import ErrorNotification, RebalanceNeeded
from ottla.client.positions.commit import CommitManager
from ottla.client.positions.stores.kafka import KafkaOffsetStore
from ottla.errors import BrokerError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    find_coordinator_response,
    leave_group_response,
    offset_commit_response,
    offset_fetch_response,
)
from ottla.types import OffsetAndMetadata
from tests.unit.client.groups.classic.member import Member
from tests.unit.client.groups.consumer.member import Member as ConsumerMember
from tests.unit.client.groups.members import GroupMember
from tests.unit.client.managers import (
    NO_THROTTLE,
    T0,
    TOPIC_ID,
    Asked,
    Cluster,
    FixedCoordinator,
    FixedMembership,
    NoJitter,
    Replies,
    backoff,
    config,
)

CODES = sorted(int(code) for code in ErrorCode if code)
"""A code that is newer than these is read as UNKNOWN_SERVER_ERROR."""

LIMIT = 100_000
"""Virtual milliseconds within which something has to be heard."""
STEP = 25


def found_again(coordinator: FixedCoordinator) -> None:
    if coordinator.node_id is None:
        coordinator.node_id = 1
        coordinator.found += 1


def live(member: GroupMember, answer: Callable[[AnySend], None], heard: Callable[[], bool]) -> int:
    """Poll as an application does until something is heard; gives how many requests that took."""
    count = 0
    end = member.mono + LIMIT
    while not heard() and member.mono < end:
        found_again(member.coordinator)
        member.polled()
        for item in [item for item in member.notifications if isinstance(item, RebalanceNeeded)]:
            member.notifications.remove(item)
            member.manager.prepared(item.token, member.now)
        for send in member.poll(member.mono + STEP):
            count += 1
            answer(send)
    assert heard(), "nothing was ever heard of it"
    return count


def has_error_notification(member: GroupMember) -> bool:
    return member.manager.failure is not None or any(isinstance(item, ErrorNotification) for item in member.notifications)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
def test_a_join_that_is_always_refused(api: Api, code: int) -> None:
    member = Member()

    def answer(send: AnySend) -> None:
        if send.api is api:
            member.refused(send, code, member="m-1") if api is Api.JOIN_GROUP else member.refused(send, code)
        elif send.api is Api.JOIN_GROUP:
            member.joined(send)

    requests = live(member, answer, lambda: has_error_notification(member))
    assert requests <= 4 + 3 * member.mono // 100, "as often as every 100 ms, and twice for SyncGroup"


@pytest.mark.parametrize("code", CODES)
def test_a_heartbeat_that_is_always_refused(code: int) -> None:
    member = Member()
    member.join(T0)
    gone: list[bool] = []

    def answer(send: AnySend) -> None:
        member.beaten(send, code)
        gone.extend(item.lost for item in member.notifications if isinstance(item, RebalanceNeeded))

    requests = live(member, answer, lambda: has_error_notification(member) or bool(gone))
    assert requests <= 4 + member.mono // 100


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("joined", [False, True])
def test_a_consumer_group_heartbeat_that_is_always_refused(joined: bool, code: int) -> None:
    member = ConsumerMember()
    if joined:
        member.join()
    lost: list[bool] = []

    def answer(send: AnySend) -> None:
        member.refused(send, code)
        lost.extend(item.lost for item in member.notifications if isinstance(item, RebalanceNeeded))

    requests = live(member, answer, lambda: has_error_notification(member) or bool(lost))
    assert requests <= 4 + member.mono // 100


@pytest.mark.parametrize("code", CODES)
def test_a_leave_that_is_refused(code: int) -> None:
    member = Member()
    member.join(T0)
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    send = member.one(Api.LEAVE_GROUP)
    message: Any = leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(code), members=())
    member.answer(send, message)
    assert replies.value is None
    assert member.poll(member.mono + 10_000) == []


class Commits(Asked):
    """The commits of a member, whose coordinator is found again each time."""

    def __init__(self) -> None:
        self.coordinator = FixedCoordinator()
        settings = config(default_api_timeout_ms=60_000)
        membership: Any = FixedMembership()
        store = KafkaOffsetStore(
            settings,
            self.coordinator,  # type: ignore[arg-type]
            membership,
            Cluster().manager,
            lambda *_: None,
        )
        super().__init__(CommitManager(settings, store, membership, backoff(), lambda _: None))

    def live(self, answer: Callable[[AnySend], Any], replies: Replies) -> int:
        count = 0
        while not replies.got and self.mono < LIMIT:
            found_again(self.coordinator)
            for send in self.poll(self.mono + STEP):
                count += 1
                self.answer(send, answer(send))
        return count


@pytest.mark.parametrize("code", CODES)
def test_a_commit_that_is_always_refused(code: int) -> None:
    commits, replies = Commits(), Replies()
    commits.manager.commit({T0: OffsetAndMetadata(5)}, 60_000, True, replies)
    part: Any = offset_commit_response.OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode(code))
    topic = offset_commit_response.OffsetCommitResponseTopic(name="t", topic_id=TOPIC_ID, partitions=(part,))
    count = commits.live(lambda _: offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=(topic,)), replies)
    assert isinstance(replies.error, BrokerError | OttlaTimeoutError)
    assert count <= 4 + commits.mono // 100


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("of_partition", [False, True])
def test_an_offset_fetch_that_is_always_refused(code: int, of_partition: bool) -> None:
    commits, replies = Commits(), Replies()
    commits.manager.fetch(frozenset({T0}), 60_000, replies)
    part: Any = offset_fetch_response.OffsetFetchResponsePartitions(
        partition_index=0, committed_offset=-1, metadata="", error_code=ErrorCode(code if of_partition else 0)
    )
    topic = offset_fetch_response.OffsetFetchResponseTopics(name="t", topic_id=TOPIC_ID, partitions=(part,))
    group: Any = offset_fetch_response.OffsetFetchResponseGroup(
        group_id="g", topics=(topic,), error_code=ErrorCode(0 if of_partition else code)
    )
    count = commits.live(lambda _: offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,)), replies)
    assert isinstance(replies.error, BrokerError | OttlaTimeoutError)
    assert count <= 4 + commits.mono // 100


@pytest.mark.parametrize("code", CODES)
def test_a_coordinator_that_cannot_be_looked_up(code: int) -> None:
    settings = config()
    notifications: list[Any] = []
    manager = CoordinatorManager(
        FindCoordinator(CoordinatorKind.GROUP, "g", settings.request_timeout_ms),
        "group 'g'",
        ExponentialBackoff(100, 1_000, NoJitter()),
        lambda *_: None,
        lambda *_: None,
    )
    manager.on_fatal(lambda error, now: notifications.append(error))
    asked = Asked(manager)
    assert manager.target() is None
    coordinator: Any = find_coordinator_response.Coordinator(
        key="g", node_id=-1, host="", port=-1, error_code=ErrorCode(code), error_message="no"
    )
    answer = find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(coordinator,))
    count = 0
    while asked.mono < 10_000:
        for send in asked.poll(asked.mono + STEP):
            count += 1
            asked.answer(send, answer)
    assert isinstance(manager.failure, BrokerError)
    assert manager.failure.code == code
    assert bool(notifications) is not manager.failure.retriable, "a permanent error is reported at once"
    assert count <= 16
