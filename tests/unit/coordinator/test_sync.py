"""SyncGroup: the leader sends the assignment, and each member gets its part."""

from __future__ import annotations

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import sync_group_request
from tests.unit.coordinator.harness import DELAYED, Harness, failing, share


def test_followers_sync_before_the_leader() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    assert harness.waits(parked)
    response = harness.answer(harness.sync(leader, 1, {leader: b"x", follower: b"y"}))
    assert (response.error_code, response.assignment) == (ErrorCode.none, b"x")
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert harness.answer(parked).assignment == b"y"
    assert harness.state() is ClassicGroupState.STABLE


def test_the_leader_syncs_before_followers() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    assert harness.answer(harness.sync(leader, 1, {leader: b"x", follower: b"y"})).assignment == b"x"
    assert harness.answer(harness.sync(follower, 1)).assignment == b"y"
    assert harness.answer(harness.sync(follower, 1)).assignment == b"y", "also when it is repeated"


def test_the_assignment_is_in_the_log_before_the_responses() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    harness.appends = DELAYED
    ticket = harness.sync(leader, 1, {leader: b"x", follower: b"y"})
    assert harness.waits(ticket)
    assert harness.waits(parked)
    assert harness.state() is ClassicGroupState.COMPLETING_REBALANCE
    harness.settle()
    assert [harness.answer(one).assignment for one in (ticket, parked)] == [b"x", b"y"]
    written = harness.events()[-1]
    assert isinstance(written, GroupMetadataUpdated)
    assert {member.member_id: member.assignment for member in written.value.members} == {leader: b"x", follower: b"y"}


def test_an_assignment_by_a_follower_is_ignored() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1, {leader: b"mine", follower: b"mine"})
    harness.sync(leader, 1, {leader: b"x", follower: b"y"})
    assert harness.answer(parked).assignment == b"y"


def test_a_member_without_an_assignment_gets_no_bytes() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    harness.sync(leader, 1, {leader: b"x", "who": b"z"})
    assert harness.answer(harness.sync(follower, 1)).assignment == b""


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "connect", "protocol_name": "range"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.none),
        ({}, ErrorCode.none),
    ],
)
def test_a_member_may_name_the_protocol(fields: dict[str, str], error: ErrorCode) -> None:
    harness = Harness()
    (leader,) = harness.joined("A")
    assert harness.answer(harness.sync(leader, 1, **fields)).error_code is error


@pytest.mark.parametrize("named", [{}, {"protocol_type": "consumer"}, {"protocol_name": "range"}])
def test_a_new_client_must_name_the_protocol(named: dict[str, str]) -> None:
    harness = Harness()
    (leader,) = harness.joined("A")
    request = sync_group_request.SyncGroupRequest(
        group_id="g", generation_id=1, member_id=leader, assignments=(), **{"protocol_type": None, "protocol_name": None, **named}
    )
    response = harness.answer(harness.ask(Api.SYNC_GROUP, request, 5))
    assert response.error_code is ErrorCode.inconsistent_group_protocol
    assert harness.state() is ClassicGroupState.COMPLETING_REBALANCE


def test_syncs_that_are_rejected() -> None:
    harness = Harness()
    assert harness.answer(harness.sync("a", 1)).error_code is ErrorCode.unknown_member_id
    assert harness.answer(harness.sync("a", 1, group="")).error_code is ErrorCode.invalid_group_id
    (leader,) = harness.joined("A")
    assert harness.answer(harness.sync("a", 1)).error_code is ErrorCode.unknown_member_id
    assert harness.answer(harness.sync(leader, 0)).error_code is ErrorCode.illegal_generation
    assert harness.answer(harness.sync(leader, 2)).error_code is ErrorCode.illegal_generation
    assert harness.answer(harness.sync(leader, 1, instance="i")).error_code is ErrorCode.unknown_member_id
    assert harness.state() is ClassicGroupState.COMPLETING_REBALANCE


def test_a_sync_in_the_join_phase_gets_rebalance_in_progress() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    harness.join(leader)
    assert harness.answer(harness.sync(follower, 1)).error_code is ErrorCode.rebalance_in_progress


def test_a_second_sync_of_a_parked_member_replaces_the_first() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    lost, parked = harness.sync(follower, 1), harness.sync(follower, 1)
    assert harness.answer(lost).error_code is ErrorCode.rebalance_in_progress
    harness.sync(leader, 1, {leader: share(leader), follower: share(follower)})
    assert harness.answer(parked).assignment == share(follower)


def test_a_parked_sync_is_answered_when_a_rebalance_starts() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    harness.answer(harness.leave(leader))
    assert harness.answer(parked).error_code is ErrorCode.rebalance_in_progress


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (ErrorCode.unknown_topic_or_partition, ErrorCode.coordinator_not_available),
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_enough_replicas_after_append, ErrorCode.coordinator_not_available),
        (ErrorCode.request_timed_out, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.kafka_storage_error, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
        (ErrorCode.record_list_too_large, ErrorCode.unknown_server_error),
        (ErrorCode.invalid_fetch_size, ErrorCode.unknown_server_error),
        (ErrorCode.network_exception, ErrorCode.coordinator_load_in_progress),
        (ErrorCode.unknown_server_error, ErrorCode.unknown_server_error),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_not_sent(logs: ErrorCode, expected: ErrorCode) -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    before = harness.coordinator.durable_state()
    harness.appends = failing(logs)
    assert harness.answer(harness.sync(leader, 1, {leader: b"x", follower: b"y"})).error_code is expected
    assert harness.answer(parked).error_code is expected
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert all(member.assignment == b"" for member in harness.group().members.values())
    assert harness.coordinator.durable_state() == before
    tickets = [harness.join(leader), harness.join(follower)]
    assert {harness.answer(ticket).generation_id for ticket in tickets} == {2}
