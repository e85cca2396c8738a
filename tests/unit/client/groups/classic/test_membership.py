"""The classic member by itself: every row of the error tables, stale answers, timers, and the table of transitions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.assignors import ConsumerPartitionAssignor, MemberAssignment
from ottla.client.events import Assigned, AssignmentNeeded, AssignmentReceived, ErrorNotification, RebalanceNeeded
from ottla.client.groups.classic.states import TRANSITIONS, Input, State
from ottla.client.groups.membership import NO_MEMBER
from ottla.errors import (
    AuthenticationError,
    CommitFailedError,
    DisconnectedError,
    FencedInstanceIdError,
    GroupAuthorizationFailedError,
    OttlaError,
    OttlaTimeoutError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    error_class,
)
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api
from ottla.protocol.consumer_protocol import (
    Subscription as ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_subscription,
)
from ottla.protocol.messages import join_group_response, leave_group_response, sync_group_request
from ottla.types import ConsumerGroupMetadata
from tests.unit.client.groups.classic.member import Member
from tests.unit.client.managers import NO_THROTTLE, T0, T1, T2, Replies, unmade


@pytest.fixture
def member() -> Member:
    return Member()


def test_joining_begins_with_a_poll_and_sends_the_timeouts(member: Member) -> None:
    assert member.poll() == []
    member.polled()
    send = member.one(Api.JOIN_GROUP)
    message = send.message
    assert (milliseconds(message.session_timeout), milliseconds(message.rebalance_timeout)) == (6_000, 20_000)
    assert (message.member_id, message.group_instance_id, message.protocol_type, message.reason) == ("", None, "consumer", "")
    assert decode_subscription(message.protocols[0].metadata) == ConsumerProtocolSubscription(("t",))
    assert send.timeout == 30_000


def test_a_join_by_pattern_waits_for_metadata_that_is_newer(member: Member) -> None:
    member.subscription.subscribe(frozenset({"t"}), "t.*")
    member.polled()
    assert member.poll() == []
    assert member.cluster.asked
    member.cluster.tell()
    member.cluster.tell()
    assert decode_subscription(member.one(Api.JOIN_GROUP).message.protocols[0].metadata) == ConsumerProtocolSubscription(("t",))


def test_a_join_may_take_slightly_longer_than_the_rebalance_timeout() -> None:
    patient = Member(max_poll_interval_ms=40_000)
    patient.polled()
    assert patient.one(Api.JOIN_GROUP).timeout == 45_000
    longest = Member(max_poll_interval_ms=2**31 - 1)
    longest.polled()
    assert longest.one(Api.JOIN_GROUP).timeout == 2**31 - 1


def test_the_member_id_that_is_required_is_adopted_at_once(member: Member) -> None:
    member.polled()
    member.refused(member.one(Api.JOIN_GROUP), 79, member="m-7")
    message = member.one(Api.JOIN_GROUP).message
    assert message.member_id == "m-7"
    assert message.reason == "need to re-join with the given member-id: m-7"
    assert member.notifications == []


def test_a_follower_sends_no_assignments(member: Member) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP))
    message = member.one(Api.SYNC_GROUP).message
    assert (message.generation_id, message.member_id, message.protocol_name, message.assignments) == (4, "m-1", "range", ())


def test_the_leader_assigns_with_metadata_newer_than_the_join(member: Member) -> None:
    member.polled()
    metadata = encode_subscription(ConsumerProtocolSubscription(("t", "u")))
    members = tuple(join_group_response.JoinGroupResponseMember(member_id=name, metadata=metadata) for name in ("m-1", "m-2"))
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=members)
    assert member.poll() == []
    assert member.state is State.ASSIGNING
    assert member.manager.group_topics == {"t", "u"}
    member.cluster.tell()
    assert member.poll() == []
    member.cluster.tell(errors={"u": 3})
    message = member.one(Api.SYNC_GROUP).message
    assigned = {item.member_id: decode_assignment(item.assignment).partitions for item in message.assignments}
    assert assigned == {"m-1": (T0, T1), "m-2": (T2,)}


def test_a_heartbeat_is_sent_when_the_request_after_it_cannot_be_created(member: Member) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP))
    with unmade(sync_group_request, "SyncGroupRequest", 1), pytest.raises(OSError, match="Too many open files"):
        member.poll(1_000)
    assert [send.api for send in member.poll()] == [Api.HEARTBEAT, Api.SYNC_GROUP]
    assert member.poll() == []


def test_a_returning_static_leader_keeps_the_assignment(member: Member) -> None:
    member.polled()
    entry = join_group_response.JoinGroupResponseMember(
        member_id="m-1", metadata=encode_subscription(ConsumerProtocolSubscription(("t",)))
    )
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,), skip_assignment=True)
    assert member.one(Api.SYNC_GROUP).message.assignments == ()


def test_a_returning_static_leader_detects_new_partitions() -> None:
    member = Member(group_instance_id="one")
    member.polled()
    entry = join_group_response.JoinGroupResponseMember(
        member_id="m-1", metadata=encode_subscription(ConsumerProtocolSubscription(("t",)))
    )
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,), skip_assignment=True)
    member.synced(member.one(Api.SYNC_GROUP), T0, T1, T2)
    member.manager.accepted(member.tell(AssignmentReceived).token)
    member.cluster.tell()
    assert member.poll() == []
    member.cluster.tell(leaders={T0: 1, T1: 1, T2: 1, T2._replace(partition=3): 1})
    member.poll()
    assert member.tell(RebalanceNeeded).lost is False


def test_an_assignment_of_the_application_for_an_earlier_generation_is_ignored() -> None:
    class Mine(ConsumerPartitionAssignor):
        name = "mine"

        def assign(self, cluster: Any, members: Any) -> Any:
            raise AssertionError("the application is asked")

    member = Member(partition_assignment_strategy=[Mine()])
    entry = join_group_response.JoinGroupResponseMember(
        member_id="m-1", metadata=encode_subscription(ConsumerProtocolSubscription(("t",)))
    )
    member.polled()
    for generation in (4, 5):
        member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,), protocol_name="mine", generation=generation)
        member.cluster.tell()
        assert member.poll() == []
        assert member.tell(AssignmentNeeded).generation == generation
        if generation == 4:
            member.beat(22)
            assert member.manager.group_topics == frozenset()
    member.manager.assigned(Assigned(4, {"m-1": MemberAssignment((T0,))}))
    assert (member.poll(), member.state) == ([], State.ASSIGNING)
    member.manager.assigned(Assigned(5, {"m-1": MemberAssignment((T1,))}))
    (given,) = member.one(Api.SYNC_GROUP).message.assignments
    assert decode_assignment(given.assignment).partitions == (T1,)


def test_the_previous_leader_assigns_nothing_in_the_next_generation(member: Member) -> None:
    member.polled()
    entry = join_group_response.JoinGroupResponseMember(
        member_id="m-1", metadata=encode_subscription(ConsumerProtocolSubscription(("t",)))
    )
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,))
    member.cluster.tell()
    send = member.one(Api.SYNC_GROUP)
    assert send.message.assignments != ()
    member.refused(send, 27)
    member.joined(member.one(Api.JOIN_GROUP), generation=5)
    send = member.one(Api.SYNC_GROUP)
    assert send.message.assignments == ()
    member.synced(send, T0)
    member.notifications.clear()
    assert member.manager.group_topics == frozenset()
    member.cluster.tell(leaders={T0: 1, T1: 1, T2: 1, T2._replace(partition=3): 1})
    member.poll()
    assert member.notifications == [], "new partitions are the new leader's business"


def test_new_partitions_make_the_leader_rejoin(member: Member) -> None:
    member.polled()
    entry = join_group_response.JoinGroupResponseMember(
        member_id="m-1", metadata=encode_subscription(ConsumerProtocolSubscription(("t",)))
    )
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,))
    member.cluster.tell()
    member.synced(member.one(Api.SYNC_GROUP), T0, T1, T2)
    member.poll()
    assert member.state is State.STABLE
    member.notifications.clear()
    member.cluster.tell(leaders={T0: 1, T1: 1, T2: 1, T2._replace(partition=3): 1})
    member.poll()
    assert member.tell(RebalanceNeeded).lost is False


def test_an_assignment_is_not_fetched_before_on_assign_has_run(member: Member) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP))
    member.synced(member.one(Api.SYNC_GROUP), T0)
    assert member.subscription.partitions[T0].awaiting_acceptance
    member.manager.accepted(member.tell(AssignmentReceived).token)
    assert not member.subscription.partitions[T0].awaiting_acceptance
    assert member.manager.metadata() == ConsumerGroupMetadata("g", 4, "m-1", None)


def test_an_assignment_of_unsubscribed_topics_is_ignored(member: Member) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP))
    member.synced(member.one(Api.SYNC_GROUP), T0, T0._replace(topic="gone"))
    assert member.subscription.partitions == {}
    assert member.one(Api.JOIN_GROUP).message.member_id == "m-1"


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@pytest.mark.parametrize(
    ("code", "pause", "doubted", "keeps_id"),
    [
        (14, 100, False, True),
        (15, 100, True, True),
        (16, 100, True, True),
        (25, 0, False, False),
        (22, 0, False, True),
        (27, 0, False, True),
    ],
)
def test_errors_that_lead_to_another_join(member: Member, api: Api, code: int, pause: int, doubted: bool, keeps_id: bool) -> None:
    member.polled()
    member.refused(member.one(Api.JOIN_GROUP), 79, member="m-1")
    send = member.one(Api.JOIN_GROUP)
    if api is Api.SYNC_GROUP:
        member.joined(send)
        send = member.one(Api.SYNC_GROUP)
    member.refused(send, code)
    assert bool(member.coordinator.doubts) is doubted
    member.coordinator.node_id = 1
    if pause:
        assert member.poll(member.mono + pause - 1) == []
        member.mono += 1
    message = member.one(Api.JOIN_GROUP).message
    assert message.member_id == ("m-1" if keeps_id else "")
    assert message.reason.startswith("rebalance failed due to ")
    assert not [item for item in member.notifications if isinstance(item, ErrorNotification)]


def test_a_successful_join_resets_the_back_off(member: Member) -> None:
    member.polled()
    for pause in (100, 200):
        member.refused(member.one(Api.JOIN_GROUP), 14)
        member.mono += pause
    member.joined(member.one(Api.JOIN_GROUP))
    member.refused(member.one(Api.SYNC_GROUP), 14)
    assert member.one(Api.JOIN_GROUP, member.mono + 100).message.member_id == "m-1"


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.invalid_group_id,
        ErrorCode.invalid_session_timeout,
        ErrorCode.group_authorization_failed,
        ErrorCode.unsupported_version,
        ErrorCode.group_max_size_reached,
        ErrorCode.unknown_server_error,
    ],
)
def test_errors_that_are_reported_and_retried_by_the_next_poll(member: Member, api: Api, code: int) -> None:
    member.polled()
    send = member.one(Api.JOIN_GROUP)
    if api is Api.SYNC_GROUP:
        member.joined(send)
        send = member.one(Api.SYNC_GROUP)
    member.refused(send, code)
    assert type(member.tell(ErrorNotification).error) is error_class(code)
    assert member.poll(10_000) == []
    member.polled()
    assert member.poll() == []
    member.one(Api.JOIN_GROUP, 10_100)


@pytest.mark.parametrize(("type_", "name"), [("connect", "range"), ("consumer", "sticky")])
def test_a_protocol_that_was_not_offered_is_refused(member: Member, type_: str, name: str) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP), protocol_type=type_, protocol_name=name)
    assert f"{type_}/{name}" in str(member.tell(ErrorNotification).error)
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP, 200), protocol_type=None)
    member.synced(member.one(Api.SYNC_GROUP), T0, protocol_name="roundrobin")
    assert member.state is State.FAILED


def test_malformed_bytes_of_other_members_are_an_error(member: Member) -> None:
    member.polled()
    entry = join_group_response.JoinGroupResponseMember(member_id="m-1", metadata=b"\0")
    member.joined(member.one(Api.JOIN_GROUP), leader="m-1", members=(entry,))
    assert "too short" in str(member.tell(ErrorNotification).error)
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP, 200))
    member.synced(member.one(Api.SYNC_GROUP), assignment=b"\0\1\xff")
    assert member.state is State.FAILED


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@pytest.mark.parametrize("error", [DisconnectedError("broke"), OttlaTimeoutError("late")])
def test_after_a_lost_response_the_member_keeps_its_id(member: Member, api: Api, error: OttlaError) -> None:
    member.polled()
    member.refused(member.one(Api.JOIN_GROUP), 79, member="m-1")
    send = member.one(Api.JOIN_GROUP)
    if api is Api.SYNC_GROUP:
        member.joined(send)
        send = member.one(Api.SYNC_GROUP)
    member.fail(send, error)
    assert member.coordinator.doubts
    member.coordinator.node_id = 1
    assert member.one(Api.JOIN_GROUP, 100).message.member_id == "m-1"


def test_heartbeats_are_sent_at_their_interval_one_at_a_time(member: Member) -> None:
    member.join()
    assert member.poll(999) == []
    assert member.wake_at == 1_000
    send = member.one(Api.HEARTBEAT, 1_000)
    assert (send.message.generation_id, send.message.member_id) == (4, "m-1")
    assert member.poll(2_500) == []
    member.beaten(send)
    member.one(Api.HEARTBEAT)


def test_heartbeats_are_sent_while_the_group_completes_its_rebalance(member: Member) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP))
    send = member.one(Api.SYNC_GROUP)
    beat = member.one(Api.HEARTBEAT, 1_000)
    member.beaten(beat, ErrorCode.rebalance_in_progress)
    assert member.state is State.SYNCING
    member.synced(send, T0)
    assert member.state is State.STABLE


def test_rebalance_in_progress_extends_the_session(member: Member) -> None:
    """The session does not run out while the application takes its time."""
    member.join()
    for _ in range(10):
        member.beat(27)
    assert (member.coordinator.doubts, member.state) == ([], State.PREPARING)


def test_the_response_to_a_leave_does_not_affect_a_later_join(member: Member) -> None:
    member.join()
    leave = member.one(Api.LEAVE_GROUP, 20_000)
    member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    member.polled()
    join = member.one(Api.JOIN_GROUP)
    member.answer(leave, leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=()))
    assert member.poll() == [], "one JoinGroup is under way"
    member.joined(join, generation=9)
    assert member.one(Api.SYNC_GROUP).message.generation_id == 9


def test_after_a_rejoin_an_earlier_late_poll_is_not_reported(member: Member) -> None:
    member.join()
    member.poll(20_000)
    member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP), generation=9)
    member.synced(member.one(Api.SYNC_GROUP), T0)
    error = member.manager.commit_refused(ErrorCode.unknown_member_id, member.manager.identity(), member.now)
    assert "max_poll_interval" not in str(error.hint)


def test_a_rebalance_waits_for_the_application(member: Member) -> None:
    member.join()
    member.beat(27)
    needed = member.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost, needed.deadline) == ({T0, T1}, False, 20_000)
    assert not any(state.fetchable for state in member.subscription.partitions.values())
    member.beat(27)
    member.beat()
    assert member.notifications == []
    member.manager.prepared(needed.token - 1, member.now)
    assert member.state is State.PREPARING
    member.manager.prepared(needed.token, member.now)
    message = member.one(Api.JOIN_GROUP).message
    assert (message.member_id, message.reason) == ("m-1", "group is already rebalancing")
    subscription = decode_subscription(message.protocols[0].metadata)
    assert (subscription.owned, subscription.generation) == ((), 4)
    assert member.subscription.partitions == {}


@pytest.mark.parametrize(("code", "keeps_id"), [(25, False), (22, True)])
def test_a_removed_member_joins_again_after_on_lost(member: Member, code: int, keeps_id: bool) -> None:
    member.join()
    member.beat(code)
    needed = member.tell(RebalanceNeeded)
    assert needed.lost
    assert member.poll(member.mono + 5_000) == []
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.manager.prepared(needed.token, member.now)
    assert member.one(Api.JOIN_GROUP).message.member_id == ("m-1" if keeps_id else "")


def test_partitions_can_be_lost_while_they_are_revoked(member: Member) -> None:
    member.join()
    member.beat(27)
    revoke = member.tell(RebalanceNeeded)
    member.beat(25)
    lost = member.tell(RebalanceNeeded)
    assert (lost.lost, lost.partitions) == (True, revoke.partitions)
    member.manager.prepared(revoke.token, member.now)
    assert member.state is State.PREPARING
    member.manager.prepared(lost.token, member.now)
    assert member.state is State.JOINING


@pytest.mark.parametrize(
    "code",
    [ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress, ErrorCode.fenced_instance_id],
)
def test_a_heartbeat_response_for_an_older_generation_is_ignored(member: Member, code: int) -> None:
    member.join()
    stale = member.one(Api.HEARTBEAT, 1_000)
    member.beaten(stale, ErrorCode.rebalance_in_progress)
    member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    member.joined(member.one(Api.JOIN_GROUP), generation=5)
    member.synced(member.one(Api.SYNC_GROUP), T0)
    member.notifications.clear()
    member.beaten(stale, code)
    assert member.state is State.STABLE
    assert member.manager.generation.number == 5
    assert member.notifications == []


@pytest.mark.parametrize(
    "code", [ErrorCode.coordinator_load_in_progress, ErrorCode.request_timed_out, ErrorCode.unknown_server_error]
)
def test_other_heartbeat_errors_are_retried_after_a_back_off(member: Member, code: int, caplog: pytest.LogCaptureFixture) -> None:
    member.join()
    member.beat(code)
    assert member.poll(member.mono + 99) == []
    member.beaten(member.one(Api.HEARTBEAT, member.mono + 1), code)
    assert member.state is State.STABLE
    assert member.notifications == []
    assert len([line for line in caplog.messages if "heartbeats are retried" in line]) == 1


@pytest.mark.parametrize("code", [ErrorCode.group_authorization_failed, ErrorCode.invalid_group_id, ErrorCode.invalid_request])
def test_a_permanent_error_of_a_heartbeat_is_reported_and_ends_the_membership(member: Member, code: int) -> None:
    member.join(T0)
    member.beat(code)
    error, needed = member.notifications
    assert error.error.code == code
    assert (needed.partitions, needed.lost) == ({T0}, True)
    assert not member.subscription.partitions[T0].fetchable
    assert member.poll(member.mono + 1_000) == [], "it is no member any more"
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.notifications.clear()
    # The next poll tries again, as the member that it was, which the coordinator may know still.
    member.manager.prepared(needed.token, member.now)
    send = member.one(Api.JOIN_GROUP)
    assert send.message.member_id == "m-1"
    member.refused(send, 30)
    assert type(member.tell(ErrorNotification).error) is GroupAuthorizationFailedError
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP, member.mono + 1_000))
    member.synced(member.one(Api.SYNC_GROUP), T0)
    assert member.tell(AssignmentReceived).added == {T0}


def test_a_refused_login_of_a_heartbeat_is_reported(member: Member) -> None:
    member.join(T0)
    member.mono += 1_000
    member.fail(member.one(Api.HEARTBEAT), AuthenticationError("the password has changed"))
    assert isinstance(member.tell(ErrorNotification).error, AuthenticationError)
    assert member.state is State.STABLE


@pytest.mark.parametrize("code", [ErrorCode.coordinator_not_available, ErrorCode.not_coordinator])
def test_a_heartbeat_to_the_wrong_broker_starts_a_lookup(member: Member, code: int) -> None:
    member.join()
    member.beat(code)
    assert member.coordinator.doubts
    assert member.state is State.STABLE


def test_a_session_without_responses_starts_a_lookup_and_keeps_the_partitions(member: Member) -> None:
    member.join()
    member.one(Api.HEARTBEAT, 1_000)
    member.poll(5_999)
    assert not member.coordinator.doubts
    member.poll(6_000)
    assert "session.timeout.ms" in member.coordinator.doubts[0]
    assert member.notifications == []
    member.coordinator.node_id, member.coordinator.found = 2, 2
    member.one(Api.HEARTBEAT, 6_100)
    member.poll(7_000)
    assert len(member.coordinator.doubts) == 1


def test_a_missing_poll_ends_the_membership_once(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    member.join()
    while member.mono < 19_000:
        member.beat()
    with caplog.at_level(logging.WARNING):
        send = member.one(Api.LEAVE_GROUP, 20_000)
    assert send.message.members[0].member_id == "m-1"
    assert send.message.members[0].reason == "consumer poll timeout has expired."
    assert "max_poll_interval" in caplog.text
    assert member.tell(RebalanceNeeded).lost
    assert member.poll(60_000) == []
    with pytest.raises(CommitFailedError, match="max_poll_interval"):
        member.manager.identity()
    member.answer(send, leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=()))
    assert member.state is State.PREPARING


def test_a_static_member_that_does_not_poll_stops_heartbeats_without_leaving() -> None:
    member = Member(group_instance_id="one")
    member.join()
    assert member.poll(20_000) == []
    assert member.tell(RebalanceNeeded).lost


def test_polls_move_the_deadline(member: Member) -> None:
    member.join()
    for _ in range(30):
        member.polled()
        member.beat()
    assert member.state is State.STABLE


def test_a_join_that_succeeds_after_the_poll_deadline_is_followed_by_a_leave(member: Member) -> None:
    member.polled()
    send = member.one(Api.JOIN_GROUP)
    assert member.poll(25_000) == []
    member.joined(send)
    assert member.one(Api.LEAVE_GROUP).message.members[0].member_id == "m-1"
    assert member.state is State.PREPARING
    assert member.poll() == []
    needed = member.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == (frozenset(), True)
    member.polled()
    member.manager.prepared(needed.token, member.now)
    member.one(Api.JOIN_GROUP)


def test_a_leave_ends_with_its_response_or_when_there_will_be_none(member: Member) -> None:
    before = Replies()
    for ending in ("answer", "failure"):
        member.join()
        replies = Replies()
        member.subscription.unsubscribe()
        member.manager.leave("because", replies, member.now)
        send = member.one(Api.LEAVE_GROUP)
        assert (send.message.members[0].member_id, send.message.members[0].reason) == ("m-1", "because")
        assert replies.got == []
        if ending == "answer":
            answer = leave_group_response.LeaveGroupResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.unknown_member_id, members=()
            )
            member.answer(send, answer)
        else:
            member.fail(send, DisconnectedError("broke"))
            member.coordinator.node_id = 1
        assert replies.got == [(None, None)]
        assert (member.state, member.manager.metadata().member_id) == (State.UNJOINED, "")
        member.subscription.subscribe(frozenset({"t"}))
        assert len(before.got) == (ending == "failure"), "each gets one error"
        before = replies


@pytest.mark.parametrize(("of_all", "of_the_member"), [(25, None), (0, 82), (0, 25)])
def test_an_error_of_a_leave_is_only_logged(
    member: Member, caplog: pytest.LogCaptureFixture, of_all: int, of_the_member: int | None
) -> None:
    member.join()
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    one = leave_group_response.MemberResponse(member_id="m-1", group_instance_id=None, error_code=ErrorCode(of_the_member or 0))
    members = () if of_the_member is None else (one,)
    answer = leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(of_all), members=members)
    with caplog.at_level(logging.INFO):
        member.answer(member.one(Api.LEAVE_GROUP), answer)
    assert f"leaving group 'g' [{ErrorCode(of_all or of_the_member).name.upper()}]" in caplog.text
    assert replies.got == [(None, None)]
    assert member.state is State.UNJOINED
    assert member.poll() == []


def test_a_member_that_did_not_poll_leaves_once_the_coordinator_is_known() -> None:
    member = Member(max_poll_interval_ms=20_000)
    member.join()
    member.coordinator.node_id = None
    assert member.poll(20_000) == []
    member.coordinator.node_id = 1
    assert member.one(Api.LEAVE_GROUP).message.members[0].member_id == "m-1"
    assert Api.LEAVE_GROUP not in [send.api for send in member.poll()]


def test_leaving_during_a_join_ignores_its_response(member: Member) -> None:
    member.polled()
    member.refused(member.one(Api.JOIN_GROUP), 79, member="m-1")
    join = member.one(Api.JOIN_GROUP)
    done: list[Any] = []
    member.manager.leave("because", lambda value, error: done.append(error), member.now)
    assert member.coordinator.hung_up, "the connection of the parked join is given up"
    leave = member.one(Api.LEAVE_GROUP)
    member.joined(join)
    assert member.state is State.LEAVING
    member.answer(leave, leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=()))
    assert done == [None]


def test_a_leave_does_not_wait_for_an_unknown_coordinator(member: Member) -> None:
    member.join()
    member.coordinator.node_id = None
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    assert replies.got == [(None, None)]
    assert member.state is State.UNJOINED


def test_non_members_and_static_members_send_no_leave(member: Member) -> None:
    done: list[Any] = []
    member.manager.leave("because", lambda value, error: done.append(error), member.now)
    static = Member(group_instance_id="one")
    static.join()
    static.manager.leave("because", lambda value, error: done.append(error), member.now)
    assert done == [None, None]
    assert member.poll() == []
    assert static.poll() == []


@pytest.mark.parametrize("where", ["join", "sync", "heartbeat", "commit"])
def test_a_fenced_instance_id_is_a_permanent_error(where: str) -> None:
    member = Member(group_instance_id="one")
    if where in ("join", "sync"):
        member.polled()
        send = member.one(Api.JOIN_GROUP)
        if where == "sync":
            member.joined(send)
            send = member.one(Api.SYNC_GROUP)
        member.refused(send, 82)
    else:
        member.join()
        if where == "heartbeat":
            member.beat(82)
        else:
            assert (
                type(member.manager.commit_refused(ErrorCode.fenced_instance_id, member.manager.identity(), member.now))
                is FencedInstanceIdError
            )
    assert type(member.manager.failure) is FencedInstanceIdError
    assert member.manager.failure.fatal
    member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    assert member.subscription.partitions == {}
    member.polled()
    assert member.poll(100_000) == []
    with pytest.raises(FencedInstanceIdError):
        member.manager.identity()


def test_the_identity_of_a_commit_in_each_state(member: Member) -> None:
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.polled()
    send = member.one(Api.JOIN_GROUP)
    with pytest.raises(RebalanceInProgressError):
        member.manager.identity()
    member.joined(send)
    with pytest.raises(RebalanceInProgressError):
        member.manager.identity()
    member.synced(member.one(Api.SYNC_GROUP), T0)
    signed = member.manager.identity()
    assert (signed.generation, signed.member_id) == (4, "m-1")
    member.beat(27)
    assert member.manager.identity() == signed, "on_revoke may commit"
    member.subscription.unsubscribe()
    member.subscription.assign([T0])
    assert member.manager.identity() == NO_MEMBER


def test_a_refused_commit_of_the_current_generation_ends_the_membership(member: Member) -> None:
    member.join()
    signed = member.manager.identity()
    error = member.manager.commit_refused(ErrorCode.unknown_member_id, signed, member.now)
    assert isinstance(error, CommitFailedError)
    assert "UNKNOWN_MEMBER_ID" in str(error.cause)
    assert member.tell(RebalanceNeeded).lost


def test_a_refused_commit_of_an_older_generation_has_no_effect(member: Member) -> None:
    member.join()
    signed = member.manager.identity()
    member.beat(27)
    member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    member.joined(member.one(Api.JOIN_GROUP), generation=5)
    assert type(member.manager.commit_refused(ErrorCode.illegal_generation, signed, member.now)) is RebalanceInProgressError
    member.synced(member.one(Api.SYNC_GROUP), T0)
    assert isinstance(member.manager.commit_refused(ErrorCode.illegal_generation, signed, member.now), CommitFailedError)
    assert isinstance(member.manager.commit_refused(ErrorCode.fenced_instance_id, signed, member.now), CommitFailedError)
    assert (member.manager.generation.number, member.state) == (5, State.STABLE)


@pytest.mark.parametrize("code", [ErrorCode.fenced_member_epoch, ErrorCode.stale_member_epoch])
def test_an_error_code_of_the_consumer_protocol_ends_the_membership_as_well(member: Member, code: int) -> None:
    member.join()
    assert isinstance(member.manager.commit_refused(code, member.manager.identity(), member.now), CommitFailedError)
    assert member.tell(RebalanceNeeded).lost


def test_rebalance_in_progress_for_a_commit_starts_the_rebalance(member: Member) -> None:
    member.join()
    assert (
        type(member.manager.commit_refused(ErrorCode.rebalance_in_progress, member.manager.identity(), member.now))
        is RebalanceInProgressError
    )
    assert member.tell(RebalanceNeeded).lost is False


def test_a_refused_commit_of_a_manual_assignment_does_not_affect_the_membership(member: Member) -> None:
    assert type(member.manager.commit_refused(ErrorCode.unknown_member_id, NO_MEMBER, member.now)) is UnknownMemberIdError
    assert member.notifications == []


def test_a_permanent_error_of_a_lookup_is_reported(member: Member) -> None:
    denied = GroupAuthorizationFailedError("group g")
    member.coordinator.observers[0](denied, member.now)
    assert member.notifications == []
    member.polled()
    member.coordinator.observers[0](denied, member.now)
    assert member.tell(ErrorNotification).error is denied


def test_every_state_can_be_left_and_reached() -> None:
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert reached == set(State)
    assert set(TRANSITIONS) == set(State)
    assert {cause for row in TRANSITIONS.values() for cause in row} == set(Input)
    for state, row in TRANSITIONS.items():
        assert Input.LEAVE in row, f"an application can leave in {state}"


# -- cooperative ----------------------------------------------------------------------------------------------------------

COOPERATIVE = "cooperative-sticky"


@pytest.fixture
def cooperative() -> Member:
    return Member(partition_assignment_strategy=COOPERATIVE)


def rejoined(member: Member, *partitions: Any, generation: int = 5) -> None:
    """A rebalance of someone else's, up to the answer of SyncGroup."""
    member.beat(27)
    needed = member.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == (frozenset(), False)
    member.manager.prepared(needed.token, member.now)
    member.joined(member.one(Api.JOIN_GROUP), generation=generation, protocol_name=COOPERATIVE)
    member.synced(member.one(Api.SYNC_GROUP), *partitions, protocol_name=COOPERATIVE)


