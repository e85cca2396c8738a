"""Members of a central group: Register, Leave, channels, and the groups that need none."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from ottla.coordinator.central import membership
from ottla.coordinator.central.group import CentralGroup
from ottla.coordinator.central.member import CentralMember
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.effects import HangUp, Push, Reply
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from ottla.zookeeper.multis import OPERATION_BYTES, REQUEST_BYTES
from ottla.zookeeper.nodes import GenerationNode, process_digest
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, Member, failing, stable
from tests.work_counter import work


def test_the_first_member_gets_all_partitions_with_a_new_generation() -> None:
    central = Central()
    answer = central.register("a")
    assert (answer.error_code, answer.coordinator_epoch, answer.generation) == (ErrorCode.none, 1, 0)
    assert answer.ping_interval_ms == 1_500
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.holdings() == {"a": ["orders/0", "orders/1", "orders/2", "orders/3"]}
    assert central.node()[:3] == (1, 1, 9_000)
    assert central.stored_owners() == {f"orders/{n}": "a-0" for n in range(4)}


def test_the_response_goes_out_before_the_first_push_and_after_the_group_is_stored() -> None:
    central = Central()
    central.appends = DELAYED
    assert central.register("a") is None
    assert central.received("a") == []
    assert not central.coordinator.is_central("g")
    before = len(central.trace)
    central.settle()
    sent = [type(effect) for effect in central.trace[before:] if isinstance(effect, Reply | Push)]
    assert sent == [Reply, Push]
    assert central.node()[:3] == (0, 1, 9_000), "0.8 members see that the group has members"


def test_a_second_member_gets_its_share() -> None:
    central = stable("a", "b")
    assert central.holdings() == {"a": ["orders/0", "orders/1"], "b": ["orders/2", "orders/3"]}
    assert central.group().generation == 2


def test_the_threads_of_a_member_share_its_partitions() -> None:
    central = Central()
    central.register("a", topics={"orders": 2, "bills": 1})
    central.obey()
    assert central.stored_owners() == {
        "bills/0": "a-0",
        "bills/1": "a-0",
        "orders/0": "a-0",
        "orders/1": "a-0",
        "orders/2": "a-1",
        "orders/3": "a-1",
    }
    assert central.members["a"].held[TopicPartition("orders", 3)] == 1


def test_a_register_of_the_same_member_replaces_its_channel() -> None:
    central = stable("a", "b")
    old = central.members["a"].connection
    central.register("a", again=Member("a", epoch=1, generation=2, held=central.members["a"].held))
    assert central.hung_up == [old]
    assert [central.received(one) for one in "ab"] == [[Api.START], []], "no other member is disturbed"
    central.obey()
    assert central.group().generation == 2
    assert central.holdings()["a"] == ["orders/0", "orders/1"]


def test_another_process_with_the_same_id_is_refused_while_the_first_one_may_read() -> None:
    central = stable("a")
    channel = central.members["a"].connection
    answer = central.register("a", again=Member("a", incarnation="two"))
    assert answer.error_code is ErrorCode.unreleased_instance_id
    assert "/127.0.0.1" in answer.error_message
    assert "'client'" in answer.error_message
    assert "session of 9000 ms" in answer.error_message
    assert central.hung_up == []
    assert central.group().members["a"].connection == channel
    central.sleep(9_000)
    assert central.state() is CentralGroupState.EMPTY
    assert central.register("a", again=Member("a", incarnation="two")).error_code is ErrorCode.none


def test_another_process_waits_for_a_member_without_a_channel() -> None:
    central = stable("a")
    first = central.members["a"]
    central.lose_channel("a")
    assert central.register("a", again=Member("a", incarnation="two")).error_code is ErrorCode.unreleased_instance_id
    assert central.register("a", again=first).error_code is ErrorCode.none


def test_another_process_waits_for_the_lease_of_an_evicted_member() -> None:
    central = stable("a", "b")
    central.register("b", again=central.members["b"], topics={"bills": 1}, rebalance=4_000)
    central.obey("a")
    central.sleep(3_000)
    central.obey("a")
    ping = next(push for push in central.members["b"].inbox if push.api is Api.PING)
    central.answer(ping)
    central.sleep(1_000)
    assert central.group().leases.keys() == {"b"}
    assert central.register("b", again=Member("b", incarnation="two")).error_code is ErrorCode.unreleased_instance_id
    assert central.register("b", again=Member("b")).error_code is ErrorCode.none, "it has given up what it held"
    assert not central.group().leases


def test_another_process_may_come_after_the_first_one_has_left() -> None:
    central = stable("a")
    central.leave("a")
    assert central.register("a", again=Member("a", incarnation="two")).error_code is ErrorCode.none
    central.obey()
    assert len(central.holdings()["a"]) == 4


def test_a_register_on_the_channel_itself_changes_the_subscription() -> None:
    central = stable("a")
    central.register("a", again=central.members["a"], connection=central.members["a"].connection, topics={"bills": 1})
    central.obey()
    assert central.hung_up == []
    assert central.holdings() == {"a": ["bills/0", "bills/1"]}
    assert set(central.stored_owners()) == {"bills/0", "bills/1"}


def test_a_member_without_work_gets_a_start_with_an_empty_share() -> None:
    central = stable("a")
    central.register("b", topics={"missing": 1})
    assert central.received("b") == [Api.START]
    assert central.received("a") == []
    central.obey()
    assert central.members["b"].generation == 1
    assert central.holdings()["b"] == []


def test_a_group_without_any_partition_is_stable_without_a_rebalance() -> None:
    central = Central()
    central.register("a", topics={"missing": 1})
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (0, 1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": "coordinator"}, ErrorCode.invalid_group_id),
        ({"group": "groups"}, ErrorCode.invalid_group_id),
        ({"group": "a/b"}, ErrorCode.invalid_group_id),
        ({"group": ""}, ErrorCode.invalid_group_id),
        ({"session": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"rebalance": 0}, ErrorCode.invalid_request),
        ({"assignor": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"topics": {"orders": 0}}, ErrorCode.invalid_request),
        ({"topics": {"orders": 10_001}}, ErrorCode.invalid_request),
        ({"topics": {"a/b": 1}}, ErrorCode.invalid_request),
        ({"pattern": "o.*"}, ErrorCode.invalid_request),
        ({"topics": {}, "pattern": "("}, ErrorCode.invalid_regular_expression),
        ({"epoch": 2}, ErrorCode.not_coordinator),
        ({"generation": 1}, ErrorCode.illegal_generation),
        ({"incarnation": ""}, ErrorCode.invalid_request),
    ],
)
def test_a_wrong_register_is_refused_and_changes_nothing(fields: dict[str, Any], error: ErrorCode) -> None:
    central = Central()
    answer = central.register("a", **fields)
    assert answer.error_code is error
    assert answer.error_message
    assert central.nodes == {}
    assert not central.coordinator.groups()
    assert not central.timers


@pytest.mark.parametrize(
    ("topics", "limit"),
    [
        ({f"t{n}": 10_000 for n in range(11)}, "at most 100,000 threads over all topics, not 110,000"),
        ({f"t{n}": 1 for n in range(10_001)}, "at most 10,000 topics, not 10,001"),
    ],
)
def test_a_member_with_too_many_threads_or_topics_is_refused(topics: dict[str, int], limit: str) -> None:
    answer = Central().register("a", topics=topics)
    assert answer.error_code is ErrorCode.invalid_request
    assert limit in answer.error_message


def test_the_threads_of_topics_that_do_not_exist_cost_nothing() -> None:
    def lines(streams: int) -> int:
        central = Central()
        topics = {"orders": 1, **{f"absent-{n}": streams for n in range(10)}}
        return work(lambda: central.register("a", topics=topics)).lines

    assert lines(1) == lines(9_999)


def test_a_pattern_that_matches_many_topics_gives_fewer_threads_for_each() -> None:
    group = CentralGroup("g", regexes={"t.*": tuple(f"t{n}" for n in range(50))})
    member = CentralMember("a", "one", None, "client", "/127.0.0.1", 9_000, 9_000, "range", {}, pattern="t.*", streams=10_000)
    assert group.topics_of(member) == {f"t{n}": 2_000 for n in range(50)}
    assert group.topics_of(replace(member, streams=3)) == {f"t{n}": 3 for n in range(50)}


def test_a_member_without_an_id_is_refused() -> None:
    assert Central().register("").error_code is ErrorCode.invalid_request


def test_all_members_have_one_assignor() -> None:
    central = stable("a")
    answer = central.register("b", assignor="roundrobin")
    assert answer.error_code is ErrorCode.inconsistent_group_protocol
    assert "'a'" in answer.error_message
    again = Member("a", generation=1, held=central.members["a"].held)
    assert central.register("a", again=again, assignor="roundrobin").error_code is ErrorCode.none


def test_a_group_has_a_largest_size() -> None:
    central = stable("a", group_max_size=1)
    assert central.register("b").error_code is ErrorCode.group_max_size_reached
    again = Member("a", generation=1, held=central.members["a"].held)
    assert central.register("a", again=again).error_code is ErrorCode.none


def test_a_group_has_no_more_members_than_fit_into_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = frozenset(process_digest(str(number), "") for number in range(membership.MOST_MEMBERS))
    assert len(GenerationNode(1, len(processes), 9_000, 1, processes).encode()) + OPERATION_BYTES < REQUEST_BYTES
    monkeypatch.setattr(membership, "MOST_MEMBERS", 1)
    assert stable("a").register("b").error_code is ErrorCode.group_max_size_reached


def test_a_group_with_members_of_kafka_0_8_is_refused_and_the_error_says_so() -> None:
    central = Central()
    central.appends = failing(ErrorCode.inconsistent_group_protocol)
    answer = central.register("a")
    assert answer.error_code is ErrorCode.inconsistent_group_protocol
    assert "0.8" in answer.error_message
    assert not central.coordinator.groups()
    assert not central.timers
    central.appends = IMMEDIATE
    assert central.register("a").error_code is ErrorCode.none


def test_errors_of_zookeeper_become_coordinator_not_available() -> None:
    central = Central()
    central.appends = failing(ErrorCode.request_timed_out)
    assert central.register("a").error_code is ErrorCode.coordinator_not_available


def test_a_register_without_topics_makes_the_group_known_and_no_member() -> None:
    central = Central()
    answer = central.register("a", topics={})
    assert answer.error_code is ErrorCode.none
    assert central.node()[:2] == (0, 0)
    assert central.coordinator.is_central("g")
    assert central.state() is CentralGroupState.EMPTY
    assert not central.timers
    assert not central.hung_up
    assert central.committed("", -1) is ErrorCode.none
    stored = dict(central.nodes)
    assert central.register("b", topics={}).error_code is ErrorCode.none
    assert central.nodes == stored, "it is written once"


def test_a_longer_session_is_stored_before_the_member_relies_on_it() -> None:
    central = stable("a")
    central.appends = DELAYED
    again = Member("a", generation=1, held=central.members["a"].held)
    assert central.register("a", again=again, session=20_000) is None
    central.settle()
    assert central.node()[:3] == (1, 1, 20_000)


# Leave.


def test_a_member_leaves_and_its_channel_is_closed_after_the_response() -> None:
    central = stable("a", "b")
    connection = central.members["b"].connection
    before = len(central.trace)
    assert central.leave("b").error_code is ErrorCode.none
    sent = [type(effect) for effect in central.trace[before:] if isinstance(effect, Reply | HangUp)]
    assert sent == [Reply, HangUp]
    assert central.hung_up == [connection]
    del central.members["b"]
    central.obey()
    assert central.holdings() == {"a": ["orders/0", "orders/1", "orders/2", "orders/3"]}


def test_a_member_may_leave_before_it_has_received_the_last_start() -> None:
    central = stable("a")
    central.register("b")
    central.obey_next(central.members["a"])
    central.obey_next(central.members["b"])
    member = central.members["b"]
    assert (central.received("b"), central.group().generation, member.generation) == ([Api.START], 2, 1)
    assert central.leave("b").error_code is ErrorCode.none
    assert sorted(central.group().members) == ["a"]


def test_what_the_log_has_of_a_member_that_leaves_is_short_and_visible(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    name = "b\n" + "b" * 30_000
    central = stable("a", name)
    central.leave(name, reason="bye\ngroup 'billing': member 'z' is evicted" + "x" * 30_000)
    central.leave("a", reason="close()")
    del central.members[name]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" leaves: ")[2] for line in lines if " leaves: " in line][1] == "close()"
    assert all(line.isprintable() and len(line) < 1_000 for line in lines), lines
    hang_ups = [effect.reason for effect in central.trace if isinstance(effect, HangUp)]
    assert len(hang_ups) == 2
    assert all(reason.isprintable() and len(reason) < 1_000 for reason in hang_ups)


def test_the_last_member_leaves_owners_are_deleted_and_the_generation_is_kept() -> None:
    central = stable("a")
    central.leave("a")
    assert central.state() is CentralGroupState.EMPTY
    assert central.node()[:2] == (1, 0)
    assert central.stored_owners() == {}
    assert not central.timers
    central.register("b")
    central.obey()
    assert central.group().generation == 2


def test_that_a_group_is_empty_is_stored_in_the_end() -> None:
    central = stable("a")
    central.appends = failing(ErrorCode.request_timed_out)
    assert central.leave("a").error_code is ErrorCode.none
    assert central.node().members == 1
    central.appends = IMMEDIATE
    central.sleep(500)
    assert central.node().members == 0
    assert central.stored_owners() == {}


def test_a_member_that_comes_before_the_empty_group_was_stored_is_a_member() -> None:
    central = stable("a")
    central.appends = failing(ErrorCode.request_timed_out)
    central.leave("a")
    central.register("b")
    central.appends = IMMEDIATE
    central.sleep(1_000)
    central.obey("b")
    assert central.node()[:2] == (2, 1)
    assert set(central.stored_owners().values()) == {"b-0"}


def test_a_leave_of_a_stranger_is_refused() -> None:
    central = stable("a")
    central.members["x"] = Member("x", connection=7)
    assert central.leave("x").error_code is ErrorCode.unknown_member_id
    assert central.leave("a", connection=7).error_code is ErrorCode.unknown_member_id
    assert central.leave("a", epoch=0).error_code is ErrorCode.stale_member_epoch
    assert central.state() is CentralGroupState.STABLE
    assert central.hung_up == []


# A coordinator that is not elected.


def test_a_broker_that_is_not_elected_says_so() -> None:
    central = Central()
    central.tell("unload")
    assert central.coordinator.unavailable_error is ErrorCode.not_coordinator
    assert central.register("a").error_code is ErrorCode.not_coordinator
    central.coordinator.start_loading()
    assert central.coordinator.unavailable_error is ErrorCode.coordinator_load_in_progress
    assert central.register("a").error_code is ErrorCode.coordinator_load_in_progress


def test_a_deposed_coordinator_hangs_up_all_channels_and_answers_what_waits() -> None:
    central = stable("a", "b")
    channels = sorted(member.connection or 0 for member in central.members.values())
    central.appends = DELAYED
    waiting = [central.commit("a", 2), central.commit("a", 2)]
    central.tell("unload")
    assert sorted(central.hung_up) == channels
    assert [central.replies[one].topics[0].partitions[0].error_code for one in waiting] == [ErrorCode.not_coordinator] * 2
    assert not central.timers
