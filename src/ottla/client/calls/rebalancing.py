"""The application's half of a rebalance: commit, listeners, assignors and acknowledgement, in this order.

Owns which partitions the application holds, what it is still asked to give up or to take, and the assignors. Must not know which
protocol asks. Invariants: every partition that ``on_assign`` got is passed exactly once to ``on_revoke`` or ``on_lost``, before it
goes; whatever a listener or an assignor raises, the rebalance goes on and the call raises the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.assignors import Strategy, client_strategy, strategy
from ottla.assignors.asking import UnusableAnswer, assign, assign_whole, user_data_of
from ottla.client import commands
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import ANSWER_GRACE, Call, Mailbox
from ottla.client.commands import GivenUp
from ottla.client.health.metrics import ListenerCall, PollMetrics
from ottla.client.notifications import AssignmentNeeded, AssignmentReceived, RebalanceNeeded
from ottla.config import ConsumerConfig
from ottla.errors import AssignmentError, OttlaError
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)

COMMIT_HOLD = 100
"""Milliseconds that a poll gives the commit before a revocation, as far as its own time-out allows, before it returns records of
partitions that stay. Most commits end within this time: otherwise the group would wait until the application has processed
those."""

Partitions = list[TopicPartition]
Listener = Callable[[Partitions], object]
"""What it returns is awaited, where that can be."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of the application, called on its own thread. The result of a listener is returned."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class _RevocationCommit(NamedTuple):
    """The commit that has to end, successfully or not, before the partitions of ``rebalance`` are given up."""

    rebalance: RebalanceNeeded
    command: commands.Commit
    hold_until: int


class ConsumerAssignors:
    """The consumer's instances of assignors, Ottla's own and the user's.

    Their methods run only here, on the application's thread, except those of Ottla's own that are pure. Whatever an assignor
    raises, the rebalance is answered, and ``report`` gets the error for the call to raise. Raises ``ConfigError`` for assignors
    that do not go together.
    """

    def __init__(self, config: ConsumerConfig, report: Callable[[OttlaError], None]) -> None:
        self._strategies: Mapping[str, Strategy] = {
            "classic": strategy(config.partition_assignment_strategy),
            "consumer": client_strategy(config.group_client_assignors),
        }
        self._report = report

    def user_data(self, topics: frozenset[str], protocol: str = "classic") -> commands.UserData:
        """The user data of each assignor of a group protocol for the member that assigns.

        Ottla's own have none in a consumer group: the coordinator knows the members' partitions.
        """
        found: dict[str, bytes | None] = {}
        chosen = self._strategies[protocol]
        for name, assignor in chosen.assignors.items():
            if protocol == "consumer" and name not in chosen.foreign:
                continue
            try:
                found[name] = user_data_of(assignor.subscription_user_data(topics))
            except Exception as error:
                self._report(_failed(name, "subscription_user_data", error))
        return commands.UserData(found, protocol)

    def assign(self, question: AssignmentNeeded) -> commands.Assigned:
        """The answer of the assignor that the group uses, or why there is none."""
        run = assign_whole if question.protocol == "consumer" else assign
        try:
            assignor = self._strategies[question.protocol].assignors[question.assignor]
            shares = run(assignor, question.cluster, question.members)
        except Exception as error:
            failure = _failed(question.assignor, "assign", error)
            return commands.Assigned(question.generation, {}, failure, question.protocol)
        return commands.Assigned(question.generation, shares, protocol=question.protocol)

    def on_assignment(self, item: AssignmentReceived) -> None:
        """Pass the assignment to the assignor that the group uses."""
        assignor = self._strategies[item.protocol].assignors.get(item.assignor)
        if item.assignment is None or item.group is None or assignor is None:
            return
        try:
            assignor.on_assignment(item.assignment, item.group)
        except Exception as error:
            self._report(_failed(item.assignor, "on_assignment", error))


def _failed(name: str, method: str, error: Exception) -> AssignmentError:
    if isinstance(error, UnusableAnswer):
        return AssignmentError(f"the assignor {name!r} {error}")
    return AssignmentError(f"the assignor {name!r} failed in {method}(): {error!r}", cause=error)


