"""Checks of members of a consumer group: fields, epochs, instance ids, group size, groups of the classic protocol."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupState
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.protocol import ErrorCode
from tests.unit.coordinator.harness import Harness, failing

JOIN = {"topics": ("orders",), "owned": {}, "rebalance": 1_000}

INVALID: list[tuple[str, int, dict[str, Any], str]] = [
    ("", 0, JOIN, "MemberId can't be empty."),
    ("", 1, {}, "MemberId can't be empty."),
    ("m", 0, {**JOIN, "group": " "}, "GroupId can't be empty."),
    ("m", 0, {**JOIN, "instance": ""}, "InstanceId can't be empty."),
    ("m", 1, {"rack": ""}, "RackId can't be empty."),
    ("m", 0, {**JOIN, "rebalance": -1}, "RebalanceTimeoutMs must be provided in first request."),
    ("m", 0, {**JOIN, "owned": None}, "TopicPartitions must be empty when (re-)joining."),
    ("m", 0, {**JOIN, "owned": {"orders": [0]}}, "TopicPartitions must be empty when (re-)joining."),
    (
        "m",
        0,
        {**JOIN, "topics": None},
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    ),
    ("m", -2, {}, "InstanceId can't be null."),
    ("m", -3, {}, "MemberEpoch is invalid."),
]


@pytest.mark.parametrize(("member_id", "epoch", "fields", "message"), INVALID)
def test_invalid_requests(member_id: str, epoch: int, fields: dict[str, Any], message: str) -> None:
    harness = Harness()
    answer = harness.cg_heartbeat(member_id, epoch, **fields)
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, message)
    assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
    assert harness.coordinator.groups() == {}


@pytest.mark.parametrize("field", ["group", "member", "instance", "regex"])
def test_fields_that_are_too_long_for_a_record(field: str) -> None:
    harness = Harness()
    fields = {**JOIN, "group": "g", "member": "m", field: "x" * 40_000}
    answer = harness.cg_heartbeat(fields.pop("member"), 0, **fields)
    assert answer.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("assignor", ["", "sticky"])
def test_an_unknown_server_assignor(assignor: str) -> None:
    answer = Harness().cg_heartbeat("m", 0, **JOIN, assignor=assignor)
    assert answer.error_code is ErrorCode.unsupported_assignor
    assert answer.error_message == f"ServerAssignor {assignor} is not supported. Supported assignors: uniform, range."


@pytest.mark.parametrize("regex", ["(", r"(a)\1", "a(?=b)"])
def test_a_regular_expression_that_re2_does_not_accept(regex: str) -> None:
    answer = Harness().cg_heartbeat("m", 0, **JOIN, regex=regex)
    assert answer.error_code is ErrorCode.invalid_regular_expression
    assert f"SubscribedTopicRegex `{regex}` is not a valid regular expression" in answer.error_message


def test_in_version_0_the_coordinator_makes_the_member_id() -> None:
    harness = Harness()
    answer = harness.cg_heartbeat("", 0, version=0, **JOIN)
    assert answer.error_code is ErrorCode.none
    assert len(answer.member_id) == 22
    assert list(harness.consumer_group().members) == [answer.member_id]


@pytest.mark.parametrize(("epoch", "instance"), [(1, None), (-1, None), (-2, "i1")])
def test_an_unknown_group(epoch: int, instance: str | None) -> None:
    assert Harness().cg_heartbeat("m", epoch, instance=instance).error_code is ErrorCode.group_id_not_found


# Epochs.


def test_a_member_with_a_wrong_epoch_is_fenced() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.cg_join("m2")
    harness.cg_heartbeat("m1", 2)
    harness.cg_heartbeat("m1", 2, owned={"orders": [0, 1]})
    assert harness.consumer_group().members["m1"].epoch == 3
    for epoch, owned, error in [
        (4, None, ErrorCode.fenced_member_epoch),
        (2, None, ErrorCode.fenced_member_epoch),
        (2, {"orders": [2]}, ErrorCode.fenced_member_epoch),
        (1, {"orders": [0]}, ErrorCode.fenced_member_epoch),
        (2, {"orders": [0, 1]}, ErrorCode.none),
        (2, {}, ErrorCode.none),
        (3, None, ErrorCode.none),
    ]:
        assert harness.cg_heartbeat("m1", epoch, owned=owned).error_code is error, (epoch, owned)
    assert harness.cg_heartbeat("unknown", 3).error_code is ErrorCode.unknown_member_id


def test_a_member_that_rejoins_keeps_its_partitions_without_a_new_epoch() -> None:
    harness = Harness()
    harness.cg_join("m1")
    written = len(harness.events())
    answer = harness.cg_join("m1", rebalance=300_000)
    assert (answer.member_epoch, harness.share_of(answer)) == (2, {"orders": [0, 1, 2, 3]})
    assert len(harness.events()) == written
    other = harness.cg_join("m1", ("bills",), rebalance=300_000)
    assert (other.member_epoch, harness.share_of(other)) == (3, {"bills": [0, 1]}), (
        "it has reported that it owns no partitions of orders"
    )


def test_the_size_of_a_group_is_limited() -> None:
    harness = Harness(group_consumer_max_size=2)
    harness.cg_join("m1")
    harness.cg_join("m2")
    assert harness.cg_join("m3").error_code is ErrorCode.group_max_size_reached
    assert harness.cg_join("m2").error_code is ErrorCode.none
    harness.cg_heartbeat("m1", -1)
    assert harness.cg_join("m3").error_code is ErrorCode.none


# Static members.


def static_pair() -> Harness:
    """Members m1 (instance i1, partitions 0 and 1) and m2 (i2, partitions 2 and 3) at epoch 3."""
    harness = Harness()
    harness.cg_join("m1", instance="i1", assignor="range")
    harness.cg_join("m2", instance="i2")
    harness.cg_heartbeat("m1", 2)
    harness.cg_heartbeat("m1", 2, owned={"orders": [0, 1]})
    assert harness.share_of(harness.cg_heartbeat("m2", 3)) == {"orders": [2, 3]}
    return harness


def test_a_static_member_that_returns_keeps_its_partitions_without_a_new_epoch() -> None:
    harness = static_pair()
    paused = harness.cg_heartbeat("m1", -2, instance="i1")
    assert (paused.error_code, paused.member_epoch) == (ErrorCode.none, -2)
    assert harness.consumer_group().epoch == 3
    written = len(harness.events())
    back = harness.cg_join("m1b", instance="i1")
    assert (back.member_epoch, harness.share_of(back)) == (3, {"orders": [0, 1]})
    assert [type(event) for event in harness.events()[written:]] == [
        CurrentAssignmentUpdated,
        TargetAssignmentUpdated,
        MemberSubscriptionUpdated,
        MemberSubscriptionUpdated,
        TargetAssignmentUpdated,
        CurrentAssignmentUpdated,
        CurrentAssignmentUpdated,
    ]
    assert harness.consumer_group().epoch == 3
    assert sorted(harness.consumer_group().members) == ["m1b", "m2"]
    assert harness.cg_heartbeat("m2", 3).assignment is None
    assert harness.cg_heartbeat("m1", 3, instance="i1").error_code is ErrorCode.fenced_instance_id


def test_a_static_member_that_returns_with_another_subscription_begins_an_epoch() -> None:
    harness = static_pair()
    harness.cg_heartbeat("m1", -2, instance="i1")
    back = harness.cg_join("m1b", ("orders", "bills"), instance="i1")
    assert back.member_epoch == 4
    assert (harness.share_of(back) or {})["bills"] == [0, 1]


def test_an_instance_id_is_not_released_while_its_member_is_alive() -> None:
    harness = static_pair()
    refused = harness.cg_join("m1b", instance="i1")
    assert refused.error_code is ErrorCode.unreleased_instance_id
    assert harness.cg_heartbeat("m1", 3, instance="i1").error_code is ErrorCode.none
    for member_id, epoch, instance, error in [
        ("m1", 3, "i2", ErrorCode.fenced_instance_id),
        ("m1", 3, "i9", ErrorCode.unknown_member_id),
        ("m1", -1, "i2", ErrorCode.fenced_instance_id),
        ("m1", -2, "i9", ErrorCode.unknown_member_id),
    ]:
        assert harness.cg_heartbeat(member_id, epoch, instance=instance).error_code is error


def test_a_static_member_that_does_not_return_is_fenced_when_its_session_expires() -> None:
    harness = static_pair()
    harness.cg_heartbeat("m1", -2, instance="i1")
    harness.sleep(44_000)
    harness.cg_heartbeat("m2", 3)
    harness.sleep(1_000)
    assert list(harness.consumer_group().members) == ["m2"]
    assert harness.share_of(harness.cg_heartbeat("m2", 3)) == {"orders": [0, 1, 2, 3]}


def test_an_administrator_removes_members_by_member_or_instance_id() -> None:
    harness = static_pair()
    harness.cg_join("m3")
    answer = harness.answer(harness.leave("m3", ("", "i1"), ("m2", "i1"), "unknown", "m3", group="c"))
    assert [one.error_code for one in answer.members] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.fenced_instance_id,
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
    ]
    assert list(harness.consumer_group().members) == ["m2"]


# Groups of the other protocol.


def test_an_empty_classic_group_is_replaced_by_a_consumer_group() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.commit({("orders", 1): 7}, leader, 1))
    harness.leave(leader)
    pending = harness.member_id()
    written = len(harness.events())
    assert harness.cg_join("m1", group="g").member_epoch == 2
    assert isinstance(harness.events()[written], GroupMetadataDeleted)
    assert isinstance(harness.coordinator.groups()["g"], ConsumerGroup)
    assert harness.committed() == {("orders", 1): 7}
    assert {key[3] for key in harness.deadlines} == {"m1"}
    assert harness.answer(harness.join(pending)).error_code is ErrorCode.none, "its id is still valid"


def test_an_empty_consumer_group_is_replaced_by_a_classic_group() -> None:
    harness = Harness()
    harness.cg_join("m1", group="g")
    assert harness.heartbeat("m1", 2) is ErrorCode.unknown_member_id
    harness.cg_heartbeat("m1", -1, group="g")
    written = len(harness.events())
    harness.stable("A")
    assert [type(event) for event in harness.events()[written:]][:3] == [
        TargetAssignmentEpochUpdated,
        PartitionMetadataDeleted,
        GroupEpochUpdated,
    ]
    assert harness.replayed() == harness.coordinator.durable_state()


def test_a_simple_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 1): 7}, group="c"))
    harness.cg_join("m1")
    harness.cg_heartbeat("m1", -1)
    assert harness.committed("c") == {("orders", 1): 7}
    assert harness.consumer_group().state is ConsumerGroupState.EMPTY
    harness.answer(harness.delete("c"))
    assert harness.coordinator.groups() == {}
    assert harness.replayed() == {}


def test_a_failed_append_changes_nothing() -> None:
    harness = static_pair()
    before, deadlines = harness.coordinator.durable_state(), harness.deadlines
    harness.appends = failing(ErrorCode.not_enough_replicas)
    for ticket in (
        harness.cg_beat("m3", 0, **JOIN),
        harness.cg_beat("m1", -1, instance="i1"),
        harness.cg_beat("m1", -2, instance="i1"),
        harness.cg_beat("m1", 3, topics=("bills",)),
    ):
        answer = harness.answer(ticket)
        assert answer.error_code is ErrorCode.coordinator_not_available
    assert harness.coordinator.durable_state() == before
    assert harness.deadlines == deadlines
