"""The join phase: the initial delay, the wait for members, and the members at its end; the sync phase."""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness, share

# The initial delay.


def test_the_first_rebalance_waits_for_more_members() -> None:
    harness = Harness()
    ticket = harness.join(harness.member_id())
    harness.sleep(499)
    assert harness.waits(ticket)
    harness.sleep(1)
    assert harness.answer(ticket).generation_id == 1


def test_each_new_member_extends_the_initial_delay_once() -> None:
    harness = Harness()
    first, second = harness.member_id("A"), harness.member_id("B")
    tickets = [harness.join(first)]
    harness.sleep(400)
    tickets.append(harness.join(second))
    harness.sleep(599)
    assert all(map(harness.waits, tickets)), "one more delay, since another member joined"
    harness.sleep(1)
    assert [harness.answer(ticket).generation_id for ticket in tickets] == [1, 1]


def test_the_initial_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    harness = Harness()
    tickets = []
    for client in "ABCDEF":
        tickets.append(harness.join(harness.member_id(client), rebalance=1_600))
        harness.sleep(300)
    assert harness.mono == 1_800
    assert [harness.answer(ticket).generation_id for ticket in tickets] == [1] * 6
    assert harness.group().since - harness.group().stored.current_state_timestamp == 1_600


def test_without_a_delay_each_join_starts_a_generation() -> None:
    harness = Harness(group_initial_rebalance_delay_ms=0)
    assert harness.answer(harness.join(harness.member_id())).generation_id == 1


def test_without_a_delay_the_first_rebalance_waits_briefly_for_clients_with_an_id() -> None:
    harness = Harness(group_initial_rebalance_delay_ms=0)
    first, second = harness.member_id("A"), harness.member_id("B")
    ticket = harness.join(first)
    harness.sleep(2_999)
    assert harness.waits(ticket)
    harness.sleep(1)
    assert harness.answer(ticket).generation_id == 1
    harness.join(second, client="B")
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE


def test_a_group_that_became_empty_has_an_initial_delay_again() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    ticket = harness.join(harness.member_id())
    harness.sleep(499)
    assert harness.waits(ticket)
    harness.sleep(1)
    assert harness.answer(ticket).generation_id == 3


def test_a_group_that_became_empty_extends_its_initial_delay() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    first = harness.join(harness.member_id("B"))
    harness.sleep(300)
    second = harness.join(harness.member_id("C"))
    harness.sleep(699)
    assert harness.waits(first)
    harness.sleep(1)
    assert [harness.answer(ticket).generation_id for ticket in (first, second)] == [3, 3]


def test_all_members_may_have_left_when_the_initial_delay_ends() -> None:
    harness = Harness()
    member_id = harness.member_id()
    ticket = harness.join(member_id)
    harness.answer(harness.leave(member_id))
    assert harness.answer(ticket).error_code is ErrorCode.unknown_member_id
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    harness.sleep(500)
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.group().generation == 1


# Waiting for members.


def test_the_join_phase_ends_when_the_last_member_has_rejoined() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    newcomer = harness.join(harness.member_id("C"))
    harness.sleep(1_000)
    early = harness.join(follower)
    assert harness.waits(newcomer)
    assert harness.waits(early)
    harness.sleep(1_000)
    last = harness.join(leader)
    answers = [harness.answer(ticket) for ticket in (newcomer, early, last)]
    assert {(one.generation_id, one.leader) for one in answers} == {(2, leader)}


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B", rebalance=5_000)
    ticket = harness.join(follower, rebalance=5_000, protocols={"range": b"changed"})
    for _ in range(4):
        harness.sleep(1_000)
        assert harness.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    harness.sleep(1_000)
    response = harness.answer(ticket)
    assert (response.generation_id, response.leader) == (2, follower)
    assert list(harness.group().members) == [follower]
    assert harness.heartbeat(leader, 1) is ErrorCode.unknown_member_id


