"""The assignors of a member by themselves: requests, commands and answers in every order, and each row of the error table."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from ottla.assignors import ConsumerPartitionAssignor, MemberAssignment
from ottla.client.effects import AnySend
from ottla.client.events import Assigned, AssignmentNeeded, ErrorNotification
from ottla.client.groups.consumer.client_assignors import (
    FIRST_RETRY,
    NEEDED,
    RUN_REACTIONS,
    TRANSITIONS,
    ClientAssignorManager,
    RunInput,
    RunReaction,
    RunState,
)
from ottla.client.groups.membership import MembershipContext
from ottla.client.poll_timer import InHand, PollTimer
from ottla.client.subscription import SubscriptionState
from ottla.errors import AssignmentError, DisconnectedError, UnsupportedApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    api_versions_response,
    consumer_group_install_assignment_response as installed,
    consumer_group_prepare_assignment_request as prepare_request,
    consumer_group_prepare_assignment_response as prepared,
)
from ottla.types import TopicPartition
from tests.example_counts import examples
from tests.unit.client.managers import NO_THROTTLE, TOPIC_ID, Asked, Cluster, FixedCoordinator, backoff, config, unmade

PREPARE, INSTALL = Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT
ME, TIMEOUT = "m1", 20_000


class Mine(ConsumerPartitionAssignor):
    name = "mine"

    def assign(self, cluster: Any, members: Any) -> Any:
        raise AssertionError("user code does not run on the network thread")


class Computing(Asked):
    """The manager of a member ``m1``, and what the coordinator and the application answer it."""

    manager: ClientAssignorManager

    def __init__(self, *, offered: bool = True, racks: Any = None, topic_id: uuid.UUID = TOPIC_ID, **more: Any) -> None:
        self.notifications: list[Any] = []
        self.coordinator = FixedCoordinator()
        self.config = config(group_protocol="consumer", max_poll_interval_ms=TIMEOUT, **{"group_client_assignors": [Mine], **more})
        context = MembershipContext(
            self.config,
            SubscriptionState(None),
            self.coordinator,  # type: ignore[arg-type]
            Cluster(racks=racks, topic_id=topic_id).manager,
            self.notifications.append,
            backoff(),
            PollTimer(self.config, InHand),
        )
        super().__init__(ClientAssignorManager(context, ME))
        if offered:
            self.serves(self.one(Api.API_VERSIONS))

    @property
    def state(self) -> RunState:
        return self.manager.state

    def serves(self, send: AnySend, *apis: Api) -> None:
        keys = [api_versions_response.ApiVersion(api_key=api, min_version=0, max_version=0) for api in apis or sorted(NEEDED)]
        answer = api_versions_response.ApiVersionsResponse(
            error_code=ErrorCode.none, api_keys=tuple(keys), throttle_time=NO_THROTTLE
        )
        self.answer(send, answer)

    def asks(self, epoch: int = 3) -> AnySend:
        """A heartbeat's answer asks; what the member sends then."""
        self.manager.asked(epoch, self.mono + TIMEOUT)
        return self.one(PREPARE)

    def shows(self, send: AnySend, group_epoch: int = 4, *, code: int = 0, assignor: str = "mine") -> None:
        """The group in an epoch: one member, and as many partitions as the epoch's number."""
        member = prepared.Member(member_id=ME, member_epoch=3, subscribed_topic_ids=(TOPIC_ID,))
        topic = prepared.TopicMetadata(topic_id=TOPIC_ID, topic_name="t", num_partitions=group_epoch)
        self.answer(
            send,
            prepared.ConsumerGroupPrepareAssignmentResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode(code),
                group_epoch=group_epoch,
                assignor_name=assignor,
                members=() if code else (member,),
                topics=() if code else (topic,),
            ),
        )

    def takes(self, send: AnySend, code: int = 0) -> None:
        answer = installed.ConsumerGroupInstallAssignmentResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(code))
        self.answer(send, answer)

    def needed(self) -> AssignmentNeeded:
        (found,) = [item for item in self.notifications if isinstance(item, AssignmentNeeded)]
        self.notifications.remove(found)
        return found

    def assigns(self, question: AssignmentNeeded, error: AssignmentError | None = None) -> None:
        """What the application answers says which epoch it was asked about."""
        count = question.cluster.partitions["t"]
        share = MemberAssignment((TopicPartition("t", 0),), b"%d" % count)
        self.manager.assigned(Assigned(question.generation, {} if error else {ME: share}, error, "consumer"))

    def errors(self) -> list[Any]:
        return [item.error for item in self.notifications if isinstance(item, ErrorNotification)]


