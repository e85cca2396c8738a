"""The application's half of a rebalance: commit, listeners and acknowledgement, in this order.

Owns which partitions the application holds, and what it is still asked to give up or to take. Must not know which protocol asks.
Invariants: every partition that ``on_assign`` was told of is told of exactly once more, by ``on_revoke`` or ``on_lost``, before
it goes; whatever a listener raises, the rebalance goes on and the error comes out of the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ottla.client import commands
from ottla.client.calls.assigning import Assigning
from ottla.client.calls.collector import Collector
from ottla.client.calls.mailbox import ANSWER_GRACE, Call, Mailbox
from ottla.client.calls.pace import Pace, Told
from ottla.client.commands import GivenUp
from ottla.client.notifications import AssignmentNeeded, AssignmentReceived, RebalanceNeeded
from ottla.config import ConsumerConfig
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)

Partitions = list[TopicPartition]
Listener = Callable[[Partitions], object]
"""What it returns is awaited, where that can be."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """What the application wants to be told in a rebalance, on its own thread. What a listener returned is given back."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class Rebalancing:
    """See the module."""

    def __init__(self, config: ConsumerConfig, mailbox: Mailbox, collector: Collector, assigning: Assigning, pace: Pace) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions that ``on_assign`` was told of and that are not given up yet."""
        self.listeners = Listeners()
        self._config = config
        self._mailbox = mailbox
        self._collector = collector
        self._assigning = assigning
        self._pace = pace
        self._rebalance: RebalanceNeeded | None = None
        self._question: AssignmentNeeded | None = None
        self._assignment: AssignmentReceived | None = None
        self._unanswered: tuple[RebalanceNeeded | AssignmentReceived, frozenset[TopicPartition]] | None = None
        """What was done as it was asked, but not said to be done: that too can be interrupted by the handler of a signal."""
        self.given_up = GivenUp()
        """What ``leave`` gave up."""
        self._told: frozenset[TopicPartition] = frozenset()
        """What a listener is just being told of as gone: it may want out of the group, and is not to be told again."""
        self._in_listeners = 0
        """Milliseconds that the latest listener took."""

    @property
    def pending(self) -> bool:
        """Whether the application is asked for anything."""
        asked = self._rebalance is not None or self._question is not None or self._assignment is not None
        return asked or self._unanswered is not None

    @property
    def lost(self) -> bool:
        """Whether the partitions are gone already, though the listener was not told yet."""
        return self._rebalance is not None and self._rebalance.lost

    def needed(self, item: RebalanceNeeded) -> None:
        """An assignment that was not accepted yet is void; of two rebalances only the later one is still asked about."""
        self._rebalance, self._question, self._assignment = item, None, None

    def asked(self, item: AssignmentNeeded) -> None:
        """Partitions are to be assigned to all members of the group."""
        self._question = item

    def received(self, item: AssignmentReceived) -> None:
        """Partitions are to be taken."""
        self._assignment = item

    def serve(self) -> Call[None]:
        """Do what is asked, until nothing is."""
        while self.pending:
            self._in_listeners = 0
            if self._unanswered is not None:
                self._answer()
            elif self._rebalance is not None:
                yield from self._give_up(self._rebalance)
            elif self._question is not None:
                question = self._question
                self._mailbox.submit(self._assigning.assign(question))
                self._question = None
                yield from self._mailbox.look_at_the_clock()
            elif self._assignment is not None:
                yield from self._accept(self._assignment)
            self._mailbox.take()

    def forget(self) -> None:
        """Whatever was asked is void."""
        self._rebalance = self._question = self._assignment = None

    def leave(self) -> Call[None]:
        """Give everything up, because the application wants out: ``given_up`` is what has to be said of it."""
        gone, lost = self.owned - self._told, self.lost
        self._in_listeners = 0
        self.owned = frozenset()
        self.forget()
        try:
            if gone:
                yield from self._listen_to_end(gone, lost=lost)
        finally:
            self.given_up = GivenUp(gone, lost, self._in_listeners)

    def _give_up(self, rebalance: RebalanceNeeded) -> Call[None]:
        """Commit, tell the listener, and let the partitions go."""
        gone = self.owned & rebalance.partitions
        if gone and not rebalance.lost and self._config.enable_auto_commit:
            yield from self._commit_before_revocation(rebalance)
            if self._rebalance is not rebalance:
                return
        self._rebalance, self._told = None, gone
        try:
            if gone:
                yield from self._listen_to_end(gone, lost=rebalance.lost)
        finally:
            self._unanswered = rebalance, gone
            self.owned -= rebalance.partitions
            self._told = frozenset()
            self._answer()

    def _commit_before_revocation(self, rebalance: RebalanceNeeded) -> Call[None]:
        """As far as the application is done with the records: a failure costs repetitions, never records, so it is only logged."""
        offsets = self._collector.positions(with_current=False)
        deadline = min(rebalance.deadline, self._mailbox.now.mono + self._config.default_api_timeout_ms)
        commit = commands.Commit({tp: offsets[tp] for tp in offsets if tp in self.owned}, deadline, revoking=True)
        self._mailbox.submit(commit)
        while not commit.completion.done and self._rebalance is rebalance and self._mailbox.now.mono < deadline + ANSWER_GRACE:
            yield from self._mailbox.wait(commit.completion, deadline + ANSWER_GRACE)
            self._mailbox.take()
        if commit.completion.error is not None:
            _log.warning("the commit before a rebalance of group %r failed: %s", self._config.group_id, commit.completion.error)

    def _accept(self, assignment: AssignmentReceived) -> Call[None]:
        self._assigning.on_assignment(assignment)
        self._assignment = None
        self.owned |= assignment.added
        try:
            yield from self._listen(Told.ASSIGNED, self.listeners.on_assign, assignment.added)
        finally:
            self._unanswered = assignment, assignment.added
            self._answer()

    def _answer(self) -> None:
        """Say that it is done."""
        assert self._unanswered is not None
        asked, partitions = self._unanswered
        self._hand_in_user_data()
        if isinstance(asked, RebalanceNeeded):
            given_up = GivenUp(partitions, asked.lost, self._in_listeners)
            self._mailbox.submit(commands.RebalancePrepared(asked.token, given_up))
        else:
            self._mailbox.submit(commands.AssignmentAccepted(asked.token, partitions, self._in_listeners))
        self._unanswered = None

    def _hand_in_user_data(self) -> None:
        """What the leader is to know from the next join on."""
        self._mailbox.submit(self._assigning.user_data(self._collector.snapshot.topics))

    def _listen_to_end(self, gone: Iterable[TopicPartition], *, lost: bool) -> Call[None]:
        """Partitions go, or are lost already; who has no ``on_lost`` hears of that through ``on_revoke``, as in Kafka."""
        listeners = self.listeners
        listener = (listeners.on_lost or listeners.on_revoke) if lost else listeners.on_revoke
        yield from self._listen(Told.LOST if lost else Told.REVOKED, listener, gone)

    def _listen(self, told: Told, listener: Listener | None, partitions: Iterable[TopicPartition]) -> Call[None]:
        """Run a listener, await what it returned where that can be, and note how long it took, whatever it raises."""
        if listener is None:
            return
        began, raised = self._mailbox.now.mono, None
        try:
            yield from self._mailbox.outcome(listener(sorted(partitions)))
        except Exception as error:
            raised = error
        yield from self._mailbox.look_at_the_clock()
        self._in_listeners = self._mailbox.now.mono - began
        self._pace.listened(told, self._in_listeners, self._mailbox.now)
        if raised is not None:
            raise raised
