"""A rebalance of a central group: Stop all, one new generation in store, Start all."""

from __future__ import annotations

import functools
import logging
import operator

import pytest

from ottla.coordinator.central.assignment import why_necessary
from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.group import CentralGroup, Owners, shares_of
from ottla.coordinator.central.member import CentralMember
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.effects import Append
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread
from tests.unit.coordinator.central.harness import DELAYED, IMMEDIATE, Central, Member, failing, stable


def stopping() -> Central:
    """A group of a and b that stops for c."""
    central = stable("a", "b")
    central.register("c")
    assert central.state() is CentralGroupState.STOPPING
    return central


# The steps.


def test_no_member_starts_before_all_have_stopped() -> None:
    central = stopping()
    assert [central.received(one) for one in "abc"] == [[Api.STOP]] * 3
    assert {central.take(one).message.generation for one in "abc"} == {2}, "the generation that ends"
    central = stopping()
    central.obey("a", "b")
    assert [central.received(one) for one in "abc"] == [[], [], [Api.STOP]]
    assert central.node().generation == 2
    central.answer(central.take("c"))
    assert central.node().generation == 3
    assert [central.received(one) for one in "abc"] == [[Api.START]] * 3


def test_a_generation_is_stored_before_any_member_starts() -> None:
    central = stopping()
    central.appends = DELAYED
    central.obey()
    (append,) = central.open.values()
    assert append.records[-1][0] == b"g/generation", "it comes last, after its owners"
    assert [central.received(one) for one in "abc"] == [[], [], []]
    central.settle()
    assert central.state() is CentralGroupState.STARTING
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert sorted(functools.reduce(operator.iadd, central.holdings().values(), [])) == [f"orders/{n}" for n in range(4)]


def test_a_rebalance_is_one_durable_event() -> None:
    central = stable("a", "b")
    before = len(central.trace)
    central.register("c")
    central.obey()
    assert len([effect for effect in central.trace[before:] if isinstance(effect, Append)]) == 1


def test_owners_that_a_generation_does_not_have_are_deleted_with_it() -> None:
    central = stable("a")
    again = Member("a", generation=1, held=central.members["a"].held)
    central.register("a", again=again, topics={"bills": 1})
    central.obey()
    assert set(central.stored_owners()) == {"bills/0", "bills/1"}


def test_a_member_that_comes_while_all_stop_takes_part() -> None:
    central = stopping()
    central.obey("a", "b")
    central.register("d")
    assert central.received("d") == [Api.STOP]
    central.obey()
    assert central.group().generation == 3
    assert {len(held) for held in central.holdings().values()} == {1}


def test_a_member_that_comes_back_while_all_stop_is_asked_again_on_its_new_channel() -> None:
    central = stopping()
    held = central.members["a"].held
    central.lose_channel("a")
    central.obey("b", "c")
    assert central.state() is CentralGroupState.STOPPING
    central.register("a", again=Member("a", epoch=1, generation=2, held=held))
    assert central.received("a") == [Api.STOP]
    central.obey()
    assert central.group().generation == 3
    assert central.state() is CentralGroupState.STABLE


def test_a_member_that_has_stopped_and_comes_back_is_not_asked_again() -> None:
    central = stopping()
    central.obey("a", "b")
    central.lose_channel("a")
    central.register("a", again=Member("a", epoch=1, generation=2))
    assert central.received("a") == []
    central.obey("c")
    assert central.received("a") == [Api.START]


def test_a_member_that_comes_back_while_all_start_gets_its_share_again() -> None:
    central = stopping()
    central.obey("a", "b")
    central.answer(central.take("c"))
    central.lose_channel("a")
    central.obey("b", "c")
    assert central.state() is CentralGroupState.STARTING
    central.register("a", again=Member("a", epoch=1, generation=2))
    assert central.received("a") == [Api.START]
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.group().generation == 3


# The rules.


def test_the_rules_of_the_draft() -> None:
    one, two, a, b = TopicPartition("t", 0), TopicPartition("t", 1), ConsumerThread("a", 0), ConsumerThread("b", 0)

    def reason(owners: dict[TopicPartition, ConsumerThread], computed: dict[TopicPartition, ConsumerThread]) -> str:
        return why_necessary(CentralGroup("g", owners=owners), computed) or "not necessary"

    assert reason({}, {one: a}) == "no partition has an owner"
    assert reason({one: a}, {one: a, two: a}) == "t-1 has no owner"
    assert reason({one: a, two: a}, {one: a}) == "t-1 has an owner, but does not exist any longer, or is not read"
    assert reason({one: a}, {one: b}) == "t-0 should have another owner"
    assert reason({one: a}, {one: a}) == "not necessary"
    assert reason({}, {}) == "not necessary"


def member(member_id: str, generation: int = -1) -> CentralMember:
    return CentralMember(member_id, "one", None, "client", "host", 9_000, 30_000, "range", {"t": 1}, generation=generation)


def group_of(owners: Owners, *members: CentralMember) -> CentralGroup:
    return CentralGroup("g", owners=owners, shares=shares_of(owners), members={one.member_id: one for one in members})