def join_cooperatively(member: Member, *partitions: Any) -> None:
    member.polled()
    member.joined(member.one(Api.JOIN_GROUP), protocol_name=COOPERATIVE)
    member.synced(member.one(Api.SYNC_GROUP), *partitions, protocol_name=COOPERATIVE)
    member.manager.accepted(member.tell(AssignmentReceived).token)
    assert member.state is State.STABLE


def test_partitions_are_revoked_before_new_ones_are_assigned(cooperative: Member) -> None:
    join_cooperatively(cooperative, T0, T1)
    rejoined(cooperative, T1, T2)
    needed = cooperative.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == ({T0}, False)
    assert cooperative.state is State.REVOKING
    assert set(cooperative.subscription.partitions) == {T0, T1}
    assert cooperative.manager.identity().generation == 5, "what is given up may be committed"
    cooperative.manager.prepared(needed.token, cooperative.now)
    received = cooperative.tell(AssignmentReceived)
    assert received.added == {T2}
    assert set(cooperative.subscription.partitions) == {T1, T2}
    assert cooperative.state is State.STABLE
    cooperative.manager.accepted(received.token)
    message = cooperative.one(Api.JOIN_GROUP).message
    assert message.reason == "need to revoke partitions and re-join"
    assert decode_subscription(message.protocols[0].metadata) == ConsumerProtocolSubscription(("t",), None, (T1, T2), 5)


