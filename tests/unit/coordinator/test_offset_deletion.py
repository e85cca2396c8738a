"""Deletion of offsets and groups: DeleteGroups, OffsetDelete, deleted topics, and retention."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.events import GroupMetadataDeleted, GroupMetadataUpdated, OffsetCommitted, OffsetDeleted, record_of
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, Harness, failing, subscription

RETENTION = 7 * 86_400_000
CHECK = 600_000
ORDERS = {("orders", 0): 1}


def errors(response: Any) -> dict[tuple[str, int], ErrorCode]:
    return {(topic.name, one.partition_index): one.error_code for topic in response.topics for one in topic.partitions}


# DeleteGroups.


def test_a_group_without_members_is_deleted_with_its_offsets() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.commit({("orders", 0): 1, ("orders", 2): 3}, leader, 1))
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.non_empty_group
    harness.answer(harness.leave(leader))
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.none
    assert harness.state() is ClassicGroupState.DEAD
    assert harness.committed() == {}
    assert harness.events()[-3:] == [
        OffsetDeleted("g", TopicPartition("orders", 0)),
        OffsetDeleted("g", TopicPartition("orders", 2)),
        GroupMetadataDeleted("g"),
    ]
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.group_id_not_found
    assert harness.replayed() == {}


def test_several_groups_are_deleted_one_by_one() -> None:
    harness = three()
    results = harness.answer(harness.delete("stable", "simple", "absent", "simple")).results
    assert [(one.group_id, one.error_code) for one in results] == [
        ("stable", ErrorCode.non_empty_group),
        ("simple", ErrorCode.none),
        ("absent", ErrorCode.group_id_not_found),
    ]


def test_the_response_waits_for_all_deletions() -> None:
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


def test_a_member_id_of_a_deleted_group_is_unknown() -> None:
    harness = Harness()
    pending = harness.member_id()
    harness.answer(harness.delete("g"))
    assert harness.timers == {}
    assert harness.answer(harness.join(pending)).error_code is ErrorCode.unknown_member_id


def test_a_group_whose_deletion_cannot_be_stored_remains() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1}))
    harness.appends = failing(ErrorCode.not_enough_replicas)
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.coordinator_not_available
    assert harness.committed() == {("orders", 0): 1}


# OffsetDelete.


def test_offsets_of_unsubscribed_topics_are_deleted() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1, ("orders", 1): 2, ("bills", 0): 3}))
    response = harness.answer(harness.delete_offsets(("orders", 0), ("bills", 1), ("orders", 0)))
    assert response.error_code is ErrorCode.none
    assert [[one.error_code for one in topic.partitions] for topic in response.topics] == [[ErrorCode.none]] * 3
    assert harness.committed() == {("orders", 1): 2, ("bills", 0): 3}
    assert harness.events()[-1] == OffsetDeleted("g", TopicPartition("orders", 0)), "one tombstone, for the existing offset only"
    assert harness.replayed() == harness.coordinator.durable_state()


def emptied(with_members: bool) -> Harness:
    """A group without members and with one offset; it has had a member, or is a simple group."""
    harness = Harness()
    if not with_members:
        harness.answer(harness.commit(ORDERS))
        return harness
    (leader,) = harness.stable("A")
    harness.answer(harness.commit(ORDERS, leader, 1))
    harness.answer(harness.leave(leader))
    return harness


@pytest.mark.parametrize("how", ["OffsetDelete", "deleted topic"])
@pytest.mark.parametrize("with_members", [True, False])
def test_a_group_without_offsets_is_deleted_by_the_next_check(with_members: bool, how: str) -> None:
    # In Kafka 3 the group was Dead at once; Kafka 4 deletes empty groups with the periodic expiration of offsets.
    harness = emptied(with_members)
    if how == "OffsetDelete":
        harness.answer(harness.delete_offsets(("orders", 0)))
    else:
        harness.change_topics(orders=0)
    assert harness.committed() == {}
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.replayed() == harness.coordinator.durable_state()
    harness.sleep(CHECK)
    assert harness.state() is ClassicGroupState.DEAD
    assert harness.replayed() == {}
    assert harness.coordinator.durable_state() == {}


def test_a_group_without_offsets_can_be_deleted_or_used() -> None:
    harness = emptied(False)
    harness.answer(harness.delete_offsets(("orders", 0)))
    assert harness.answer(harness.delete("g")).results[0].error_code is ErrorCode.none
    assert harness.state() is ClassicGroupState.DEAD
    harness = emptied(False)
    harness.answer(harness.delete_offsets(("orders", 0)))
    harness.answer(harness.commit(ORDERS))
    harness.sleep(CHECK)
    assert harness.committed() == ORDERS


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    harness = Harness()
    (leader,) = harness.stable("A", protocols={"range": subscription("orders")})
    harness.answer(harness.commit({("orders", 0): 1, ("bills", 0): 2}, leader, 1))
    response = harness.answer(harness.delete_offsets(("orders", 0), ("bills", 0), ("absent", 0), ("bills", 2)))
    assert response.error_code is ErrorCode.none
    assert errors(response) == {
        ("orders", 0): ErrorCode.group_subscribed_to_topic,
        ("bills", 0): ErrorCode.none,
        ("absent", 0): ErrorCode.unknown_topic_or_partition,
        ("bills", 2): ErrorCode.unknown_topic_or_partition,
    }
    assert harness.committed() == ORDERS


def test_consumers_with_malformed_metadata_may_be_subscribed_to_any_topic() -> None:
    harness = Harness()
    (leader,) = harness.stable("A", protocols={"range": b"?"})
    harness.answer(harness.commit(ORDERS, leader, 1))
    assert errors(harness.answer(harness.delete_offsets(("orders", 0)))) == {("orders", 0): ErrorCode.group_subscribed_to_topic}


def test_the_topics_of_the_last_generation_count_until_the_next_begins() -> None:
    harness = Harness()
    (leader,) = harness.stable("A", protocols={"range": subscription("orders"), "sticky": subscription("orders")})
    newcomer = harness.join(harness.member_id("B"), client="B", protocols={"sticky": subscription("bills")})
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    both = ("bills", 0), ("orders", 0)
    refused = ErrorCode.group_subscribed_to_topic
    assert errors(harness.answer(harness.delete_offsets(*both))) == {both[0]: ErrorCode.none, both[1]: refused}
    harness.answer(harness.leave(leader))
    harness.answer(newcomer)
    assert errors(harness.answer(harness.delete_offsets(*both))) == {both[0]: refused, both[1]: ErrorCode.none}


def test_before_its_first_generation_a_group_may_be_subscribed_to_any_topic() -> None:
    harness = Harness()
    harness.join(harness.member_id("A"))
    assert errors(harness.answer(harness.delete_offsets(("bills", 0)))) == {("bills", 0): ErrorCode.group_subscribed_to_topic}


def test_the_topics_of_a_loaded_group_are_known() -> None:
    harness = Harness()
    harness.stable("A")
    harness.restart()
    assert errors(harness.answer(harness.delete_offsets(("bills", 0), ("orders", 0)))) == {
        ("bills", 0): ErrorCode.none,
        ("orders", 0): ErrorCode.group_subscribed_to_topic,
    }


def test_groups_whose_offsets_cannot_be_deleted() -> None:
    harness = Harness()
    assert harness.answer(harness.delete_offsets(("orders", 0))).error_code is ErrorCode.group_id_not_found
    assert harness.answer(harness.delete_offsets(("orders", 0), group="")).error_code is ErrorCode.invalid_group_id
    harness.stable("A", protocol_type="connect")
    response = harness.answer(harness.delete_offsets(("orders", 0)))
    assert response.error_code is ErrorCode.non_empty_group
    assert response.topics == ()


def test_offsets_whose_tombstones_cannot_be_stored_remain() -> None:
    harness = Harness()
    harness.answer(harness.commit(ORDERS))
    harness.appends = failing(ErrorCode.kafka_storage_error)
    assert harness.answer(harness.delete_offsets(("orders", 0))).error_code is ErrorCode.not_coordinator
    assert harness.committed() == ORDERS


# Deleted topics.


def test_offsets_of_a_deleted_topic_are_deleted_in_every_group() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.commit({("orders", 0): 1, ("bills", 0): 2}, leader, 1))
    for group in "abc":
        harness.answer(harness.commit(ORDERS, group=group))
    harness.change_topics(orders=0)
    assert harness.committed() == {("bills", 0): 2}
    harness.beat(leader, 1)
    harness.sleep(CHECK)
    assert "g" in harness.coordinator.groups()
    assert not {"a", "b", "c"} & set(harness.coordinator.groups()), "groups with no other offsets are deleted"
    assert harness.replayed() == harness.coordinator.durable_state()


def test_new_and_larger_topics_delete_no_offsets() -> None:
    harness = Harness()
    harness.answer(harness.commit(ORDERS))
    records = len(harness.events())
    harness.change_topics(orders=8, invoices=1)
    assert harness.committed() == ORDERS
    assert len(harness.events()) == records


def test_the_deletion_for_a_topic_waits_for_an_open_commit_and_is_retried() -> None:
    harness = Harness()
    harness.appends = DELAYED
    harness.commit(ORDERS)
    harness.change_topics(orders=0)
    harness.settle()
    ((open_key, append),) = harness.open.items()
    assert append.records == (record_of(OffsetDeleted("g", TopicPartition("orders", 0))),)
    harness.settle(open_key, ErrorCode.not_enough_replicas)
    assert harness.coordinator.durable_state()["g"][1]
    harness.appends = IMMEDIATE
    harness.sleep(500)
    assert harness.committed() == {}
    assert harness.state() is ClassicGroupState.EMPTY
    assert harness.timers == {}


def test_a_recreated_topic_keeps_the_offsets_committed_since() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1, ("orders", 1): 1}))
    harness.appends = failing(ErrorCode.not_enough_replicas)
    harness.change_topics(orders=0)
    harness.appends = IMMEDIATE
    harness.topics.generations["orders"] += 1
    harness.change_topics(orders=4)
    harness.answer(harness.commit({("orders", 1): 7}))
    harness.sleep(500)
    assert harness.committed() == {("orders", 1): 7}


# Time.


def test_the_offsets_of_a_simple_group_expire_one_by_one_and_the_group_with_the_last() -> None:
    harness = Harness()
    harness.answer(harness.commit(ORDERS))
    harness.sleep(86_400_000)
    harness.answer(harness.commit({("orders", 1): 2}))
    harness.sleep(RETENTION - 86_400_000 - CHECK)
    assert len(harness.committed()) == 2
    harness.sleep(2 * CHECK)
    assert harness.committed() == {("orders", 1): 2}
    harness.sleep(86_400_000)
    assert harness.state() is ClassicGroupState.DEAD
    assert harness.replayed() == {}


def test_the_offsets_of_a_group_expire_after_it_has_been_empty_for_the_retention_time() -> None:
    harness = Harness()
    (leader,) = harness.stable("A", session=1_800_000)
    harness.answer(harness.commit(ORDERS, leader, 1))
    for _ in range(RETENTION // 1_000_000):
        harness.sleep(1_000_000)
        assert harness.heartbeat(leader, 1) is ErrorCode.none
    harness.answer(harness.leave(leader))
    harness.sleep(RETENTION - CHECK)
    assert harness.committed() == ORDERS, "the retention time counts from when the group became empty, not from the commit"
    harness.sleep(2 * CHECK)
    assert harness.state() is ClassicGroupState.DEAD
    assert harness.events()[-2:] == [OffsetDeleted("g", TopicPartition("orders", 0)), GroupMetadataDeleted("g")]


def test_in_a_stable_group_only_offsets_of_unsubscribed_topics_expire() -> None:
    harness = Harness(group_max_session_timeout_ms=2**31 - 1)
    (leader,) = harness.stable("A", session=2**31 - 1)
    harness.answer(harness.commit({("orders", 0): 1, ("bills", 0): 2}, leader, 1))
    harness.sleep(RETENTION + CHECK)
    assert harness.committed() == ORDERS
    assert harness.state() is ClassicGroupState.STABLE


@pytest.mark.parametrize("fields", [{"protocols": {"range": b"?"}}, {"protocol_type": "connect"}])
def test_in_a_group_with_malformed_metadata_nothing_expires_while_it_has_members(fields: dict[str, Any]) -> None:
    harness = Harness(group_max_session_timeout_ms=2**31 - 1)
    (leader,) = harness.stable("A", session=2**31 - 1, **fields)
    harness.answer(harness.commit({("orders", 0): 1, ("bills", 0): 2}, leader, 1))
    harness.sleep(RETENTION + CHECK)
    assert len(harness.committed()) == 2
    harness.answer(harness.leave(leader))
    harness.sleep(RETENTION + CHECK)
    assert harness.state() is ClassicGroupState.DEAD


def test_while_a_group_rebalances_nothing_expires() -> None:
    harness = Harness(group_max_session_timeout_ms=2**31 - 1)
    long = {"session": 2**31 - 1, "rebalance": 2**31 - 1}
    leader, _ = harness.stable("A", "B", **long)
    harness.answer(harness.commit({("bills", 0): 2}, leader, 1))
    harness.join(leader, **long)
    harness.sleep(RETENTION + CHECK)
    assert harness.state() is ClassicGroupState.PREPARING_REBALANCE
    assert harness.committed() == {("bills", 0): 2}


def test_a_group_without_members_and_offsets_is_deleted_by_the_next_check() -> None:
    harness = Harness()
    assert harness.answer(harness.join(protocols={})).error_code is ErrorCode.inconsistent_group_protocol
    assert harness.state() is ClassicGroupState.EMPTY
    harness.sleep(CHECK)
    assert harness.state() is ClassicGroupState.DEAD
    assert harness.events()[-1] == GroupMetadataDeleted("g")


def test_groups_of_the_oldest_records_expire_by_the_age_of_their_offsets() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.commit(ORDERS, leader, 1))
    harness.answer(harness.leave(leader))
    partition = harness.coordinator.partition_for("g")
    harness.sleep(86_400_000)
    (written,) = [one for one in harness.events() if isinstance(one, GroupMetadataUpdated)][-1:]
    old = dataclasses.replace(written, value=dataclasses.replace(written.value, current_state_timestamp=-1))
    harness.log[partition].append(record_of(old))
    harness.restart()
    harness.sleep(RETENTION - 86_400_000 - CHECK)
    assert harness.state() is ClassicGroupState.EMPTY
    harness.sleep(2 * CHECK)
    assert harness.state() is ClassicGroupState.DEAD


def test_an_offset_with_its_own_time_of_expiry() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): 1}, retention=3_600_000, version=4))
    harness.answer(harness.commit({("orders", 1): 2}, version=4))
    (short, default) = [one for one in harness.events() if isinstance(one, OffsetCommitted)]
    assert short.value.expire_timestamp == short.value.commit_timestamp + 3_600_000
    assert (default.value.expire_timestamp, default.value.topic_id) == (-1, harness.topics.topic_id("orders"))
    harness.sleep(3_600_000 - CHECK)
    assert len(harness.committed()) == 2
    harness.sleep(2 * CHECK)
    assert harness.committed() == {("orders", 1): 2}


@pytest.mark.parametrize("retention", [2**63 - 1, -(2**63), -2, 0])
def test_an_offset_whose_time_of_expiry_is_past_is_deleted_by_the_next_check(retention: int) -> None:
    """Java's sum of now and the longest time overflows to a time long ago, and Kafka stores that."""
    harness = Harness()
    (code,) = [
        partition.error_code
        for topic in harness.answer(harness.commit({("orders", 0): 1}, retention=retention, version=4)).topics
        for partition in topic.partitions
    ]
    assert code == ErrorCode.none
    (committed,) = [one for one in harness.events() if isinstance(one, OffsetCommitted)]
    assert -(2**63) <= committed.value.expire_timestamp < committed.value.commit_timestamp + 1
    harness.restart()
    assert harness.committed() == {("orders", 0): 1}
    harness.sleep(2 * CHECK)
    assert harness.committed() == {}