class Rebalancing:
    """See the module. It waits only for listeners: the next ``serve`` looks at a commit again."""

    def __init__(
        self,
        config: ConsumerConfig,
        mailbox: Mailbox,
        collector: FetchCollector,
        metrics: PollMetrics,
        report: Callable[[OttlaError], None],
    ) -> None:
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions that ``on_assign`` got and that are not given up yet."""
        self.listeners = Listeners()
        self._subscribe: commands.Subscribe | None = None
        """The command that began the membership; ``None``: there is none. Notifications before it is done concern an earlier
        membership."""
        self._config = config
        self._mailbox = mailbox
        self._collector = collector
        self._assignors = ConsumerAssignors(config, report)
        self._metrics = metrics
        self._rebalance: RebalanceNeeded | None = None
        self._question: AssignmentNeeded | None = None
        self._assignment: AssignmentReceived | None = None
        self._unanswered: tuple[RebalanceNeeded | AssignmentReceived, frozenset[TopicPartition]] | None = None
        """The notification that was carried out but not answered yet, with its partitions.

        The handler of a signal may raise between the end of the listener and the answer. The next poll then sends the answer, and
        does not call the listener again.
        """
        self._commit: _RevocationCommit | None = None
        """Sent for this rebalance or an earlier one. It outlives the poll that sent it, which may end at any time."""
        self.given_up = GivenUp()
        """What ``leave`` gave up."""
        self._in_listener: frozenset[TopicPartition] = frozenset()
        """The partitions that a running listener gets as revoked or lost: if it leaves the group, it must not get them again."""
        self._in_listeners = 0
        """Milliseconds that the latest listener took."""
        self.is_listening = False
        """Whether a listener is running."""

    @property
    def pending(self) -> bool:
        """Whether there is anything to do now: not while the commit before a revocation is in flight."""
        if self._unanswered is not None or self._question is not None:
            return True
        return not self._awaits_commit if self._rebalance is not None else self._assignment is not None

    @property
    def hold_until(self) -> int:
        """Until when no records are returned, not even of partitions that stay. See ``COMMIT_HOLD``."""
        return self._commit.hold_until if self._commit is not None and self._awaits_commit else 0

    @property
    def _awaits_commit(self) -> bool:
        commit = self._commit
        if commit is None or commit.rebalance is not self._rebalance or commit.command.completion.done:
            return False
        return self._mailbox.now.mono < commit.command.deadline + ANSWER_GRACE

    @property
    def lost(self) -> bool:
        """Whether the partitions are lost already, though ``on_lost`` was not called yet."""
        return self._rebalance is not None and self._rebalance.lost

    def subscribe(self, command: commands.Subscribe, listeners: Listeners) -> None:
        """The application is about to subscribe, or changes its subscription: send the assignors' user data for it."""
        for protocol in ("classic", "consumer"):
            self._mailbox.submit(self._assignors.user_data(command.topics, protocol))
        self.listeners = listeners
        if not self._is_subscribed:
            self._subscribe = command

    @property
    def _is_subscribed(self) -> bool:
        """Whether notifications concern the current membership: they are handled in the order in which they were sent."""
        return self._subscribe is not None and self._subscribe.completion.done

    def needed(self, item: RebalanceNeeded) -> None:
        """An assignment that was not accepted yet is void; of two rebalances only the later one still counts.

        A member of a consumer group may have to give partitions up while it computes an assignment for the group.
        """
        if not self._is_subscribed:
            return
        self._rebalance, self._assignment = item, None
        if item.lost or (self._question is not None and self._question.protocol == "classic"):
            self._question = None

    def asked(self, item: AssignmentNeeded) -> None:
        """The application is to assign partitions to all members of the group."""
        if self._is_subscribed:
            self._question = item

    def received(self, item: AssignmentReceived) -> None:
        """The application is to take new partitions."""
        if self._is_subscribed:
            self._assignment = item

    def serve(self) -> Call[None]:
        """Carry out all pending notifications."""
        while self.pending:
            self._in_listeners = 0
            if self._unanswered is not None:
                self._answer()
            elif self._rebalance is not None and not self._awaits_commit:
                yield from self._give_up(self._rebalance)
            elif self._question is not None:
                question = self._question
                self._mailbox.submit(self._assignors.assign(question))
                self._question = None
                yield from self._mailbox.look_at_the_clock()
            elif self._assignment is not None:
                yield from self._accept(self._assignment)
            self._mailbox.take()

    def leave(self) -> Call[None]:
        """Give up everything, because the application leaves the group: ``given_up`` is the notification to send.

        Earlier requests of the group are void, and so are later ones until the application subscribes again.
        """
        gone, lost = self.owned - self._in_listener, self.lost
        self._in_listeners = 0
        self.owned = frozenset()
        self._subscribe = self._rebalance = self._question = self._assignment = self._commit = None
        try:
            if gone:
                yield from self._listen_to_end(gone, lost=lost)
        finally:
            self.given_up = GivenUp(gone, lost, self._in_listeners)
            self.listeners, self._subscribe = Listeners(), None

    def _give_up(self, rebalance: RebalanceNeeded) -> Call[None]:
        """Commit; when that has ended, call the listener, and give up the partitions."""
        gone = self.owned & rebalance.partitions
        if gone and not rebalance.lost and self._config.enable_auto_commit and not self._has_committed(rebalance):
            return
        self._rebalance, self._commit, self._in_listener = None, None, gone
        try:
            if gone:
                yield from self._listen_to_end(gone, lost=rebalance.lost)
        finally:
            self._unanswered = rebalance, gone
            self.owned -= rebalance.partitions
            self._in_listener = frozenset()
            self._answer()

    def _has_committed(self, rebalance: RebalanceNeeded) -> bool:
        """Whether the commit before a revocation has ended; it is sent if it was not yet, once for each rebalance.

        It covers what the application has processed. A failure causes repetition, never loss, so it is only logged.
        """
        if self._commit is None or self._commit.rebalance is not rebalance:
            offsets = self._collector.positions_to_commit(with_current=False)
            owned = {tp: offsets[tp] for tp in offsets if tp in self.owned}
            if not owned:
                return True
            now = self._mailbox.now.mono
            command = commands.Commit(owned, self._commit_deadline(rebalance), revoking=True)
            self._mailbox.submit(command)
            self._commit = _RevocationCommit(rebalance, command, now + COMMIT_HOLD)
            return False
        completion = self._commit.command.completion
        if not completion.done or completion.error is not None:
            reason = completion.error or "the network thread did not answer"
            _log.warning("the commit before a rebalance of group %r failed: %s", self._config.group_id, reason)
        return True

    def _commit_deadline(self, rebalance: RebalanceNeeded) -> int:
        """The group also waits for the listener and the next join, so the commit gets half of the remaining time."""
        now, config = self._mailbox.now.mono, self._config
        patience = min(max(0, rebalance.deadline - now), config.max_poll_interval_ms) // 2
        return now + min(patience, config.default_api_timeout_ms)

    def _accept(self, assignment: AssignmentReceived) -> Call[None]:
        self._assignors.on_assignment(assignment)
        self._assignment = None
        self.owned |= assignment.added
        try:
            yield from self._listen(ListenerCall.ASSIGNED, self.listeners.on_assign, assignment.added)
        finally:
            self._unanswered = assignment, assignment.added
            self._answer()

    def _answer(self) -> None:
        """Say that it is done."""
        assert self._unanswered is not None
        asked, partitions = self._unanswered
        self._submit_user_data()
        if isinstance(asked, RebalanceNeeded):
            given_up = GivenUp(partitions, asked.lost, self._in_listeners)
            self._mailbox.submit(commands.RebalancePrepared(asked.token, given_up))
        else:
            self._mailbox.submit(commands.AssignmentAccepted(asked.token, partitions, self._in_listeners))
        self._unanswered = None

    def _submit_user_data(self) -> None:
        """Send what the assignors tell the leader of a classic group from the next join on."""
        self._mailbox.submit(self._assignors.user_data(self._collector.snapshot.topics))

    def _listen_to_end(self, gone: Iterable[TopicPartition], *, lost: bool) -> Call[None]:
        """Partitions are revoked, or already lost; without ``on_lost``, ``on_revoke`` is called, as in Kafka."""
        listeners = self.listeners
        listener = (listeners.on_lost or listeners.on_revoke) if lost else listeners.on_revoke
        yield from self._listen(ListenerCall.LOST if lost else ListenerCall.REVOKED, listener, gone)

    def _listen(self, call: ListenerCall, listener: Listener | None, partitions: Iterable[TopicPartition]) -> Call[None]:
        """Run a listener, await what it returned where that can be, and note how long it took, whatever it raises."""
        if listener is None:
            return
        began, raised, outer = self._mailbox.now.mono, None, self.is_listening
        self.is_listening = True
        try:
            yield from self._mailbox.outcome(listener(sorted(partitions)))
        except Exception as error:
            raised = error
        finally:
            self.is_listening = outer
        yield from self._mailbox.look_at_the_clock()
        self._in_listeners = self._mailbox.now.mono - began
        self._metrics.listened(call, self._in_listeners, self._mailbox.now)
        if raised is not None:
            raise raised