@pytest.fixture
def member() -> Computing:
    return Computing()


def test_one_run_from_the_request_to_the_installation(member: Computing) -> None:
    assert [(one.name, one.metadata) for one in member.manager.offers or ()] == [("mine", b"")]
    send = member.asks()
    assert (send.message.group_id, send.message.member_id, send.message.member_epoch) == ("g", ME, 3)
    assert member.poll() == []
    member.shows(send)
    question = member.needed()
    assert (question.assignor, dict(question.cluster.partitions), question.protocol) == ("mine", {"t": 4}, "consumer")
    assert member.poll() == []
    member.assigns(question)
    send = member.one(INSTALL)
    message = send.message
    assert (message.group_epoch, message.member_epoch, message.error, message.error_message) == (4, 3, 0, None)
    (mine,) = message.members
    assert (mine.member_id, mine.metadata) == (ME, b"4")
    assert [(one.topic_id, one.partitions) for one in mine.topic_partitions] == [(TOPIC_ID, (0,))]
    member.takes(send)
    assert (member.state, member.poll(), member.errors()) == (RunState.IDLE, [], [])


def test_offers_wait_for_the_api_versions_of_each_coordinator() -> None:
    member = Computing(offered=False)
    assert (member.manager.offers, member.manager.undecided) == (None, True)
    send = member.one(Api.API_VERSIONS)
    member.fail(send, DisconnectedError("gone"))
    member.coordinator.node_id = 1
    assert member.poll() == []
    assert member.manager.undecided
    member.serves(member.one(Api.API_VERSIONS, at=member.wake_at))
    assert (member.manager.offers is not None, member.manager.undecided) == (True, False)
    member.coordinator.found += 1
    member.serves(member.one(Api.API_VERSIONS), Api.CONSUMER_GROUP_HEARTBEAT)
    assert (member.manager.offers, member.manager.undecided) == (None, False)
    assert member.poll() == []


def test_an_api_versions_request_is_sent_when_the_request_after_it_cannot_be_created(member: Computing) -> None:
    member.coordinator.found += 1
    member.manager.asked(3, TIMEOUT)
    with unmade(prepare_request, "ConsumerGroupPrepareAssignmentRequest", 1), pytest.raises(OSError, match="Too many open files"):
        member.poll()
    assert [send.api for send in member.poll()] == [Api.API_VERSIONS, PREPARE]
    assert member.poll() == []


def test_an_error_of_api_versions_does_not_prevent_a_join() -> None:
    member = Computing(offered=False)
    answer = api_versions_response.ApiVersionsResponse(
        error_code=ErrorCode.unknown_server_error, api_keys=(), throttle_time=NO_THROTTLE
    )
    member.answer(member.one(Api.API_VERSIONS), answer)
    assert (member.manager.offers, member.manager.undecided, member.poll()) == (None, False, [])


def test_without_the_setting_no_requests_are_sent() -> None:
    member = Computing(offered=False, group_client_assignors=None)
    assert (member.poll(), member.wake_at) == ([], None)
    assert (member.manager.offers, member.manager.undecided) == (None, False)


def test_user_data_is_offered(member: Computing) -> None:
    member.manager.user_data({"mine": b"weight=3"})
    assert [one.metadata for one in member.manager.offers or ()] == [b"weight=3"]
    member.manager.user_data({})
    assert [one.metadata for one in member.manager.offers or ()] == [b"weight=3"], "who failed to say keeps what it said"


@pytest.mark.parametrize("at", [RunState.PREPARING, RunState.COMPUTING, RunState.INSTALLING], ids=lambda state: state.name)
@pytest.mark.parametrize("what", ["new epoch", "asked again", "left", "time over"])
def test_after_the_end_of_a_run_every_response_to_it_is_ignored(member: Computing, at: RunState, what: str) -> None:
    send = member.asks()
    question = None
    if at is not RunState.PREPARING:
        member.shows(send)
        question = member.needed()
    if at is RunState.INSTALLING:
        assert question is not None
        member.assigns(question)
        send = member.one(INSTALL)
    match what:
        case "new epoch":
            member.manager.moved(4)
        case "asked again":
            member.manager.asked(3, member.mono + TIMEOUT)
        case "left":
            member.manager.forget()
        case _:
            member.poll(at=TIMEOUT)
    repeated = what == "asked again" and at is RunState.PREPARING
    again = member.poll()
    prepares = what in ("new epoch", "asked again") and not repeated
    epoch = 4 if what == "new epoch" else 3
    assert [(one.api, one.message.member_epoch) for one in again] == ([(PREPARE, epoch)] if prepares else [])
    if repeated:
        return
    before = member.state
    if at is RunState.PREPARING:
        member.shows(send)
    elif at is RunState.COMPUTING:
        assert question is not None
        member.assigns(question)
    else:
        member.takes(send, 42)
    assert (member.state, member.poll(), member.notifications) == (before, [], [])


