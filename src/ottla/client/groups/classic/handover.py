"""What a classic member asks its application to give up and to take, and what it holds meanwhile.

Owns the questions to the application and their answers, and the assignment on its way to it. Must not know states or requests.
Invariants: an answer to anything but the latest question is void; what is new is not held before everything that goes was given up,
and not read before the application has taken it.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.assignors import MemberAssignment
from ottla.client.notifications import AssignmentReceived, RebalanceNeeded
from ottla.client.poll_watch import PollWatch
from ottla.client.subscription import Subscription
from ottla.types import ConsumerGroupMetadata, TopicPartition


class Handover:
    """See the module. ``cooperative``: whether partitions are kept through a rebalance."""

    def __init__(
        self, subscription: Subscription, notify: Callable[[object], None], polls: PollWatch, *, cooperative: bool
    ) -> None:
        self.again = ""
        """Why the member has to join once more as soon as the application has taken what it is given."""
        self._subscription = subscription
        self._notify = notify
        self._polls = polls
        self._cooperative = cooperative
        self._token = 0
        self._going: frozenset[TopicPartition] = frozenset()
        self._given: MemberAssignment | None = None

    @property
    def must_be_finished(self) -> bool:
        """Whether others count on it that what is being taken over is either read or was given up."""
        return self._cooperative and self._given is not None

    def answers(self, token: int) -> bool:
        """Whether an answer is one to the latest question."""
        return token == self._token

    def prepare(self, *, lost: bool) -> None:
        """Have given up what does not survive a rebalance: everything, or only what is not subscribed to any more."""
        held = frozenset(self._subscription.partitions)
        if self._cooperative and not lost:
            held = frozenset(tp for tp in held if tp.topic not in self._subscription.topics)
        self._ask_for(held, lost=lost)

    def give_up(self) -> None:
        """The application has: what was asked for is held no more."""
        self._subscription.set_partitions(self._subscription.partitions.keys() - self._going)

    def receive(self, assignment: MemberAssignment) -> bool:
        """The leader's assignment. True where the application has to give partitions up first, which it is asked to do."""
        self._given = assignment
        taken = self._subscription.partitions.keys() - frozenset(assignment.partitions)
        if taken:
            self.again = "need to revoke partitions and re-join"
            self._ask_for(frozenset(taken), lost=False)
        return bool(taken)

    def hand_over(self, assignor: str, group: ConsumerGroupMetadata) -> None:
        """Nothing is held any more but what is assigned: the application is to take what is new."""
        assert self._given is not None
        added = self._subscription.set_partitions(self._given.partitions, await_acceptance=True)
        self._token += 1
        self._notify(AssignmentReceived(self._token, added, assignor, self._given, group))

    def accept(self) -> str:
        """The application has taken it. Why to join again at once; empty: there is no reason."""
        self._given = None
        self._subscription.accept()
        again, self.again = self.again, ""
        return again

    def forget(self) -> None:
        """The membership that gave is over."""
        self._given, self.again = None, ""

    def _ask_for(self, going: frozenset[TopicPartition], *, lost: bool) -> None:
        self._going = going
        self._subscription.suspend(going)
        self._token += 1
        self._notify(RebalanceNeeded(self._token, going, lost, self._polls.deadline))
