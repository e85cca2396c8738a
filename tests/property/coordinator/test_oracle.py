"""The oracle itself: each invariant detects a violation, and none fails for a correct state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState
from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupMember, MemberState
from ottla.coordinator.decision import rebalance_timer, rejoin_timer, session_timer, sync_timer
from ottla.coordinator.events import CurrentAssignmentUpdated, OffsetDeleted, record_of
from ottla.coordinator.runtime import Timers
from ottla.protocol import ErrorCode
from ottla.protocol.group_records import ConsumerGroupCurrentMemberAssignmentValue
from ottla.types import TopicPartition
from tests.property.coordinator.oracle import Oracle, Reading, log
from tests.unit.coordinator.harness import IMMEDIATE, Harness, failing

PLACE = TopicPartition("orders", 0)
GONE = TopicPartition("bills", 0)


class FullCoordinator:
    """A coordinator with groups in several states: ``stable``, ``syncing`` and ``consumers`` are groups, ``waits`` is parked."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.readings: list[Reading] = []
        self.oracle = Oracle(self.harness, lambda: self.readings)
        self.leader, self.follower = self.harness.stable("A", "B", group="stable")
        ids = self.harness.joined("A", "B", group="syncing")
        self.waits = self.harness.sync(ids[1], 1, group="syncing")
        self.harness.cg_join("a", group="consumers", instance="i", assignor="uniform")
        self.harness.cg_join("b", group="consumers")
        self.harness.cg_heartbeat("a", 2, group="consumers", instance="i")
        assert self.member("a").state is MemberState.UNREVOKED_PARTITIONS
        self.accepted = self.commit(1)
        self.harness.appends = failing(ErrorCode.not_enough_replicas)
        self.refused = self.commit(2)
        self.harness.appends = IMMEDIATE
        self.harness.commit_in_transaction({PLACE: 3}, 1, group="stable")
        self.harness.commit({GONE: 4}, group="simple")
        self.oracle.log.removals.add(("simple", GONE))
        self.harness.delete("simple")
        self.oracle.check()

    def commit(self, offset: int) -> int:
        return self.harness.commit({PLACE: offset}, self.leader, 1, "stable")

    def shard(self, group_id: str) -> Any:
        return self.served(group_id).shard

    def served(self, group_id: str) -> Any:
        served = self.harness.coordinator._runtime.served(self.harness.coordinator.partition_for(group_id))
        assert served is not None
        return served

    def log(self, group_id: str) -> list[Any]:
        log: list[Any] = self.harness.log[self.harness.coordinator.partition_for(group_id)]
        return log

    def classic(self, group_id: str = "stable", **changes: Any) -> None:
        group = self.harness.coordinator.groups()[group_id]
        assert isinstance(group, ClassicGroup)
        self.shard(group_id).state._groups[group_id] = replace(group, **changes)

    def classic_member(self, member_id: str, group_id: str = "stable", **changes: Any) -> None:
        members = self.harness.coordinator.groups()[group_id].members
        self.classic(group_id, members={**members, member_id: replace(members[member_id], **changes)})

    def group(self) -> ConsumerGroup:
        return self.harness.consumer_group("consumers")

    def consumers(self, **changes: Any) -> None:
        self.shard("consumers").state._groups["consumers"] = replace(self.group(), **changes)

    def target(self, **shares: Any) -> None:
        self.consumers(target={**self.group().target, **shares})

    def topic_id(self, topic: str) -> Any:
        return self.harness.topics.topic_id(topic)

    def answer(self, ticket: int) -> Any:
        return self.harness.replies[ticket]

    def member(self, member_id: str) -> ConsumerGroupMember:
        return self.group().members[member_id]

    def consumer(self, member_id: str, **changes: Any) -> None:
        self.consumers(members={**self.group().members, member_id: replace(self.member(member_id), **changes)})

    def disarm(self, key: Any) -> None:
        del self.served(key[1]).timers._deadlines[key]

    def arm(self, key: Any) -> None:
        self.served(key[1]).timers._deadlines[key] = self.harness.all_timers[key] = 10**9

    def tells(self, ticket: int, **changes: Any) -> None:
        """Change a response."""
        self.oracle.answers._looked_at.discard(ticket)
        self.harness.replies[ticket] = replace(self.harness.replies[ticket], **changes)

    def ticket_of(self, kind: str) -> int:
        """The last request of an API that succeeded; for JoinGroup, that of a leader."""
        answered = self.harness.replies.items()
        return max(
            ticket
            for ticket, answer in answered
            if type(self.harness.requests[ticket][0]).__name__ == f"{kind}Request"
            and answer.error_code is ErrorCode.none
            and getattr(answer, "members", True)
        )