@pytest.mark.parametrize(
    ("owner", "members", "reason"),
    [
        ("a", [member("a", 2), member("b")], "member 'b' has joined; "),
        ("a", [member("b", 2)], "member 'a' is gone; "),
        ("a", [member("d"), member("c")], "member 'a' is gone; members 'c', 'd' have joined; "),
        ("a", [member(one) for one in "fedcba"], "members 'b', 'c', 'd' and 2 more have joined; "),
        ("a", [member("a"), member("b", 2)], ""),
        ("a\n\udcff", [member("b", 2)], "member 'a\\n\\udcff' is gone; "),
    ],
    ids=["joined", "gone", "both", "many", "an owner that has lost its partitions comes back", "any name"],
)
def test_the_reason_says_first_who_has_come_or_gone(owner: str, members: list[CentralMember], reason: str) -> None:
    group = group_of({TopicPartition("t", 0): ConsumerThread(owner, 0)}, *members)
    computed = {TopicPartition("t", 0): ConsumerThread("x", 0)}
    assert why_necessary(group, computed) == f"{reason}t-0 should have another owner"
    assert why_necessary(group, group.owners) is None, "who has come or gone is no reason by itself"


def test_a_reason_fits_into_a_frame_whatever_names_there_are() -> None:
    name = "\udcff" * 40_000
    owners = {TopicPartition(name, number): ConsumerThread(f"{number}{name}", 0) for number in range(10)}
    reason = why_necessary(group_of(owners, *(member(f"new {number}{name}") for number in range(10))), {})
    assert reason is not None
    assert len(reason.encode()) < 2_000
    assert "and 7 more are gone" in reason
    assert "and 7 more have joined" in reason


def test_each_member_learns_why_it_must_stop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.broker")
    central = stopping()
    central.register("d")
    reasons = {one: central.take(one).message.reason for one in "abcd"}
    assert reasons == dict.fromkeys("abcd", "member 'c' has joined; orders-3 should have another owner")
    assert f"group 'g': rebalance: {reasons['a']}" in caplog.messages


def test_a_member_learns_that_another_one_has_left() -> None:
    central = stable("a", "b")
    central.leave("b")
    assert central.take("a").message.reason == "member 'b' is gone; orders-2 should have another owner"


def test_a_member_that_holds_something_else_is_stopped_first() -> None:
    central = stable("a", "b")
    central.lose_channel("a")
    everything = {TopicPartition("orders", n): 0 for n in range(4)}
    central.register("a", again=Member("a", epoch=1, generation=2, held=everything))
    assert [central.received(one) for one in "ab"] == [[Api.STOP]] * 2
    central.obey()
    assert central.group().generation == 3
    assert central.holdings()["a"] == ["orders/0", "orders/1"]


def test_what_a_member_holds_of_a_lower_generation_does_not_count() -> None:
    central = stable("a", "b")
    central.lose_channel("a")
    central.register("a", again=Member("a", epoch=1, generation=1, held={TopicPartition("orders", 3): 0}))
    assert [central.received(one) for one in "ab"] == [[Api.START], []]


def test_a_group_that_waits_delays_no_other_group() -> None:
    """The draft has one thread for all groups, and pools of a fixed size. Here a group waits in its own table of states."""
    central = stopping()
    for number in range(20):
        central.register(f"m{number}", group=f"h{number}")
        central.obey(f"m{number}")
    assert [central.group(f"h{number}").state for number in range(20)] == [CentralGroupState.STABLE] * 20
    assert central.state() is CentralGroupState.STOPPING
    central.obey("a", "b", "c")
    assert central.state() is CentralGroupState.STABLE


# Changes during a rebalance.


def test_a_change_while_members_start_is_checked_afterwards() -> None:
    central = stopping()
    central.obey("a", "b")
    central.answer(central.take("c"))
    central.register("d")
    assert central.received("d") == []
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.DIRTY}
    central.obey()
    assert central.group().generation == 4
    assert {len(held) for held in central.holdings().values()} == {1}
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.IDLE}


def test_a_change_that_the_new_owners_consider_needs_no_second_rebalance() -> None:
    central = stopping()
    central.leave("b")
    del central.members["b"]
    central.obey()
    assert central.group().generation == 3
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.IDLE}


# Silent members.


def test_a_member_that_does_not_stop_is_evicted_and_its_lease_is_waited_for() -> None:
    central = stopping()
    central.obey("b", "c")
    central.take("a")
    for _ in range(10):  # it still answers pings
        central.sleep(3_000)
        central.obey()
    assert central.hung_up == [101 - 1], "its channel, after the rebalance timeout"
    assert central.node().generation == 2, "it may read until its session ends"
    del central.members["a"]
    for _ in range(3):
        central.sleep(3_000)
        central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (3, 2)
    assert set(central.stored_owners().values()) == {"b-0", "c-0"}


