"""OffsetCommit and OffsetFetch: the checks of commits, and the answers to fetches."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from ottla.coordinator.events import OffsetCommitted
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_fetch_request
from ottla.types import TopicPartition
from tests.unit.coordinator.harness import DELAYED, WALL, Harness, failing

ORDERS = {("orders", 0): 7}


def errors(response: Any) -> list[ErrorCode]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def committed_error(harness: Harness, member_id: str, generation: int, **fields: Any) -> ErrorCode:
    (error,) = errors(harness.answer(harness.commit(ORDERS, member_id, generation, **fields)))
    return error


# Who may commit.


def test_a_consumer_with_manual_assignment_can_commit() -> None:
    harness = Harness()
    assert committed_error(harness, "", -1) is ErrorCode.none
    assert harness.committed() == ORDERS
    (listed,) = harness.list_groups().groups
    assert (listed.group_id, listed.protocol_type, listed.group_state) == ("g", "", "Empty")


def test_the_empty_group_id_is_a_valid_group() -> None:
    harness = Harness()
    assert committed_error(harness, "", -1, group="") is ErrorCode.none
    assert harness.committed("") == ORDERS
    assert harness.describe("")[0].group_state == "Empty"
    assert harness.answer(harness.delete("")).results[0].error_code is ErrorCode.none
    assert harness.committed("") == {}


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)])
def test_a_member_of_an_unknown_group_cannot_commit(version: int, error: ErrorCode) -> None:
    harness = Harness()
    assert committed_error(harness, "a", 1, version=version) is error
    assert harness.describe("g")[0].group_state == "Dead"


def test_a_member_can_commit_while_stable_and_while_preparing() -> None:
    harness = Harness()
    leader, follower = harness.stable("A", "B")
    assert committed_error(harness, follower, 1) is ErrorCode.none
    harness.join(leader)
    assert committed_error(harness, follower, 1) is ErrorCode.none, "before it gives up its partitions"


def test_no_member_can_commit_in_the_sync_phase() -> None:
    harness = Harness()
    leader, _ = harness.joined("A", "B")
    assert committed_error(harness, leader, 1) is ErrorCode.rebalance_in_progress
    assert harness.committed() == {}


def test_only_members_of_the_current_generation_can_commit() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    assert committed_error(harness, "a", 1) is ErrorCode.unknown_member_id
    assert committed_error(harness, leader, 0) is ErrorCode.illegal_generation
    assert committed_error(harness, leader, 2) is ErrorCode.illegal_generation
    assert committed_error(harness, leader, -1) is ErrorCode.illegal_generation
    assert committed_error(harness, leader, 1, instance="i") is ErrorCode.unknown_member_id
    assert committed_error(harness, "", -1) is ErrorCode.unknown_member_id, "an administrator, while there are members"
    assert harness.committed() == {}


def test_an_administrator_can_commit_for_an_empty_group() -> None:
    harness = Harness()
    (leader,) = harness.stable("A")
    harness.answer(harness.leave(leader))
    assert committed_error(harness, "", -1) is ErrorCode.none
    assert committed_error(harness, leader, 1) is ErrorCode.unknown_member_id
    assert harness.committed() == ORDERS


# What may be committed.


def test_each_partition_gets_its_own_error() -> None:
    harness = Harness()
    offsets = {("orders", 0): 1, ("orders", 3): 2, ("orders", 4): 3, ("orders", -1): 3, ("absent", 0): 4, ("bills", 1): 5}
    response = harness.answer(harness.commit(offsets, metadata={("orders", 3): "x" * 4_097, ("bills", 1): "x" * 4_096}))
    assert [topic.name for topic in response.topics] == ["orders", "absent", "bills"]
    assert errors(response) == [
        ErrorCode.none,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.none,
    ]
    assert harness.committed() == {("orders", 0): 1, ("bills", 1): 5}


def test_an_error_of_the_group_does_not_hide_unknown_partitions() -> None:
    harness = Harness()
    response = harness.answer(harness.commit({("orders", 0): 1, ("absent", 0): 4}, "a", 1))
    assert errors(response) == [ErrorCode.group_id_not_found, ErrorCode.unknown_topic_or_partition]


def test_a_commit_of_nothing_valid_makes_no_group() -> None:
    harness = Harness()
    assert errors(harness.answer(harness.commit({("absent", 0): 4}))) == [ErrorCode.unknown_topic_or_partition]
    assert harness.answer(harness.commit({})).topics == ()
    assert harness.coordinator.groups() == {}


def test_offsets_are_stored_as_they_were_sent() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 0): -7}, metadata={("orders", 0): "note"}))
    harness.answer(harness.commit({("orders", 1): 2**63 - 1}, metadata={("orders", 1): None}))
    first, second = harness.events()
    assert isinstance(first, OffsetCommitted)
    assert (first.partition, first.value.offset, first.value.metadata) == (TopicPartition("orders", 0), -7, "note")
    assert (first.value.commit_timestamp, first.value.topic_id) == (WALL, harness.topics.topic_id("orders"))
    assert (second.value.offset, second.value.metadata, second.value.leader_epoch) == (2**63 - 1, "", -1)


def test_all_partitions_of_a_commit_are_one_batch() -> None:
    harness = Harness()
    harness.appends = DELAYED
    ticket = harness.commit({("orders", 0): 1, ("orders", 1): 2, ("bills", 0): 3})
    (append,) = harness.open.values()
    assert len(append.records) == 3
    assert harness.waits(ticket)
    assert harness.coordinator.durable_state() == {}
    harness.settle()
    assert errors(harness.answer(ticket)) == [ErrorCode.none] * 3
    assert harness.committed() == {("orders", 0): 1, ("orders", 1): 2, ("bills", 0): 3}


def test_a_commit_that_cannot_be_stored_fails_as_a_whole() -> None:
    harness = Harness()
    harness.appends = failing(ErrorCode.not_enough_replicas)
    response = harness.answer(harness.commit({("orders", 0): 1, ("absent", 1): 2}))
    assert errors(response) == [ErrorCode.coordinator_not_available] * 2
    assert harness.coordinator.groups() == {}


def test_names_that_are_too_long_for_a_record_are_rejected() -> None:
    harness = Harness()
    assert committed_error(harness, "", -1, group="g" * 40_000) is ErrorCode.invalid_request
    assert harness.coordinator.groups() == {}


# By id.


def test_topics_may_be_named_by_id() -> None:
    harness = Harness()
    response = harness.answer(harness.commit({("orders", 0): 5, ("absent", 0): 4}, version=10))
    assert errors(response) == [ErrorCode.none, ErrorCode.unknown_topic_id]
    assert response.topics[0].topic_id == harness.topics.topic_id("orders")
    assert harness.committed() == {("orders", 0): 5}


def fetch(harness: Harness, *groups: Any, version: int = 9) -> Any:
    return harness.answer(harness.ask(Api.OFFSET_FETCH, offset_fetch_request.OffsetFetchRequest(groups=groups), version)).groups


def wanted(group: str, *topics: tuple[str | uuid.UUID, tuple[int, ...]]) -> Any:
    return offset_fetch_request.OffsetFetchRequestGroup(
        group_id=group,
        topics=tuple(
            offset_fetch_request.OffsetFetchRequestTopics(
                name=name if isinstance(name, str) else "",
                topic_id=None if isinstance(name, str) else name,
                partition_indexes=numbers,
            )
            for name, numbers in topics
        ),
    )


def test_offsets_can_be_fetched_by_topic_id() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 1): 5}))
    known, unknown = harness.topics.topic_id("orders"), uuid.UUID(int=9)
    assert known is not None
    (group,) = fetch(harness, wanted("g", (known, (0, 1)), (unknown, (3,))), version=10)
    orders, absent = group.topics
    assert orders.topic_id == known
    assert [(one.committed_offset, one.error_code) for one in orders.partitions] == [(-1, ErrorCode.none), (5, ErrorCode.none)]
    assert absent.topic_id == unknown
    assert [(one.committed_offset, one.error_code) for one in absent.partitions] == [(-1, ErrorCode.unknown_topic_id)]


def test_all_topics_by_id_excludes_deleted_topics() -> None:
    harness = Harness()
    harness.answer(harness.commit({("orders", 1): 5, ("bills", 0): 6}))
    del harness.topics.counts["bills"]
    everything = offset_fetch_request.OffsetFetchRequestGroup(group_id="g", topics=None)
    (by_id,) = fetch(harness, everything, version=10)
    assert [topic.topic_id for topic in by_id.topics] == [harness.topics.topic_id("orders")]
    (by_name,) = fetch(harness, everything, version=9)
    assert [topic.name for topic in by_name.topics] == ["orders", "bills"]


# Answers to fetches.


def test_a_missing_offset_is_minus_one() -> None:
    harness = Harness()
    for _ in range(2):
        (group,) = fetch(harness, wanted("g", ("orders", (0, 9)), ("absent", (0,))))
        assert group.error_code is ErrorCode.none
        assert [
            (one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code)
            for topic in group.topics
            for one in topic.partitions
        ] == [(-1, -1, "", ErrorCode.none)] * 3
        harness.answer(harness.commit({("orders", 1): 5}))


def test_all_topics_of_several_groups() -> None:
    harness = Harness()
    for number, group in enumerate("abcd"):
        harness.answer(harness.commit({("orders", number): number}, group=group))
    asked = [offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=None) for group in "dxbca"]
    answered = fetch(harness, *asked)
    assert [group.group_id for group in answered] == list("dxbca"), "in the order in which they were asked for"
    assert [[one.committed_offset for topic in group.topics for one in topic.partitions] for group in answered] == [
        [3], [], [1], [2], [0]
    ]  # fmt: skip


def test_a_fetch_without_groups_succeeds() -> None:
    assert fetch(Harness()) == ()


def test_a_fetch_waits_for_the_commit_before_it() -> None:
    harness = Harness()
    harness.appends = DELAYED
    harness.commit({("orders", 0): 1}, group="a")
    ticket = harness.ask(
        Api.OFFSET_FETCH,
        offset_fetch_request.OffsetFetchRequest(groups=tuple(wanted(group, ("orders", (0,))) for group in "ab")),
    )
    assert harness.waits(ticket)
    harness.settle()
    offsets = [group.topics[0].partitions[0].committed_offset for group in harness.answer(ticket).groups]
    assert offsets == [1, -1]


@pytest.mark.parametrize("version", [1, 2, 9])
def test_the_oldest_clients_look_for_an_error_in_each_partition(version: int) -> None:
    harness = Harness(load=False)
    (group,) = fetch(harness, wanted("g", ("orders", (0, 1))), version=version)
    told = [(one.partition_index, one.error_code) for topic in group.topics for one in topic.partitions]
    assert group.error_code is ErrorCode.not_coordinator
    assert told == ([(0, ErrorCode.not_coordinator), (1, ErrorCode.not_coordinator)] if version == 1 else [])
