"""What a member of a consumer group says, how it reconciles, and what holds of it whatever happens.

Its states, errors and ways out are in ``test_consumer_membership``.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from ottla.client.effects import AnySend
from ottla.client.events import AssignmentReceived, ErrorNotification, RebalanceNeeded
from ottla.client.groups.consumer.heartbeats import new_member_id
from ottla.client.groups.consumer.states import HEARTBEAT_STATES, TRANSITIONS, Input, State
from ottla.client.groups.membership import NO_MEMBER
from ottla.errors import (
    CommitFailedError,
    DisconnectedError,
    GroupAuthorizationFailedError,
    UnknownMemberIdError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode, milliseconds
from tests.example_counts import examples
from tests.unit.client.groups.members import INTERVAL, ConsumerGroupMember
from tests.unit.client.managers import LEADERS, T0, T1, T2, TOPIC_ID, metadata_answer

OTHER_ID = uuid.UUID(int=6)
Given = Mapping[uuid.UUID, set[int]]


class Member(ConsumerGroupMember):
    """A member, and the coordinator's answers to it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.epoch = 1

    def beaten(self, send: AnySend, given: Given | None = None, code: int = 0, epoch: int | None = None) -> None:
        """Answer a heartbeat."""
        if given is not None:
            self.epoch += 1
        self.answer_beat(send, given, epoch=self.epoch if epoch is None else epoch, code=code)

    def join(self, *numbers: int) -> None:
        """All the way to STABLE, with the acknowledgement answered."""
        self.polled()
        self.beaten(self.beat(), {TOPIC_ID: set(numbers or (0, 1))})
        self.polled()
        assert self.poll() == []
        self.manager.accepted(self.tell(AssignmentReceived).token)
        self.beaten(self.beat())
        assert self.state is State.STABLE

    def next_beat(self) -> AnySend:
        self.mono += INTERVAL
        return self.beat()

    def give(self, given: Given) -> None:
        """The next heartbeat brings another assignment, and the application polls."""
        self.beaten(self.next_beat(), given)
        self.polled()
        assert self.poll() == []


def owned(send: AnySend) -> dict[uuid.UUID, tuple[int, ...]] | None:
    found = send.message.topic_partitions
    return None if found is None else {item.topic_id: tuple(item.partitions) for item in found}


@pytest.fixture
def member() -> Member:
    return Member()


# -- fields ---------------------------------------------------------------------------------------------------------------


def test_joining_begins_with_a_poll_and_sends_all_fields(member: Member) -> None:
    assert member.poll() == []
    member.polled()
    message = member.beat().message
    assert (message.group_id, message.member_epoch, message.instance_id, message.server_assignor) == ("g", 0, None, None)
    assert (milliseconds(message.rebalance_timeout), message.subscribed_topic_names) == (20_000, ("t",))
    assert (message.subscribed_topic_regex, message.topic_partitions) == (None, ())
    assert len(message.member_id) == 22


def test_member_ids_are_22_letters_that_differ() -> None:
    ids = {new_member_id(random.Random(seed)) for seed in range(200)}
    assert len(ids) == 200
    assert all(len(one) == 22 and set(one) <= set(_LETTERS) for one in ids)


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_the_acknowledgement_is_sent_at_once_without_other_fields(member: Member) -> None:
    member.polled()
    member.beaten(member.beat(), {TOPIC_ID: {0, 1}})
    member.polled()
    assert member.poll() == []
    received = member.tell(AssignmentReceived)
    assert received.added == {T0, T1}
    assert not any(state.fetchable for state in member.subscription.partitions.values())
    member.manager.accepted(received.token)
    message = (send := member.beat()).message
    assert owned(send) == {TOPIC_ID: (0, 1)}
    assert (milliseconds(message.rebalance_timeout), message.subscribed_topic_names) == (-1, None)
    member.beaten(send)
    quiet = member.next_beat()
    assert (owned(quiet), quiet.message.member_epoch) == (None, member.epoch)


def test_an_empty_assignment_is_an_assignment(member: Member) -> None:
    member.polled()
    member.beaten(member.beat(), {})
    member.polled()
    member.poll()
    received = member.tell(AssignmentReceived)
    assert received.added == frozenset()
    member.manager.accepted(received.token)
    assert owned(member.beat()) == {}
    assert member.state is State.STABLE