def test_an_evicted_member_comes_back_only_with_empty_hands() -> None:
    central = stopping()
    central.obey("b", "c")
    central.take("a")
    for _ in range(10):
        central.sleep(3_000)
        central.obey()
    held = central.members["a"].held
    assert central.commit("a", 2)
    assert central.committed("a", 2) is ErrorCode.unknown_member_id
    answer = central.register("a", again=Member("a", epoch=1, generation=2, held=held))
    assert answer.error_code is ErrorCode.unknown_member_id
    assert "give up" in answer.error_message
    assert central.register("a", again=Member("a")).error_code is ErrorCode.none
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (3, 3)


def test_a_member_without_a_channel_is_waited_for_until_its_session_ends() -> None:
    central = stable("a", "b")
    central.lose_channel("a")
    central.register("c")
    central.obey("b", "c")
    assert central.state() is CentralGroupState.STOPPING
    for _ in range(2):
        central.sleep(3_000)
        central.obey("b", "c")
        assert central.state() is CentralGroupState.STOPPING
    central.sleep(3_000)
    central.obey("b", "c")
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (3, 2)


def test_a_member_that_does_not_start_is_evicted_and_another_rebalance_follows() -> None:
    central = stopping()
    central.obey("a", "b")
    central.answer(central.take("c"))
    central.take("a")
    for _ in range(6):
        central.sleep(3_000)
        central.obey("a", "b", "c") if central.members["a"].connection else central.obey("b", "c")
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (4, 2)
    assert set(central.stored_owners().values()) == {"b-0", "c-0"}


def rebalance_without_start(central: Central, member_id: str) -> None:
    """Let a member register, stop, and never start."""
    central.register(member_id)
    while central.received(member_id) != [Api.START]:
        central.obey("a")
        if central.received(member_id):
            central.answer(central.take(member_id))
    for _ in range(5):
        central.sleep(3_000)
        central.obey("a")


def test_too_many_failed_rebalances_make_the_group_back_off(caplog: pytest.LogCaptureFixture) -> None:
    central = stable("a", rebalance_max_retries=1)
    central.register("b")
    central.obey("a")
    central.answer(central.take("b"))
    with caplog.at_level(logging.ERROR, "ottla.broker"):
        for _ in range(4):
            central.sleep(2_500)
            central.obey("a")
            if central.state() is CentralGroupState.FAILED:
                break
    assert central.state() is CentralGroupState.FAILED
    assert "ConsumerRebalanceFailed" in caplog.text
    generation = central.group().generation
    assert central.coordinator.groups_being_rebalanced == {"g": RebalanceFlag.QUEUED}
    del central.members["b"]
    central.sleep(2_000)
    for _ in range(5):
        central.obey("a")
        central.sleep(2_500)
    central.obey("a")
    assert central.state() is CentralGroupState.STABLE
    assert central.group().generation == generation + 1
    assert len(central.holdings()["a"]) == 4


def test_a_rebalance_in_which_all_start_ends_the_count_of_failures() -> None:
    central = stable("a", rebalance_max_retries=2)
    rebalance_without_start(central, "b")
    assert central.state() is CentralGroupState.STABLE
    assert central.group().failures == 0


def test_the_last_member_does_not_stop_and_the_group_is_empty_when_its_lease_is_over() -> None:
    central = stable("a")
    central.change_topics(orders=6)
    central.take("a")
    for _ in range(10):
        central.sleep(3_000)
        central.obey()
    assert central.hung_up
    assert central.node().members == 1
    central.sleep(9_000)
    assert central.state() is CentralGroupState.EMPTY
    assert central.node()[:2] == (1, 0)
    assert not central.timers


# What cannot be stored.


@pytest.mark.parametrize("error", [ErrorCode.not_coordinator, ErrorCode.request_timed_out])
def test_a_generation_that_cannot_be_stored_is_tried_again(error: ErrorCode) -> None:
    central = stopping()
    central.appends = failing(error)
    central.obey()
    assert central.state() is CentralGroupState.ASSIGNING
    assert central.node().generation == 2
    assert [central.received(one) for one in "abc"] == [[], [], []]
    central.sleep(1_100)
    assert central.state() is CentralGroupState.ASSIGNING
    central.appends = IMMEDIATE
    central.sleep(500)
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (3, 3)


def test_a_member_that_comes_while_the_generation_cannot_be_stored_stops_first() -> None:
    central = stopping()
    central.appends = failing(ErrorCode.request_timed_out)
    central.obey()
    central.register("d")
    assert central.state() is CentralGroupState.STOPPING
    assert central.received("d") == [Api.STOP]
    central.appends = IMMEDIATE
    central.obey()
    central.sleep(1_000)
    central.obey()
    assert central.state() is CentralGroupState.STABLE
    assert central.node()[:2] == (3, 4)


def test_all_members_leave_while_the_generation_cannot_be_stored() -> None:
    central = stopping()
    central.appends = failing(ErrorCode.request_timed_out)
    central.obey()
    for one in "abc":
        central.leave(one)
    central.appends = IMMEDIATE
    central.sleep(1_000)
    assert central.state() is CentralGroupState.EMPTY
    assert central.node()[:2] == (2, 0)
