"""DescribeGroups, ListGroups, DeleteGroups: what tools ask of groups."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic.group import GroupState
from ottla.coordinator.events import GroupDeleted, OffsetDeleted
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import DELAYED, Harness, failing, share, subscription


def test_a_stable_group_shows_what_its_members_were_given() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    (group,) = harness.describe("g")
    assert (group.error_code, group.group_state) == (ErrorCode.none, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert group.authorized_operations == -(2**31)
    assert [
        (one.member_id, one.client_id, one.client_host, one.member_metadata, one.member_assignment) for one in group.members
    ] == [(one, one[0], "/127.0.0.1", subscription("orders"), share(one)) for one in ids]


def test_a_rebalancing_group_shows_no_protocol() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    harness.join(leader)
    (group,) = harness.describe("g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("PreparingRebalance", "consumer", "")
    assert [member.member_metadata for member in group.members] == [b"", b""]
    harness.join(follower)
    assert harness.describe("g")[0].group_state == "CompletingRebalance"


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.none), (6, ErrorCode.group_id_not_found)])
def test_a_group_that_is_not_there_is_dead(version: int, error: ErrorCode) -> None:
    (group,) = Harness().describe("x", version=version)
    assert (group.error_code, group.group_state) == (error, "Dead")
    assert group.error_message == ("Group x not found." if version == 6 else None)


@pytest.mark.parametrize("version", [5, 6])
def test_operations_are_told_when_asked_for(version: int) -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1}))
    there, absent = harness.describe("g", "x", version=version, operations=True)
    assert there.authorized_operations == 3_400, "what Kafka tells without an authorizer"
    assert absent.authorized_operations == (3_400 if version == 5 else -(2**31))


def test_groups_are_described_in_the_order_asked_for() -> None:
    harness = Harness()
    for group in "abcdef":
        harness.answer(harness.commit({("orders", 0): 1}, group=group))
    assert [group.group_id for group in harness.describe(*"fxabdc")] == list("fxabdc")
    assert harness.describe() == ()


def three_groups() -> Harness:
    harness = Harness()
    harness.stable("A", group="stable")
    harness.joined("A", group="completing")
    harness.answer(harness.commit({("orders", 0): 1}, group="simple"))
    return harness


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), {"stable", "completing", "simple"}),
        (("Stable",), (), {"stable"}),
        (("Empty", "completingrebalance "), (), {"simple", "completing"}),
        (("Assigning",), (), set()),
        ((), ("classic",), {"stable", "completing", "simple"}),
        ((), ("Classic", "consumer"), {"stable", "completing", "simple"}),
        ((), ("consumer",), set()),
        ((), ("nonsense",), set()),
        (("Empty",), ("classic",), {"simple"}),
    ],
)
def test_groups_are_listed_by_state_and_type(states: tuple[str, ...], types: tuple[str, ...], found: set[str]) -> None:
    listed = three_groups().list(states, types)
    assert listed.error_code is ErrorCode.none
    assert {group.group_id for group in listed.groups} == found


def test_what_is_listed_of_a_group() -> None:
    listed = {group.group_id: group for group in three_groups().list().groups}
    assert [
        (listed[name].protocol_type, listed[name].group_state, listed[name].group_type)
        for name in ("stable", "completing", "simple")
    ] == [("consumer", "Stable", "classic"), ("consumer", "CompletingRebalance", "classic"), ("", "Empty", "classic")]


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.commit({("orders", 0): 1, ("orders", 2): 3}, leader, 1))
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.non_empty_group
    harness.answer(harness.leave(leader))
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.none
    assert harness.state() is GroupState.DEAD
    assert harness.committed() == {}
    assert harness.events()[-3:] == [
        OffsetDeleted("g", TopicPartition("orders", 0)),
        OffsetDeleted("g", TopicPartition("orders", 2)),
        GroupDeleted("g"),
    ]
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.group_id_not_found
    assert harness.replayed() == {}


def test_several_groups_are_deleted_one_by_one() -> None:
    harness = three_groups()
    results = harness.answer(harness.delete("stable", "simple", "absent", "simple")).results
    assert [(one.group_id, one.error_code) for one in results] == [
        ("stable", ErrorCode.non_empty_group),
        ("simple", ErrorCode.none),
        ("absent", ErrorCode.group_id_not_found),
    ]


def test_the_answer_waits_for_all_of_them() -> None:
    harness = Harness()
    for group in "abc":
        harness.answer(harness.commit({("orders", 0): 1}, group=group))
    harness.appends = DELAYED
    ticket = harness.delete(*"abc")
    first, second, third = harness.open
    harness.settle(second)
    harness.settle(first, ErrorCode.kafka_storage_error)
    assert harness.waits(ticket)
    harness.settle(third)
    errors = [one.error_code for one in harness.answer(ticket).results]
    assert errors == [ErrorCode.not_coordinator, ErrorCode.none, ErrorCode.none]
    assert set(harness.coordinator.groups()) == {"a"}


def test_who_was_given_an_id_by_a_deleted_group_begins_anew() -> None:
    harness = Harness()
    pending = harness.member_id()
    harness.answer(harness.delete("g"))
    assert harness.timers == {}
    assert harness.answer(harness.join(pending)).error_code is ErrorCode.unknown_member_id


def test_a_group_that_can_not_be_deleted_is_still_there() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1}))
    harness.appends = failing(ErrorCode.not_enough_replicas)
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.coordinator_not_available
    assert harness.committed() == {("orders", 0): 1}