def test_a_new_subscription_is_sent_with_the_next_poll(member: Member) -> None:
    member.join()
    member.subscription.subscribe(frozenset({"u", "t"}))
    assert member.poll() == []
    member.polled()
    message = member.beat().message
    assert (message.subscribed_topic_names, message.topic_partitions) == (("t", "u"), None)


def test_a_pattern_is_sent_to_the_coordinator_and_removed_again() -> None:
    member = Member()
    member.subscription.subscribe(frozenset(), "t.*")
    member.join()
    first = member.sent[0].message
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == ((), "t.*")
    assert member.subscription.topics == {"t"}, "what it matches is learnt from the assignment"
    assert member.next_beat().message.subscribed_topic_regex is None
    member.subscription.subscribe(frozenset({"t"}))
    member.polled()
    member.fail(member.sent[-1], DisconnectedError("gone"))
    member.coordinator.node_id = 1
    message = member.beat(member.mono + 100).message
    assert (message.subscribed_topic_names, message.subscribed_topic_regex) == (("t",), "")


def test_assignor_instance_id_and_rack_are_sent() -> None:
    member = Member(group_remote_assignor="range", group_instance_id="i", client_rack="r")
    member.join()
    first, second = (send.message for send in member.sent)
    assert (first.server_assignor, first.instance_id, first.rack_id) == ("range", "i", "r")
    assert (second.server_assignor, second.instance_id, second.rack_id) == (None, "i", None)


def test_joining_honours_the_back_off(member: Member) -> None:
    member.polled()
    for pause in (100, 200, 400):
        member.beaten(member.beat(), code=ErrorCode.coordinator_load_in_progress)
        assert member.poll(member.mono + pause - 1) == []
        member.mono += 1
    assert member.state is State.JOINING


def test_heartbeats_go_on_while_the_application_is_busy(member: Member) -> None:
    member.join()
    member.give({TOPIC_ID: {0}})
    needed = member.tell(RebalanceNeeded)
    for _ in range(15):
        member.beaten(member.next_beat())
    assert member.state is State.RECONCILING
    member.manager.prepared(needed.token, member.now)
    member.manager.accepted(member.tell(AssignmentReceived).token)
    assert owned(member.beat()) == {TOPIC_ID: (0,)}


# -- reconciliation -------------------------------------------------------------------------------------------------------


def test_revoked_partitions_are_suspended_first_and_others_are_still_read(member: Member) -> None:
    member.join(0, 1)
    member.give({TOPIC_ID: {1, 2}})
    needed = member.tell(RebalanceNeeded)
    assert (needed.partitions, needed.lost) == ({T0}, False)
    assert member.subscription.partitions[T0].revoking
    assert not member.subscription.partitions[T1].revoking
    member.manager.prepared(needed.token, member.now)
    received = member.tell(AssignmentReceived)
    assert received.added == {T2}
    assert member.subscription.partitions.keys() == {T1, T2}


def test_a_reconciliation_begins_with_a_poll_and_with_the_newest_assignment(member: Member) -> None:
    member.join(0, 1)
    member.mono += 1
    member.beaten(member.next_beat(), {TOPIC_ID: {0}})
    assert member.poll() == []
    assert member.notifications == []
    member.beaten(member.next_beat(), {TOPIC_ID: {1}})
    member.polled()
    member.poll()
    assert member.tell(RebalanceNeeded).partitions == {T0}


def test_the_same_partitions_again_are_acknowledged_without_the_application(member: Member) -> None:
    member.join(0, 1)
    member.mono += 1
    member.beaten(member.next_beat(), {TOPIC_ID: {0}})
    member.beaten(member.next_beat(), {TOPIC_ID: {0, 1}})
    member.polled()
    assert owned(member.beat()) == {TOPIC_ID: (0, 1)}
    assert (member.notifications, member.state) == ([], State.STABLE)


