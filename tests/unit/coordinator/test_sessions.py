"""Heartbeats, and the expiry of sessions."""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.decision import session_timer, sync_timer
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness


def test_heartbeats_of_members_and_others() -> None:
    harness = Harness()
    assert harness.heartbeat("a", 1, group="") is ErrorCode.invalid_group_id
    assert harness.heartbeat("a", 1) is ErrorCode.unknown_member_id
    pending = harness.member_id()
    assert harness.heartbeat(pending, 0) is ErrorCode.unknown_member_id, "an empty group"
    harness.wait_for(harness.join(pending))
    assert harness.heartbeat("a", 1) is ErrorCode.unknown_member_id
    assert harness.heartbeat(pending, 0) is ErrorCode.illegal_generation
    assert harness.heartbeat(pending, 2) is ErrorCode.illegal_generation
    assert harness.heartbeat(pending, 1, instance="i") is ErrorCode.unknown_member_id
    assert harness.heartbeat(pending, 1) is ErrorCode.none


def test_the_response_to_a_heartbeat_in_each_state() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    assert harness.heartbeat(follower, 1) is ErrorCode.none
    harness.sync(leader, 1)
    assert harness.heartbeat(follower, 1) is ErrorCode.none
    harness.join(leader)
    assert harness.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress


def test_a_silent_member_is_removed_when_its_session_expires() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    harness.sleep(3_000)
    assert harness.heartbeat(leader, 1) is ErrorCode.none
    harness.sleep(2_999)
    assert harness.state() is ClassicGroupState.STABLE
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert list(harness.group().members) == [leader]
    assert harness.heartbeat(follower, 1) is ErrorCode.unknown_member_id


def test_the_last_member_to_go_silent_leaves_an_empty_group() -> None:
    harness = Harness()
    harness.stable("A")
    harness.sleep(6_000)
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.deadlines == {}


def test_heartbeats_keep_a_session_alive() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    for _ in range(50):
        harness.sleep(5_999)
        assert harness.heartbeat(leader, 1) is ErrorCode.none


def test_a_session_goes_on_while_the_group_prepares() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    ticket = harness.join(leader)
    for _ in range(10):
        harness.sleep(4_000)
        assert harness.heartbeat(follower, 1) is ErrorCode.rebalance_in_progress
    harness.sleep(6_000)
    assert harness.answer(ticket).generation_id == 2
    assert list(harness.group().members) == [leader]


def test_a_member_with_a_parked_request_does_not_expire() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    ticket = harness.join(leader)
    harness.sleep(5_000)
    harness.heartbeat(follower, 1)
    harness.sleep(5_000)
    assert harness.waits(ticket)
    harness.join(follower)
    assert harness.answer(ticket).generation_id == 2
    parked = harness.sync(follower, 2)
    for _ in range(5):
        harness.sleep(4_000)
        harness.heartbeat(leader, 2)
    assert harness.waits(parked)
    harness.sync(leader, 2, {leader: b"x", follower: b"y"})
    assert harness.answer(parked).assignment == b"y"
    harness.sleep(6_000)
    assert harness.state() is ClassicGroupState.EMPTY, "both sessions have expired"


def test_a_member_gets_a_full_session_with_its_assignment() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    harness.sync(follower, 1)
    harness.sleep(4_000)
    harness.sync(leader, 1, {leader: b"x", follower: b"y"})
    assert {harness.deadlines[session_timer("g", one)] for one in (leader, follower)} == {harness.mono + 6_000}
    harness.sleep(1_000)
    harness.sync(follower, 1)
    assert harness.deadlines[session_timer("g", follower)] == harness.mono + 6_000


def test_a_member_with_a_parked_request_is_checked_again_after_another_session() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    harness.sync(follower, 1)
    harness.sleep(3_000)
    harness.heartbeat(leader, 1)
    harness.sleep(3_000)
    assert harness.deadlines[session_timer("g", follower)] == harness.mono + 6_000


def test_a_join_phase_cancels_the_sync_timer() -> None:
    harness = Harness()
    leader, _ = harness.joined("A", "B")
    harness.answer(harness.leave(leader))
    assert sync_timer("g") not in harness.deadlines


def test_a_new_member_expires_after_five_minutes_in_its_first_join() -> None:
    harness = Harness()
    (leader,) = harness.stable("A", rebalance=1_000_000, session=600_000)
    ticket = harness.join(harness.member_id("B"), rebalance=1_000_000)
    harness.sleep(299_999)
    assert harness.waits(ticket)
    harness.sleep(1)
    assert harness.answer(ticket).error_code is ErrorCode.unknown_member_id
    assert list(harness.group().members) == [leader]


def test_a_member_has_its_own_session_timeout() -> None:
    harness = Harness()
    member_id = harness.member_id()
    harness.wait_for(harness.join(member_id, session=20_000))
    assert harness.deadlines[session_timer("g", member_id)] == harness.mono + 20_000


def test_a_client_with_an_id_must_join_within_its_session_timeout() -> None:
    harness = Harness()
    harness.member_id()
    harness.sleep(5_999)
    assert len(harness.group().pending) == 1
    harness.sleep(1)
    assert harness.group().pending == frozenset()
    assert harness.deadlines == {}


def test_a_leader_that_dies_before_it_assigns_has_a_successor() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    parked = harness.sync(follower, 1)
    harness.sleep(6_000)
    assert harness.answer(parked).error_code is ErrorCode.rebalance_in_progress
    assert harness.answer(harness.join(follower)).leader == follower
    assert leader not in harness.group().members


def test_a_commit_keeps_the_session() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.sleep(5_000)
    harness.answer(harness.commit({("orders", 0): 1}, leader, 1))
    harness.sleep(5_000)
    assert harness.heartbeat(leader, 1) is ErrorCode.none


def test_a_timer_that_fires_early_is_set_again() -> None:
    harness = Harness()
    harness.stable("A")
    (key,) = harness.timers
    harness.all_timers.clear()
    harness.perform(harness.coordinator.on_timer(key, harness.now))
    assert harness.timers == harness.deadlines != {}
    assert harness.state() is ClassicGroupState.STABLE


def test_a_cancelled_timer_has_no_effect() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    key = session_timer("g", leader)
    harness.answer(harness.leave(leader))
    generation = harness.group().generation
    harness.sleep(60_000)
    harness.perform(harness.coordinator.on_timer(key, harness.now))
    assert (harness.state(), harness.group().generation) == (ClassicGroupState.EMPTY, generation)
