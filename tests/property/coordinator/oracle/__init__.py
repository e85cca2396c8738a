"""Invariants of a coordinator and its log, checked after every step.

Owns the list of invariants, and how they are checked. Must not know how a state arose: its parts read the coordinator, the
log, the armed timers and the sent responses. Invariant: ``check`` changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.property.coordinator.oracle.answers import Answers, commit_error
from tests.property.coordinator.oracle.classic import ClassicGroups
from tests.property.coordinator.oracle.consumer import ConsumerGroups, Reading
from tests.property.coordinator.oracle.log import LogOfGroups
from tests.property.coordinator.oracle.timers import ArmedTimers
from tests.unit.coordinator.harness import Harness

__all__ = ["Oracle", "Reading", "commit_error"]


class Oracle:
    """Watches one harness. Call ``forget`` when another coordinator has taken over, whose counts may begin again."""

    def __init__(self, harness: Harness, readings: Callable[[], list[Reading]] = list) -> None:
        self.harness = harness
        self.log = LogOfGroups(harness)
        self.classic = ClassicGroups(harness, self.log)
        self.consumer = ConsumerGroups(harness, self.log, readings)
        self.timers = ArmedTimers(harness)
        self.answers = Answers(harness, self.log)
        self.invariants: dict[str, Callable[[], None]] = {
            part.__name__: part
            for part in (
                self.log.the_log_equals_the_state,
                self.log.compaction_changes_nothing,
                self.log.the_last_commit_counts,
                self.log.offsets_are_removed_for_a_reason,
                self.log.deleted_groups_leave_no_records,
                self.classic.members_match_their_group,
                self.classic.instances_are_members,
                self.classic.stable_members_have_assignments,
                self.classic.parked_requests_match_the_state,
                self.classic.generations_never_decrease,
                self.consumer.partitions_have_one_owner,
                self.consumer.readers_are_owners,
                self.consumer.epochs_are_in_order,
                self.consumer.epochs_never_decrease,
                self.consumer.the_target_has_one_owner_per_partition,
                self.consumer.the_target_is_complete,
                self.consumer.the_target_is_balanced,
                self.consumer.cached_counts_are_correct,
                self.timers.live_members_have_one_session_timer,
                self.timers.rounds_and_members_have_their_timers,
                self.timers.the_shell_has_its_timers_in_time,
                self.answers.unanswered_requests_are_parked,
                self.answers.rebalances_end,
                self.answers.acknowledged_writes_are_in_the_log,
                self.answers.refused_commits_are_not_in_the_log,
                self.answers.a_generation_has_one_membership,
                self.answers.generations_are_not_skipped,
            )
        }
        """All of them by name, in the order in which they are asked."""

    def check(self) -> None:
        """Check all invariants."""
        for invariant in self.invariants.values():
            invariant()

    def forget(self) -> None:
        """Allow repeated generations: a coordinator that was loaded may reuse a number that was never in the log."""
        self.classic.forget()
        self.answers.forget()

    def a_timer_that_is_not_due_does_nothing(self, number: int) -> None:
        """Report a timer that was moved, cancelled or has fired; it must have no effect."""
        self.timers.report_early(number)

    def replay_gives_the_same_effects(self) -> None:
        """Replay all calls on new coordinators, which must return the same effects."""
        assert self.harness.repeat_calls() == self.harness.said