def offset_vanishes(world: FullCoordinator) -> None:
    event = OffsetDeleted("stable", PLACE)
    world.log("stable").append(record_of(event))
    world.shard("stable").state.replay([event])


def first_transaction_counts(world: FullCoordinator) -> None:
    world.harness.commit_in_transaction({PLACE: 5}, 2, group="stable")
    world.harness.end_transaction(2, commit=True)
    state = world.shard("stable").state
    ((place, written),) = dict(state.pending.by_producer())[1].items()
    state._store_offset(*place, written.value)


def record_stays(world: FullCoordinator) -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=2, previous_member_epoch=1, state=0, assigned_partitions=(), partitions_pending_revocation=()
    )
    world.log("gone").append(record_of(CurrentAssignmentUpdated("gone", "m", value)))


def joined_differently(world: FullCoordinator) -> None:
    ticket = world.ticket_of("JoinGroup")
    world.tells(ticket, members=world.answer(ticket).members[:1])


BROKEN: list[tuple[str, Callable[[FullCoordinator], object]]] = [
    ("the_log_equals_the_state", lambda w: w.log("stable").clear()),
    ("the_log_equals_the_state", lambda w: w.classic(stored=None)),
    ("the_log_equals_the_state", lambda w: w.consumers(epoch=7)),
    ("the_log_equals_the_state", lambda w: w.shard("stable").state.pending.end(1, commit=False)),
    ("the_last_commit_counts", lambda w: w.shard("stable").state._offsets["stable"].clear()),
    ("the_last_commit_counts", first_transaction_counts),
    ("offsets_are_removed_for_a_reason", offset_vanishes),
    ("deleted_groups_leave_no_records", record_stays),
    ("members_match_their_group", lambda w: w.classic(leader="unknown")),
    ("members_match_their_group", lambda w: w.classic(protocol="unknown")),
    ("members_match_their_group", lambda w: w.classic(state=ClassicGroupState.EMPTY)),
    ("members_match_their_group", lambda w: w.classic(pending=frozenset({w.leader}))),
    ("members_match_their_group", lambda w: w.classic(members={}, leader=None)),
    ("instances_are_members", lambda w: [w.classic_member(one, instance_id="i") for one in (w.leader, w.follower)]),
    ("stable_members_have_assignments", lambda w: w.classic_member(w.follower, assignment=b"")),
    ("parked_requests_match_the_state", lambda w: w.classic_member(w.leader, join=1)),
    ("parked_requests_match_the_state", lambda w: w.classic_member(w.leader, sync=1)),
    ("parked_requests_match_the_state", lambda w: w.classic(pending_sync=frozenset({"unknown"}))),
    ("generations_never_decrease", lambda w: w.classic(generation=0)),
    ("partitions_have_one_owner", lambda w: w.consumer("b", assigned=w.member("a").assigned)),
    ("partitions_have_one_owner", lambda w: w.consumers(owners={})),
    ("partitions_have_one_owner", lambda w: w.consumer("a", revoking={}, state=MemberState.STABLE)),
    ("readers_are_owners", lambda w: w.readings.append(Reading("consumers", "b", frozenset({PLACE})))),
    ("epochs_are_in_order", lambda w: w.consumer("a", epoch=9)),
    ("epochs_are_in_order", lambda w: w.consumers(assignment_epoch=9)),
    ("epochs_are_in_order", lambda w: w.consumer("a", revoking={})),
    ("epochs_are_in_order", lambda w: w.consumer("a", state=MemberState.STABLE)),
    ("epochs_never_decrease", lambda w: w.consumers(epoch=2)),
    ("epochs_never_decrease", lambda w: w.consumers(assignment_epoch=2)),
    (
        "the_target_has_one_owner_per_partition",
        lambda w: w.target(b=w.group().target["a"]),
    ),
    ("the_target_has_one_owner_per_partition", lambda w: w.target(unknown={})),
    ("the_target_is_complete", lambda w: w.target(b={})),
    ("the_target_is_complete", lambda w: w.harness.topics.counts.update(orders=5)),
    (
        "the_target_is_complete",
        lambda w: w.target(b={w.topic_id("bills"): (0, 1)}),
    ),
    ("the_target_is_balanced", lambda w: w.target(a={w.topic_id("orders"): (0, 1, 2, 3)}, b={})),
    ("cached_counts_are_correct", lambda w: w.consumers(subscribers={"orders": 1})),
    ("cached_counts_are_correct", lambda w: w.consumers(regex_subscribers={"o.*": 1})),
    ("cached_counts_are_correct", lambda w: w.consumers(votes={})),
    ("cached_counts_are_correct", lambda w: w.consumers(static_members={"i": "b"})),
    ("live_members_have_one_session_timer", lambda w: w.disarm(session_timer("stable", w.leader))),
    ("live_members_have_one_session_timer", lambda w: w.arm(session_timer("stable", "unknown"))),
    ("rounds_and_members_have_their_timers", lambda w: w.disarm(sync_timer("syncing"))),
    ("rounds_and_members_have_their_timers", lambda w: w.disarm(rebalance_timer("consumers", "a"))),
    ("rounds_and_members_have_their_timers", lambda w: w.arm(rejoin_timer("consumers", "a"))),
    ("the_shell_has_its_timers_in_time", lambda w: w.harness.all_timers.update({session_timer("stable", w.leader): 10**9})),
    ("the_shell_has_its_timers_in_time", lambda w: w.arm(session_timer("nowhere", "unknown"))),
    ("unanswered_requests_are_parked", lambda w: w.harness.asked.add(10**6)),
    ("unanswered_requests_are_parked", lambda w: w.harness.replies.update({w.waits: None})),
    ("rebalances_end", lambda w: w.harness.clock.move_to(10**6)),
    (
        "acknowledged_writes_are_in_the_log",
        lambda w: w.tells(w.refused, topics=w.answer(w.accepted).topics),
    ),
    (
        "acknowledged_writes_are_in_the_log",
        lambda w: w.tells(w.ticket_of("ConsumerGroupHeartbeat"), member_epoch=9),
    ),
    ("acknowledged_writes_are_in_the_log", lambda w: w.tells(w.ticket_of("SyncGroup"), assignment=b"another")),
    ("acknowledged_writes_are_in_the_log", lambda w: w.oracle.answers.stale.add(w.commit(5))),
    ("refused_commits_are_not_in_the_log", lambda w: w.oracle.answers._refused.add(1)),
    ("a_generation_has_one_membership", joined_differently),
    ("generations_are_not_skipped", lambda w: w.tells(w.ticket_of("JoinGroup"), generation_id=9)),
]


