"""What must hold of a coordinator and its log after every step, whatever clients, time, disks and restarts did before it.

Owns the list of invariants, and how they are asked. Must not know how a state came about: its parts look at the coordinator, at the
log, at the timers that are set and at the answers that were given. Invariant: ``check`` changes nothing.
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
    """Watches one harness. ``forget`` tells it that another coordinator may begin to count again."""

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
                self.log.the_log_says_what_is,
                self.log.compaction_changes_nothing,
                self.log.what_was_written_last_counts,
                self.log.offsets_go_for_a_reason,
                self.log.nothing_is_left_of_who_is_gone,
                self.classic.members_fit_their_group,
                self.classic.instances_are_members,
                self.classic.who_is_stable_has_an_assignment,
                self.classic.who_is_parked_fits_the_state,
                self.classic.generations_go_up,
                self.consumer.nobody_holds_what_another_holds,
                self.consumer.who_reads_holds,
                self.consumer.epochs_are_in_order,
                self.consumer.epochs_go_up,
                self.consumer.the_target_gives_each_partition_once,
                self.consumer.the_target_is_complete,
                self.consumer.the_target_is_even,
                self.consumer.what_is_counted_is_right,
                self.timers.everybody_alive_has_one_session,
                self.timers.rounds_and_members_have_their_timers,
                self.timers.the_shell_is_told_in_time,
                self.answers.who_waits_is_known,
                self.answers.nobody_waits_for_ever,
                self.answers.what_was_acknowledged_is_in_the_log,
                self.answers.what_was_refused_is_not,
                self.answers.a_generation_is_one_membership,
                self.answers.generations_are_not_skipped,
            )
        }
        """All of them by name, in the order in which they are asked."""

    def check(self) -> None:
        """Everything."""
        for invariant in self.invariants.values():
            invariant()

    def forget(self) -> None:
        """A coordinator that was loaded may give the number of a generation again that was never in the log."""
        self.classic.forget()
        self.answers.forget()

    def a_timer_that_is_not_due_does_nothing(self, number: int) -> None:
        """One that was moved, cancelled or had its effect may still be reported. Reports one of those that ever were."""
        self.timers.report_early(number)

    def the_same_happens_again(self) -> None:
        """Other coordinators return the same effects for the same calls."""
        assert self.harness.told_again() == self.harness.said