@pytest.mark.parametrize(("code", "reaction"), sorted(RUN_REACTIONS.items()))
@pytest.mark.parametrize("api", [PREPARE, INSTALL], ids=["prepare", "install"])
def test_every_row_of_the_error_table(member: Computing, api: Api, code: int, reaction: RunReaction) -> None:
    send = member.asks()
    if api is INSTALL:
        member.shows(send)
        member.assigns(member.needed())
        send = member.one(INSTALL)
        member.takes(send, code)
    else:
        member.shows(send, code=code)
    match reaction:
        case RunReaction.LATER | RunReaction.LOOK_UP:
            assert (member.coordinator.doubts != []) == (reaction is RunReaction.LOOK_UP)
            member.coordinator.node_id = 1
            assert (member.poll(), member.wake_at) == ([], 100)
            assert member.one(api, at=100).message == send.message
        case RunReaction.PREPARE if api is INSTALL:
            assert member.one(PREPARE).message.member_epoch == 3
        case RunReaction.INVALID if api is INSTALL:
            (error,) = member.errors()
            assert isinstance(error, AssignmentError)
            message = member.one(INSTALL).message
            assert (message.error, message.error_message, message.members) == (1, str(error), ())
        case RunReaction.VOID:
            assert (member.state, member.poll(), member.errors()) == (RunState.IDLE, [], [])
        case _:
            (error,) = member.errors()
            assert (member.state, member.poll(), error.code) == (RunState.IDLE, [], code)


def test_an_error_of_the_assignor_is_reported_to_the_application_and_the_group_and_retried(member: Computing) -> None:
    member.shows(member.asks())
    error = AssignmentError("no weights", cause=ZeroDivisionError())
    member.assigns(member.needed(), error)
    assert member.errors() == [error]
    send = member.one(INSTALL)
    assert (send.message.error, send.message.error_message, send.message.members) == (1, "no weights", ())
    member.takes(send)
    assert not member.manager.heard("no weights", failed=True), "the application here knows"
    assert member.manager.heard("no weights", failed=True), "another member's"
    (before,) = member.manager.offers or ()
    assert (member.poll(), member.wake_at) == ([], FIRST_RETRY)
    member.poll(at=FIRST_RETRY)
    (after,) = member.manager.offers or ()
    assert (before.reason, after.reason) == (0, 1)


def test_after_a_new_assignment_no_retry_is_requested(member: Computing) -> None:
    member.shows(member.asks())
    member.assigns(member.needed(), AssignmentError("no weights"))
    member.takes(member.one(INSTALL))
    member.manager.heard("", failed=False)
    assert (member.poll(at=100_000), member.wake_at) == ([], None)
    assert [one.reason for one in member.manager.offers or ()] == [0]


def test_an_assignor_that_the_member_does_not_have_is_an_error(member: Computing) -> None:
    member.shows(member.asks(), assignor="theirs")
    assert "requests the assignor 'theirs'" in member.one(INSTALL).message.error_message


def test_an_unsupported_request_is_reported_to_the_application(member: Computing) -> None:
    member.fail(member.asks(), UnsupportedApiError("gone"))
    assert [type(error) for error in member.errors()] == [UnsupportedApiError]
    assert member.state is RunState.IDLE


def test_racks_are_used_only_for_topics_with_the_same_id() -> None:
    member = Computing(racks={1: "r1", 2: "r2"})
    member.shows(member.asks(), 3)
    assert member.needed().cluster.racks == {"t": (frozenset({"r1"}), frozenset({"r2"}), frozenset({"r1"}))}
    member.shows(member.asks(), 4)
    assert member.needed().cluster.racks == {}, "it has more partitions now than the member knows of"
    other = Computing(racks={1: "r1", 2: "r2"}, topic_id=uuid.UUID(int=9))
    other.shows(other.asks(), 3)
    assert other.needed().cluster.racks == {}, "the topic was recreated"


