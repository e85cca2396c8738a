"""JoinGroup: new and returning members, and the rebalances that they cause."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness, subscription


def test_a_new_group_is_written_at_once() -> None:
    harness = Harness()
    harness.member_id()
    (written,) = harness.events()
    assert isinstance(written, GroupMetadataUpdated)
    assert (written.value.generation, written.value.protocol_type, written.value.members) == (0, "", ())
    assert harness.state() is ClassicGroupState.EMPTY


def test_a_dynamic_member_first_gets_an_id() -> None:
    harness = Harness()
    response = harness.answer(harness.join(client="me"))
    assert response.error_code is ErrorCode.member_id_required
    assert response.member_id == "me-00000000-0000-0000-0000-000000000001"
    assert (response.generation_id, response.protocol_type, response.protocol_name, response.leader) == (-1, None, None, "")
    assert harness.group().pending == {response.member_id}


def test_an_old_client_joins_without_an_id() -> None:
    harness = Harness()
    ticket = harness.join(version=3)
    harness.wait_for(ticket)
    response = harness.answer(ticket)
    assert (response.error_code, response.generation_id) == (ErrorCode.none, 1)
    assert response.leader == response.member_id


@pytest.mark.parametrize("member_id", ["made-up", "A-00000000-0000-0000-0000-000000000009"])
def test_an_unknown_member_id_is_rejected(member_id: str) -> None:
    harness = Harness()
    response = harness.answer(harness.join(member_id))
    assert (response.error_code, response.member_id) == (ErrorCode.unknown_member_id, member_id)
    assert harness.state() is ClassicGroupState.DEAD
    harness.stable("A")
    assert harness.answer(harness.join(member_id)).error_code is ErrorCode.unknown_member_id


def test_the_group_id_must_not_be_empty() -> None:
    harness = Harness()
    assert harness.answer(harness.join(group="")).error_code is ErrorCode.invalid_group_id


@pytest.mark.parametrize(
    ("session", "error"), [(5_999, ErrorCode.invalid_session_timeout), (1_800_001, ErrorCode.invalid_session_timeout)]
)
def test_the_session_timeout_has_bounds(session: int, error: ErrorCode) -> None:
    harness = Harness()
    assert harness.answer(harness.join(session=session)).error_code is error
    assert harness.answer(harness.join(session=6_000)).error_code is ErrorCode.member_id_required
    assert harness.answer(harness.join(session=1_800_000)).error_code is ErrorCode.member_id_required


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": {}}])
def test_a_member_without_protocols_is_rejected_and_leaves_an_empty_group(fields: dict[str, Any]) -> None:
    harness = Harness()
    response = harness.answer(harness.join(**fields))
    assert response.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.state() is ClassicGroupState.EMPTY


@pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocols": {"sticky": b""}}])
def test_a_member_without_a_common_protocol_is_rejected(fields: dict[str, Any]) -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    assert harness.answer(harness.join(client="B", **fields)).error_code is ErrorCode.inconsistent_group_protocol
    assert harness.answer(harness.join(leader, **fields)).error_code is ErrorCode.inconsistent_group_protocol
    assert harness.state() is ClassicGroupState.STABLE


def test_an_empty_group_accepts_another_protocol_type() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    harness.stable("A", protocol_type="connect")
    assert harness.group().protocol_type == "connect"


def test_a_static_member_cannot_use_the_id_of_a_dynamic_one() -> None:
    harness = Harness()
    member_id = harness.member_id()
    assert harness.answer(harness.join(member_id, instance="i1")).error_code is ErrorCode.unknown_server_error
    assert harness.group().pending == {member_id}


def test_only_the_leader_gets_the_list_of_members() -> None:
    harness = Harness()
    ids = [harness.member_id(client) for client in "AB"]
    tickets = [harness.join(one, protocols={"range": subscription(one[0])}) for one in ids]
    harness.wait_for(*tickets)
    leader, follower = (harness.answer(ticket) for ticket in tickets)
    assert leader.leader == follower.leader == ids[0]
    assert [(one.member_id, one.metadata) for one in leader.members] == [(one, subscription(one[0])) for one in ids]
    assert follower.members == ()


def test_a_rebalance_keeps_its_protocol_type_when_all_members_have_left() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.member_id("B")
    harness.leave(leader)
    assert (harness.state(), harness.group().members) == (ClassicGroupState.PREPARING_REBALANCE, {})
    assert harness.answer(harness.join(protocol_type="connect")).error_code is ErrorCode.inconsistent_group_protocol
    assert harness.answer(harness.join(protocols={})).error_code is ErrorCode.inconsistent_group_protocol
    assert harness.answer(harness.join(protocols={"any": b""})).error_code is ErrorCode.member_id_required


def test_the_elected_protocol_is_one_that_all_members_support() -> None:
    harness = Harness()
    ids = [harness.member_id(client) for client in "AB"]
    one = harness.join(ids[0], protocols={"sticky": b"s", "range": b"r"})
    two = harness.join(ids[1], protocols={"range": b"q", "roundrobin": b"o"})
    harness.wait_for(one, two)
    assert harness.answer(two).protocol_name == "range"
    assert [member.metadata for member in harness.answer(one).members] == [b"r", b"q"]


# Rejoining.


def test_a_follower_that_rejoins_unchanged_causes_no_rebalance() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    response = harness.answer(harness.join(follower))
    assert (response.error_code, response.generation_id, response.leader, response.members) == (ErrorCode.none, 1, leader, ())
    assert harness.state() is ClassicGroupState.STABLE


def test_a_follower_that_rejoins_with_other_topics_causes_a_rebalance() -> None:
    harness = Harness()
    _, follower = harness.stable("A", "B")
    assert harness.waits(harness.join(follower, protocols={"range": subscription("bills")}))
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_causes_a_rebalance() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    assert harness.waits(ticket := harness.join(leader))
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert harness.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress
    follower_ticket = harness.join(follower)
    assert harness.answer(ticket).generation_id == harness.answer(follower_ticket).generation_id == 2


def test_a_member_whose_join_response_was_lost_gets_it_again() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    again = harness.answer(harness.join(leader))
    assert (again.generation_id, [member.member_id for member in again.members]) == (1, [leader, follower])
    assert harness.answer(harness.join(follower)).members == ()
    assert harness.state() is ClassicGroupState.COMPLETING_REBALANCE


def test_a_member_that_rejoins_with_other_topics_in_the_sync_phase_causes_a_rebalance() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    ticket = harness.join(leader, protocols={"range": subscription("bills")})
    assert harness.waits(ticket)
    assert harness.answer(parked).error_code is ErrorCode.rebalance_in_progress
    harness.join(follower)
    assert harness.answer(ticket).generation_id == 2


def test_each_rebalance_increments_the_generation() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    for generation in (2, 3, 4):
        assert harness.answer(harness.join(leader)).generation_id == generation
        assert harness.answer(harness.sync(leader, generation)).error_code is ErrorCode.none


def test_a_second_join_of_a_parked_member_replaces_the_first() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    lost = harness.join(leader)
    ticket = harness.join(leader, protocols={"range": subscription("bills")})
    assert harness.answer(lost).error_code is ErrorCode.rebalance_in_progress
    harness.join(follower)
    assert harness.answer(ticket).members[0].metadata == subscription("bills")


def test_a_member_of_an_emptied_group_must_join_without_an_id() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    assert harness.answer(harness.join(leader)).error_code is ErrorCode.unknown_member_id


# The size of a group.


def test_a_full_group_rejects_new_members() -> None:
    harness = Harness(group_max_size=2)
    harness.stable("A", "B")
    response = harness.answer(harness.join(client="C"))
    assert (response.error_code, response.member_id) == (ErrorCode.group_max_size_reached, "")
    assert harness.state() is ClassicGroupState.STABLE


def test_of_many_clients_with_an_id_the_first_to_join_are_accepted() -> None:
    harness = Harness(group_max_size=2)
    ids = [harness.member_id(client) for client in "ABC"]
    tickets = [harness.join(one) for one in ids]
    assert harness.answer(tickets[2]).error_code is ErrorCode.group_max_size_reached
    harness.wait_for(*tickets)
    assert list(harness.group().members) == ids[:2]
    assert harness.group().pending == frozenset()


def test_members_of_a_full_group_may_rejoin() -> None:
    harness = Harness(group_max_size=2)
    leader, follower = harness.stable("A", "B")
    ticket, other = harness.join(leader), harness.join(follower)
    assert harness.answer(ticket).generation_id == harness.answer(other).generation_id == 2


def test_the_last_members_to_rejoin_a_group_that_is_too_big_are_removed() -> None:
    harness = Harness()
    ids = harness.stable("A", "B", "C")
    harness.config = type(harness.config)(offsets_topic_partitions=5, group_max_size=2)
    harness.restart()
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE, "a freshly loaded group that is too big rebalances"
    tickets = [harness.join(one) for one in ids]
    assert harness.answer(tickets[2]).error_code is ErrorCode.group_max_size_reached
    assert [harness.answer(ticket).generation_id for ticket in tickets[:2]] == [2, 2]
    assert list(harness.group().members) == ids[:2]


# Bad input.


@pytest.mark.parametrize(
    "fields",
    [
        {"group": "g" * 40_000},
        {"client": "c" * 32_760},
        {"instance": "i" * 32_760},
        {"protocol_type": "t" * 40_000},
        {"protocols": {"p" * 40_000: b""}},
    ],
)
def test_names_that_are_too_long_for_a_record_are_rejected(fields: dict[str, Any]) -> None:
    harness = Harness()
    assert harness.answer(harness.join(**fields)).error_code is ErrorCode.invalid_request
    assert harness.events() == []
