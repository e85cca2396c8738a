"""The reconciliation of a member's partitions with its target assignment.

Owns the current and the target assignment, and the reconciliation in progress. Must not know requests or states. Invariants: there
is one reconciliation at a time, and it ends with the assignment with which it began, even if a newer one arrives in between;
revoked partitions are suspended before the application commits them; the answer to an older notification has no effect; a topic
that was recreated with the same name is another topic, so its partitions are revoked and assigned again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.assignors import MemberAssignment
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.events import AssignmentReceived, RebalanceNeeded
from ottla.client.groups.consumer.heartbeats import Assignment, AssignmentSource
from ottla.client.subscription import SubscriptionState
from ottla.types import TopicPartition


class ReconciliationPlan(NamedTuple):
    """One reconciliation: ``assignment`` is the current assignment at its end."""

    assignment: Assignment
    partitions: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    complete: bool
    """Whether it covers the whole target. Topics without a known name are left for the next reconciliation, and do not delay
    revocations."""


class TopicNames:
    """Names of topic ids: from the metadata, and for owned topics as they were when the topic was assigned.

    A deleted topic vanishes from the metadata, but the member still needs its name to revoke its partitions.
    """

    def __init__(self, look_up: Callable[[uuid.UUID], str | None]) -> None:
        self._look_up = look_up
        self._owned: dict[uuid.UUID, str] = {}

    def __getitem__(self, topic_id: uuid.UUID) -> str | None:
        return self._owned.get(topic_id) or self._look_up(topic_id)

    def keep(self, assignment: Assignment) -> None:
        """Remember the names of the topics in this assignment, and forget all others."""
        self._owned = {topic_id: name for topic_id in assignment.partitions if (name := self[topic_id]) is not None}

    def unknown(self, assignment: Assignment) -> bool:
        """Whether any topic of an assignment has no name yet."""
        return any(self[topic_id] is None for topic_id in assignment.partitions)


class Reconciliation:
    """The current and target assignment of a member. ``notify`` sends notifications to the application."""

    def __init__(self, subscription: SubscriptionState, metadata: MetadataManager, notify: Callable[[object], None]) -> None:
        self.current: Assignment | None = None
        """The assignment that the member owns; ``None``: it has not reconciled any since it joined, not even an empty one."""
        self._target: Assignment | None = None
        self._running: ReconciliationPlan | None = None
        self._token = self._count = 0
        self._subscription = subscription
        self._metadata = metadata
        self._names = TopicNames(lambda topic_id: metadata.current.topic_name(topic_id))
        self._requested_at = -1
        self._notify = notify

    def __repr__(self) -> str:
        return f"<Reconciliation of {self.current} with {self._target}{', under way' if self._running is not None else ''}>"

    @property
    def has_reached_target(self) -> bool:
        """Whether the current assignment is the target."""
        return self.current == self._target

    @property
    def lacks_names(self) -> bool:
        """Whether the target has a topic without a known name."""
        return self._target is not None and self._names.unknown(self._target)

    def set_target(self, partitions: Mapping[uuid.UUID, frozenset[int]] | None, source: AssignmentSource | None = None) -> bool:
        """Set the target; ``None``: the same partitions as before. Return whether it is new.

        A new result of a client-side assignor with the same partitions counts as new, too.
        """
        if partitions is None and self._target is not None:
            partitions = self._target.partitions
        if partitions is None:
            return False
        if self._target is not None and self._target.partitions == partitions and source in (None, self._target.source):
            return False
        self._count += 1
        self._target = Assignment(self._count, partitions, source)
        return True

    def begin(self, deadline: int) -> bool:
        """Start a reconciliation, if none is running and there is a difference to the target.

        Return ``True`` if there is no difference, but the current assignment must be acknowledged.
        """
        if self._running is not None or self._target is None:
            return False
        plan = make_plan(self.current, self._target, self._names)
        if not plan.complete:
            self._request_names()
        new_source = (
            plan.assignment.source is not None and self.current is not None and plan.assignment.source != self.current.source
        )
        if self.current is not None and plan.assignment.partitions == self.current.partitions and not new_source:
            # Partitions of topics without a name were left out of an earlier acknowledgement. It need not be repeated.
            must_acknowledge, self.current = self.current != plan.assignment, plan.assignment
            return must_acknowledge
        if self.current is None and not plan.complete and not plan.partitions:
            return False
        self._running = plan
        if not plan.revoked:
            self._assign(plan)
            return False
        self._subscription.suspend(plan.revoked)
        self._token += 1
        self._notify(RebalanceNeeded(self._token, plan.revoked, False, deadline))
        return False

    def prepared(self, token: int) -> None:
        """Continue after the application has committed and given up the revoked partitions."""
        if token == self._token and self._running is not None:
            self._assign(self._running)

    def accepted(self, token: int) -> bool:
        """End the reconciliation after ``on_assign`` has run. Return whether there was one for this token."""
        if token != self._token or self._running is None:
            return False
        self._subscription.accept()
        self.current, self._running = self._running.assignment, None
        return True

    def lose(self, deadline: int) -> None:
        """Give up all partitions at the end of the membership, and notify the application that they are lost."""
        self.forget()
        self._subscription.suspend()
        self._notify(RebalanceNeeded(self._token, frozenset(self._subscription.partitions), True, deadline))

    def released(self, token: int) -> bool:
        """Remove all partitions after the application has handled their loss. Return whether the token is the latest."""
        if token != self._token:
            return False
        self._subscription.set_partitions(())
        return True

    def forget(self) -> None:
        """Drop all assignments and the reconciliation in progress."""
        self._token += 1
        self.current = self._target = self._running = None

    def _assign(self, plan: ReconciliationPlan) -> None:
        self._names.keep(plan.assignment)
        if self._subscription.pattern is not None:
            self._subscription.subscribe(frozenset(tp.topic for tp in plan.partitions), self._subscription.pattern)
        self._subscription.set_partitions(self._subscription.partitions.keys() - plan.revoked)
        added = self._subscription.set_partitions(plan.partitions, await_acceptance=True)
        self._token += 1
        source = plan.assignment.source
        if source is None:
            self._notify(AssignmentReceived(self._token, added))
        else:
            assignment = MemberAssignment(tuple(sorted(plan.partitions)), source.user_data)
            self._notify(AssignmentReceived(self._token, added, source.assignor, assignment, source.group, "consumer"))

    def _request_names(self) -> None:
        """Request metadata, once for each version; the metadata manager backs off by itself."""
        if self._metadata.current.version != self._requested_at:
            self._requested_at = self._metadata.current.version
            self._metadata.request_update()


def make_plan(current: Assignment | None, target: Assignment, names: TopicNames) -> ReconciliationPlan:
    """Return the partitions to revoke and to add to get from the current assignment to the target."""
    named = {topic_id: numbers for topic_id, numbers in target.partitions.items() if names[topic_id] is not None}
    before = {} if current is None else current.partitions
    return ReconciliationPlan(
        target._replace(partitions=named),
        frozenset(_topic_partitions(named, names)),
        frozenset(_topic_partitions(_without(before, named), names)),
        frozenset(_topic_partitions(_without(named, before), names)),
        len(named) == len(target.partitions),
    )


def _without(
    partitions: Mapping[uuid.UUID, frozenset[int]], removed: Mapping[uuid.UUID, frozenset[int]]
) -> dict[uuid.UUID, frozenset[int]]:
    return {topic_id: numbers - removed.get(topic_id, frozenset()) for topic_id, numbers in partitions.items()}


def _topic_partitions(partitions: Mapping[uuid.UUID, frozenset[int]], names: TopicNames) -> set[TopicPartition]:
    return {
        TopicPartition(name, number)
        for topic_id, numbers in partitions.items()
        if (name := names[topic_id]) is not None
        for number in numbers
    }