def test_an_assignment_without_revocations_needs_no_second_join(cooperative: Member) -> None:
    join_cooperatively(cooperative, T0)
    rejoined(cooperative, T0, T1)
    received = cooperative.tell(AssignmentReceived)
    assert received.added == {T1}
    cooperative.manager.accepted(received.token)
    assert cooperative.state is State.STABLE
    assert cooperative.poll() == []


def test_a_member_removed_before_it_took_its_assignment_joins_only_once(cooperative: Member) -> None:
    join_cooperatively(cooperative, T0, T1)
    rejoined(cooperative, T1)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    cooperative.notifications.clear()
    cooperative.beat(25)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    cooperative.joined(cooperative.one(Api.JOIN_GROUP), generation=9, protocol_name=COOPERATIVE)
    cooperative.synced(cooperative.one(Api.SYNC_GROUP), T1, protocol_name=COOPERATIVE)
    cooperative.manager.accepted(cooperative.tell(AssignmentReceived).token)
    assert (cooperative.poll(), cooperative.state) == ([], State.STABLE)


@pytest.mark.parametrize("revoking", [True, False])
def test_a_rebalance_waits_until_the_assignment_is_taken_over(cooperative: Member, revoking: bool) -> None:
    join_cooperatively(cooperative, T0, T1)
    rejoined(cooperative, *((T0, T2) if revoking else (T0, T1, T2)))
    cooperative.beat(27)
    if revoking:
        cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    received = cooperative.tell(AssignmentReceived)
    cooperative.beat(27)
    assert cooperative.notifications == []
    cooperative.manager.accepted(received.token)
    assert cooperative.state is State.JOINING
    cooperative.one(Api.JOIN_GROUP)


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@pytest.mark.parametrize(("code", "keeps_id"), [(25, False), (22, True)])
def test_unknown_member_id_in_a_join_loses_the_kept_partitions(cooperative: Member, api: Api, code: int, keeps_id: bool) -> None:
    join_cooperatively(cooperative, T0, T1)
    cooperative.beat(27)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    send = cooperative.one(Api.JOIN_GROUP)
    if api is Api.SYNC_GROUP:
        cooperative.joined(send, generation=5, protocol_name=COOPERATIVE)
        send = cooperative.one(Api.SYNC_GROUP)
    cooperative.refused(send, code)
    needed = cooperative.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == ({T0, T1}, True)
    assert cooperative.poll() == [], "the application has to know first"
    cooperative.manager.prepared(needed.token, cooperative.now)
    message = cooperative.one(Api.JOIN_GROUP).message
    assert message.member_id == ("m-1" if keeps_id else "")
    assert decode_subscription(message.protocols[0].metadata) == ConsumerProtocolSubscription(("t",))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.rebalance_in_progress,
    ],
)
def test_retriable_errors_keep_the_partitions(cooperative: Member, code: int) -> None:
    join_cooperatively(cooperative, T0, T1)
    cooperative.beat(27)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    cooperative.refused(cooperative.one(Api.JOIN_GROUP), code)
    assert cooperative.notifications == []
    assert set(cooperative.subscription.partitions) == {T0, T1}
    cooperative.coordinator.node_id = 1
    owned = decode_subscription(cooperative.one(Api.JOIN_GROUP, cooperative.mono + 200).message.protocols[0].metadata).owned
    assert owned == (T0, T1)