def test_an_expiration_that_cannot_be_stored_is_retried_soon() -> None:
    harness = Harness(offsets_retention_ms=1, offsets_retention_check_interval_ms=10_000)
    harness.answer(harness.commit(ORDERS))
    harness.appends = failing(ErrorCode.not_enough_replicas)
    harness.sleep(10_000)
    assert harness.committed() == ORDERS
    harness.appends = IMMEDIATE
    harness.sleep(500)
    assert harness.state() is ClassicGroupState.DEAD


def test_partitions_are_checked_periodically_at_different_times() -> None:
    harness = Harness(offsets_retention_ms=1, offsets_retention_check_interval_ms=1_000, offsets_topic_partitions=10)
    firsts = sorted(at for key, at in harness.all_timers.items())
    assert firsts == [100 * number for number in range(1, 11)]
    for _ in range(3):
        harness.answer(harness.commit(ORDERS))
        harness.sleep(1_000)
        assert harness.state() is ClassicGroupState.DEAD


def test_an_unloaded_partition_is_not_checked() -> None:
    harness = Harness(offsets_retention_ms=1, offsets_retention_check_interval_ms=1_000)
    harness.answer(harness.commit(ORDERS))
    records = len(harness.events())
    timers = dict(harness.all_timers)
    for partition in range(5):
        harness.perform(harness.coordinator.unload(partition))
    assert harness.all_timers == {}
    harness.clock.move_to(10_000)
    for key in timers:
        harness.perform(harness.coordinator.on_timer(key, harness.now))
    assert len(harness.events()) == records


def three() -> Harness:
    """Groups with members, without members, and in a join phase."""
    harness = Harness()
    harness.stable("A", group="stable")
    harness.joined("A", group="completing")
    harness.answer(harness.commit(ORDERS, group="simple"))
    return harness
