"""A member of a central group: what it sends, and what it does with each frame, in each state.

The coordinator is played by the test; there is no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from ottla.client.effects import ToChannel
from ottla.client.events import AssignmentReceived, ErrorNotification, RebalanceNeeded
from ottla.client.groups.central.channel import State as ChannelState
from ottla.client.groups.central.states import State
from ottla.client.groups.membership import NO_MEMBER, MemberIdentity
from ottla.client.groups.rebalances import RebalanceRecorder
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRegularExpressionError,
    OttlaTimeoutError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import start_request
from ottla.types import GroupMembershipOperation, TopicPartition
from tests.unit.client.central.member import CHANNEL, ID, INCARNATION, PING, SESSION, SILENCE, Member
from tests.unit.client.managers import T0, T1, T2, Replies

STALE = ErrorCode.stale_member_epoch


@pytest.fixture
def member() -> Member:
    return Member()


def owned(send: Any) -> dict[TopicPartition, int]:
    topics = send.message.owned_topics
    return {TopicPartition(topic.topic, item.partition): item.thread for topic in topics for item in topic.partitions}


def handed_over(send: Any) -> None:
    """The connection takes a request."""
    send.on_sent()


# -- joining --------------------------------------------------------------------------------------------------------------


def test_a_member_registers_with_its_first_poll(member: Member) -> None:
    assert member.poll() == []
    member.polled()
    send = member.one(Api.REGISTER)
    assert send.target == CHANNEL
    message = send.message
    assert (message.group_id, message.member_id, message.incarnation, message.assignor) == ("g", ID, INCARNATION, "range")
    assert (message.session_timeout_ms, message.rebalance_timeout_ms) == (SESSION, 60_000)
    assert [(item.topic, item.streams) for item in message.topics] == [("t", 1)]
    assert (message.pattern, message.coordinator_epoch, message.generation, owned(send)) == (None, -1, -1, {})
    assert member.poll() == []
    assert not member.manager.status.joined


def test_a_start_hands_out_the_partitions_and_is_answered_at_once(member: Member) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER))
    assert member.manager.status.joined
    start = member.start(T0, T1, thread=2)
    answer = member.the_answer(start)
    assert (answer.coordinator_epoch, answer.generation) == (1, 1)
    received = member.tell(AssignmentReceived)
    assert received.added == {T0, T1}
    assert not any(state.fetchable or state.wanted for state in member.subscription.partitions.values())
    member.manager.accepted(received.token)
    assert all(state.wanted for state in member.subscription.partitions.values())
    assert member.subscription.threads == {T0: 2, T1: 2}
    assert member.manager.identity() == MemberIdentity(1, ID)
    status = member.manager.status
    assert (status.protocol, status.state, status.joined, status.rebalancing, status.reason) == (
        "central",
        "STABLE",
        True,
        False,
        "",
    )
    assert (member.manager.metadata().generation_id, member.manager.metadata().member_id) == (1, ID)


def test_streams_are_counted_for_each_topic(member: Member) -> None:
    member.subscription.streams = {"t": 3}
    member.polled()
    (topic,) = member.one(Api.REGISTER).message.topics
    assert (topic.topic, topic.streams) == ("t", 3)


def test_a_pattern_is_sent_as_it_is_and_its_topics_are_learnt(member: Member) -> None:
    member.subscription.streams = {"t.*": 2}
    member.subscription.subscribe(frozenset(), "t.*")
    member.polled()
    send = member.one(Api.REGISTER)
    assert (send.message.pattern, send.message.streams, send.message.topics) == ("t.*", 2, ())
    member.registered(send)
    member.start(T0)
    assert member.subscription.topics == {"t"}
    member.answers()
    member.polled()
    assert member.poll() == [], "the pattern has not changed"


def test_a_share_may_be_empty(member: Member) -> None:
    member.join()
    assert (member.state, member.partitions) == (State.STABLE, set())


def test_a_new_subscription_is_registered_on_the_open_channel(member: Member) -> None:
    member.join(T0, T1)
    member.subscription.subscribe(frozenset({"t", "u"}))
    member.polled()
    send = member.one(Api.REGISTER)
    assert send.target == CHANNEL
    assert [item.topic for item in send.message.topics] == ["t", "u"]
    assert (send.message.generation, owned(send)) == (1, {T0: 0, T1: 0})
    assert member.poll() == []
    member.registered(send)
    assert (member.state, member.partitions, member.hung_up) == (State.STABLE, {T0, T1}, [])
    member.polled()
    assert member.poll() == []


def test_partitions_of_a_topic_that_is_not_subscribed_to_any_more_are_not_delivered(member: Member) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER))
    member.subscription.subscribe(frozenset({"u"}))
    member.start(T0, TopicPartition("u", 0))
    wanted = {tp: not state.unwanted for tp, state in member.subscription.partitions.items()}
    assert wanted == {T0: False, TopicPartition("u", 0): True}


# -- a rebalance ----------------------------------------------------------------------------------------------------------


def test_a_stop_is_answered_when_the_application_has_given_up_its_partitions(member: Member) -> None:
    member.join(T0, T1)
    member.read.update({T0: 17, T1: 4})
    stop = member.stop()
    assert (member.state, member.readable) == (State.STOPPING, set())
    assert member.answers() == []
    ping = member.ping()
    member.the_answer(ping)
    assert member.manager.identity() == MemberIdentity(1, ID), "the application commits"
    assert member.give_up() == {T0, T1}
    answer = member.the_answer(stop)
    assert answer.generation == 1
    positions = {(topic.topic, item.partition): item.offset for topic in answer.topics for item in topic.partitions}
    assert positions == {("t", 0): 17, ("t", 1): 4}
    assert (member.state, member.partitions) == (State.STOPPED, set())
    with pytest.raises(RebalanceInProgressError):
        member.manager.identity()
    start = member.start(T2)
    member.the_answer(start)
    assert member.tell(AssignmentReceived).added == {T2}
    assert (member.state, member.manager.identity().generation) == (State.STABLE, 2)


def test_a_member_without_partitions_answers_a_stop_at_once(member: Member) -> None:
    member.join()
    stop = member.stop()
    assert member.the_answer(stop).topics == ()
    assert (member.state, member.notifications) == (State.STOPPED, [])


def test_a_stop_before_the_first_start_is_answered_at_once(member: Member) -> None:
    member.generation = 4
    member.polled()
    member.registered(member.one(Api.REGISTER))
    stop = member.stop(reason="topic 't' has grown")
    assert (member.the_answer(stop).generation, member.state) == (4, State.STOPPED)
    assert member.manager.status.reason == "the coordinator rebalances the group: topic 't' has grown"
    member.start(T0)
    assert member.partitions == {T0}


SPOKEN = "the coordinator rebalances the group"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("member 'b' has joined", f"{SPOKEN}: member 'b' has joined"),
        ("", SPOKEN),
        (" \n", SPOKEN),
        ("é\n\x1b[31m\u202e\U0001f600", f"{SPOKEN}: é\\n\\x1b[31m\\u202e\U0001f600"),
        ("x" * 500, f"{SPOKEN}: {'x' * 500}"),
        ("x" * 501, f"{SPOKEN}: {'x' * 500}..."),
        ("\0" * 32_767, f"{SPOKEN}: " + "\\x00" * 125 + "..."),
    ],
)
@pytest.mark.parametrize("partitions", [(T0,), ()], ids=["it gives up a partition", "it has none"])
def test_the_reason_of_a_stop_is_that_of_the_rebalance(
    member: Member, given: str, shown: str, partitions: tuple[TopicPartition, ...]
) -> None:
    recorder = RebalanceRecorder(member.config, member.subscription, member.manager)
    member.join(*partitions)
    recorder.poll(member.now)
    stop = member.stop(reason=given)
    assert member.manager.status.reason == shown
    recorder.poll(member.now)
    if partitions:
        member.give_up()
    member.the_answer(stop)
    member.start(T1)
    member.answers()
    member.accept()
    assert member.manager.status.reason == ""
    recorder.poll(member.now)
    (record,) = recorder.records
    assert (record.reason, record.completed, record.epoch) == (shown, True, 2)


def test_a_stop_that_arrives_with_the_response_to_register(member: Member) -> None:
    member.polled()
    send = member.one(Api.REGISTER)
    member.registered(send)
    stop = member.stop()
    assert [answer.correlation_id for answer in member.answers()] == [stop]


def test_a_stop_before_the_response_to_register_has_no_effect(member: Member) -> None:
    member.polled()
    send = member.one(Api.REGISTER)
    member.stop()
    assert (member.poll(), member.state) == ([], State.JOINING)
    member.registered(send)
    assert member.state is State.JOINING


def test_a_second_stop_of_the_same_generation_is_answered_as_well(member: Member) -> None:
    member.join(T0)
    stops = [member.stop(), member.stop()]
    member.give_up()
    assert [answer.correlation_id for answer in member.answers()] == stops
    assert member.state is State.STOPPED
    again = member.stop()
    member.the_answer(again)


def test_the_same_start_twice_is_only_answered(member: Member) -> None:
    member.join(T0)
    again = member.start(T0, generation=1)
    member.the_answer(again)
    assert (member.state, member.partitions, member.notifications) == (State.STABLE, {T0}, [])


@pytest.mark.parametrize("generation", [1, 2, 7])
def test_a_start_of_other_partitions_without_a_stop_is_a_loss(member: Member, generation: int) -> None:
    member.join(T0)
    start = member.start(T1, generation=generation)
    assert (member.state, member.readable, member.answers()) == (State.LOST, set(), [])
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    assert member.give_up(lost=True) == {T0}
    assert member.the_answer(start).generation == generation
    assert (member.state, member.partitions, member.manager.identity().generation) == (State.STABLE, {T1}, generation)


def test_a_stop_of_a_later_generation_is_a_loss(member: Member) -> None:
    member.join(T0)
    stop = member.stop(3)
    assert member.state is State.LOST
    assert member.give_up(lost=True) == {T0}
    assert (member.the_answer(stop).topics, member.state) == ((), State.STOPPED)


def test_what_comes_while_the_application_prepares_waits_in_order(member: Member) -> None:
    member.join(T0)
    first = member.stop()
    start = member.start(T1)
    second = member.stop()
    assert member.answers() == []
    member.give_up()
    assert [answer.correlation_id for answer in member.answers()] == [first, start]
    assert (member.state, member.partitions) == (State.STOPPING, {T1})
    (received,) = [item for item in member.notifications if isinstance(item, AssignmentReceived)]
    member.notifications.remove(received)
    member.manager.accepted(received.token)
    assert member.give_up() == {T1}
    member.the_answer(second)


def test_an_answer_to_an_older_notification_has_no_effect(member: Member) -> None:
    member.join(T0)
    member.stop()
    old = member.tell(RebalanceNeeded)
    member.lose_channel()
    member.poll(member.mono + SESSION)
    assert member.state is State.LOST
    member.manager.prepared(old.token, member.now)
    assert member.state is State.LOST
    member.manager.accepted(old.token)
    member.give_up(lost=True)
    assert member.state is State.JOINING


# -- epochs and generations -----------------------------------------------------------------------------------------------

PUSHES: Mapping[str, Callable[[Member, int, int], int]] = {
    "ping": lambda member, epoch, generation: member.ping(generation, epoch=epoch),
    "stop": lambda member, epoch, generation: member.stop(generation, epoch=epoch),
    "start": lambda member, epoch, generation: member.start(T2, generation=generation, epoch=epoch),
}


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize(("epoch", "generation"), [(4, 6), (5, 5), (4, 5), (-7, 6), (5, -7)])
def test_a_lower_epoch_or_generation_is_refused(member: Member, push: str, epoch: int, generation: int) -> None:
    member.epoch, member.generation = 5, 5
    member.join(T0)
    answer = member.the_answer(PUSHES[push](member, epoch, generation), STALE)
    assert (answer.coordinator_epoch, answer.generation) == (5, 6)
    assert (member.state, member.partitions, member.notifications) == (State.STABLE, {T0}, [])


def test_a_refusal_is_logged_once(member: Member, caplog: pytest.LogCaptureFixture) -> None:
    member.epoch = 5
    member.join(T0)
    for _ in range(3):
        member.ping(epoch=4)
    assert sum("is refused" in record.getMessage() for record in caplog.records) == 1


def test_a_later_epoch_is_adopted(member: Member) -> None:
    member.join(T0)
    member.the_answer(member.ping(epoch=3))
    member.the_answer(member.ping(epoch=2), STALE)


def test_a_ping_of_a_later_generation_tells_the_coordinator_what_the_member_has(member: Member) -> None:
    member.join(T0)
    assert member.the_answer(member.ping(5)).generation == 1
    assert member.partitions == {T0}


def test_frames_for_another_member_are_ignored(member: Member) -> None:
    member.join(T0)
    member.ping(member="another")
    member.stop(member="another")
    assert (member.answers(), member.state) == ([], State.STABLE)


def test_frames_of_another_channel_are_ignored(member: Member) -> None:
    member.join(T0)
    member.push(Api.START, start_request.StartRequest(group_id="g", member_id=ID, coordinator_epoch=9, generation=9), ToChannel(2))
    assert (member.answers(), member.partitions) == ([], {T0})


@pytest.mark.parametrize("garbage", [TopicPartition("", 0), TopicPartition("t", -1)])
def test_a_start_that_cannot_be_closes_the_channel_and_is_reported(member: Member, garbage: TopicPartition) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER))
    member.start(T0, garbage)
    assert member.hung_up == [CHANNEL]
    assert isinstance(member.notifications[0], ErrorNotification)
    assert (member.state, member.partitions) == (State.JOINING, set())
    assert len(member.requests()) == 1, "it registers again"


def test_a_partition_that_is_assigned_twice_closes_the_channel(member: Member) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER))
    member.start(T0, T0)
    assert (member.hung_up, member.partitions) == ([CHANNEL], set())


def test_a_coordinator_with_a_lower_epoch_is_not_the_coordinator(member: Member) -> None:
    member.epoch = 5
    member.join(T0)
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER)
    assert (send.message.coordinator_epoch, send.message.generation) == (5, 1)
    member.registered(send, epoch=4)
    assert (member.coordinator.node_id, member.hung_up, member.state) == (None, [CHANNEL], State.STABLE)


# -- the channel is lost --------------------------------------------------------------------------------------------------


def test_a_member_registers_again_with_what_it_holds_and_reads_on(member: Member) -> None:
    member.join(T0, T1)
    member.lose_channel()
    assert member.coordinator.node_id is None
    assert (member.poll(), member.readable) == ([], {T0, T1})
    member.coordinator.node_id = 2
    send = member.one(Api.REGISTER)
    assert (send.target, send.message.coordinator_epoch, send.message.generation) == (ToChannel(2), 1, 1)
    assert owned(send) == {T0: 0, T1: 0}
    member.registered(send, epoch=2)
    assert (member.state, member.readable, member.notifications) == (State.STABLE, {T0, T1}, [])


def test_a_new_coordinator_that_goes_on_sends_the_same_start(member: Member) -> None:
    member.join(T0)
    member.lose_channel()
    member.coordinator.node_id = 1
    member.epoch = 2
    member.registered(member.one(Api.REGISTER))
    member.the_answer(member.start(T0, generation=1))
    assert (member.partitions, member.notifications) == ({T0}, [])


@pytest.mark.parametrize("generation", [0, 2])
def test_another_generation_in_the_response_is_a_loss(member: Member, generation: int) -> None:
    member.join(T0)
    member.lose_channel()
    member.coordinator.node_id = 1
    member.registered(member.one(Api.REGISTER), generation=generation)
    assert member.state is State.LOST
    start = member.start(T1, generation=generation + 1)
    assert member.answers() == []
    assert member.give_up(lost=True) == {T0}
    member.the_answer(start)
    assert member.partitions == {T1}


def test_the_coordinator_moves_while_the_channel_is_open(member: Member) -> None:
    member.join(T0)
    member.coordinator.node_id = 2
    send = member.one(Api.REGISTER)
    assert (member.hung_up, send.target, owned(send)) == ([CHANNEL], ToChannel(2), {T0: 0})


def test_a_silent_channel_is_given_up_before_the_lease_is_over(member: Member) -> None:
    member.join(T0)
    assert member.poll(SILENCE - 1) == []
    assert member.poll(SILENCE) == []
    assert member.hung_up == [CHANNEL]
    assert "nothing" in member.coordinator.doubts[0]
    member.coordinator.node_id = 2
    member.registered(member.one(Api.REGISTER))
    assert (member.state, member.readable) == (State.STABLE, {T0})


def test_a_channel_that_is_lost_while_the_application_prepares(member: Member) -> None:
    member.join(T0)
    member.stop()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER)
    assert owned(send) == {T0: 0}, "it still has them"
    member.registered(send)
    assert member.state is State.STOPPING
    member.give_up()
    again = member.one(Api.REGISTER)
    assert (again.message.generation, owned(again)) == (1, {}), "the coordinator was told that it has them"
    member.registered(again)
    stop = member.stop()
    member.the_answer(stop)


def test_a_stop_on_the_next_channel_is_answered_once(member: Member) -> None:
    member.join(T0)
    member.stop()
    member.lose_channel()
    member.coordinator.node_id = 1
    member.registered(member.one(Api.REGISTER))
    stop = member.stop()
    member.give_up()
    member.the_answer(stop)
    assert member.poll() == []


def test_a_channel_that_is_lost_after_the_stop_was_answered(member: Member) -> None:
    member.join(T0)
    member.stop()
    member.give_up()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER)
    assert (send.message.generation, owned(send)) == (1, {}), "it says that it is not another process with its id"
    assert member.manager.metadata().generation_id == -1
    member.registered(send, ErrorCode.illegal_generation)
    member.coordinator.node_id = 1
    again = member.one(Api.REGISTER, 200)
    assert (again.message.generation, owned(again)) == (-1, {})


def test_channels_that_break_again_and_again_are_opened_with_back_off(member: Member) -> None:
    member.polled()
    times: list[int] = []
    while len(times) < 6:
        member.coordinator.node_id = 1
        for send in member.requests():
            times.append(member.mono)
            member.registered(send)
            member.lose_channel()
        member.poll()
        member.mono = member.mono + 1 if member.wake_at is None else max(member.mono + 1, member.wake_at)
        member.polled()
    assert [later - earlier for earlier, later in pairwise(times)][1:] == [100, 200, 400, 800]


# -- the lease ------------------------------------------------------------------------------------------------------------


def test_a_ping_confirms_the_answer_to_the_ping_before(member: Member) -> None:
    member.join(T0)
    assert member.manager.lease_until == SESSION, "the Register was sent at 0"
    member.mono = 2_000
    member.ping()
    assert member.manager.lease_until == SESSION
    member.answers(2_500)
    member.mono = 5_000
    member.ping()
    assert member.manager.lease_until == 2_000 + SESSION


@pytest.mark.parametrize("order", ["ping, response", "response, ping"])
@pytest.mark.parametrize("earlier", [True, False], ids=["an answer before", "no answer before"])
def test_a_register_makes_the_coordinator_forget_the_ping_before(member: Member, order: str, earlier: bool) -> None:
    member.join(T0)
    if earlier:
        member.mono = 1_000
        member.ping()
        member.answers()
    member.subscription.subscribe(frozenset({"t", "u"}))
    member.polled()
    register = member.one(Api.REGISTER, 2_000)
    # 1. The coordinator has registered the member at 2000, after it had sent this ping. 2. The member is late.
    member.mono = 5_000
    for event in order.split(", "):
        if event == "ping":
            member.ping()
            member.answers()
            assert member.manager.lease_until <= 2_000 + SESSION
        else:
            member.registered(register)
            assert member.manager.lease_until == 2_000 + SESSION
    if order == "ping, response":
        member.ping()
        member.answers()
        assert member.manager.lease_until == 2_000 + SESSION, "the answer to the ping before had no effect"
    member.mono = 8_000
    member.ping()
    assert member.manager.lease_until == 5_000 + SESSION, "answered after the response"


def test_a_ping_on_a_new_channel_confirms_no_answer_on_the_old_one(member: Member) -> None:
    member.join(T0)
    member.mono = 3_000
    member.ping()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    member.registered(member.one(Api.REGISTER))
    assert member.manager.lease_until == 3_000 + SESSION, "the second Register"
    member.mono = 5_000
    member.ping()
    assert member.manager.lease_until == 3_000 + SESSION


@pytest.mark.parametrize("state", [State.STABLE, State.STOPPING])
@pytest.mark.parametrize("is_open", [True, False])
def test_after_the_lease_the_partitions_are_lost(member: Member, state: State, is_open: bool) -> None:
    member.join(T0)
    if state is State.STOPPING:
        member.stop()
        member.notifications.clear()
    if not is_open:
        member.lose_channel()
    while member.mono < SESSION:
        member.poll()
        assert member.wake_at is not None
        assert member.wake_at > member.mono
        member.mono = member.wake_at
    assert member.mono == SESSION
    assert member.readable == set()
    member.poll()
    assert (member.state, member.manager.lease_until) == (State.LOST, 0)
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.coordinator.node_id = 1
    assert member.poll() == [], "it registers after on_lost"
    assert member.give_up(lost=True) == {T0}
    send = member.one(Api.REGISTER)
    assert (send.message.generation, owned(send), member.state) == (-1, {}, State.JOINING)
    assert send.message.own_generation == 1
    member.registered(send)
    member.lose_channel()
    member.coordinator.node_id = 1
    assert member.one(Api.REGISTER, member.mono + 2_000).message.own_generation == 1, "the node of the generation may be malformed"


def test_a_stopped_member_has_nothing_to_lose(member: Member) -> None:
    member.join(T0)
    member.stop()
    member.give_up()
    member.answers()
    member.poll(SESSION)
    assert (member.state, member.notifications, member.hung_up) == (State.STOPPED, [], [CHANNEL])


def test_a_member_that_was_stopped_reports_the_generation_of_the_stop_until_its_lease_is_over(member: Member) -> None:
    """After that, the coordinator may have given its member id to another process."""
    member.join()
    member.lose_channel()
    member.generation = 7
    member.coordinator.node_id = 1
    member.registered(member.one(Api.REGISTER, 2_000))
    member.stop()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, 4_000)
    assert (send.message.generation, send.message.own_generation, member.state) == (7, 7, State.STOPPED)
    member.fail(send, OttlaTimeoutError("no answer"))
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, 2_000 + SESSION)
    assert (send.message.generation, send.message.own_generation) == (-1, 7)


def test_a_register_with_the_generation_of_a_stop_does_not_outlive_the_lease(member: Member) -> None:
    """It waits for a connection: sent later, it would say that the lease lasts."""
    member.join()
    member.stop()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, SESSION - 500)
    assert (send.message.generation, member.hung_up) == (1, [])
    assert member.poll(SESSION) == []
    assert (member.hung_up, member.state) == ([CHANNEL], State.STOPPED)
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, SESSION + 500)
    assert (send.message.generation, send.message.own_generation) == (-1, 1)


def test_a_member_that_comes_after_the_owner_with_its_id_does_not_report_the_generation_as_its_own(member: Member) -> None:
    """1. The owner is gone, and this process takes its id. 2. It gets a Stop of the generation in which the owner was started."""
    member.polled()
    member.coordinator.node_id = 1
    member.generation = 7
    member.registered(member.one(Api.REGISTER))
    member.stop()
    member.answers()
    for _ in range(2):
        member.lose_channel()
        member.coordinator.node_id = 1
        send = member.one(Api.REGISTER, member.mono + 1_000)
        assert (send.message.generation, send.message.own_generation, member.state) == (7, -1, State.STOPPED)
        member.registered(send)
    member.generation = 8
    member.start()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, member.mono + 1_000)
    assert (send.message.generation, send.message.own_generation) == (9, 9)


@pytest.mark.parametrize("generation", [2, 3])
def test_an_owner_that_was_not_started_so_far_tells_each_coordinator_what_it_knows(member: Member, generation: int) -> None:
    """It was a member when its generation was written, whichever coordinator it registers with."""
    member.join()
    member.stop()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    member.epoch, member.generation = 2, generation
    send = member.one(Api.REGISTER, 2_000)
    assert (send.message.generation, send.message.own_generation, send.message.coordinator_epoch) == (1, 1, 1)
    member.registered(send)
    member.stop()
    member.answers()
    member.lose_channel()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, 4_000)
    assert (send.message.generation, send.message.own_generation) == (generation, generation)


def test_a_member_that_unsubscribes_without_a_coordinator_says_later_what_it_had(member: Member) -> None:
    member.join(T0)
    member.lose_channel()
    member.manager.leave("unsubscribe()", Replies(), member.now)
    member.polled()
    member.coordinator.node_id = 1
    send = member.one(Api.REGISTER, 5_000)
    assert (send.message.generation, send.message.own_generation) == (-1, 1)


# -- the application ------------------------------------------------------------------------------------------------------


def test_an_application_that_is_slow_in_on_revoke_keeps_its_membership(member: Member) -> None:
    member.join(T0)
    stop = member.stop()
    for _ in range(10):
        member.mono += PING
        ping = member.ping()
        member.the_answer(ping)
    assert member.give_up() == {T0}
    member.the_answer(stop)


@pytest.mark.parametrize("state", [State.STABLE, State.STOPPING, State.STOPPED, State.JOINING])
def test_an_application_that_does_not_poll_leaves_the_group(state: State) -> None:
    member = Member(max_poll_interval_ms=5_000, session_timeout_ms=30_000)
    if state is State.JOINING:
        member.polled()
        member.registered(member.one(Api.REGISTER))
    else:
        member.join(T0)
    if state in (State.STOPPING, State.STOPPED):
        member.stop()
    if state is State.STOPPED:
        member.give_up()
    member.poll()
    member.notifications.clear()
    assert member.state is state
    leave = member.one(Api.LEAVE, 5_000)
    assert (leave.message.group_id, leave.message.member_id, leave.message.coordinator_epoch) == ("g", ID, 1)
    assert member.state is State.STALE
    assert member.manager.lease_until == 0
    member.left(leave)
    assert member.hung_up == [CHANNEL]
    assert member.poll() == []
    member.polled()
    member.give_up(lost=True)
    assert len(member.requests()) == 1
    assert member.state is State.JOINING


def test_it_registers_again_only_after_the_leave_was_answered() -> None:
    member = Member(max_poll_interval_ms=5_000, session_timeout_ms=30_000)
    member.join(T0)
    leave = member.one(Api.LEAVE, 5_000)
    member.polled()
    member.give_up(lost=True)
    assert (member.state, member.poll()) == (State.JOINING, [])
    member.left(leave)
    assert owned(member.one(Api.REGISTER)) == {}


LEAVING: Mapping[str, Callable[[Member], Any]] = {
    "stable": lambda member: member.join(T0),
    "empty": lambda member: member.join(),
    "stopping": lambda member: (member.join(T0), member.stop()),
    "stopped": lambda member: (member.join(T0), member.stop(), member.give_up(), member.poll()),
    "lost to a generation": lambda member: (member.join(T0), member.stop(4)),
}


@pytest.mark.parametrize("before", LEAVING)
def test_leaving_with_a_channel(member: Member, before: str) -> None:
    LEAVING[before](member)
    member.notifications.clear()
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    assert (member.state, member.partitions, replies.got) == (State.LEAVING, set(), [])
    leave = member.one(Api.LEAVE)
    assert (leave.target, leave.message.reason) == (CHANNEL, "close()")
    member.stop()
    member.ping()
    assert member.poll() == [], "nothing more is answered"
    member.left(leave)
    assert (replies.got, member.state, member.hung_up) == ([(None, None)], State.UNSUBSCRIBED, [CHANNEL])
    assert member.manager.metadata().generation_id == -1


@pytest.mark.parametrize("how", ["lost", "closed", "refused"])
def test_a_leave_without_a_response_ends_as_well(member: Member, how: str) -> None:
    member.join(T0)
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    leave = member.one(Api.LEAVE)
    if how == "lost":
        member.fail(leave, DisconnectedError("gone"))
    elif how == "closed":
        member.lose_channel()
    else:
        member.left(leave, ErrorCode.unknown_member_id)
    assert (replies.got, member.state) == ([(None, None)], State.UNSUBSCRIBED)


def test_leaving_drops_a_register_that_waits_for_its_connection(member: Member) -> None:
    member.polled()
    register = member.one(Api.REGISTER)
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    assert (replies.got, member.state, member.hung_up, member.poll()) == ([(None, None)], State.UNSUBSCRIBED, [CHANNEL], [])
    member.fail(register, DisconnectedError("given up"))
    member.polled()
    assert member.one(Api.REGISTER).message == register.message


def test_a_new_subscription_that_was_not_sent_yet_does_not_keep_the_leave_waiting(member: Member) -> None:
    member.join(T0)
    member.subscription.subscribe(frozenset({"t", "u"}))
    member.polled()
    register = member.one(Api.REGISTER)
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    leave = member.one(Api.LEAVE)
    handed_over(register)
    member.registered(register)
    member.left(leave)
    assert (replies.got, member.state) == ([(None, None)], State.UNSUBSCRIBED)


def test_leaving_while_the_register_is_in_flight_waits_for_its_response(member: Member) -> None:
    member.polled()
    register = member.one(Api.REGISTER)
    handed_over(register)
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    assert (member.poll(), replies.got) == ([], [])
    member.registered(register, epoch=8, generation=3)
    leave = member.one(Api.LEAVE)
    assert (leave.message.coordinator_epoch, leave.message.generation) == (8, 3)
    member.left(leave)
    assert replies.got == [(None, None)]


@pytest.mark.parametrize("error", [ErrorCode.not_coordinator, DisconnectedError("gone")])
def test_leaving_while_the_register_fails(member: Member, error: Any) -> None:
    member.polled()
    register = member.one(Api.REGISTER)
    handed_over(register)
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    if isinstance(error, DisconnectedError):
        member.fail(register, error)
    else:
        member.registered(register, error)
    assert (replies.got, member.state, member.poll()) == ([(None, None)], State.UNSUBSCRIBED, [])


@pytest.mark.parametrize("before", ["unsubscribed", "unknown coordinator", "no channel", "lost", "stale"])
def test_leaving_without_a_channel_is_done_at_once(before: str) -> None:
    member = Member(max_poll_interval_ms=5_000 if before == "stale" else 60_000)
    if before == "unknown coordinator":
        member.coordinator.node_id = None
        member.polled()
        member.poll()
    elif before != "unsubscribed":
        member.join(T0)
        member.lose_channel()
        member.poll({"lost": SESSION, "stale": 5_000}.get(before, 0))
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    assert (replies.got, member.state, member.poll()) == ([(None, None)], State.UNSUBSCRIBED, [])


def test_a_member_that_remains_sends_no_leave(member: Member) -> None:
    member.join(T0)
    replies = Replies()
    member.manager.leave("close()", replies, member.now, GroupMembershipOperation.REMAIN_IN_GROUP)
    assert (replies.got, member.state, member.hung_up, member.poll()) == ([(None, None)], State.UNSUBSCRIBED, [CHANNEL], [])


def test_a_member_can_join_again_after_it_has_left(member: Member) -> None:
    member.join(T0)
    member.manager.leave("unsubscribe()", Replies(), member.now)
    member.polled()
    member.left(member.one(Api.LEAVE))
    member.polled()
    assert member.one(Api.REGISTER).message.generation == -1


# -- failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [ErrorCode.not_coordinator, ErrorCode.coordinator_not_available])
def test_the_coordinator_is_looked_up_again(member: Member, code: ErrorCode) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER), code)
    assert member.coordinator.node_id is None
    assert member.poll() == []
    member.coordinator.node_id = 1
    assert member.poll() == [], "the back-off"
    assert member.one(Api.REGISTER, 100).target == ToChannel(1)


def test_another_coordinator_is_asked_at_once(member: Member) -> None:
    """Until the session of a killed broker ends, look-ups name it, and its lease is short of time when they name another one."""
    member.join(T0)
    member.lose_channel()
    for at in (0, 200, 600):
        member.coordinator.node_id = 1
        assert at == 0 or member.poll(at - 1) == [], "the pauses at the same broker"
        member.registered(member.one(Api.REGISTER, at), ErrorCode.not_coordinator)
    assert member.poll(700) == []
    member.coordinator.node_id = 2
    send = member.one(Api.REGISTER, 701)
    assert send.target == ToChannel(2)
    member.registered(send, epoch=2)
    assert member.state is State.STABLE
    assert member.readable == {T0}


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
@pytest.mark.parametrize("state", [State.STABLE, State.STOPPING])
def test_a_member_that_was_evicted_gives_up_what_it_holds_before_it_registers(
    member: Member, code: ErrorCode, state: State
) -> None:
    member.join(T0)
    if state is State.STOPPING:
        member.stop()
        member.notifications.clear()
    member.lose_channel()
    member.coordinator.node_id = 1
    member.registered(member.one(Api.REGISTER), code)
    assert (member.state, member.readable, member.poll(1_000)) == (State.LOST, set(), [])
    member.give_up(lost=True)
    assert owned(member.one(Api.REGISTER)) == {}
    assert member.manager.failure is None


@pytest.mark.parametrize("holds", [True, False])
def test_another_process_with_the_same_id(member: Member, holds: bool) -> None:
    if holds:
        member.join(T0)
        member.lose_channel()
        member.coordinator.node_id = 1
    else:
        member.polled()
    member.registered(member.one(Api.REGISTER), ErrorCode.unreleased_instance_id)
    if holds:
        assert member.give_up(lost=True) == {T0}, "the other process owns it"
    assert (member.state, member.notifications) == (State.JOINING, [])
    assert "registering in group 'g': because" in member.manager.status.obstacle
    while not member.notifications:
        assert member.mono < 62_000
        member.polled()
        assert member.poll() == [], "the back-off"
        register = member.one(Api.REGISTER, member.wake_at)
        assert (register.message.incarnation, owned(register)) == (INCARNATION, {})
        member.registered(register, ErrorCode.unreleased_instance_id)
    assert member.mono >= 60_000
    error = member.tell(ErrorNotification).error
    assert isinstance(error, UnreleasedInstanceIdError)
    assert "another process has this member's consumer_id: give each its own" in str(error)
    member.registered(member.one(Api.REGISTER, member.mono + 1_000))
    assert member.manager.status.obstacle == ""


def test_a_coordinator_that_still_loads_is_asked_later(member: Member) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER), ErrorCode.coordinator_load_in_progress)
    assert (member.coordinator.node_id, member.poll(99)) == (1, [])
    assert len(member.requests()) == 0
    member.mono = 100
    assert len(member.requests()) == 1
    assert "because" in member.manager.status.obstacle


def test_a_group_of_another_protocol_is_reported_and_tried_again(member: Member) -> None:
    member.polled()
    member.registered(member.one(Api.REGISTER), ErrorCode.inconsistent_group_protocol)
    assert isinstance(member.tell(ErrorNotification).error, InconsistentGroupProtocolError)
    member.registered(member.one(Api.REGISTER, 100), ErrorCode.inconsistent_group_protocol)
    assert (member.notifications, member.manager.failure) == ([], None)
    assert "because" in member.manager.status.obstacle
    member.registered(member.one(Api.REGISTER, 1_000))
    assert member.manager.status.obstacle == ""


def test_a_pattern_that_the_coordinator_refuses_is_final(member: Member) -> None:
    member.join(T0)
    member.subscription.subscribe(frozenset(), "(")
    member.polled()
    member.registered(member.one(Api.REGISTER), ErrorCode.invalid_regular_expression)
    assert isinstance(member.manager.failure, InvalidRegularExpressionError)
    assert "RE2" in str(member.manager.failure)
    assert (member.state, member.give_up(lost=True)) == (State.FATAL, {T0})
    assert (member.poll(), member.partitions) == ([], set())
    with pytest.raises(InvalidRegularExpressionError):
        member.manager.identity()
    replies = Replies()
    member.manager.leave("close()", replies, member.now)
    assert replies.got == [(None, None)]


def test_a_broker_without_a_central_coordinator_says_what_to_do(member: Member) -> None:
    member.polled()
    member.fail(member.one(Api.REGISTER), UnsupportedApiError("REGISTER is not served"))
    assert "zookeeper=" in str(member.manager.failure)


def test_a_look_up_that_finds_no_central_coordinator_is_final(member: Member) -> None:
    member.coordinator.node_id, member.coordinator.found = None, 0
    member.polled()
    member.poll()
    member.coordinator.observers[0](UnsupportedApiError("CONSULT is not served"), member.now)
    assert (member.state, member.manager.failure is not None) == (State.FATAL, True)


@pytest.mark.parametrize("error", [DisconnectedError("gone"), OttlaTimeoutError("late")])
def test_a_register_without_a_response(member: Member, error: Any) -> None:
    member.polled()
    member.fail(member.one(Api.REGISTER), error)
    assert (member.coordinator.node_id, member.hung_up) == (None, [CHANNEL])
    member.coordinator.node_id = 1
    assert len(member.poll(100)) == 1


def test_a_late_response_opens_no_channel(member: Member) -> None:
    member.polled()
    send = member.one(Api.REGISTER)
    member.fail(send, OttlaTimeoutError("late"))
    member.hung_up.clear()
    member.registered(send)
    assert (member.manager.channel.state, member.hung_up) == (ChannelState.CLOSED, [CHANNEL])


# -- commits --------------------------------------------------------------------------------------------------------------


def test_who_commits(member: Member) -> None:
    with pytest.raises(CommitFailedError):
        member.manager.identity()
    member.polled()
    with pytest.raises(RebalanceInProgressError):
        member.manager.identity()
    member.subscription.assign({T0})
    assert (member.manager.identity(), member.manager.reader()) == (MemberIdentity(-1, ID), NO_MEMBER)


@pytest.mark.parametrize("code", [ErrorCode.unknown_member_id, ErrorCode.illegal_generation])
def test_a_refused_commit_of_the_present_member_is_retried_after_it_has_registered_again(member: Member, code: ErrorCode) -> None:
    member.join(T0)
    error = member.manager.commit_refused(code, MemberIdentity(1, ID), member.now)
    assert isinstance(error, UnknownMemberIdError | IllegalGenerationError)
    assert error.retriable
    assert (member.hung_up, member.state) == ([CHANNEL], State.STABLE)
    member.coordinator.node_id = 1
    assert owned(member.one(Api.REGISTER)) == {T0: 0}
    assert member.manager.commit_refused(code, MemberIdentity(1, ID), member.now).retriable, "it is about to register"


def test_a_refused_commit_of_an_earlier_generation_is_final(member: Member) -> None:
    member.join(T0)
    error = member.manager.commit_refused(ErrorCode.illegal_generation, MemberIdentity(0, ID), member.now)
    assert isinstance(error, CommitFailedError)
    assert member.hung_up == []


def test_a_refused_commit_by_hand(member: Member) -> None:
    error = member.manager.commit_refused(ErrorCode.unknown_member_id, MemberIdentity(-1, ID), member.now)
    assert isinstance(error, UnknownMemberIdError)
    assert not error.retriable