def test_the_longest_rebalance_timeout_applies() -> None:
    harness = Harness()
    first, second = harness.member_id("A"), harness.member_id("B")
    harness.wait_for(harness.join(first, rebalance=1_000), harness.join(second, rebalance=9_000, session=30_000))
    harness.join(first, rebalance=1_000, protocols={"range": b"changed"})
    harness.sleep(8_999)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.COMPLETING_REBALANCE


def test_more_joins_do_not_extend_the_join_phase() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B", rebalance=3_000)
    ticket = harness.join(follower, rebalance=3_000, protocols={"range": b"changed"})
    harness.sleep(2_000)
    harness.join(harness.member_id("C"), rebalance=3_000)
    harness.sleep(1_000)
    assert harness.answer(ticket).generation_id == 2
    assert leader not in harness.group().members


def test_the_join_phase_waits_for_a_client_with_an_id() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    pending = harness.member_id("B")
    ticket = harness.join(leader)
    assert harness.waits(ticket)
    newcomer = harness.join(pending)
    assert harness.answer(ticket).generation_id == harness.answer(newcomer).generation_id == 2


def test_the_join_phase_ends_without_a_client_whose_id_has_expired() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    pending = harness.member_id("B")
    ticket = harness.join(leader)
    harness.sleep(6_000)
    assert harness.answer(ticket).generation_id == 2
    assert harness.group().pending == frozenset()
    assert harness.answer(harness.join(pending)).error_code is ErrorCode.unknown_member_id


def test_a_join_phase_without_members_ends_with_an_empty_group() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    assert harness.state() is ClassicGroupState.EMPTY
    written = harness.events()[-1]
    assert isinstance(written, GroupMetadataUpdated)
    value = written.value
    assert (value.protocol_type, value.generation, value.protocol, value.leader) == ("consumer", 2, None, None)


# The end of the sync phase.


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    harness = Harness()
    leader, follower, silent = harness.joined("A", "B", "C", rebalance=4_000)
    parked = harness.sync(follower, 1)
    harness.answer(harness.sync(leader, 1, {leader: b"x", follower: b"y", silent: b"z"}))
    assert harness.answer(parked).assignment == b"y"
    harness.sleep(3_999)
    assert harness.state() is ClassicGroupState.STABLE
    harness.sleep(1)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert list(harness.group().members) == [leader, follower]
    tickets = [harness.join(leader), harness.join(follower)]
    assert {harness.answer(ticket).generation_id for ticket in tickets} == {2}


def test_a_leader_that_does_not_sync_in_time_is_removed() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B", rebalance=4_000)
    parked = harness.sync(follower, 1)
    harness.sleep(4_000)
    assert harness.answer(parked).error_code is ErrorCode.rebalance_in_progress
    ticket = harness.join(follower)
    assert harness.answer(ticket).leader == follower
    assert leader not in harness.group().members


def test_the_sync_timer_is_cancelled_after_the_last_sync() -> None:
    harness = Harness()
    ids = harness.stable("A", "B", rebalance=4_000)
    for _ in range(5):
        harness.sleep(1_000)
        assert [harness.heartbeat(one, 1) for one in ids] == [ErrorCode.none] * 2
    assert ("coordinator", "g", "sync") not in harness.deadlines


def test_a_group_without_any_sync_becomes_empty() -> None:
    harness = Harness()
    harness.joined("A", "B", rebalance=4_000, session=30_000)
    harness.sleep(4_000)
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.deadlines == {}


def test_a_member_that_dies_after_the_assignment_is_replaced() -> None:
    harness = Harness()
    leader, follower = harness.joined("A", "B")
    harness.answer(harness.sync(leader, 1, {leader: share(leader), follower: share(follower)}))
    harness.sleep(5_000)
    assert harness.heartbeat(leader, 1) is ErrorCode.none
    harness.sleep(1_000)
    assert harness.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    assert list(harness.group().members) == [leader]
