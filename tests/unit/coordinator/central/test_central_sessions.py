"""Pings, sessions and answers of members of central groups."""

from __future__ import annotations

import logging

import pytest

from ottla.coordinator.central.member import MemberState
from ottla.coordinator.central.states import CentralGroupState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, Member, stable


def test_the_answer_to_a_ping_is_not_taken_for_that_to_a_stop_with_its_number() -> None:
    """Pings are counted by themselves. Both answers wait for an append."""
    central = stable("a")
    central.lose_channel("a")
    central.register("a", again=central.members["a"])
    central.obey()
    central.register("b")
    stop = central.take("a")
    for _ in range(stop.correlation_id):
        central.sleep(1_500)
        ping = central.take("a")
        if ping.correlation_id == stop.correlation_id:
            break
        central.answer(ping)
    assert (ping.api, ping.correlation_id) == (Api.PING, stop.correlation_id)
    central.appends = DELAYED
    central.commit("a", 1)
    central.answer(ping)
    central.answer(stop)
    central.appends = IMMEDIATE
    central.settle()
    assert central.group().members["a"].state is MemberState.STOPPED
    central.sleep(1_500)
    assert central.take("a").correlation_id == ping.correlation_id + 1


def test_a_ping_is_forgotten_with_its_channel_its_member_and_its_group() -> None:
    central = stable("a", "b")
    served = central.coordinator._runtime.served(0)
    assert served is not None
    state = served.shard.state
    central.sleep(1_500)
    central.obey()
    assert state.pings("g").keys() == {"a", "b"}
    assert all(last.is_answered for last in state.pings("g").values())
    central.lose_channel("a")
    assert state.pings("g").keys() == {"b"}
    central.leave("b")
    assert state._pings == {}


def test_a_ping_from_before_another_register_on_the_channel_is_answered_before_the_next_one() -> None:
    central = stable("a")
    central.sleep(3_000)
    ping = central.take("a")
    central.register("a", again=central.members["a"], connection=central.members["a"].connection, topics={"bills": 1})
    central.sleep(4_000)
    assert central.received("a") == [Api.STOP], "another Ping would tell the member that its answer has arrived"
    central.answer(ping)
    assert central.coordinator.armed_timers()["central", "g", "session", "a"] == central.mono + 9_000
    central.sleep(0)
    assert central.received("a") == [Api.STOP, Api.PING]


def test_while_an_append_is_open_one_answer_waits_for_each_question() -> None:
    central = stable("a")
    central.sleep(3_000)
    ping = central.take("a")
    central.appends = DELAYED
    central.commit("a", 1)
    served = central.coordinator._runtime.served(0)
    assert served is not None
    central.answer(ping, correlation_id=ping.correlation_id + 1)
    central.answer(ping, connection=7)
    central.answer(ping, member_id="x")
    assert not served._waiting
    for _ in range(3):
        central.answer(ping)
    assert [len(queue) for queue in served._waiting.values()] == [1]
    central.sleep(1_000)
    central.settle()
    assert central.coordinator.armed_timers()["central", "g", "session", "a"] == central.mono + 9_000
    central.sleep(2_000)
    ping = central.take("a")
    central.commit("a", 1)
    central.answer(ping)
    assert [len(queue) for queue in served._waiting.values()] == [1], "nothing is left of the first append"


def test_a_ping_is_lost_with_its_channel() -> None:
    central = stable("a")
    central.sleep(3_000)
    central.register("a", again=central.members["a"])
    central.obey()
    central.sleep(3_000)
    assert central.received("a") == [Api.PING]


def test_a_member_is_pinged_six_times_in_a_session() -> None:
    central = stable("a")
    central.sleep(1_499)
    assert central.received("a") == []
    central.sleep(1)
    push = central.take("a")
    assert (push.api, push.message.coordinator_epoch, push.message.generation) == (Api.PING, 1, 1)
    central.sleep(1_000)
    central.answer(push)
    central.sleep(499)
    assert central.received("a") == []
    central.sleep(1)
    assert central.received("a") == [Api.PING]


def test_the_next_ping_waits_for_the_answer_to_the_one_before() -> None:
    central = stable("a")
    central.sleep(8_000)
    assert central.received("a") == [Api.PING]
    central.obey()
    central.sleep(0)
    assert central.received("a") == [Api.PING], "it is late, so it follows at once"