def test_a_missing_poll_during_a_join_loses_the_kept_partitions(cooperative: Member) -> None:
    join_cooperatively(cooperative, T0)
    cooperative.beat(27)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    cooperative.refused(cooperative.one(Api.JOIN_GROUP), 27)
    cooperative.mono += 20_000
    assert cooperative.one(Api.LEAVE_GROUP).message.members[0].member_id == "m-1"
    needed = cooperative.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == ({T0}, True)


def test_a_refused_commit_of_a_failed_member_loses_the_kept_partitions(cooperative: Member) -> None:
    join_cooperatively(cooperative, T0)
    signed = cooperative.manager.identity()
    cooperative.beat(27)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    cooperative.joined(cooperative.one(Api.JOIN_GROUP), protocol_type="connect")
    assert cooperative.state is State.FAILED
    cooperative.notifications.clear()
    assert isinstance(cooperative.manager.commit_refused(ErrorCode.unknown_member_id, signed, cooperative.now), CommitFailedError)
    assert cooperative.tell(RebalanceNeeded).lost


@pytest.mark.parametrize("api", [Api.JOIN_GROUP, Api.SYNC_GROUP])
@pytest.mark.parametrize("code", [ErrorCode.group_authorization_failed, ErrorCode.group_max_size_reached])
def test_a_permanent_error_of_a_join_loses_the_kept_partitions(cooperative: Member, api: Api, code: int) -> None:
    join_cooperatively(cooperative, T0)
    cooperative.beat(27)
    cooperative.manager.prepared(cooperative.tell(RebalanceNeeded).token, cooperative.now)
    send = cooperative.one(Api.JOIN_GROUP)
    if api is Api.SYNC_GROUP:
        cooperative.joined(send, protocol_name="cooperative-sticky")
        send = cooperative.one(Api.SYNC_GROUP)
    cooperative.refused(send, code)
    error, needed = cooperative.notifications
    assert error.error.code == code
    assert (needed.partitions, needed.lost) == ({T0}, True)


