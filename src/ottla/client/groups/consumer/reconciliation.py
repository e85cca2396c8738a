"""How a member gets from the partitions that it has to those that it was given.

Owns what is held, what is to be held, and the one step between them that is under way. Must not know requests or states.
Invariants: one reconciliation at a time, and it ends in the assignment that it began with, whatever is given meanwhile; what goes
is marked before the application is asked to commit it; an answer to an older question changes nothing; a topic that was recreated
under its old name is another topic: its partitions go and come.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.assignors import MemberAssignment
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.groups.consumer.requests import Assignment, AssignmentSource
from ottla.client.notifications import AssignmentReceived, RebalanceNeeded
from ottla.client.subscription import Subscription
from ottla.types import TopicPartition


class Plan(NamedTuple):
    """One reconciliation: ``assignment`` is what is held when it is through."""

    assignment: Assignment
    partitions: frozenset[TopicPartition]
    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    complete: bool
    """Whether that is all that was given: what has no name yet is left for the next time, and never keeps what goes from going."""


class TopicNames:
    """Names of topic ids: what the metadata says, and for topics that are held what it said once."""

    def __init__(self, look_up: Callable[[uuid.UUID], str | None]) -> None:
        self._look_up = look_up
        self._held: dict[uuid.UUID, str] = {}

    def __getitem__(self, topic_id: uuid.UUID) -> str | None:
        return self._held.get(topic_id) or self._look_up(topic_id)

    def keep(self, assignment: Assignment) -> None:
        """These are held from now on, and no others."""
        self._held = {topic_id: name for topic_id in assignment.partitions if (name := self[topic_id]) is not None}

    def unknown(self, assignment: Assignment) -> bool:
        """Whether any topic of an assignment has no name yet."""
        return any(self[topic_id] is None for topic_id in assignment.partitions)


class Reconciliation:
    """See the module. ``notify`` tells the application."""

    def __init__(self, subscription: Subscription, metadata: MetadataManager, notify: Callable[[object], None]) -> None:
        self.held: Assignment | None = None
        """``None``: nothing was taken on since the member joined, not even nothing."""
        self._target: Assignment | None = None
        self._running: Plan | None = None
        self._token = self._count = 0
        self._subscription = subscription
        self._metadata = metadata
        self._names = TopicNames(lambda topic_id: metadata.current.topic_name(topic_id))
        self._asked_at = -1
        self._notify = notify

    def __repr__(self) -> str:
        return f"<Reconciliation of {self.held} with {self._target}{', under way' if self._running is not None else ''}>"

    @property
    def reached(self) -> bool:
        """Whether what is held is what was given."""
        return self.held == self._target

    @property
    def lacks_names(self) -> bool:
        """Whether something was given that is known by its id only."""
        return self._target is not None and self._names.unknown(self._target)

    def aim(self, partitions: Mapping[uuid.UUID, frozenset[int]] | None, source: AssignmentSource | None = None) -> bool:
        """These were assigned; ``None``: the same as before. Returns whether that is new.

        A new result of a member's assignor with the same partitions counts as new, too.
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
        """Ask the application, if nothing is asked of it and something is to be done. True: nothing is, and what is held is new."""
        if self._running is not None or self._target is None:
            return False
        found = plan(self.held, self._target, self._names)
        if not found.complete:
            self._ask_for_names()
        unheard = found.assignment.source is not None and self.held is not None and found.assignment.source != self.held.source
        if self.held is not None and found.assignment.partitions == self.held.partitions and not unheard:
            # What cannot be named yet was acknowledged once; to do it again would only make heartbeats.
            news, self.held = self.held != found.assignment, found.assignment
            return news
        if self.held is None and not found.complete and not found.partitions:
            return False
        self._running = found
        if not found.revoked:
            self._take_on(found)
            return False
        self._subscription.suspend(found.revoked)
        self._token += 1
        self._notify(RebalanceNeeded(self._token, found.revoked, False, deadline))
        return False

    def prepared(self, token: int) -> None:
        """The application has committed, and given up what goes."""
        if token == self._token and self._running is not None:
            self._take_on(self._running)

    def accepted(self, token: int) -> bool:
        """``on_assign`` has run. True: that was the end of the reconciliation."""
        if token != self._token or self._running is None:
            return False
        self._subscription.accept()
        self.held, self._running = self._running.assignment, None
        return True

    def lose(self, deadline: int) -> None:
        """The membership is over: everything is lost, and the application has to be told."""
        self.forget()
        self._subscription.suspend()
        self._notify(RebalanceNeeded(self._token, frozenset(self._subscription.partitions), True, deadline))

    def released(self, token: int) -> bool:
        """Whether the application knows that everything is lost: nothing is held any more."""
        if token != self._token:
            return False
        self._subscription.set_partitions(())
        return True

    def forget(self) -> None:
        """Begin again: what is under way concerns no one."""
        self._token += 1
        self.held = self._target = self._running = None

    def _take_on(self, found: Plan) -> None:
        self._names.keep(found.assignment)
        if self._subscription.pattern is not None:
            self._subscription.subscribe(frozenset(tp.topic for tp in found.partitions), self._subscription.pattern)
        self._subscription.set_partitions(self._subscription.partitions.keys() - found.revoked)
        added = self._subscription.set_partitions(found.partitions, await_acceptance=True)
        self._token += 1
        source = found.assignment.source
        if source is None:
            self._notify(AssignmentReceived(self._token, added))
        else:
            whole = MemberAssignment(tuple(sorted(found.partitions)), source.user_data)
            self._notify(AssignmentReceived(self._token, added, source.assignor, whole, source.group, "consumer"))

    def _ask_for_names(self) -> None:
        """Once for each state of the metadata: the metadata manager itself backs off."""
        if self._metadata.current.version != self._asked_at:
            self._asked_at = self._metadata.current.version
            self._metadata.request_update()


def plan(held: Assignment | None, target: Assignment, names: TopicNames) -> Plan:
    """What to let go and what to take on."""
    known = {topic_id: numbers for topic_id, numbers in target.partitions.items() if names[topic_id] is not None}
    before = {} if held is None else held.partitions
    return Plan(
        target._replace(partitions=known),
        frozenset(_named(known, names)),
        frozenset(_named(_without(before, known), names)),
        frozenset(_named(_without(known, before), names)),
        len(known) == len(target.partitions),
    )


def _without(
    these: Mapping[uuid.UUID, frozenset[int]], those: Mapping[uuid.UUID, frozenset[int]]
) -> dict[uuid.UUID, frozenset[int]]:
    return {topic_id: numbers - those.get(topic_id, frozenset()) for topic_id, numbers in these.items()}


def _named(partitions: Mapping[uuid.UUID, frozenset[int]], names: TopicNames) -> set[TopicPartition]:
    return {
        TopicPartition(name, number)
        for topic_id, numbers in partitions.items()
        if (name := names[topic_id]) is not None
        for number in numbers
    }
