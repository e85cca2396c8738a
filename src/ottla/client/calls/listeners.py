"""The application's part of a rebalance: commit, listeners, assignors and acknowledgement, in this order.

Owns the owned partitions, the pending revocation or assignment, and the assignors. Must not know the protocol of the group.
Invariants: every partition that was passed to ``on_assign`` is passed exactly once to ``on_revoke`` or ``on_lost``, before another
member gets it; whatever a listener or an assignor raises, the rebalance goes on and the call raises the error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.assignors import Strategy, client_strategy, strategy
from ottla.assignors.invocation import InvalidAssignment, assign, assign_whole, user_data_of
from ottla.client import events
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import ANSWER_GRACE, Call, Mailbox
from ottla.client.events import AssignmentNeeded, AssignmentReceived, GivenUp, RebalanceNeeded
from ottla.client.health.metrics import ListenerCall, PollMetrics
from ottla.config import ConsumerConfig
from ottla.errors import AssignmentError, OttlaError
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)

COMMIT_HOLD = 100
"""Milliseconds for which a poll waits for the commit before a revocation, within its own timeout, before it returns records of the
partitions that stay. Most commits end within this time. If the poll returned earlier, the group would wait until the application
has processed these records and polls again."""

Partitions = list[TopicPartition]
Listener = Callable[[Partitions], object]
"""A driver with an event loop awaits the result, if it is awaitable."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners of the application, called on its own thread."""

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class _RevocationCommit(NamedTuple):
    """The commit that has to end, successfully or not, before the partitions of ``rebalance`` are revoked."""

    rebalance: RebalanceNeeded
    command: events.Commit
    hold_until: int


class ConsumerAssignors:
    """The consumer's instances of assignors, Ottla's own and the user's.

    The user's run only here, on the application thread; the network thread runs the pure methods of Ottla's own. Whatever an
    assignor raises, the rebalance goes on, and ``report`` gets the error for the call to raise. The constructor raises
    ``ConfigError`` for assignors without a common protocol.
    """

    def __init__(self, config: ConsumerConfig, report: Callable[[OttlaError], None]) -> None:
        self._strategies: Mapping[str, Strategy] = {
            "classic": strategy(config.partition_assignment_strategy),
            "consumer": client_strategy(config.group_client_assignors),
        }
        self._report = report

    def user_data(self, topics: frozenset[str], protocol: str = "classic") -> events.UserData:
        """The user data that each assignor of a group protocol sends to the member that assigns.

        Ottla's own send none in a consumer group: the coordinator knows the members' partitions.
        """
        data: dict[str, bytes | None] = {}
        chosen = self._strategies[protocol]
        for name, assignor in chosen.assignors.items():
            if protocol == "consumer" and name not in chosen.foreign:
                continue
            try:
                data[name] = user_data_of(assignor.subscription_user_data(topics))
            except Exception as error:
                self._report(_failed(name, "subscription_user_data", error))
        return events.UserData(data, protocol)

    def assign(self, question: AssignmentNeeded) -> events.Assigned:
        """Run the assignor that the group uses; return the assignments, or its error."""
        run = assign_whole if question.protocol == "consumer" else assign
        try:
            assignor = self._strategies[question.protocol].assignors[question.assignor]
            shares = run(assignor, question.cluster, question.members)
        except Exception as error:
            failure = _failed(question.assignor, "assign", error)
            return events.Assigned(question.generation, {}, failure, question.protocol)
        return events.Assigned(question.generation, shares, protocol=question.protocol)

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
    if isinstance(error, InvalidAssignment):
        return AssignmentError(f"the assignor {name!r} {error}")
    return AssignmentError(f"the assignor {name!r} failed in {method}(): {error!r}", cause=error)


