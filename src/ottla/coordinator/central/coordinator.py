"""The central coordinator, as the broker's core uses it: requests, answers, timers and outcomes of appends in, effects out.

Owns what concerns several groups: the list of groups, changed topics, lost connections. Must not know the handlers of single
groups, nor sockets, clocks or ZooKeeper. Invariants: every request gets one answer; an answer of a member (Ping, Stop, Start) gets
none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.coordinator.central.answers import is_expected
from ottla.coordinator.central.decision import (
    CentralConfig,
    CentralContext,
    CentralEffect,
    GoOn,
    check_timer,
    deleted_topics_timer,
)
from ottla.coordinator.central.describe import list_groups
from ottla.coordinator.central.events import OffsetsCommitted, OffsetsDeleted
from ottla.coordinator.central.flag import RebalanceFlag
from ottla.coordinator.central.group import CentralGroup, CommittedOffset, StoredGroup
from ottla.coordinator.central.offsets import gone_topics
from ottla.coordinator.central.shard import ROUTES, AnswerReceived, CentralShard, ConnectionClosed, RegexesResolved
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import Append, HangUp, NoReply, Reply, RequestContext, ResolvedRegexes, TimerKey
from ottla.coordinator.runtime import BackgroundTask, CoordinatorRuntime, Operation, Route, SplitRoute, TimerFired
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_groups_request, list_groups_response
from ottla.types import Now, TopicPartition

CentralCoordinatorEffect = CentralEffect | Append

_PARTITION = 0
"""The only partition: one broker coordinates all groups."""


class _OpenRegisters:
    """The Registers that are not answered: their appends are open, or they wait for one. Each makes its connection a channel."""

    def __init__(self) -> None:
        self._connections: dict[int, int] = {}
        """Ticket -> connection."""
        self._groups: dict[int, dict[int, str]] = {}
        """Connection -> ticket -> group."""

    def add(self, context: RequestContext, group_id: str) -> None:
        self._connections[context.ticket] = context.connection
        self._groups.setdefault(context.connection, {})[context.ticket] = group_id

    def answered(self, ticket: int) -> None:
        """Forget a Register, if this was one."""
        connection = self._connections.pop(ticket, None)
        if connection is not None:
            tickets = self._groups[connection]
            del tickets[ticket]
            if not tickets:
                del self._groups[connection]

    def take(self, connection: int) -> frozenset[str]:
        """Return the groups of a connection, and forget its Registers."""
        tickets = self._groups.pop(connection, {})
        for ticket in tickets:
            del self._connections[ticket]
        return frozenset(tickets.values())

    def clear(self) -> None:
        self._connections.clear()
        self._groups.clear()


class CentralCoordinator:
    """Serves central groups and their offsets, while this broker is elected.

    ``load`` the groups after each election, and ``unload`` when the broker is deposed. Report the outcome of an ``Append`` with
    ``on_appended`` or ``on_append_failed``, in any order: its records are (path below ``/consumers``, data) pairs, to be stored in
    this order, the last one last; without data the node is deleted. Report a timer with ``on_timer``; the keys of its timers begin
    with ``decision.CENTRAL``.
    """

    APIS: ClassVar[Mapping[Api, Route | SplitRoute | None]] = MappingProxyType(
        {**ROUTES, Api.PING: None, Api.STOP: None, Api.START: None}
    )
    """The APIs that ``handle`` serves."""

    def __init__(self, config: CentralConfig, topics: TopicImage) -> None:
        self._context = CentralContext(config, topics)
        self._runtime: CoordinatorRuntime[CentralShard, CentralEffect] = CoordinatorRuntime(
            "/consumers", 1, config.append_retry_backoff_ms
        )
        self._waiting_answers: dict[str, set[tuple[Api, int, str, int]]] = {}
        """Group with an open append -> its answers that wait: API, connection, member, correlation id."""
        self._registers = _OpenRegisters()
        self._changed_meanwhile: dict[str, None] = {}
        """The topics that have changed while the groups are loaded: some may have been read before."""

    def reconfigure(self, config: CentralConfig) -> None:
        """Use other settings from now on."""
        self._context.config = config

    def handle(self, context: RequestContext, message: Any, now: Now) -> list[CentralCoordinatorEffect]:
        """Handle a request of one of ``APIS``; its ``Reply`` is among the returned effects or among those of a later call.

        Of a Ping, Stop or Start ``message`` is a member's answer; ``context.correlation_id`` tells which ``Push`` it answers.
        """
        route = ROUTES.get(context.api)
        if route is not None:
            if context.api is Api.REGISTER:
                self._registers.add(context, message.group_id)
            return self._complete(self._runtime.handle(route, context, message, now), now)
        effects: list[CentralCoordinatorEffect] = [NoReply(context.ticket)]
        if self._takes(context, message):
            effects += self._submit([(message.group_id, AnswerReceived(context, message))], now)
        return effects

    def _takes(self, context: RequestContext, message: Any) -> bool:
        """Whether an answer is expected, and has not come before:

        1. An append of the group is open, so that all its operations wait.
        2. A member sends answers, without end. None of them has a response, so nothing stops it.
        3. One answer waits for each question that is open now. While the append is open, there are no others.
        """
        served = self._runtime.served(_PARTITION)
        if served is None:
            return False
        state = served.shard.state
        if not is_expected(state.group(message.group_id), state.pings(message.group_id), context, message):
            return False
        if not served.is_open(message.group_id):
            return True
        waiting = self._waiting_answers.setdefault(message.group_id, set())
        answer = _key_of(context, message)
        is_first = answer not in waiting
        waiting.add(answer)
        return is_first

    def _complete(self, effects: Iterable[CentralCoordinatorEffect], now: Now) -> list[CentralCoordinatorEffect]:
        """Do what is to be done next (``GoOn``), and return all other effects."""
        outgoing: list[CentralCoordinatorEffect] = []
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, GoOn):
                pending.extend(self._runtime.submit(str(effect.timer[1]), BackgroundTask(effect.timer), now))
            else:
                if isinstance(effect, Reply):
                    self._registers.answered(effect.ticket)
                outgoing.append(effect)
        return outgoing

    def _submit(self, operations: Iterable[tuple[str, Operation]], now: Now) -> list[CentralCoordinatorEffect]:
        effects: list[CentralCoordinatorEffect] = []
        for group_id, operation in operations:
            effects += self._complete(self._runtime.submit(group_id, operation, now), now)
        return effects

    def on_timer(self, key: TimerKey, now: Now) -> list[CentralCoordinatorEffect]:
        """Handle a timer that has fired; a stale one has no effect."""
        return self._submit([(str(key[1]), TimerFired(key))], now)

    def on_topics_changed(self, topics: Collection[str], now: Now) -> list[CentralCoordinatorEffect]:
        """Check the groups that these topics concern, and delete offsets of deleted ones. Call this after the image has changed.

        All groups with an open append are included: the append may be a Register or a commit for such a topic.
        """
        served = self._runtime.served(_PARTITION)
        if served is None:
            if self.unavailable_error is ErrorCode.coordinator_load_in_progress:
                self._changed_meanwhile.update(dict.fromkeys(topics))
            return []
        state = served.shard.state
        appending = dict.fromkeys(served.open_keys())
        reading = {group_id for name in topics for group_id in state.consumer_groups_per_topic.get(name, ())}
        interested = sorted(reading | state.groups_with_wildcard_topics)
        operations: list[tuple[str, Operation]] = []
        changed = tuple(topics)
        for group_id in state.groups():
            is_appending = group_id in appending
            gone = changed if is_appending else gone_topics(state.offsets(group_id), changed, self._context.topics)
            if gone:
                operations.append((group_id, BackgroundTask(deleted_topics_timer(group_id, gone))))
        operations += [(group_id, BackgroundTask(check_timer(group_id))) for group_id in dict.fromkeys((*appending, *interested))]
        return self._submit(operations, now)

    def on_disconnect(self, connection: int, now: Now) -> list[CentralCoordinatorEffect]:
        """Note that a connection is closed. If it was a channel, its members keep their places until their sessions end.

        Or it becomes one only now: 1. A Register waits for an append of its group. 2. Its connection is closed. 3. The append ends.
        """
        served = self._runtime.served(_PARTITION)
        if served is None:
            return []
        groups = sorted(served.shard.state.groups_on(connection) | self._registers.take(connection))
        return self._submit([(group_id, ConnectionClosed(connection)) for group_id in groups], now)

    def on_regexes_resolved(self, group_id: str, matches: ResolvedRegexes | None, now: Now) -> list[CentralCoordinatorEffect]:
        """Handle the result of a ``ResolveRegexes``; ``None`` if that failed."""
        return self._submit([(group_id, RegexesResolved(matches))], now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[CentralCoordinatorEffect]:
        """Apply and answer an operation whose records are stored now."""
        group_id = self._group_of(batch)
        return self._continue(group_id, self._runtime.on_appended(partition, batch, now), now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[CentralCoordinatorEffect]:
        """Fail an operation whose records are not stored and never will be, unless the operation is tried again.

        Clients get NOT_COORDINATOR (deposed), and INCONSISTENT_GROUP_PROTOCOL or NON_EMPTY_GROUP (the group has members of Kafka
        0.8) as they are; any other error becomes COORDINATOR_NOT_AVAILABLE.
        """
        group_id = self._group_of(batch)
        return self._continue(group_id, self._runtime.on_append_failed(partition, batch, error, now), now)

    def _group_of(self, batch: int) -> str | None:
        served = self._runtime.served(_PARTITION)
        return None if served is None else served.key_of(batch)

    def _continue(
        self, group_id: str | None, effects: Iterable[CentralCoordinatorEffect], now: Now
    ) -> list[CentralCoordinatorEffect]:
        """Go on after an append of a group: what waited for it is done, or waits for another one."""
        completed = self._complete(effects, now)
        served = self._runtime.served(_PARTITION)
        if served is not None and group_id in self._waiting_answers:
            # One append may follow the other without end, so this is not left to the end of the last one.
            waiting = served.waiting(group_id)
            answers = {_key_of(one.context, one.message) for one in waiting if isinstance(one, AnswerReceived)}
            if answers:
                self._waiting_answers[group_id] = answers
            else:
                del self._waiting_answers[group_id]
        return completed

    def start_loading(self) -> None:
        """Answer requests with COORDINATOR_LOAD_IN_PROGRESS while the groups are read."""
        self._changed_meanwhile.clear()
        self._runtime.start_loading(_PARTITION)

    def load(self, groups: Iterable[StoredGroup], epoch: int, now: Now) -> list[CentralCoordinatorEffect]:
        """Serve groups from now on, as the coordinator with this epoch."""
        self._context.epoch, self._context.loaded_at = epoch, now.mono
        effects = self._complete(self._runtime.load(_PARTITION, CentralShard(self._context, groups), now), now)
        changed = tuple(self._changed_meanwhile)
        self._changed_meanwhile.clear()
        return effects + self.on_topics_changed(changed, now) if changed else effects

    def adopt(self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Replace the offsets of a group: they were read again, since members of Kafka 0.8 may have committed."""
        served = self._runtime.served(_PARTITION)
        if served is None:
            return
        known = served.shard.state.offsets(group_id)
        gone = tuple(partition for partition in known if partition not in offsets)
        other = {one: found for one, found in offsets.items() if one not in known or known[one].offset != found.offset}
        served.shard.replay((OffsetsDeleted(group_id, gone),))
        if other:
            served.shard.replay((OffsetsCommitted(group_id, other),))

    def is_shared(self, group_id: str) -> bool:
        """Whether members of Kafka 0.8 may use a central group, and commit: no member is stored."""
        group = self.groups().get(group_id)
        return group is not None and not group.stored_members

    def unload(self, now: Now) -> list[CentralCoordinatorEffect]:
        """Stop serving groups: answer waiting requests with NOT_COORDINATOR, and hang up all channels."""
        served = self._runtime.served(_PARTITION)
        channels = served.shard.state.channels() if served is not None else ()
        reason = "this broker is no longer the coordinator"
        self._waiting_answers.clear()
        self._registers.clear()
        return [*self._runtime.unload(_PARTITION), *(HangUp(connection, reason) for connection in channels)]

    def is_central(self, group_id: str) -> bool:
        """Whether a group is known here as a central one."""
        return group_id in self.groups()

    def groups(self) -> Mapping[str, CentralGroup]:
        """Return all groups by id."""
        served = self._runtime.served(_PARTITION)
        return {} if served is None else served.shard.state.groups()

    def offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group."""
        served = self._runtime.served(_PARTITION)
        offsets = {} if served is None else served.shard.state.offsets(group_id)
        return {partition: committed.offset for partition, committed in offsets.items()}

    def list_groups(self, request: list_groups_request.ListGroupsRequest) -> tuple[list_groups_response.ListedGroup, ...]:
        """Return the groups that pass the filters of a ListGroups."""
        return list_groups(request, self.groups().values())

    @property
    def groups_being_rebalanced(self) -> Mapping[str, RebalanceFlag]:
        """Group -> whether it is being rebalanced."""
        served = self._runtime.served(_PARTITION)
        return {} if served is None else served.shard.state.groups_being_rebalanced

    @property
    def unavailable_error(self) -> ErrorCode | None:
        """The error for clients if groups are not served here: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self._runtime.unavailable_error("")

    def armed_timers(self) -> dict[TimerKey, int]:
        """Return all timers that are set, with their deadlines (milliseconds on the monotonic clock)."""
        return self._runtime.armed_timers()


def _key_of(context: RequestContext, message: Any) -> tuple[Api, int, str, int]:
    """Return what tells a member's answer from all others."""
    return context.api, context.connection, message.member_id, context.correlation_id