def test_a_member_without_authorization_to_look_up_the_coordinator_is_lost(member: Member) -> None:
    member.join(T0)
    (observer,) = member.coordinator.observers
    for _ in range(2):
        observer(GroupAuthorizationFailedError("no"), member.now)
    first, needed, second = member.notifications
    assert type(first.error) is type(second.error) is GroupAuthorizationFailedError
    assert (needed.partitions, needed.lost) == ({T0}, True)


def test_a_static_member_of_an_old_broker_gets_a_hint() -> None:
    member = Member(group_instance_id="i-1")
    member.polled()
    member.refused(member.one(Api.JOIN_GROUP), 35)
    assert "leave group_instance_id out" in str(member.tell(ErrorNotification).error.hint)


@pytest.mark.parametrize("rack", ["", "r1"])
def test_a_leader_with_a_rack_rebalances_when_replicas_move_to_other_racks(rack: str) -> None:
    member = Member(client_rack=rack)
    member.polled()
    send = member.one(Api.JOIN_GROUP)
    metadata = send.message.protocols[0].metadata
    assert decode_subscription(metadata).rack == (rack or None)
    members = (join_group_response.JoinGroupResponseMember(member_id="m-1", metadata=metadata),)
    member.joined(send, leader="m-1", members=members)
    member.cluster.tell(racks={1: "r1", 2: "r2"})
    member.synced(member.one(Api.SYNC_GROUP), T0, T1, T2)
    member.manager.accepted(member.tell(AssignmentReceived).token)
    member.cluster.tell(racks={1: "r2", 2: "r1"})
    member.poll()
    assert bool([item for item in member.notifications if isinstance(item, RebalanceNeeded)]) is bool(rack)