def test_topics_without_known_names_wait_for_metadata_and_are_acknowledged_once(member: Member) -> None:
    member.join(0, 1)
    member.beaten(member.next_beat(), {TOPIC_ID: {0, 1}, OTHER_ID: {0}})
    member.polled()
    partial = member.beat()
    assert owned(partial) == {TOPIC_ID: (0, 1)}
    assert member.cluster.asked
    member.beaten(partial)
    assert member.poll() == []
    assert member.poll(member.mono + INTERVAL - 1) == [], "no heartbeats at the speed of the network"
    assert member.state is State.RECONCILING


def test_a_joining_member_waits_for_names_instead_of_an_empty_assignment(member: Member) -> None:
    member.polled()
    member.beaten(member.beat(), {OTHER_ID: {0}})
    member.polled()
    assert member.poll() == []
    assert member.notifications == []
    assert member.cluster.asked


def test_a_recreated_topic_is_revoked_and_assigned(member: Member) -> None:
    member.join(0, 1)
    member.cluster.manager.on_response(renamed(OTHER_ID), member.now)
    member.give({OTHER_ID: {0}})
    needed = member.tell(RebalanceNeeded)
    assert needed.partitions == {T0, T1}
    before = member.subscription.partitions[T0]
    member.manager.prepared(needed.token, member.now)
    assert member.tell(AssignmentReceived).added == {T0}
    assert member.subscription.partitions[T0] is not before


def renamed(topic_id: uuid.UUID) -> Any:
    """Metadata in which ``t`` has another id."""
    answer = metadata_answer(leaders=LEADERS)
    return dataclasses.replace(answer, topics=tuple(dataclasses.replace(topic, topic_id=topic_id) for topic in answer.topics))


# -- errors ---------------------------------------------------------------------------------------------------------------


def test_a_group_that_cannot_be_converted_ends_a_join_unless_the_choice_can_be_made_again() -> None:
    chosen, auto = Member(), Member(group_protocol="auto")
    for one in (chosen, auto):
        one.polled()
        one.beaten(one.beat(), code=ErrorCode.group_id_not_found)
    assert chosen.state is State.FATAL
    assert "classic" in str(chosen.manager.failure)
    assert (auto.state, auto.manager.joins_as_new_member) == (State.JOINING, True)


def test_a_broker_without_the_protocol_names_the_classic_one(member: Member) -> None:
    member.polled()
    member.fail(member.beat(), UnsupportedApiError("no such API"))
    assert member.state is State.FATAL
    assert 'group_protocol="classic"' in str(member.manager.failure)


def test_a_permanent_error_of_a_lookup_is_reported_while_the_member_needs_it(member: Member) -> None:
    denied = GroupAuthorizationFailedError("no")
    member.coordinator.observers[0](denied, member.now)
    assert member.notifications == []
    member.polled()
    member.coordinator.observers[0](denied, member.now)
    assert member.tell(ErrorNotification).error is denied


# -- commits --------------------------------------------------------------------------------------------------------------


def test_a_refused_commit_is_retried_only_after_stale_member_epoch(member: Member) -> None:
    member.join()
    signed = member.manager.identity()
    stale = member.manager.commit_refused(ErrorCode.stale_member_epoch, signed, member.now)
    assert stale.retriable
    member.beat()
    unknown = member.manager.commit_refused(ErrorCode.unknown_member_id, signed, member.now)
    assert isinstance(unknown, CommitFailedError)
    assert not unknown.retriable
    assert type(member.manager.commit_refused(ErrorCode.unknown_member_id, NO_MEMBER, member.now)) is UnknownMemberIdError
    assert member.state is State.STABLE
    member.manager.commit_refused(ErrorCode.fenced_instance_id, signed, member.now)
    assert member.state is State.FATAL


# -- the table ------------------------------------------------------------------------------------------------------------


EVENTS = st.sampled_from(
    [
        "poll",
        "poll",
        "answer",
        "answer",
        "give",
        "give",
        "refuse",
        "fail",
        "prepare",
        "accept",
        "wait",
        "leave",
        "subscribe",
        "lose",
    ]
)


class InFlight(NamedTuple):
    """A heartbeat without an outcome, which incarnation of the member sent it, and whether it was its last."""

    send: AnySend
    incarnation: int
    last: bool


