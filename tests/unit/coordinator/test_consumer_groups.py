"""ConsumerGroupHeartbeat: joining, moving partitions, leaving, and the records of each."""

from __future__ import annotations

from ottla.coordinator.consumer.group import ConsumerGroupState
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    MemberSubscriptionUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.protocol import ErrorCode, milliseconds
from tests.unit.coordinator.harness import Harness, failing


def test_the_first_member_gets_all_partitions_at_once() -> None:
    harness = Harness()
    answer = harness.cg_join("m1")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, "m1", 2)
    assert milliseconds(answer.heartbeat_interval) == 1_000
    assert harness.share_of(answer) == {"orders": [0, 1, 2, 3]}
    assert [type(event) for event in harness.events()] == [
        MemberSubscriptionUpdated,
        GroupEpochUpdated,
        TargetAssignmentUpdated,
        TargetAssignmentEpochUpdated,
        CurrentAssignmentUpdated,
    ]
    assert harness.consumer_group().state is ConsumerGroupState.STABLE
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) is None


def test_a_partition_moves_between_members_epoch_by_epoch() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.cg_heartbeat("m1", 2, owned={"orders": [0, 1, 2, 3]})

    joined = harness.cg_join("m2")
    assert (joined.member_epoch, harness.share_of(joined)) == (3, {})
    waiting = harness.cg_heartbeat("m2", 3)
    assert (waiting.member_epoch, harness.share_of(waiting)) == (3, None)

    told = harness.cg_heartbeat("m1", 2)
    (kept,) = (harness.share_of(told) or {}).values()
    assert told.member_epoch == 2
    assert len(kept) == 2
    assert harness.cg_heartbeat("m2", 3).assignment is None, "no partition is revoked yet"
    assert harness.consumer_group().state is ConsumerGroupState.RECONCILING

    released = harness.cg_heartbeat("m1", 2, owned={"orders": kept})
    assert (released.member_epoch, released.assignment) == (3, None)
    given = harness.share_of(harness.cg_heartbeat("m2", 3))
    assert given == {"orders": [one for one in range(4) if one not in kept]}
    assert harness.consumer_group().state is ConsumerGroupState.STABLE


def test_the_partitions_of_a_leaving_member_are_free_at_once() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.cg_join("m2")
    answer = harness.cg_heartbeat("m1", -1)
    assert (answer.error_code, answer.member_epoch, milliseconds(answer.heartbeat_interval)) == (ErrorCode.none, -1, 0)
    assert harness.share_of(harness.cg_heartbeat("m2", 3)) == {"orders": [0, 1, 2, 3]}
    assert harness.cg_heartbeat("m2", -1).error_code is ErrorCode.none
    assert harness.consumer_group().state is ConsumerGroupState.EMPTY
    assert harness.deadlines == {}
    harness.delete("c")
    assert "c" not in harness.coordinator.groups()


def test_a_session_expires_without_heartbeats() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.sleep(30_000)
    harness.cg_heartbeat("m1", 2)
    harness.sleep(44_999)
    assert list(harness.consumer_group().members) == ["m1"]
    harness.sleep(1)
    assert harness.consumer_group().state is ConsumerGroupState.EMPTY
    assert harness.cg_heartbeat("m1", 2).error_code is ErrorCode.unknown_member_id


def test_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    harness = Harness()
    harness.cg_join("m1", rebalance=2_000)
    harness.cg_join("m2")
    assert harness.cg_heartbeat("m1", 2).assignment is not None
    harness.sleep(1_999)
    assert harness.cg_heartbeat("m1", 2).error_code is ErrorCode.none
    harness.sleep(1)
    assert harness.cg_heartbeat("m1", 2).error_code is ErrorCode.unknown_member_id
    assert harness.share_of(harness.cg_heartbeat("m2", 3)) == {"orders": [0, 1, 2, 3]}


def test_a_heartbeat_without_changes_writes_nothing_and_is_answered_at_once() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.appends = failing(ErrorCode.kafka_storage_error)
    records = harness.events()
    trace = len(harness.trace)
    assert harness.cg_heartbeat("m1", 2).error_code is ErrorCode.none
    assert harness.events() == records
    assert len(harness.trace) == trace + 1, "the reply is the only effect; the moved timer needs none"


def test_groups_survive_a_restart() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.cg_join("m2")
    harness.cg_heartbeat("m1", 2)
    before = harness.coordinator.durable_state()
    harness.restart()
    assert harness.coordinator.durable_state() == before
    assert {key[2] for key in harness.deadlines} == {"session", "rebalance"}
    assert harness.cg_heartbeat("m1", 2, owned={"orders": [0, 1]}).member_epoch == 3


def test_members_are_described_with_their_current_and_target_assignments() -> None:
    harness = Harness()
    harness.cg_join("m1", rack="r1", instance="i1")
    harness.cg_join("m2")
    (told,) = harness.cg_describe("c")
    assert (told.error_code, told.group_state, told.group_epoch, told.assignment_epoch) == (ErrorCode.none, "Reconciling", 3, 3)
    assert told.assignor_name == "uniform"
    first, second = told.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m1", "i1", "r1", 2)
    assert (first.client_id, first.client_host, first.subscribed_topic_names) == ("A", "/127.0.0.1", ("orders",))
    assert [tuple(one.partitions) for one in first.assignment.topic_partitions] == [(0, 1, 2, 3)]
    assert len(first.target_assignment.topic_partitions[0].partitions) == 2
    assert second.assignment.topic_partitions == ()
    assert second.member_type == 1
    (classic,) = harness.describe("c")
    assert (classic.error_code, classic.error_message) == (ErrorCode.group_id_not_found, "Group c is not a classic group.")
    (listed,) = harness.list_groups(types=("consumer",)).groups
    assert (listed.group_id, listed.group_type, listed.protocol_type, listed.group_state) == (
        "c",
        "consumer",
        "consumer",
        "Reconciling",
    )


def test_a_member_commits_and_fetches_with_its_epoch() -> None:
    harness = Harness()
    harness.cg_join("m1")
    for member_id, epoch, version, error in [
        ("m1", 2, 9, ErrorCode.none),
        ("m1", 3, 9, ErrorCode.stale_member_epoch),
        ("m1", 1, 9, ErrorCode.stale_member_epoch),
        ("m1", 2, 8, ErrorCode.unsupported_version),
        ("m2", 2, 9, ErrorCode.unknown_member_id),
        ("", -1, 9, ErrorCode.unknown_member_id),
    ]:
        answer = harness.answer(harness.commit({("orders", 0): 5}, member_id, epoch, group="c", version=version))
        assert answer.topics[0].partitions[0].error_code is error, (member_id, epoch)
    assert harness.committed("c") == {("orders", 0): 5}