def test_every_state_and_every_input_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(RunState)
    assert {cause for row in TRANSITIONS.values() for cause in row} == set(RunInput)
    reachable = {RunState.IDLE}
    while more := {state for one in reachable for state in TRANSITIONS[one].values()} - reachable:
        reachable |= more
    assert reachable == set(RunState)
    assert set(RUN_REACTIONS.values()) == set(RunReaction) - {RunReaction.FAIL}


# -- every order --------------------------------------------------------------------------------------------------------------


OFTEN = ["ask"] * 2 + ["answer"] * 5 + ["assign"] * 4 + ["move"] * 2
EVENTS = st.tuples(st.sampled_from([*OFTEN, "forget", "refuse", "fail", "wait", "new"]), st.integers(0, 15))
CODES = (*sorted(RUN_REACTIONS), 29, 30, -1)


class InFlight(NamedTuple):
    """A request without an outcome, and the run that it belongs to."""

    send: AnySend
    run: int


class AnyOrder(Computing):
    """Answers come in any order, or never. What is sent is checked against what was asked last."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.group_epoch = 10
        self.deadline: int | None = None
        """Until when the member is asked for an assignment; ``None``: it is not, as far as it knows."""
        self.in_flight: list[InFlight] = []
        self.questions: list[AssignmentNeeded] = []
        self.shown: dict[int, tuple[int, int]] = {}
        """Group epoch that was shown -> the member epoch, and the run, of the request."""

    def look(self) -> None:
        for send in self.poll():
            if send.api is Api.API_VERSIONS:
                self.serves(send)
                continue
            assert self.deadline is not None
            assert self.mono < self.deadline
            assert send.message.member_epoch == self.epoch
            sent_in = self.manager._run
            assert not [one for one in self.in_flight if one.run == sent_in], "one request of a run at a time"
            if send.api is INSTALL:
                epoch, run = self.shown[send.message.group_epoch]
                assert (epoch, run) == (self.epoch, sent_in), "nothing that was shown for an earlier epoch or run"
                for one in send.message.members:
                    assert one.metadata == b"%d" % send.message.group_epoch, "what was computed for this epoch"
            self.in_flight.append(InFlight(send, sent_in))
        self.questions += [item for item in self.notifications if isinstance(item, AssignmentNeeded)]
        self.notifications.clear()
        assert self.poll() == []

    def latest(self, api: Api) -> InFlight:
        """The request that is not void, which is answered now."""
        (latest,) = [one for one in self.in_flight if one.send.api is api and one.run == self.manager._run]
        self.in_flight.remove(latest)
        return latest

    def happen(self, event: str, number: int) -> None:
        if event == "ask":
            if self.state is not RunState.PREPARING:
                self.deadline = self.mono + TIMEOUT
            self.manager.asked(self.epoch, self.mono + TIMEOUT)
        elif event == "move":
            self.epoch += 1
            self.manager.moved(self.epoch)
        elif event == "forget":
            self.manager.forget()
            self.deadline = None
        elif event == "wait":
            self.mono += number * 1_500
        elif event == "new":
            self.coordinator.found += 1
        elif event == "assign" and self.questions:
            self.assigns(self.questions.pop(number % len(self.questions)), AssignmentError("no") if number == 15 else None)
        elif event in ("answer", "refuse", "fail") and self.in_flight:
            self.reply(self.in_flight.pop(number % len(self.in_flight)), event, number)
            self.coordinator.node_id = 1

    def reply(self, in_flight: InFlight, event: str, number: int) -> None:
        send = in_flight.send
        code = CODES[number % len(CODES)] if event == "refuse" else 0
        if event == "fail":
            self.fail(send, DisconnectedError("gone") if number % 2 else UnsupportedApiError("none"))
        elif send.api is INSTALL:
            self.takes(send, code)
        elif code:
            self.shows(send, code=code)
        else:
            self.group_epoch += 1
            self.shown[self.group_epoch] = (send.message.member_epoch, in_flight.run)
            self.shows(send, self.group_epoch)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(EVENTS, min_size=10, max_size=60))
def test_in_any_order_of_events_nothing_stale_is_sent(events: list[tuple[str, int]]) -> None:
    member = AnyOrder()
    for event, number in events:
        member.happen(event, number)
        member.look()
    member.deadline = member.mono + TIMEOUT
    member.manager.forget()
    member.manager.asked(member.epoch, member.deadline)
    member.look()
    member.mono += 2_000
    member.look()
    member.reply(member.latest(PREPARE), "answer", 0)
    member.look()
    member.assigns(member.questions[-1])
    member.look()
    member.takes(member.latest(INSTALL).send)
    assert member.state is RunState.IDLE