def test_a_silent_member_is_evicted_after_its_session() -> None:
    central = stable("a", "b")
    for _ in range(2):
        central.sleep(3_000)
        central.obey("a")
    assert "b" in central.group().members
    central.sleep(3_000)
    central.obey("a")
    assert list(central.group().members) == ["a"]
    assert len(central.hung_up) == 1
    central.obey("a")
    assert len(central.holdings()["a"]) == 4


def test_every_answer_restarts_the_session() -> None:
    central = stable("a", "b")
    for _ in range(10):
        central.sleep(3_000)
        central.obey()
    assert len(central.group().members) == 2
    central.register("c")
    central.sleep(2_900)
    push = next(push for push in central.members["a"].inbox if push.api is Api.STOP)
    central.answer(push)
    assert central.coordinator.armed_timers()["central", "g", "session", "a"] == central.mono + 9_000


def test_a_lost_channel_keeps_its_place_for_one_session() -> None:
    central = stable("a", "b")
    central.lose_channel("b")
    central.sleep(3_000)
    central.obey("a")
    assert central.received("a") == []
    assert "b" in central.group().members
    held = central.members["b"].held
    central.register("b", again=Member("b", epoch=1, generation=2, held=held))
    central.obey()
    assert central.group().generation == 2
    central.lose_channel("b")
    for _ in range(3):
        central.sleep(3_000)
        central.obey("a")
    assert list(central.group().members) == ["a"]


def test_the_end_of_another_connection_means_nothing() -> None:
    central = stable("a")
    old = central.members["a"].connection
    central.register("a", again=Member("a", generation=1, held=central.members["a"].held))
    central.tell("on_disconnect", old)
    central.tell("on_disconnect", 7)
    central.sleep(3_000)
    assert Api.PING in central.received("a")


# Timers that wait for an append.


def test_a_session_that_ends_during_an_append_does_not_evict_a_member_whose_answer_waits() -> None:
    central = stable("a", "b")
    central.sleep(3_000)
    central.obey("b")
    push = central.take("a")
    central.appends = DELAYED
    central.commit("b", 2)
    central.sleep(1_000)
    central.answer(push)
    central.sleep(6_000)  # beyond a's session; its timer waits in the queue behind its answer
    assert len(central.group().members) == 2
    central.appends = IMMEDIATE
    central.settle()
    assert len(central.group().members) == 2
    assert central.hung_up == []


def test_members_that_could_not_be_asked_during_an_append_are_asked_afterwards() -> None:
    central = stable("a", "b")
    central.appends = DELAYED
    central.commit("b", 2, orders=3)
    central.sleep(20_000)  # pings and sessions of both wait
    central.appends = IMMEDIATE
    central.settle()
    assert [central.received(one) for one in "ab"] == [[Api.PING]] * 2
    assert central.hung_up == []
    central.obey("a")
    central.sleep(7_500)
    central.obey("a")
    assert list(central.group().members) == ["a"], "b had the rest of a session to answer"


def test_the_time_to_start_begins_when_the_generation_is_stored() -> None:
    central = stable("a", "b")
    central.appends = DELAYED
    central.register("c")
    central.obey()
    central.sleep(8_900)  # almost a session
    central.appends = IMMEDIATE
    central.settle()
    assert [central.received(one)[0] for one in "abc"] == [Api.START] * 3
    central.sleep(2_000)
    central.obey()
    assert central.hung_up == []
    assert central.state() is CentralGroupState.STABLE


def test_answers_that_waited_for_appends_are_forgotten_although_one_append_follows_the_other() -> None:
    central = stable("a", "b")
    central.appends = DELAYED
    central.commit("b", 2, orders=3)
    waiting = central.coordinator._waiting_answers
    for number in range(50):
        central.sleep(200)
        for one in "ab":
            for push in tuple(central.members[one].inbox):
                central.answer(push)
                central.members[one].inbox.remove(push)
        central.commit("b", 2, number, orders=3)
        central.settle(min(central.open))
        assert central.open
        assert len(waiting.get("g", ())) <= 2


