"""Static members: a member that returns with its instance id replaces its predecessor (KIP-345, KIP-814)."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.decision import session_timer
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import DELAYED, Harness, failing, share, subscription

CHANGED = {"range": b"other topics"}


def static_joined(harness: Harness, *instances: str, **fields: Any) -> list[str]:
    """Make a group of static members that wait for the leader, which is the first; return their ids."""
    tickets = [harness.join(instance=instance, **fields) for instance in instances]
    harness.wait_for(*tickets)
    return [str(harness.answer(ticket).member_id) for ticket in tickets]


def static_stable(harness: Harness, *instances: str, **fields: Any) -> list[str]:
    ids = static_joined(harness, *instances, **fields)
    for one, instance in zip(ids[::-1], instances[::-1], strict=True):
        harness.sync(one, 1, {name: share(name) for name in ids}, instance=instance)
    assert harness.state() is ClassicGroupState.STABLE
    return ids


def test_a_static_member_needs_no_id_before_it_joins() -> None:
    harness = Harness()
    (member_id,) = static_joined(harness, "i1")
    assert member_id == "i1-00000000-0000-0000-0000-000000000001"


def test_a_restarted_follower_rejoins_without_a_rebalance() -> None:
    harness = Harness()
    leader, old = static_stable(harness, "i1", "i2")
    response = harness.answer(harness.join(instance="i2"))
    assert (response.error_code, response.generation_id, response.leader) == (ErrorCode.none, 1, leader)
    assert (response.skip_assignment, response.members) == (False, ())
    assert response.member_id not in (old, leader)
    assert harness.state() is ClassicGroupState.STABLE
    assert harness.heartbeat(leader, 1, instance="i1") is ErrorCode.none
    assert harness.answer(harness.sync(response.member_id, 1, instance="i2")).assignment == share(old)
    assert session_timer("g", old) not in harness.deadlines
    assert session_timer("g", response.member_id) in harness.deadlines


def test_the_new_member_id_is_in_the_log_before_the_response() -> None:
    harness = Harness()
    leader, old = static_stable(harness, "i1", "i2")
    harness.appends = DELAYED
    ticket = harness.join(instance="i2")
    assert harness.waits(ticket)
    assert set(harness.group().members) == {leader, old}
    harness.settle()
    new = harness.answer(ticket).member_id
    written = harness.events()[-1]
    assert isinstance(written, GroupMetadataUpdated)
    assert {one.member_id: (one.group_instance_id, one.assignment) for one in written.value.members} == {
        leader: ("i1", share(leader)),
        new: ("i2", share(old)),
    }


def test_the_previous_member_id_is_fenced() -> None:
    harness = Harness()
    _, old = static_stable(harness, "i1", "i2")
    harness.answer(harness.join(instance="i2"))
    assert harness.heartbeat(old, 1, instance="i2") is ErrorCode.fenced_instance_id
    assert harness.answer(harness.sync(old, 1, instance="i2")).error_code is ErrorCode.fenced_instance_id
    assert harness.answer(harness.join(old, instance="i2")).error_code is ErrorCode.fenced_instance_id
    commit = harness.answer(harness.commit({("orders", 0): 1}, old, 1, instance="i2"))
    assert commit.topics[0].partitions[0].error_code is ErrorCode.fenced_instance_id
    assert harness.heartbeat(old, 1) is ErrorCode.unknown_member_id


def test_a_restarted_leader_remains_the_leader_and_skips_the_assignment() -> None:
    harness = Harness()
    old, follower = static_stable(harness, "i1", "i2")
    response = harness.answer(harness.join(instance="i1"))
    assert response.leader == response.member_id != old
    assert response.skip_assignment
    assert {member.member_id for member in response.members} == {response.member_id, follower}
    assert harness.answer(harness.sync(response.member_id, 1, instance="i1")).assignment == share(old)
    assert harness.group().leader == response.member_id


def test_a_restarted_leader_with_an_old_version_gets_its_previous_id_as_the_leader() -> None:
    harness = Harness()
    old, _ = static_stable(harness, "i1", "i2")
    response = harness.answer(harness.join(instance="i1", version=8))
    assert (response.leader, response.skip_assignment, response.members) == (old, False, ())
    assert harness.group().leader == response.member_id


def test_other_topics_cause_no_rebalance_if_the_protocol_stays() -> None:
    harness = Harness()
    static_stable(harness, "i1", "i2")
    response = harness.answer(harness.join(instance="i2", protocols=CHANGED))
    assert (response.error_code, response.generation_id) == (ErrorCode.none, 1)
    assert harness.state() is ClassicGroupState.STABLE
    assert harness.group().members[response.member_id].protocols == (("range", b"other topics"),)


def test_another_protocol_causes_a_rebalance() -> None:
    harness = Harness()
    both = {"range": b"", "sticky": b""}
    leader, _ = static_stable(harness, "i1", "i2", protocols=both)
    ticket = harness.join(instance="i2", protocols={"sticky": b""})
    assert harness.waits(ticket)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    rejoined = harness.join(leader, instance="i1", protocols=both)
    assert harness.answer(rejoined).protocol_name == harness.answer(ticket).protocol_name == "sticky"


def test_a_return_that_cannot_be_stored_fails() -> None:
    harness = Harness()
    _, old = static_stable(harness, "i1", "i2")
    before = harness.group()
    timers = dict(harness.deadlines)
    harness.appends = failing(ErrorCode.not_leader_or_follower)
    response = harness.answer(harness.join(instance="i2"))
    assert (response.error_code, response.member_id) == (ErrorCode.not_coordinator, "")
    assert harness.group() == before
    assert harness.deadlines == timers
    assert harness.heartbeat(old, 1, instance="i2") is ErrorCode.none


def test_a_restart_before_the_assignment_starts_another_rebalance() -> None:
    harness = Harness()
    leader, old = static_joined(harness, "i1", "i2")
    parked = harness.sync(old, 1, instance="i2")
    ticket = harness.join(instance="i2")
    assert harness.answer(parked).error_code is ErrorCode.fenced_instance_id
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    harness.join(leader, instance="i1")
    assert harness.answer(ticket).generation_id == 2


def test_a_duplicate_in_the_join_phase_fences_the_first() -> None:
    harness = Harness()
    leader, follower = static_stable(harness, "i1", "i2")
    harness.join(leader, instance="i1")
    ticket = harness.join(follower, instance="i2", protocols=CHANGED)
    response = harness.answer(ticket)
    assert response.generation_id == 2
    harness.join(leader, instance="i1", protocols=CHANGED)
    first = harness.join(instance="i2")
    assert harness.answer(first).generation_id == 3
    harness.join(harness.answer(first).member_id, instance="i2", protocols=CHANGED)
    second = harness.join(instance="i2")
    assert harness.waits(second)
    harness.join(leader, instance="i1")
    assert harness.answer(second).generation_id == 4


def test_a_parked_duplicate_is_fenced() -> None:
    harness = Harness()
    first = harness.join(instance="i1")
    second = harness.join(instance="i1")
    response = harness.answer(first)
    assert response.error_code is ErrorCode.fenced_instance_id
    harness.wait_for(second)
    assert list(harness.group().members) == [harness.answer(second).member_id]


def test_each_restart_gets_another_member_id() -> None:
    harness = Harness()
    static_stable(harness, "i1")
    ids = [harness.answer(harness.join(instance="i1")).member_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert list(harness.group().members) == [ids[-1]]


@pytest.mark.parametrize(("instance", "error"), [("i1", ErrorCode.fenced_instance_id), ("i9", ErrorCode.unknown_member_id)])
def test_a_member_with_another_members_instance_id_is_rejected(instance: str, error: ErrorCode) -> None:
    harness = Harness()
    _, follower = static_stable(harness, "i1", "i2")
    assert harness.answer(harness.join(follower, instance=instance)).error_code is error
    assert harness.heartbeat(follower, 1, instance=instance) is error


def test_a_static_member_that_misses_a_rebalance_remains() -> None:
    harness = Harness()
    leader, follower = static_stable(harness, "i1", "i2", rebalance=4_000, session=30_000)
    ticket = harness.join(leader, instance="i1", protocols=CHANGED, rebalance=4_000, session=30_000)
    harness.sleep(4_000)
    response = harness.answer(ticket)
    assert (response.generation_id, response.leader) == (2, leader)
    assert list(harness.group().members) == [leader, follower]


def test_a_static_leader_that_misses_a_rebalance_has_a_successor() -> None:
    harness = Harness()
    leader, follower = static_stable(harness, "i1", "i2", rebalance=4_000, session=30_000)
    ticket = harness.join(follower, instance="i2", protocols=CHANGED, rebalance=4_000, session=30_000)
    harness.sleep(4_000)
    response = harness.answer(ticket)
    assert response.leader == follower
    assert {member.member_id for member in response.members} == {leader, follower}


def test_a_rebalance_without_joins_waits_until_sessions_expire() -> None:
    harness = Harness()
    leader, follower = static_stable(harness, "i1", "i2", rebalance=4_000, session=9_000)
    newcomer = harness.member_id("C")
    ticket = harness.join(newcomer, rebalance=4_000)
    harness.answer(harness.leave(newcomer))
    assert harness.answer(ticket).error_code is ErrorCode.unknown_member_id
    harness.sleep(8_000)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert set(harness.group().members) == {leader, follower}
    harness.sleep(1_000)
    assert harness.state() is ClassicGroupState.EMPTY


def test_instances_and_topics_of_a_loaded_group_are_known() -> None:
    harness = Harness()
    leader, old = static_stable(harness, "i1", "i2")
    harness.restart()
    response = harness.answer(harness.join(instance="i2"))
    assert (response.generation_id, response.leader) == (1, leader)
    assert harness.group().members[leader].metadata("range") == subscription("orders")
    assert harness.heartbeat(old, 1, instance="i2") is ErrorCode.fenced_instance_id