@pytest.mark.parametrize(("invariant", "break_it"), BROKEN, ids=[f"{name}-{number}" for number, (name, _) in enumerate(BROKEN)])
def test_an_invariant_detects_its_violation(invariant: str, break_it: Callable[[FullCoordinator], object]) -> None:
    world = FullCoordinator()
    break_it(world)
    with pytest.raises(AssertionError):
        world.oracle.invariants[invariant]()


def test_a_compaction_that_removes_too_much_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FullCoordinator()
    monkeypatch.setattr(log, "compacted", lambda records, cut, tombstones: records[1:])
    with pytest.raises(AssertionError):
        world.oracle.invariants["compaction_changes_nothing"]()


def test_every_invariant_has_a_violation() -> None:
    broken = {name for name, _ in BROKEN} | {"compaction_changes_nothing"}
    assert broken == FullCoordinator().oracle.invariants.keys()


def test_a_timer_that_acts_too_early_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FullCoordinator()
    for number in range(20):
        world.oracle.a_timer_that_is_not_due_does_nothing(number)
    monkeypatch.setattr(Timers, "take_if_due", lambda timers, key, mono: True)
    sooner = next(number for number, key in enumerate(world.oracle.timers._ever) if key in world.harness.deadlines)
    with pytest.raises(AssertionError):
        world.oracle.a_timer_that_is_not_due_does_nothing(sooner)


def test_a_different_outcome_on_replay_is_detected() -> None:
    world = FullCoordinator()
    world.oracle.replay_gives_the_same_effects()
    world.harness.said[-1] = []
    world.harness.said[0] = []
    with pytest.raises(AssertionError):
        world.oracle.replay_gives_the_same_effects()