def test_a_member_that_was_asked_in_time_is_evicted_after_the_append() -> None:
    central = stable("a", "b")
    central.sleep(3_000)
    central.obey("b")
    central.appends = DELAYED
    central.commit("b", 2)
    central.sleep(6_000)
    central.appends = IMMEDIATE
    central.settle()
    assert list(central.group().members) == ["b"]


def test_a_register_and_the_end_of_its_connection_that_wait_for_an_append_keep_their_order() -> None:
    central = stable("a")
    central.appends = DELAYED
    central.commit("a", 1)
    central.register("b")
    connection = central.members["b"].connection
    assert connection is not None
    central.tell("on_disconnect", connection)
    central.appends = IMMEDIATE
    central.settle()
    assert central.group().members["b"].connection is None


def test_the_connection_of_a_register_whose_append_is_open_may_end() -> None:
    central = Central()
    central.appends = DELAYED
    central.register("a")
    connection = central.members["a"].connection
    central.tell("on_disconnect", connection)
    central.settle()
    assert central.group().members["a"].connection is None


def test_a_register_is_remembered_until_it_is_answered_or_its_connection_is_closed() -> None:
    central = stable("a", "b")
    registers = central.coordinator._registers
    assert (registers._connections, registers._groups) == ({}, {})
    central.appends = DELAYED
    central.commit("a", 2)
    tickets = [central.send_register("c", connection=500), central.send_register("d", connection=500)]
    central.send_register("e", connection=501)
    assert registers._connections.keys() >= {*tickets}
    central.tell("on_disconnect", 501)
    assert registers._groups == {500: dict.fromkeys(tickets, "g")}
    central.settle()
    assert (registers._connections, registers._groups) == ({}, {})
    central.commit("a", 2)
    central.send_register("e", connection=502)
    central.tell("unload")
    assert (registers._connections, registers._groups) == ({}, {})


# Frames that do not count.


def test_a_late_answer_to_an_earlier_request_does_not_count() -> None:
    central = stable("a")
    central.register("b")
    early = central.take("a")
    central.lose_channel("a")
    central.register("a", again=Member("a", generation=1, held=central.members["a"].held))
    push = central.take("a")
    assert push.correlation_id > early.correlation_id
    central.answer(push, correlation_id=early.correlation_id)
    central.obey("b")
    assert central.state() is CentralGroupState.STOPPING
    central.answer(push)
    assert central.state() is CentralGroupState.STARTING


@pytest.mark.parametrize(
    "changes",
    [
        {"connection": 7},
        {"member_id": "x"},
        {"group_id": "other"},
        {"correlation_id": 99},
        {"coordinator_epoch": 0},
        {"coordinator_epoch": 2},
        {"generation": 0},
        {"generation": 2},
        {"error_code": ErrorCode.stale_member_epoch},
    ],
)
def test_a_frame_that_was_not_expected_is_ignored(changes: dict[str, object]) -> None:
    central = stable("a")
    central.register("b")
    push = central.take("a")
    central.obey("b")
    deadlines = central.coordinator.armed_timers()
    central.answer(push, **changes)
    assert central.state() is CentralGroupState.STOPPING
    assert central.coordinator.armed_timers() == deadlines, "it does not restart the session"
    central.answer(push)
    assert central.state() is CentralGroupState.STARTING


def test_a_refused_answer_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    central = stable("a")
    central.sleep(3_000)
    push = central.take("a")
    with caplog.at_level(logging.DEBUG, "ottla.broker"):
        for _ in range(3):
            central.answer(push, error_code=ErrorCode.stale_member_epoch, coordinator_epoch=2)
    levels = [record.levelno for record in caplog.records if "ignored an answer" in record.message]
    assert levels == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    assert "deposed" in caplog.text


def test_a_ping_is_answered_by_a_member_that_has_no_generation_yet() -> None:
    central = stable("a")
    central.register("b")
    central.take("b")
    central.sleep(3_000)
    ping = central.take("b")
    central.answer(ping, generation=-1)
    assert central.coordinator.armed_timers()["central", "g", "session", "b"] == central.mono + 9_000


def test_an_answer_of_an_unknown_group_is_ignored() -> None:
    central = Central()
    central.register("a")
    push = central.take("a")
    central.tell("unload")
    central.answer(push)
    assert not central.coordinator.groups()