class Checked(Member):
    """A member whose every step is checked against the table and the invariants of a membership."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.in_flight: list[InFlight] = []
        self.answers: list[Any] = []
        self.manager._move = self.check_move(self.manager._move)  # type: ignore[method-assign]

    def check_move(self, move: Any) -> Any:
        def moved(cause: Input) -> None:
            before = self.manager.state
            move(cause)
            assert TRANSITIONS[before][cause] is self.manager.state

        return moved

    def look(self) -> None:
        """One pass of the network thread, and what has to hold after it."""
        for send in self.poll():
            epoch, incarnation = send.message.member_epoch, self.manager._incarnation
            last = epoch < 0
            assert last or not [one for one in self.in_flight if one.incarnation == incarnation and not one.last]
            assert not last or (epoch == -2) == (self.config.group_instance_id is not None)
            if send.message.topic_partitions and not last:
                said = {number for item in send.message.topic_partitions for number in item.partitions}
                held = {tp.partition for tp in self.subscription.partitions}
                assert said <= held, "what is said to be held is held"
            self.in_flight.append(InFlight(send, incarnation, last))
        self.answers += self.notifications
        self.notifications.clear()
        assert self.manager.epoch <= 0 or self.manager.member_id
        assert (self.manager.failure is not None) == (self.state is State.FATAL)
        for tp, state in self.subscription.partitions.items():
            assert not (state.revoking and state.fetchable), tp

    def take(self) -> AnySend | None:
        return self.in_flight.pop(0).send if self.in_flight else None


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 7)), max_size=60), st.booleans())
def test_whatever_happens_only_the_table_moves_the_member_and_the_invariants_hold(
    events: list[tuple[str, int]], static: bool
) -> None:
    member = Checked(group_instance_id="i" if static else None)
    codes = (14, 16, 25, 110, 69, 29, 30, 111)
    for event, number in events:
        member.mono += 7
        if event == "poll":
            member.polled()
        elif event in ("answer", "give", "refuse", "fail"):
            send = member.take()
            if send is None:
                continue
            if event == "fail":
                member.fail(send, DisconnectedError("gone"))
                member.coordinator.node_id = 1
            elif event == "refuse":
                member.beaten(send, code=codes[number])
                member.coordinator.node_id = 1
            elif event == "give":
                member.beaten(send, {TOPIC_ID: {one for one in range(3) if number >> one & 1}})
            else:
                member.beaten(send)
        elif event in ("prepare", "accept"):
            kind = RebalanceNeeded if event == "prepare" else AssignmentReceived
            asked = next((item for item in member.answers if isinstance(item, kind)), None)
            if asked is None:
                continue
            member.answers.remove(asked)
            before = member.state
            if event == "prepare":
                member.manager.prepared(asked.token, member.now)
            else:
                member.manager.accepted(asked.token)
            assert before is member.state or before in (State.RECONCILING, State.FENCED, State.STALE)
        elif event == "wait":
            member.mono += (50, 500, 1_000, 3_000, 10_000, 25_000, 100, 1)[number]
        elif event == "leave":
            member.subscription.unsubscribe()
            member.manager.leave("bye", lambda value, error: None, member.now)
            assert member.state not in HEARTBEAT_STATES
            assert member.subscription.partitions == {}
            member.subscription.subscribe(frozenset({"t"}))
        elif event == "subscribe":
            member.subscription.subscribe(frozenset({"t", "u"} if number % 2 else {"t"}))
        elif event == "lose":
            member.coordinator.node_id = None if number % 2 else 1
        member.look()
    # Left alone with an application that polls and a coordinator that answers, a member that can settles.
    member.coordinator.node_id = 1
    for _ in range(40):
        member.mono += 500
        member.polled()
        member.look()
        while (send := member.take()) is not None:
            says_everything = send.message.subscribed_topic_names is not None and send.message.topic_partitions is not None
            member.beaten(send, {TOPIC_ID: {0, 2}} if says_everything else None)
        member.look()
        while member.answers:
            asked = member.answers.pop(0)
            if isinstance(asked, RebalanceNeeded):
                member.manager.prepared(asked.token, member.now)
            elif isinstance(asked, AssignmentReceived):
                member.manager.accepted(asked.token)
            member.look()
    assert member.state in (State.STABLE, State.FATAL)
