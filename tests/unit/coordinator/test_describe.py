"""DescribeGroups and ListGroups."""

from __future__ import annotations

import pytest

from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness, share, subscription


def test_a_stable_group_is_described_with_its_assignments() -> None:
    harness = Harness()
    ids = harness.stable("A", "B")
    (group,) = harness.describe("g")
    assert (group.error_code, group.group_state) == (ErrorCode.none, "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert group.authorized_operations == -(2**31)
    assert [
        (one.member_id, one.client_id, one.client_host, one.member_metadata, one.member_assignment) for one in group.members
    ] == [(one, one[0], "/127.0.0.1", subscription("orders"), share(one)) for one in ids]


def test_a_rebalancing_group_is_described_without_a_protocol() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    harness.join(leader)
    (group,) = harness.describe("g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("PreparingRebalance", "consumer", "")
    assert [member.member_metadata for member in group.members] == [b"", b""]
    harness.join(follower)
    assert harness.describe("g")[0].group_state == "CompletingRebalance"


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.none), (6, ErrorCode.group_id_not_found)])
def test_an_unknown_group_is_dead(version: int, error: ErrorCode) -> None:
    (group,) = Harness().describe("x", version=version)
    assert (group.error_code, group.group_state) == (error, "Dead")
    assert group.error_message == ("Group x not found." if version == 6 else None)


@pytest.mark.parametrize("version", [5, 6])
def test_authorized_operations_are_included_on_request(version: int) -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1}))
    there, absent = harness.describe("g", "x", version=version, operations=True)
    assert there.authorized_operations == 3_400, "the value of Kafka without an authorizer"
    assert absent.authorized_operations == (3_400 if version == 5 else -(2**31))


def test_groups_are_described_in_the_order_of_the_request() -> None:
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
    listed = three_groups().list_groups(states, types)
    assert listed.error_code is ErrorCode.none
    assert {group.group_id for group in listed.groups} == found


def test_the_fields_of_a_listed_group() -> None:
    listed = {group.group_id: group for group in three_groups().list_groups().groups}
    assert [
        (listed[name].protocol_type, listed[name].group_state, listed[name].group_type)
        for name in ("stable", "completing", "simple")
    ] == [("consumer", "Stable", "classic"), ("consumer", "CompletingRebalance", "classic"), ("", "Empty", "classic")]