class Rebalancing:
    """See the module. It waits only for listeners; the next ``serve`` checks again whether a commit has ended."""

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
        self._subscribe: events.Subscribe | None = None
        """The command that began the membership; ``None``: there is none.

        Notifications that arrive before it is done concern an earlier membership.
        """
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
        self._finish_by = 0
        """Until when the revocation waits for the streams to finish the records that they have in hand."""
        self.given_up = GivenUp()
        """The partitions that ``leave`` has given up."""
        self._in_listener: frozenset[TopicPartition] = frozenset()
        """The partitions that were passed to the running ``on_revoke`` or ``on_lost``. If it unsubscribes, ``leave`` must not pass
        them a second time."""
        self._in_listeners = 0
        """Milliseconds that the latest listener took."""
        self.is_listening = False
        """Whether a listener is running."""

    @property
    def pending(self) -> bool:
        """Whether ``serve`` has something to do now: not while the commit before a revocation is in flight."""
        if self._unanswered is not None or self._question is not None:
            return True
        return self._may_give_up if self._rebalance is not None else self._assignment is not None

    @property
    def hold_until(self) -> int:
        """The time until which no records are returned, even of partitions that stay. See ``COMMIT_HOLD``."""
        return self._commit.hold_until if self._commit is not None and self._awaits_commit else 0

    @property
    def _may_give_up(self) -> bool:
        """Whether partitions have to be revoked, and nothing has to end before that."""
        return self._rebalance is not None and not self._awaits_commit and not self._awaits_streams(self._rebalance)

    def _awaits_streams(self, rebalance: RebalanceNeeded) -> bool:
        """Whether streams have not finished the records that they have in hand. Those would be delivered again."""
        streams = self._collector.streams
        if streams is None or rebalance.lost or self._mailbox.now.mono >= self._finish_by:
            return False
        return streams.has_in_hand(self.owned & rebalance.partitions)

    @property
    def _awaits_commit(self) -> bool:
        commit = self._commit
        if commit is None or commit.rebalance is not self._rebalance or commit.command.completion.done:
            return False
        return self._mailbox.now.mono < commit.command.deadline + ANSWER_GRACE

    @property
    def lost(self) -> bool:
        """Whether the partitions are lost and ``on_lost`` was not called yet."""
        return self._rebalance is not None and self._rebalance.lost

    def subscribe(self, command: events.Subscribe, listeners: Listeners) -> None:
        """Send the assignors' user data for a new subscription, before ``command`` is submitted."""
        for protocol in ("classic", "consumer"):
            self._mailbox.submit(self._assignors.user_data(command.topics, protocol))
        self.listeners = listeners
        if not self._is_subscribed:
            self._subscribe = command

    @property
    def _is_subscribed(self) -> bool:
        """Whether the network thread has executed the subscription, so that notifications concern this membership."""
        return self._subscribe is not None and self._subscribe.completion.done

    def needed(self, item: RebalanceNeeded) -> None:
        """Partitions have to be revoked. This voids an assignment that is not accepted yet, and an earlier revocation.

        In a consumer group a request to assign stays: a member may have to revoke partitions while it computes an assignment.
        """
        if not self._is_subscribed:
            return
        self._rebalance, self._assignment = item, None
        self._finish_by = self._commit_deadline(item)
        self._mailbox.rewind(self._collector.withdraw(self.owned & item.partitions, lost=item.lost))
        if item.lost or (self._question is not None and self._question.protocol == "classic"):
            self._question = None

    def asked(self, item: AssignmentNeeded) -> None:
        """An assignor has to assign partitions to all members of the group."""
        if self._is_subscribed:
            self._question = item

    def received(self, item: AssignmentReceived) -> None:
        """The application gets new partitions."""
        if self._is_subscribed:
            self._assignment = item

    def serve(self) -> Call[None]:
        """Do everything that is pending."""
        while self.pending:
            self._in_listeners = 0
            if self._unanswered is not None:
                self._answer()
            elif self._rebalance is not None and self._may_give_up:
                yield from self._give_up(self._rebalance)
            elif self._question is not None:
                question = self._question
                self._mailbox.submit(self._assignors.assign(question))
                self._question = None
                yield from self._mailbox.update_time()
            elif self._assignment is not None:
                yield from self._accept(self._assignment)
            self._mailbox.take()

    def leave(self) -> Call[None]:
        """Revoke all partitions, because the application leaves the group, and store them in ``given_up``.

        Earlier notifications of the group are void, and so are later ones until the application subscribes again.
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
        """Commit; when that has ended, call the listener and give the partitions up."""
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
        """Send the commit before a revocation, once for each rebalance; return whether it has ended.

        It covers the processed records. After a failure, records are delivered twice but none is lost, so it is only logged.
        """
        if self._commit is None or self._commit.rebalance is not rebalance:
            offsets = self._collector.positions_to_commit(with_current=False)
            owned = {tp: offsets[tp] for tp in offsets if tp in self.owned}
            if not owned:
                return True
            now = self._mailbox.now.mono
            command = events.Commit(owned, self._commit_deadline(rebalance), revoking=True)
            self._mailbox.submit(command)
            self._commit = _RevocationCommit(rebalance, command, now + COMMIT_HOLD)
            return False
        completion = self._commit.command.completion
        if not completion.done or completion.error is not None:
            reason = completion.error or "the network thread did not answer"
            _log.warning("the commit before a rebalance of group %r failed: %s", self._config.group_id, reason)
        return True

    def _commit_deadline(self, rebalance: RebalanceNeeded) -> int:
        """The deadline of a commit before a revocation: half of the remaining time, since listener and next join need time, too."""
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
        """Report that the listener has run, to the network thread."""
        assert self._unanswered is not None
        asked, partitions = self._unanswered
        self._submit_user_data()
        if isinstance(asked, RebalanceNeeded):
            given_up = GivenUp(partitions, asked.lost, self._in_listeners)
            self._mailbox.submit(events.RebalancePrepared(asked.token, given_up))
        else:
            self._mailbox.submit(events.AssignmentAccepted(asked.token, partitions, self._in_listeners))
        self._unanswered = None

    def _submit_user_data(self) -> None:
        """Send the assignors' user data for the next join of a classic group."""
        self._mailbox.submit(self._assignors.user_data(self._collector.snapshot.topics))

    def _listen_to_end(self, gone: Iterable[TopicPartition], *, lost: bool) -> Call[None]:
        """Call ``on_revoke``, or ``on_lost`` if the partitions are lost; without ``on_lost``, ``on_revoke`` as in Kafka."""
        listeners = self.listeners
        listener = (listeners.on_lost or listeners.on_revoke) if lost else listeners.on_revoke
        yield from self._listen(ListenerCall.LOST if lost else ListenerCall.REVOKED, listener, gone)

    def _listen(self, call: ListenerCall, listener: Listener | None, partitions: Iterable[TopicPartition]) -> Call[None]:
        """Call a listener, await its result if it is awaitable, and note how long it took. Raises what it raises."""
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
        yield from self._mailbox.update_time()
        self._in_listeners = self._mailbox.now.mono - began
        self._metrics.listened(call, self._in_listeners, self._mailbox.now)
        if raised is not None:
            raise raised
