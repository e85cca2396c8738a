"""The member of a consumer group (KIP-848) by itself: states, every row of the error table, stale answers, what heartbeats say."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.assignors import ConsumerPartitionAssignor
from ottla.client.effects import AnySend
from ottla.client.events import AssignmentReceived, ErrorNotification, RebalanceNeeded
from ottla.client.groups.consumer.client_assignors import NEEDED
from ottla.client.groups.consumer.states import HEARTBEAT_REACTIONS, TRANSITIONS, ConsumerReaction, Input, State
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    OttlaTimeoutError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    error_class,
)
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import Api
from ottla.protocol.messages import api_versions_response, consumer_group_prepare_assignment_request as prepare_request
from tests.unit.client.groups.consumer.member import Member
from tests.unit.client.groups.members import INTERVAL
from tests.unit.client.managers import NO_THROTTLE, T0, T1, T2, TOPIC_ID, Replies, unmade

OTHER = uuid.UUID(int=6)


@pytest.fixture
def member() -> Member:
    return Member()


def held(send: AnySend) -> set[int] | None:
    """What a heartbeat says is held."""
    items = send.message.topic_partitions
    return None if items is None else {number for item in items for number in item.partitions}


# -- joining ----------------------------------------------------------------------------------------------------------------


def test_a_member_joins_only_when_it_polls(member: Member) -> None:
    assert member.poll(5_000) == []
    assert member.state is State.UNSUBSCRIBED
    member.polled()
    message = member.beat().message
    assert (message.member_epoch, message.subscribed_topic_names, message.topic_partitions) == (0, ("t",), ())
    assert milliseconds(message.rebalance_timeout) == 20_000
    assert message.member_id == member.manager.member_id != ""


def test_a_heartbeat_is_sent_when_the_request_after_it_cannot_be_created() -> None:
    class Mine(ConsumerPartitionAssignor):
        name = "mine"

        def assign(self, cluster: Any, members: Any) -> Any:
            raise AssertionError("user code does not run on the network thread")

    member = Member(group_client_assignors=[Mine])
    member.polled()
    keys = tuple(api_versions_response.ApiVersion(api_key=api, min_version=0, max_version=0) for api in sorted(NEEDED))
    versions = api_versions_response.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=NO_THROTTLE)
    member.answer(member.one(Api.API_VERSIONS), versions)
    member.join()
    member.manager._assignors.asked(4, member.mono + 20_000)
    with unmade(prepare_request, "ConsumerGroupPrepareAssignmentRequest", 1), pytest.raises(OSError, match="Too many open files"):
        member.poll(member.mono + INTERVAL)
    assert [send.api for send in member.poll()] == [Api.CONSUMER_GROUP_HEARTBEAT, Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT]
    assert member.poll() == []


def test_a_member_without_partitions_gets_an_empty_assignment(member: Member) -> None:
    member.polled()
    member.given(member.beat(), {})
    member.polled()
    assert member.poll() == []
    assert member.take().added == frozenset()
    assert held(member.beat()) == set()
    assert member.state is State.STABLE


def test_one_heartbeat_is_in_flight_and_the_next_comes_at_the_interval(member: Member) -> None:
    member.join()
    sent_at = member.mono
    assert member.poll(sent_at + INTERVAL - 1) == []
    send = member.beat(sent_at + INTERVAL)
    assert (held(send), send.message.subscribed_topic_names) == (None, None)
    assert member.poll(sent_at + 10 * INTERVAL) == []


def test_an_acknowledgement_does_not_wait_for_the_interval(member: Member) -> None:
    member.join(0, 1)
    member.retarget({TOPIC_ID: (0, 1, 2)})
    member.take()
    assert held(member.beat()) == {0, 1, 2}, "at once"
    assert member.state is State.STABLE


def test_after_a_lost_acknowledgement_the_heartbeat_has_all_fields(member: Member) -> None:
    member.polled()
    member.given(member.beat(), {TOPIC_ID: (0,)})
    member.polled()
    member.poll()
    member.take()
    member.fail(member.beat(), OttlaTimeoutError("late"))
    member.coordinator.node_id = 1
    again = member.beat(100)
    assert (held(again), again.message.subscribed_topic_names) == ({0}, ("t",))


def test_the_same_assignment_again_has_no_effect(member: Member) -> None:
    """The coordinator answers a full heartbeat with the full assignment."""
    member.join(0, 1)
    member.notifications.clear()
    member.given(member.beat(member.mono + INTERVAL), {TOPIC_ID: (1, 0)})
    assert (member.state, member.poll(), member.notifications) == (State.STABLE, [], [])


def test_a_new_subscription_is_sent_at_once(member: Member) -> None:
    member.join()
    member.subscription.subscribe(frozenset({"t", "u"}))
    assert member.poll() == [], "a poll says so"
    member.polled()
    assert member.beat().message.subscribed_topic_names == ("t", "u")


# -- reconciliation -----------------------------------------------------------------------------------------------------------


def test_partitions_are_revoked_before_others_are_assigned(member: Member) -> None:
    member.join(0, 1)
    member.retarget({TOPIC_ID: (1, 2)})
    needed = member.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == ({T0}, False)
    assert not member.subscription.partitions[T0].fetchable
    assert held(member.beat(member.mono + INTERVAL)) is None, "nothing is acknowledged yet, and the member lives"
    member.manager.prepared(needed.token, member.now)
    assert member.take().added == {T2}
    assert set(member.subscription.partitions) == {T1, T2}


def test_a_target_that_arrives_during_a_reconciliation_waits_for_the_next(member: Member) -> None:
    member.join(0, 1)
    member.retarget({TOPIC_ID: (1,)})
    needed = member.tell(RebalanceNeeded)
    member.retarget({TOPIC_ID: (2,)}, epoch=6)
    assert member.notifications == [], "one question at a time"
    member.manager.prepared(needed.token, member.now)
    member.take()
    assert held(member.beat()) == {1}
    assert member.state is State.RECONCILING
    member.polled()
    member.poll()
    assert member.tell(RebalanceNeeded).partitions == {T1}


def test_a_topic_without_a_known_name_does_not_delay_the_others(member: Member) -> None:
    member.join(0)
    member.retarget({TOPIC_ID: (0, 1), OTHER: (0,)})
    assert member.take().added == {T1}
    assert member.cluster.asked
    first = member.beat()
    assert held(first) == {0, 1}
    member.given(first, epoch=5)
    for _ in range(5):
        member.polled()
        assert member.poll() == [], "what cannot be named was acknowledged once"
    unnamed = T0._replace(topic="u")
    member.cluster.tell(leaders={unnamed: 1}, topic_id=OTHER)
    member.polled()
    member.poll()
    assert member.take().added == {unnamed}
    assert member.state is State.ACKNOWLEDGING


def test_a_newer_target_replaces_one_that_waits_for_names(member: Member) -> None:
    member.join(0)
    member.retarget({TOPIC_ID: (0,), OTHER: (0,)})
    assert held(member.sent[-1]) == {0}, "what it has of that, it has"
    member.given(member.sent[-1], {TOPIC_ID: (0, 2)}, epoch=6)
    member.polled()
    member.poll()
    assert member.take().added == {T2}
    member.beat()
    assert member.state is State.STABLE


def test_partitions_of_a_deleted_topic_can_be_revoked(member: Member) -> None:
    member.join(0, 1)
    member.cluster.tell(leaders={})
    member.retarget({})
    needed = member.tell(RebalanceNeeded)
    assert needed.partitions == {T0, T1}
    member.manager.prepared(needed.token, member.now)
    member.take()
    assert held(member.beat()) == set()


# -- fenced -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch])
def test_a_fenced_member_rejoins_after_on_lost(member: Member, code: int) -> None:
    member.join(0, 1)
    member.refused(member.beat(member.mono + INTERVAL), code)
    needed = member.tell(RebalanceNeeded)
    assert (needed.lost, needed.partitions, member.state) == (True, {T0, T1}, State.FENCED)
    assert member.poll(member.mono + 10_000) == []
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.manager.prepared(needed.token, member.now)
    send = member.beat()
    assert (send.message.member_epoch, send.message.member_id) == (0, member.manager.member_id)
    member.given(send, {TOPIC_ID: (0, 1)}, epoch=7)
    member.polled()
    member.poll()
    assert member.take().added == {T0, T1}
    assert held(member.beat()) == {0, 1}


@pytest.mark.parametrize("at", ["revoking", "assigning"])
def test_an_answer_to_a_notification_from_before_the_fencing_is_ignored(member: Member, at: str) -> None:
    member.join(0, 1)
    member.retarget({TOPIC_ID: (1, 2)} if at == "revoking" else {TOPIC_ID: (0, 1, 2)})
    asked = member.tell(RebalanceNeeded if at == "revoking" else AssignmentReceived)
    member.refused(member.beat(member.mono + INTERVAL), 110)
    lost = member.tell(RebalanceNeeded)
    assert lost.lost
    if at == "revoking":
        member.manager.prepared(asked.token, member.now)
    else:
        member.manager.accepted(asked.token)
    assert member.state is State.FENCED
    assert member.notifications == []
    member.manager.prepared(lost.token, member.now)
    assert member.subscription.partitions == {}
    assert member.beat().message.member_epoch == 0


def test_an_answer_to_an_older_notification_revokes_nothing(member: Member) -> None:
    member.join(0, 1, 2)
    member.retarget({TOPIC_ID: (0, 1)})
    older = member.tell(RebalanceNeeded)
    member.manager.prepared(older.token, member.now)
    taken = member.take()
    member.given(member.beat())
    member.retarget({TOPIC_ID: (0,)}, epoch=6)
    newer = member.tell(RebalanceNeeded)
    member.manager.prepared(older.token, member.now)
    assert (member.notifications, set(member.subscription.partitions)) == ([], {T0, T1})
    member.manager.prepared(newer.token, member.now)
    assert set(member.subscription.partitions) == {T0}
    member.manager.accepted(taken.token)
    assert member.state is State.RECONCILING


def test_a_response_to_an_earlier_incarnation_is_ignored(member: Member) -> None:
    member.join(0)
    stale = member.beat(member.mono + INTERVAL)
    member.manager.leave("because", Replies(), member.now)
    member.poll()
    member.subscription.subscribe(frozenset({"t"}))
    member.polled()
    member.given(stale, {TOPIC_ID: (2,)}, epoch=9)
    assert (member.state, member.manager.metadata().generation_id) == (State.JOINING, -1)


def test_a_failed_heartbeat_of_an_earlier_incarnation_causes_no_second_one(member: Member) -> None:
    member.join(0)
    stale = member.beat(member.mono + INTERVAL)
    member.manager.leave("because", Replies(), member.now)
    member.poll()
    member.subscription.subscribe(frozenset({"t"}))
    member.polled()
    assert member.beat().message.member_epoch == 0
    member.fail(stale, RequestTimedOutError("late"))
    assert member.poll(member.mono + 10 * INTERVAL) == []


def test_a_leave_epoch_in_a_response_is_ignored(member: Member) -> None:
    member.polled()
    member.given(member.beat(), epoch=-1)
    assert member.manager.metadata().generation_id == -1
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    assert member.beat(INTERVAL).message.member_epoch == 0, "it does not say good-bye itself"


# -- leaving ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "epoch"), [({}, -1), ({"group_instance_id": "one"}, -2)])
@pytest.mark.parametrize("ending", ["answer", "refusal", "failure"])
def test_a_leave_does_not_wait_for_a_heartbeat_and_ends_with_any_response(
    settings: dict[str, str], epoch: int, ending: str
) -> None:
    member = Member(**settings)
    member.join()
    member.beat(member.mono + INTERVAL)
    first, second = Replies(), Replies()
    member.manager.leave("because", first, member.now)
    send = member.beat()
    assert send.message.member_epoch == epoch
    member.manager.leave("again", second, member.now)
    assert first.got == second.got == []
    if ending == "failure":
        member.fail(send, DisconnectedError("broke"))
    else:
        member.given(send, epoch=epoch, code=0 if ending == "answer" else 25)
    assert first.got == second.got == [(None, None)]
    assert member.state is State.UNSUBSCRIBED
    assert member.poll(member.mono + 10_000) == [], "said once"


@pytest.mark.parametrize("state", [State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE])
def test_a_member_can_leave_in_every_state(member: Member, state: State) -> None:
    bring_to(member, state)
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    assert member.subscription.partitions == {}
    send = member.beat()
    assert send.message.member_epoch == -1
    member.given(send, epoch=-1)
    assert replies.got == [(None, None)]


def test_a_leave_without_a_coordinator_or_membership_ends_at_once(member: Member) -> None:
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    member.join()
    member.coordinator.node_id = None
    member.manager.leave("because", replies, member.now)
    assert member.poll() == []
    assert replies.got == [(None, None), (None, None)]


@pytest.mark.parametrize("again", [True, False])
def test_a_member_that_leaves_before_its_first_heartbeat_sends_none(member: Member, again: bool) -> None:
    if again:
        member.join()
        member.refused(member.beat(member.mono + INTERVAL), 110)
        member.manager.prepared(member.tell(RebalanceNeeded).token, member.now)
    member.polled()
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    assert member.poll() == []
    assert replies.got == [(None, None)]


def test_a_fenced_member_that_leaves_sends_nothing(member: Member) -> None:
    member.join()
    member.refused(member.beat(member.mono + INTERVAL), 110)
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    assert (replies.got, member.state, member.poll()) == ([(None, None)], State.UNSUBSCRIBED, [])


# -- the application that does not poll -------------------------------------------------------------------------------------


def bring_to(member: Member, state: State) -> None:
    """Until the member stands so, with a heartbeat in flight where it may be."""
    if state is State.JOINING:
        member.polled()
        member.beat()
    elif state is State.STABLE:
        member.join()
    else:
        member.polled()
        member.given(member.beat(), {TOPIC_ID: (0,)})
        if state is State.ACKNOWLEDGING:
            member.polled()
            member.poll()
            member.take()
    assert member.state is state


@pytest.mark.parametrize("state", [State.JOINING, State.RECONCILING, State.ACKNOWLEDGING, State.STABLE])
def test_a_member_that_does_not_poll_leaves_once_and_joins_with_the_next_poll(member: Member, state: State) -> None:
    bring_to(member, state)
    send = member.beat(member.mono + 20_000)
    assert send.message.member_epoch == -1
    assert member.state is State.STALE
    lost = member.tell(RebalanceNeeded)
    assert lost.lost
    assert member.poll(member.mono + 60_000) == []
    member.polled()
    assert member.poll() == [], "the application has to know first"
    member.manager.prepared(lost.token, member.now)
    assert member.beat().message.member_epoch == 0


def test_an_expired_poll_deadline_does_not_affect_a_leaving_member(member: Member) -> None:
    member.join()
    member.manager.leave("because", Replies(), member.now)
    send = member.beat(member.mono + 60_000)
    assert (send.message.member_epoch, member.state) == (-1, State.UNSUBSCRIBED)
    assert member.notifications == []


# -- errors -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.request_timed_out, ErrorCode.coordinator_load_in_progress])
def test_retriable_errors_are_retried_with_growing_back_off(member: Member, code: int) -> None:
    member.polled()
    for pause in (100, 200, 400):
        member.refused(member.beat(), code)
        assert member.poll(member.mono + pause - 1) == []
        member.mono += 1
    assert not member.coordinator.doubts
    assert member.notifications == []


def test_a_stable_member_keeps_to_the_back_off(member: Member) -> None:
    member.join()
    member.mono += INTERVAL
    for pause in (100, 200, 400):
        member.refused(member.beat(), 14)
        assert member.poll(member.mono + pause - 1) == []
        member.mono += 1


@pytest.mark.parametrize("code", [ErrorCode.coordinator_not_available, ErrorCode.not_coordinator])
def test_a_heartbeat_to_the_wrong_broker_starts_a_lookup(member: Member, code: int) -> None:
    member.join()
    member.refused(member.beat(member.mono + INTERVAL), code)
    assert member.coordinator.doubts
    assert member.state is State.STABLE


@pytest.mark.parametrize("error", [DisconnectedError("broke"), OttlaTimeoutError("late")])
def test_a_silent_coordinator_is_looked_up_and_the_member_stays(member: Member, error: Any) -> None:
    member.join()
    member.fail(member.beat(member.mono + INTERVAL), error)
    assert (bool(member.coordinator.doubts), member.state, member.notifications) == (True, State.STABLE, [])


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.group_authorization_failed,
        ErrorCode.invalid_request,
        ErrorCode.unsupported_version,
        ErrorCode.group_max_size_reached,
        ErrorCode.fenced_instance_id,
        ErrorCode.unreleased_instance_id,
        ErrorCode.unsupported_assignor,
        ErrorCode.unknown_server_error,
    ],
)
@pytest.mark.parametrize("state", [State.JOINING, State.STABLE])
def test_errors_that_end_the_membership(member: Member, code: int, state: State) -> None:
    if state is State.STABLE:
        member.join()
    else:
        member.polled()
    send = member.beat(member.mono + INTERVAL)
    member.refused(send, code)
    assert member.state is State.FATAL
    assert type(member.manager.failure) is error_class(code)
    assert member.manager.failure.fatal
    assert member.manager.failure.hint
    assert member.tell(RebalanceNeeded).lost
    member.polled()
    assert member.poll(member.mono + 60_000) == []


def test_a_failed_member_can_still_be_closed(member: Member) -> None:
    member.join()
    member.refused(member.beat(member.mono + INTERVAL), 30)
    replies = Replies()
    member.manager.leave("because", replies, member.now)
    assert (replies.got, member.poll()) == ([(None, None)], [])


def test_topic_authorization_failed_is_reported_and_the_member_goes_on(member: Member) -> None:
    member.join()
    member.refused(member.beat(member.mono + INTERVAL), 29)
    assert type(member.tell(ErrorNotification).error) is TopicAuthorizationFailedError
    assert member.state is State.STABLE
    assert member.beat(member.mono + 100).message.subscribed_topic_names == ("t",)


# -- commits ------------------------------------------------------------------------------------------------------------------


def test_a_commit_with_a_stale_epoch_can_be_retried_by_a_member(member: Member) -> None:
    member.join()
    error = member.manager.commit_refused(ErrorCode.stale_member_epoch, member.manager.identity(), member.now)
    assert error.retriable
    assert held(member.beat()) is None, "the next heartbeat may bring the epoch, so it comes at once"
    signed = member.manager.identity()
    member.refused(member.sent[-1], 110)
    error = member.manager.commit_refused(ErrorCode.stale_member_epoch, signed, member.now)
    assert isinstance(error, CommitFailedError)
    assert not error.retriable


def test_an_offset_fetch_has_an_identity_only_for_a_member(member: Member) -> None:
    assert member.manager.reader().member_id == ""
    member.join()
    assert (member.manager.reader().generation, member.manager.reader().member_id) == (4, member.manager.member_id)


def test_the_epoch_is_published_only_when_it_changes(member: Member) -> None:
    member.join()
    before = member.subscription.version
    member.given(member.beat(member.mono + INTERVAL), epoch=4)
    assert member.subscription.version == before
    member.given(member.beat(member.mono + INTERVAL), epoch=5)
    assert member.subscription.version > before
    assert member.manager.metadata().generation_id == 5


# -- the tables -----------------------------------------------------------------------------------------------------------------


def test_every_state_can_be_reached_and_only_fatal_is_final() -> None:
    reached = {target for row in TRANSITIONS.values() for target in row.values()}
    assert reached == set(State)
    assert set(TRANSITIONS) == set(State)
    assert {cause for row in TRANSITIONS.values() for cause in row} == set(Input)
    assert [state for state, row in TRANSITIONS.items() if not row] == [State.FATAL]


def test_every_reaction_has_a_code() -> None:
    assert {*HEARTBEAT_REACTIONS.values(), ConsumerReaction.FATAL} == set(ConsumerReaction)
