"""Offsets that are committed in transactions: the checks, pending offsets in answers, and the outcome."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, Harness, failing

PLACE = ("orders", 0)
FIRST, SECOND = 1, 2


def txn_commit_error(harness: Harness, *args: object, **fields: Any) -> ErrorCode:
    """Send a TxnOffsetCommit of one partition; return the error code in the response."""
    answer = harness.answer(harness.commit_in_transaction(*args, **fields))
    error = answer.topics[0].partitions[0].error_code
    assert isinstance(error, ErrorCode)
    return error


def same_after_restart(harness: Harness) -> None:
    """Check that the log has the same state, replayed record by record and loaded after a start."""
    durable, pending = harness.coordinator.durable_state(), harness.coordinator.pending_offsets()
    assert harness.replayed() == durable
    harness.restart()
    assert (harness.coordinator.durable_state(), harness.coordinator.pending_offsets()) == (durable, pending)


# The checks of the sender.


@pytest.mark.parametrize(
    ("member_id", "generation", "expected"),
    [
        ("", -1, ErrorCode.none),
        ("a", 3, ErrorCode.none),
        ("a", 4, ErrorCode.illegal_generation),
        ("a", 1, ErrorCode.illegal_generation),
        ("a", -1, ErrorCode.illegal_generation),
        ("unknown", 3, ErrorCode.unknown_member_id),
        ("", 3, ErrorCode.unknown_member_id),
        ("b", 2, ErrorCode.illegal_generation),
        ("b", 3, ErrorCode.none),
    ],
)
def test_a_member_of_a_consumer_group_names_its_epoch(member_id: str, generation: int, expected: ErrorCode) -> None:
    harness = Harness()
    harness.cg_join("a")
    harness.cg_join("b")
    harness.cg_heartbeat("a", 2)
    assert harness.cg_heartbeat("a", 2, owned={"orders": [0, 1]}).member_epoch == 3
    assert txn_commit_error(harness, {("orders", 3): 5}, FIRST, member_id, generation, group="c") is expected
    harness.end_transaction(FIRST, commit=True)
    stored = {("orders", 3): 5} if expected is ErrorCode.none else {}
    assert harness.committed("c") == stored
    same_after_restart(harness)


def test_an_older_epoch_can_commit_partitions_owned_since_then() -> None:
    harness = Harness()
    harness.cg_join("a")
    harness.cg_join("b")
    harness.cg_heartbeat("a", 2)
    assert harness.cg_heartbeat("a", 2, owned={"orders": [0, 1]}).member_epoch == 3
    assert txn_commit_error(harness, {("orders", 0): 5}, FIRST, "a", 2, group="c") is ErrorCode.none
    assert txn_commit_error(harness, {("orders", 0): 5}, FIRST, "a", 1, group="c") is ErrorCode.illegal_generation
    assert txn_commit_error(harness, {("orders", 2): 5}, FIRST, "a", 2, group="c") is ErrorCode.illegal_generation, "revoked"
    assert txn_commit_error(harness, {("orders", 9): 5}, FIRST, "a", 2, group="c") is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("member", "generation", "instance", "expected"),
    [
        ("leader", 1, None, ErrorCode.none),
        ("leader", 0, None, ErrorCode.illegal_generation),
        ("leader", 2, None, ErrorCode.illegal_generation),
        ("unknown", 1, None, ErrorCode.unknown_member_id),
        ("leader", 1, "i", ErrorCode.unknown_member_id),
        ("", -1, None, ErrorCode.none),
    ],
)
def test_a_member_of_a_classic_group_names_its_generation(
    member: str, generation: int, instance: str | None, expected: ErrorCode
) -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    member_id = leader if member == "leader" else member
    assert txn_commit_error(harness, {PLACE: 5}, FIRST, member_id, generation, instance=instance) is expected


def test_a_replaced_static_member_is_fenced() -> None:
    harness = Harness()
    first = harness.join(instance="i")
    harness.wait_for(first)
    old = harness.answer(first).member_id
    harness.sync(old, 1, {old: b"x"})
    harness.join(instance="i")
    assert txn_commit_error(harness, {PLACE: 5}, FIRST, old, 1, instance="i") is ErrorCode.fenced_instance_id


def test_a_commit_keeps_a_classic_member_alive() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.sleep(5_000)
    assert txn_commit_error(harness, {PLACE: 5}, FIRST, leader, 1) is ErrorCode.none
    harness.sleep(5_000)
    assert harness.heartbeat(leader, 1) is ErrorCode.none


def test_an_unknown_group_has_no_generation() -> None:
    harness = Harness()
    assert txn_commit_error(harness, {PLACE: 5}, FIRST, "m", 1, group="absent") is ErrorCode.illegal_generation
    assert txn_commit_error(harness, {PLACE: 5}, FIRST, group="absent") is ErrorCode.none


# Pending offsets in answers, and the outcome.


def test_an_offset_is_unstable_until_its_transaction_is_committed() -> None:
    harness = Harness()
    harness.commit({PLACE: 1})
    txn_commit_error(harness, {PLACE: 5}, FIRST)
    assert harness.committed() == {PLACE: 1}
    assert harness.unstable("g", PLACE, ("orders", 1)) == [True, False]
    same_after_restart(harness)
    harness.end_transaction(FIRST, commit=True)
    assert harness.committed() == {PLACE: 5}
    assert harness.unstable("g", PLACE) == [False]
    same_after_restart(harness)


def test_an_aborted_offset_has_no_effect() -> None:
    harness = Harness()
    txn_commit_error(harness, {PLACE: 5}, FIRST)
    harness.end_transaction(FIRST, commit=False)
    assert harness.committed() == {}
    assert harness.unstable("g", PLACE) == [False]
    same_after_restart(harness)


@pytest.mark.parametrize("restarts", [False, True])
def test_of_two_transactions_the_last_write_wins(restarts: bool) -> None:
    harness = Harness()
    txn_commit_error(harness, {PLACE: 10}, FIRST)
    txn_commit_error(harness, {PLACE: 20}, SECOND)
    harness.end_transaction(SECOND, commit=True)
    assert harness.unstable("g", PLACE) == [True], "the first is still open, though it will have no effect"
    if restarts:
        same_after_restart(harness)
    harness.end_transaction(FIRST, commit=True)
    assert harness.committed() == {PLACE: 20}
    assert harness.unstable("g", PLACE) == [False]
    same_after_restart(harness)


def test_of_two_transactions_the_later_can_be_aborted() -> None:
    harness = Harness()
    txn_commit_error(harness, {PLACE: 10}, FIRST)
    txn_commit_error(harness, {PLACE: 20}, SECOND)
    harness.end_transaction(FIRST, commit=True)
    harness.end_transaction(SECOND, commit=False)
    assert harness.committed() == {PLACE: 10}
    same_after_restart(harness)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_offset_outside_of_transactions_supersedes_earlier_pending_ones(restarts: bool) -> None:
    harness = Harness()
    txn_commit_error(harness, {PLACE: 10}, FIRST)
    harness.commit({PLACE: 1})
    assert harness.unstable("g", PLACE) == [True]
    if restarts:
        same_after_restart(harness)
    harness.end_transaction(FIRST, commit=True)
    assert harness.committed() == {PLACE: 1}
    same_after_restart(harness)


def test_a_pending_offset_is_deleted_with_its_group() -> None:
    harness = Harness()
    harness.commit({("orders", 1): 1})
    txn_commit_error(harness, {PLACE: 10}, FIRST)
    harness.delete("g")
    same_after_restart(harness)
    harness.end_transaction(FIRST, commit=True)
    assert harness.coordinator.groups() == {}
    same_after_restart(harness)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_waits_for_the_open_appends_of_its_transaction(commit: bool) -> None:
    harness = Harness()
    harness.appends = DELAYED
    ticket = harness.commit_in_transaction({PLACE: 10}, FIRST)
    harness.end_transaction(FIRST, commit=commit)
    assert harness.coordinator.durable_state() == {}
    harness.appends = IMMEDIATE
    harness.settle()
    assert harness.answer(ticket).topics[0].partitions[0].error_code is ErrorCode.none
    assert harness.committed() == ({PLACE: 10} if commit else {})
    same_after_restart(harness)


def test_an_offset_whose_append_failed_is_not_committed() -> None:
    harness = Harness()
    txn_commit_error(harness, {PLACE: 10}, FIRST)
    harness.appends = failing(ErrorCode.not_enough_replicas)
    assert txn_commit_error(harness, {PLACE: 11}, FIRST) is ErrorCode.coordinator_not_available
    harness.end_transaction(FIRST, commit=True)
    assert harness.committed() == {PLACE: 10}
    same_after_restart(harness)
