"""Commits of consumers that assign by hand: the central coordinator has to know the group first."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.effects import AnySend, ToCoordinator
from ottla.client.groups.central.frames import Frames
from ottla.client.groups.central.introduction import Introduction
from ottla.client.groups.membership import MemberIdentity, MembershipContext
from ottla.client.poll_timer import InHand, PollTimer
from ottla.client.positions.commit import CommitManager
from ottla.client.positions.stores.central import CentralOffsetStore
from ottla.client.subscription import SubscriptionState
from ottla.errors import DisconnectedError, InconsistentGroupProtocolError, OttlaTimeoutError, UnknownMemberIdError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_commit_response, register_response
from ottla.types import OffsetAndMetadata
from tests.unit.client.managers import NO_THROTTLE, T0, Asked, Cluster, FixedCoordinator, FixedMembership, Replies, backoff, config


class ByHand(Asked):
    """The introduction of a group, and the commits that wait for it."""

    def __init__(self) -> None:
        settings, cluster = config(group_protocol="central"), Cluster()
        self.coordinator = FixedCoordinator()
        self.is_registered = self.registers = False
        context = MembershipContext(
            settings,
            SubscriptionState(None),
            self.coordinator,  # type: ignore[arg-type]
            cluster.manager,
            lambda notification: None,
            backoff(),
            PollTimer(settings, InHand),
        )
        introduction = Introduction(
            context, Frames(settings, "g_m", "5ca1ab1e"), lambda: self.is_registered, lambda: self.registers
        )
        members: Any = FixedMembership()
        members.signs = MemberIdentity(-1, "g_m")
        store = CentralOffsetStore(settings, context.coordinator, members, cluster.manager, lambda *_: None)
        store.introduction = introduction
        self.commits = CommitManager(settings, store, members, backoff(), lambda tp: None)
        super().__init__(introduction)

    def commit(self, deadline: int = 60_000) -> Replies:
        replies = Replies()
        self.commits.commit({T0: OffsetAndMetadata(3)}, deadline, True, replies)
        return replies

    def committed(self) -> list[Api]:
        """The requests of commits that are sent now."""
        return [send.api for send in self.commits.poll(self.now).sends]  # type: ignore[union-attr]

    def commits_sent(self) -> list[AnySend]:
        """The commits that are sent now."""
        return list(self.commits.poll(self.now).sends)  # type: ignore[arg-type]

    def introduce(self) -> None:
        """The group is announced, and the commits that wait for that may go."""
        assert self.committed() == []
        self.registered(self.one(Api.REGISTER))

    def committed_with(self, send: AnySend, code: int = 0) -> None:
        """The outcome of a commit."""
        part = offset_commit_response.OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode(code))
        topic = offset_commit_response.OffsetCommitResponseTopic(name="t", topic_id=None, partitions=(part,))
        self.answer(send, offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=(topic,)))

    def registered(self, send: Any, code: int = 0) -> None:
        answer = register_response.RegisterResponse(
            error_code=ErrorCode(code),
            error_message="because" if code else None,
            coordinator_epoch=1,
            generation=0,
            ping_interval_ms=1,
        )
        self.answer(send, answer)


@pytest.fixture
def by_hand() -> ByHand:
    return ByHand()


def test_the_group_is_announced_before_the_first_commit_and_once(by_hand: ByHand) -> None:
    assert by_hand.poll() == []
    by_hand.commit()
    assert by_hand.committed() == []
    send = by_hand.one(Api.REGISTER)
    assert send.target == ToCoordinator(1), "it opens no channel"
    assert (send.message.topics, send.message.pattern, send.message.generation) == ((), None, -1)
    assert (by_hand.poll(), by_hand.committed()) == ([], [])
    by_hand.registered(send)
    assert by_hand.committed() == [Api.OFFSET_COMMIT]
    by_hand.commit()
    assert by_hand.poll() == []


def test_each_coordinator_is_told(by_hand: ByHand) -> None:
    by_hand.commit()
    by_hand.committed()
    by_hand.registered(by_hand.one(Api.REGISTER))
    by_hand.committed()
    by_hand.coordinator.found += 1
    by_hand.commit()
    assert by_hand.committed() == []
    by_hand.registered(by_hand.one(Api.REGISTER))
    assert by_hand.committed() == [Api.OFFSET_COMMIT]


def test_a_member_with_a_channel_announces_nothing(by_hand: ByHand) -> None:
    by_hand.is_registered = True
    by_hand.commit()
    assert (by_hand.committed(), by_hand.poll()) == ([Api.OFFSET_COMMIT], [])


def test_the_commits_of_a_member_that_registers_again_wait_for_that(by_hand: ByHand) -> None:
    by_hand.registers = True
    by_hand.commit()
    assert (by_hand.committed(), by_hand.poll()) == ([], [])
    by_hand.is_registered = True
    assert by_hand.committed() == [Api.OFFSET_COMMIT]


def test_a_group_with_members_of_0_8_is_an_error_of_the_commit(by_hand: ByHand) -> None:
    replies = by_hand.commit()
    by_hand.committed()
    by_hand.registered(by_hand.one(Api.REGISTER), ErrorCode.inconsistent_group_protocol)
    assert isinstance(replies.error, InconsistentGroupProtocolError)
    assert by_hand.poll(1_000) == [], "no call waits"
    by_hand.commit()
    assert (by_hand.committed(), len(by_hand.poll())) == ([], 1)


@pytest.mark.parametrize("code", [ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator])
def test_it_is_tried_again(by_hand: ByHand, code: ErrorCode) -> None:
    replies = by_hand.commit(5_000)
    by_hand.committed()
    by_hand.registered(by_hand.one(Api.REGISTER), code)
    assert (by_hand.coordinator.node_id is None) is (code is ErrorCode.not_coordinator)
    by_hand.coordinator.node_id = 1
    assert by_hand.poll(99) == []
    assert by_hand.wake_at == 100
    by_hand.fail(by_hand.one(Api.REGISTER, 100), DisconnectedError("gone"))
    assert by_hand.coordinator.node_id is None
    by_hand.mono = 5_000
    by_hand.committed()
    assert isinstance(replies.error, OttlaTimeoutError)
    assert isinstance(replies.error.cause, DisconnectedError)


UNKNOWN = ErrorCode.unknown_member_id


def test_a_commit_by_hand_has_the_member_id_and_no_generation(by_hand: ByHand) -> None:
    by_hand.commit()
    by_hand.introduce()
    (send,) = by_hand.commits_sent()
    assert (send.message.member_id, send.message.generation_id_or_member_epoch) == ("g_m", -1)


def test_after_the_group_was_deleted_it_is_announced_again_and_the_commit_is_retried(by_hand: ByHand) -> None:
    for _ in range(3):
        replies = by_hand.commit()
        by_hand.introduce()
        (send,) = by_hand.commits_sent()
        by_hand.committed_with(send)
        assert replies.value
        replies = by_hand.commit()
        (send,) = by_hand.commits_sent()
        by_hand.committed_with(send, UNKNOWN)
        assert by_hand.poll() == []
        by_hand.mono += 100
        by_hand.introduce()
        (send,) = by_hand.commits_sent()
        by_hand.committed_with(send)
        assert replies.value
        by_hand.coordinator.found += 1


def test_a_commit_that_was_sent_before_it_was_announced_again_is_retried(by_hand: ByHand) -> None:
    by_hand.commit()
    by_hand.introduce()
    (send,) = by_hand.commits_sent()
    by_hand.committed_with(send)
    replies = [by_hand.commit(), by_hand.commit()]
    first, second = by_hand.commits_sent()
    by_hand.committed_with(first, UNKNOWN)
    by_hand.mono += 100
    by_hand.introduce()
    by_hand.committed_with(second, UNKNOWN)
    for _ in range(2):
        by_hand.mono += 100
        for send in by_hand.commits_sent():
            by_hand.committed_with(send)
    assert [bool(each.value) for each in replies] == [True, True]
    assert by_hand.poll() == []


def test_a_group_that_has_members_is_an_error_of_each_commit(by_hand: ByHand) -> None:
    """A Register does not help, but the next commit tries it again: the members may have left, and the group may be deleted."""
    replies = by_hand.commit()
    by_hand.introduce()
    by_hand.committed_with(by_hand.commits_sent()[0], UNKNOWN)
    by_hand.mono += 100
    for _ in range(2):
        by_hand.introduce()
        by_hand.committed_with(by_hand.commits_sent()[0], UNKNOWN)
        assert isinstance(replies.error, UnknownMemberIdError)
        assert "needs a group_id of its own" in str(replies.error)
        assert (by_hand.committed(), by_hand.poll()) == ([], [])
        replies = by_hand.commit()
    by_hand.introduce()
    by_hand.committed_with(by_hand.commits_sent()[0])
    assert replies.value
