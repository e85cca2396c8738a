"""Subscriptions of consumer groups: changing topics, regular expressions, server-side assignors, group settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import pytest

from ottla.assignors import SERVER_ASSIGNORS, GroupSpec
from ottla.coordinator.consumer.group import ConsumerGroupState
from ottla.coordinator.consumer.group_epoch import metadata_hash
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.coordinator.events import ResolvedRegexUpdated, TargetAssignmentEpochUpdated
from ottla.protocol import ErrorCode, milliseconds
from tests.unit.coordinator.harness import IMMEDIATE, Harness, Topics, failing

# Topics.


def test_created_larger_and_deleted_topics_begin_an_epoch_with_the_next_heartbeat() -> None:
    harness = Harness()
    first = harness.cg_join("m1", ("orders", "later"))
    assert harness.share_of(first) == {"orders": [0, 1, 2, 3]}
    harness.change_topics(later=2)
    written = len(harness.events())
    harness.change_topics(unrelated=9)
    assert len(harness.events()) == written, "nothing is written before the next heartbeat"
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) == {"orders": [0, 1, 2, 3], "later": [0, 1]}
    harness.change_topics(orders=5)
    assert harness.share_of(harness.cg_heartbeat("m1", 3)) == {"orders": [0, 1, 2, 3, 4], "later": [0, 1]}
    harness.change_topics(later=0)
    assert harness.share_of(harness.cg_heartbeat("m1", 4)) == {"orders": [0, 1, 2, 3, 4]}


def test_other_topics_begin_no_epoch() -> None:
    harness = Harness()
    harness.cg_join("m1")
    harness.change_topics(unrelated=9)
    assert harness.cg_heartbeat("m1", 2).assignment is None
    assert harness.consumer_group().epoch == 2


def test_the_first_member_without_topics_begins_no_epoch() -> None:
    harness = Harness()
    answer = harness.cg_join("m1", ())
    assert (answer.member_epoch, harness.share_of(answer)) == (1, {})
    absent = harness.cg_join("m2", ("absent",))
    assert (absent.member_epoch, harness.share_of(absent)) == (2, {})


class RealTopics(Topics):
    """Topics with the ids that they had on a real broker."""

    def topic_id(self, name: str) -> UUID | None:
        return UUID("b79b9dcd-888b-4a02-927c-83fef9f313e0") if name == "orders" else None


def test_the_metadata_hash_is_kafkas() -> None:
    harness = Harness(topics=RealTopics())
    harness.cg_join("m1")
    assert metadata_hash(harness.consumer_group(), harness.topics) == -5796285298551174279


# Regular expressions.


def test_a_regular_expression_matches_nothing_until_it_is_resolved() -> None:
    harness = Harness()
    answer = harness.cg_join("m1", (), regex="o.*s|or")
    assert (answer.member_epoch, harness.share_of(answer)) == (1, {})
    harness.run_jobs()
    assert harness.share_of(harness.cg_heartbeat("m1", 1)) == {"orders": [0, 1, 2, 3]}
    assert harness.consumer_group().epoch == 2
    (written,) = [event for event in harness.events() if isinstance(event, ResolvedRegexUpdated)]
    assert (written.value.topics, written.value.version) == (("orders",), harness.topics.version)


def test_an_expression_must_match_the_whole_name() -> None:
    harness = Harness()
    harness.cg_join("m1", (), regex="order")
    harness.run_jobs()
    assert harness.cg_heartbeat("m1", 1).assignment is None
    assert harness.consumer_group().regexes["order"].topics == ()


def test_a_resolved_expression_has_an_effect_at_once() -> None:
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    answer = harness.cg_join("m2", (), regex="b.*")
    assert answer.member_epoch == 3
    assert harness.jobs == []


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_after_the_clock_was_set_back_expressions_are_resolved_again(ahead: int) -> None:
    """A timestamp in the future does not delay the next resolution."""
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    assert harness.jobs == []
    harness.clock.set_wall(ahead)
    harness.cg_heartbeat("m1", 2)
    assert len(harness.jobs) == 1
    harness.run_jobs()
    assert harness.consumer_group().regexes["b.*"].timestamp == harness.now.wall
    harness.cg_heartbeat("m1", 2)
    assert harness.jobs == []


def test_expressions_are_resolved_again_for_new_topics() -> None:
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    harness.change_topics(bonds=1)
    assert harness.cg_heartbeat("m1", 2).assignment is None
    assert len(harness.jobs) == 1
    assert harness.cg_heartbeat("m1", 2).assignment is None
    assert len(harness.jobs) == 1, "one at a time"
    harness.run_jobs()
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) == {"bills": [0, 1], "bonds": [0]}


@pytest.mark.parametrize("ends", ["it cannot be stored", "it fails"])
def test_a_resolution_without_a_result_is_started_again(ends: str) -> None:
    """Otherwise the group would not find the new topic until another one is created."""
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    harness.change_topics(bonds=1)
    harness.cg_heartbeat("m1", 2)
    if ends == "it fails":
        harness.jobs.clear()
        harness.tell("on_regexes_resolved", "c", None)
    else:
        harness.appends = failing(ErrorCode.kafka_storage_error)
        harness.run_jobs()
        harness.appends = IMMEDIATE
    assert harness.cg_heartbeat("m1", 2).assignment is None
    harness.run_jobs()
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) == {"bills": [0, 1], "bonds": [0]}


def test_an_expression_is_deleted_with_its_last_member() -> None:
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.cg_join("m2", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    harness.cg_heartbeat("m2", -1)
    assert list(harness.consumer_group().regexes) == ["b.*"]
    changed = harness.cg_heartbeat("m1", 2, topics=("orders",), regex="", owned={"bills": []})
    assert (harness.share_of(changed) or {}).keys() == {"orders"}
    assert harness.consumer_group().regexes == {}
    assert harness.replayed() == harness.coordinator.durable_state()


def test_resolved_expressions_survive_a_restart_and_are_resolved_again() -> None:
    harness = Harness()
    harness.cg_join("m1", (), regex="b.*")
    harness.run_jobs()
    harness.cg_heartbeat("m1", 1)
    harness.restart()
    assert harness.cg_heartbeat("m1", 2).assignment is None
    written = len(harness.events())
    harness.run_jobs()
    assert len(harness.events()) == written, "nothing new"
    assert harness.cg_heartbeat("m1", 2).member_epoch == 2


# Assignors.


def everything_to_the_last(group: GroupSpec) -> Mapping[str, Mapping[UUID, Iterable[int]]]:
    last = max(group.members)
    return {last: {topic: range(group.topics[topic].partitions) for topic in group.members[last].topics}}


def with_assignors(**assignors: Any) -> Harness:
    harness = Harness(load=False)
    table = {**SERVER_ASSIGNORS, **assignors}
    harness.coordinator = GroupCoordinator(harness.config, harness.topics, harness.ids, assignors=table)
    harness.load_all()
    return harness


def test_an_assignor_of_the_user() -> None:
    harness = with_assignors(last=everything_to_the_last)
    harness.cg_join("m1", assignor="last")
    assert harness.share_of(harness.cg_join("m2")) == {}
    assert harness.share_of(harness.cg_heartbeat("m1", 2)) == {}
    harness.cg_heartbeat("m1", 2, owned={})
    assert harness.share_of(harness.cg_heartbeat("m2", 3)) == {"orders": [0, 1, 2, 3]}
    assert harness.cg_describe("c")[0].assignor_name == "last"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda group: 1 / 0, "failed: ZeroDivisionError('division by zero')"),
        (lambda group: {"unknown": {}}, "failed: it named members that are not in the group: unknown"),
        (lambda group: None, "failed: it returned None, not a mapping from member ids to partitions"),
        (lambda group: {"m2": "orders"}, "failed: it gave member m2 'orders', not a mapping from topic ids to partitions"),
    ],
)
def test_an_assignor_that_fails_changes_nothing(broken: object, why: str) -> None:
    harness = with_assignors(broken=broken)
    harness.cg_join("m1")
    before = harness.coordinator.durable_state()
    answer = harness.cg_join("m2", assignor="broken")
    assert answer.error_code is ErrorCode.unknown_server_error
    assert f"Failed to compute a new target assignment for epoch 3: assignor broken {why}" in answer.error_message
    assert harness.coordinator.durable_state() == before
    assert harness.cg_heartbeat("m1", 2).error_code is ErrorCode.none


def test_the_server_assignor_with_the_most_votes_is_used() -> None:
    harness = Harness()
    harness.cg_join("m1")
    assert harness.cg_describe("c")[0].assignor_name == "uniform"
    harness.cg_join("m2", assignor="range")
    assert harness.cg_describe("c")[0].assignor_name == "range"
    harness.cg_join("m3", assignor="uniform")
    harness.cg_join("m4", assignor="uniform")
    assert harness.cg_describe("c")[0].assignor_name == "uniform"


# Settings.


def test_a_target_is_kept_for_the_assignment_interval() -> None:
    harness = Harness(group_consumer_assignment_interval_ms=1_000)
    assert harness.cg_join("m1").member_epoch == 2
    harness.sleep(999)
    joined = harness.cg_join("m2")
    assert (joined.member_epoch, harness.share_of(joined)) == (2, {})
    assert harness.consumer_group().state is ConsumerGroupState.ASSIGNING
    harness.sleep(1)
    assert harness.cg_heartbeat("m2", 2).member_epoch == 3
    assert [event.value.assignment_epoch for event in harness.events() if isinstance(event, TargetAssignmentEpochUpdated)] == [2, 3]


class OfGroups:
    """The settings of single groups."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        if group_id != "c":
            return {}
        return {
            "consumer.session.timeout.ms": 5_000,
            "consumer.heartbeat.interval.ms": 50,
            "consumer.assignment.interval.ms": 700,
        }


def test_a_group_has_settings_of_its_own_within_the_brokers_bounds() -> None:
    harness = Harness(load=False)
    harness.coordinator = GroupCoordinator(harness.config, harness.topics, harness.ids, configs=OfGroups())
    harness.load_all()
    assert milliseconds(harness.cg_join("m1").heartbeat_interval) == 100, "the broker's minimum"
    assert milliseconds(harness.cg_join("m1", group="d").heartbeat_interval) == 1_000
    assert harness.cg_join("m2").member_epoch == 2, "kept for 700 ms"
    harness.sleep(4_999)
    assert len(harness.consumer_group("c").members) == 2
    harness.sleep(1)
    assert harness.consumer_group("c").members == {}
    assert len(harness.consumer_group("d").members) == 1
