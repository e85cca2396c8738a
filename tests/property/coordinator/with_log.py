"""Rules for a coordinator's environment in a state machine test: slow and failing logs, time, moves and kills.

Owns the parts that do not depend on the members: logs, timers, commits and transactions. Must not know groups' protocols.
Invariant: after each rule the oracle checks the state.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.consumer.group import ConsumerGroupMember
from ottla.coordinator.effects import Append
from ottla.coordinator.events import events_of
from ottla.protocol import ErrorCode
from ottla.types import TopicPartition
from tests.property.coordinator.oracle import Oracle
from tests.unit.coordinator.harness import DELAYED, IMMEDIATE, Harness
from tests.unit.coordinator.marked_log import latest

LOG_ERRORS = st.sampled_from([ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower, ErrorCode.message_too_large])
PARTITIONS = st.sampled_from([TopicPartition(topic, number) for topic in ("orders", "bills") for number in (0, 1, 4)])
PRODUCERS = st.integers(1, 3)


class WithLog(RuleBasedStateMachine):
    """A machine with a ``harness`` and its ``oracle``."""

    harness: Harness
    oracle: Oracle

    @invariant()
    def all_is_as_it_must_be(self) -> None:
        self.oracle.check()

    # The log.

    @rule()
    def appends_take_long(self) -> None:
        self.harness.appends = DELAYED

    @rule(error=LOG_ERRORS)
    def the_next_append_fails(self, error: ErrorCode) -> None:
        def fail_once(append: Append) -> ErrorCode:
            self.harness.appends = IMMEDIATE
            return error

        self.harness.appends = fail_once

    @rule()
    def open_appends_succeed(self) -> None:
        self.harness.appends = IMMEDIATE
        self.harness.settle()

    @rule(error=LOG_ERRORS)
    def open_appends_fail(self, error: ErrorCode) -> None:
        durable = self.harness.coordinator.durable_state()
        self.harness.appends = DELAYED
        self.harness.settle(error=error)
        assert self.harness.coordinator.durable_state() == durable
        self.harness.appends = IMMEDIATE

    # Time and place.

    @rule(number=st.integers(0, 50))
    def a_timer_is_reported_that_is_not_due(self, number: int) -> None:
        self.oracle.a_timer_that_is_not_due_does_nothing(number)

    def move_away_and_back(self, group: str) -> None:
        """Move the partition of a group to another coordinator and back."""
        harness = self.harness
        partition = harness.coordinator.partition_for(group)
        harness.tell("unload", partition)
        harness.open = {key: append for key, append in harness.open.items() if append.partition != partition}
        harness.tell("load", partition, events_of(latest(harness.log[partition])))
        self.oracle.forget()

    def restart(self) -> None:
        """Kill and restart the broker."""
        self.harness.appends = IMMEDIATE
        self.harness.restart()
        self.oracle.forget()

    # Commits.

    def commit_offset(self, partition: TopicPartition, group: str, **fields: Any) -> int:
        """Commit a unique offset."""
        return self._ask("commit", partition, group, **fields)

    def commit_in_transaction(self, producer_id: int, partition: TopicPartition, group: str, **fields: Any) -> int:
        """Commit a unique offset in a transaction."""
        return self._ask("commit_in_transaction", partition, group, producer_id=producer_id, **fields)

    def _ask(self, how: str, partition: TopicPartition, group: str, **fields: Any) -> int:
        is_stale = self._is_stale(group, fields.get("member_id", ""), fields.get("generation", -1))
        offset = len(self.harness.requests)
        ticket: int = getattr(self.harness, how)({(partition.topic, partition.partition): offset}, group=group, **fields)
        if is_stale:
            self.oracle.answers.stale.add(ticket)
        return ticket

    def _is_stale(self, group_id: str, member_id: str, generation: int) -> bool:
        """Whether a commit must be refused since its sender is not a member of this generation or epoch."""
        group = self.harness.coordinator.groups().get(group_id)
        if self.harness.open or group is None or generation < 0:
            return False  # an open append may change it; commits without a generation are accepted at times
        member = group.members.get(member_id)
        if member is None:
            return True
        if isinstance(group, ClassicGroup):
            return generation != group.generation
        assert isinstance(member, ConsumerGroupMember)
        return generation > member.epoch

    def delete_groups(self, groups: list[str]) -> None:
        """Delete these groups and all their offsets."""
        partitions = [TopicPartition(topic, number) for topic in ("orders", "bills") for number in range(6)]
        self.oracle.log.removals |= {(group, partition) for group in groups for partition in partitions}
        self.harness.delete(*groups)

    # Transactions.

    @rule(producer_id=PRODUCERS, partition=PARTITIONS, group=st.sampled_from(["g", "h", "c"]))
    def a_producer_commits(self, producer_id: int, partition: TopicPartition, group: str) -> None:
        self.commit_in_transaction(producer_id, partition, group)

    @rule(producer_id=PRODUCERS, commit=st.booleans())
    def a_transaction_ends(self, producer_id: int, commit: bool) -> None:
        self.harness.end_transaction(producer_id, commit=commit)

    def teardown(self) -> None:
        """Check that no request waits for ever, that silent members are removed, and that a replay gives the same effects."""
        if not hasattr(self, "harness"):
            return
        self.harness.appends = IMMEDIATE
        self.harness.settle()
        self.harness.sleep(800_000)  # longer than a rebalance timeout, a new member's wait and a session together
        assert self.harness.asked == self.harness.replies.keys()
        assert self.harness.deadlines == {}
        assert not any(group.members for group in self.harness.coordinator.groups().values())
        self.oracle.check()
        self.oracle.replay_gives_the_same_effects()
