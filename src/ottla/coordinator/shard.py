"""One partition of ``__consumer_offsets``: decides, has records appended, then lets things happen.

Owns the order of what happens to a group, and its appends. Must not know what a request means. Invariant: nothing of a
decision with records is visible before they are in the log; while a group's append is open its later requests and timers
wait, in order, and other groups go on; every request is answered once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ottla.coordinator.classic.answers import join_refused, sync_refused
from ottla.coordinator.classic.draft import Draft
from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.classic.heartbeat import session_expired
from ottla.coordinator.classic.rebalance import join_phase_expired, start_rebalance, sync_phase_expired
from ottla.coordinator.consumer import fencing
from ottla.coordinator.consumer.events import RegexesMatched
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.subscription import regexes_matched
from ottla.coordinator.effects import (
    Append,
    CancelTimer,
    Effect,
    ProducerStamp,
    RegexMatches,
    Reply,
    RequestContext,
    SetTimer,
    TimerKey,
)
from ottla.coordinator.events import DurableEvent, OffsetPending, TransactionEnded, is_durable, record_of
from ottla.coordinator.migration.downgrade import timer_fired
from ottla.coordinator.ports import Surroundings
from ottla.coordinator.removal import expire, forget_topics, has_offsets_of
from ottla.coordinator.result import Result
from ottla.coordinator.routes import GroupRoute
from ottla.coordinator.state import Group, ShardState
from ottla.coordinator.timers import Timers, expire_timer, forget_timer, retention_timer
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.types import Now
from ottla.values import light_dataclass

logger = logging.getLogger("ottla.broker")

_APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
}
"""The answer to a client when the log refused the coordinator's records; the client knows nothing about that log."""


@dataclass(frozen=True, slots=True)
class Part:
    """The answer to one group's part of a request. It does not leave the coordinator, which puts the parts together."""

    context: RequestContext
    index: int
    answer: Any


ShardEffect = Effect | Part


@light_dataclass(frozen=True, slots=True)
class Request:
    """A request, or the part of one at ``index``, that concerns one group."""

    route: GroupRoute
    context: RequestContext
    body: Any
    index: int | None = None

    def answered(self, answer: Any) -> Reply | Part:
        """The answer, addressed to the sender of the request."""
        return Reply(self.context.ticket, answer) if self.index is None else Part(self.context, self.index, answer)

    def refused(self, error: ErrorCode) -> Reply | Part:
        """The answer when it cannot be served."""
        return self.answered(self.route.refuse(self.context, self.body, error))


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer of a group that the shell has reported."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class Chore:
    """What the timer of this key stands for, to be done as soon as it can be; the timer itself is for trying again."""

    key: TimerKey


@dataclass(frozen=True, slots=True)
class RegexesDone:
    """The regular expressions of a group have been matched; ``None``: they could not be."""

    matches: RegexMatches | None


Operation = Request | TimerFired | Chore | RegexesDone


@light_dataclass(frozen=True, slots=True)
class _OpenAppend:
    batch: int
    operation: Operation
    result: Result


class Shard:
    """The groups of one partition, and what they are doing."""

    def __init__(self, partition: int, around: Surroundings) -> None:
        self.state = ShardState()
        self.timers = Timers()
        self._partition = partition
        self._around = around
        self._batches = 0
        self._open: dict[str, _OpenAppend] = {}
        self._waiting: dict[str, deque[Operation]] = {}
        self._ended: list[TransactionEnded] = []

    def load(self, events: Iterable[DurableEvent], now: Now) -> list[ShardEffect]:
        """Replay the log, then set the timers that its groups need."""
        self.state.replay(events)
        effects: list[ShardEffect] = []
        for group in list(self.state.groups().values()):
            effects += self._apply(self._woken(group, now))
        # Partitions take turns, so that a broker with many groups does not look at all of them at once.
        interval = self._around.config.offsets_retention_check_interval_ms
        turn = interval * (self._partition + 1) // self._around.config.offsets_topic_partitions
        return effects + self._apply(Result(effects=(SetTimer(retention_timer(self._partition), now.mono + turn),)))

    def _woken(self, group: Group, now: Now) -> Result:
        if isinstance(group, ConsumerGroup):
            return fencing.woken(self._around, group, now)
        draft = Draft(group, now)
        for member in group.members.values():
            draft.refresh_session(member)
        if len(group.members) > self._around.config.group_max_size:
            start_rebalance(draft, self._around)
        return draft.result()

    def submit(self, group_id: str, operation: Operation, now: Now) -> list[ShardEffect]:
        """Carry out what concerns a group, or let it wait for the group's open append."""
        if isinstance(operation, TimerFired):
            self.timers.reported(operation.key)
        if group_id in self._open:
            self._waiting.setdefault(group_id, deque()).append(operation)
            return []
        return self._carry_out(group_id, operation, now)

    def topics_changed(self, topics: Collection[str], now: Now) -> list[ShardEffect]:
        """The image of these topics is another now: groups forget what was deleted."""
        gone = tuple(name for name in topics if self._around.topics.topic_id(name) is None)
        if not gone:
            return []
        committing = dict.fromkeys(self._open)
        concerned = [name for name in self.state.groups() if name not in committing and has_offsets_of(self.state, name, gone)]
        return self._do_chores([(group_id, forget_timer(group_id, gone)) for group_id in (*committing, *concerned)], now)

    def look_for_expired(self, key: TimerKey, now: Now) -> list[ShardEffect]:
        """The retention timer has fired: every group lets go of what has expired."""
        self.timers.reported(key)
        if not self.timers.take_if_due(key, now.mono):
            return []
        again = SetTimer(key, now.mono + self._around.config.offsets_retention_check_interval_ms)
        groups = [(group_id, expire_timer(group_id)) for group_id in self.state.groups()]
        return self._apply(Result(effects=(again,))) + self._do_chores(groups, now)

    def _do_chores(self, chores: Iterable[tuple[str, TimerKey]], now: Now) -> list[ShardEffect]:
        return [effect for group_id, key in chores for effect in self.submit(group_id, Chore(key), now)]

    def hasten(self, group_id: str, key: TimerKey, now: Now) -> list[ShardEffect]:
        """Let a timer that is armed be due now."""
        if self.timers.deadline(key) is None:
            return []
        self.timers.note(SetTimer(key, now.mono))
        return self.submit(group_id, TimerFired(key), now)

    def appended(self, batch: int, now: Now) -> list[ShardEffect]:
        """The records of a batch are in the log: what they say happens, then what waited for it."""
        for group_id, is_open in self._closing(batch):
            effects = self._settled(is_open)
            self._end_what_waited()
            return effects + self._go_on(group_id, now)
        return []

    def append_failed(self, batch: int, error: ErrorCode, now: Now) -> list[ShardEffect]:
        """The records of a batch are not in the log: none of it has happened, and the requests get an error."""
        for group_id, is_open in self._closing(batch):
            told = _APPEND_ERRORS.get(error, error)
            self._end_what_waited()
            return self._given_up(group_id, is_open.operation, told, now) + self._go_on(group_id, now)
        return []

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """The marker of a transaction is in the log. What it wrote and what is not known to be there yet is waited for."""
        if self._writes(producer_id):
            self._ended.append(TransactionEnded(producer_id, commit))
        else:
            self.state.replay((TransactionEnded(producer_id, commit),))

    def _writes(self, producer_id: int) -> bool:
        stamps = (_producer(is_open.result) for is_open in self._open.values())
        return any(stamp is not None and stamp.producer_id == producer_id for stamp in stamps)

    def _end_what_waited(self) -> None:
        for event in [event for event in self._ended if not self._writes(event.producer_id)]:
            self._ended.remove(event)
            self.state.replay((event,))

    def unload(self) -> list[ShardEffect]:
        """Another broker coordinates these groups now: waiting requests are answered, and timers are removed."""
        gone = ErrorCode.not_coordinator
        effects: list[ShardEffect] = [CancelTimer(key) for key in self.timers]
        for group in self.state.groups().values():
            for member in group.members.values() if isinstance(group, ClassicGroup) else ():
                if member.join is not None:
                    effects.append(Reply(member.join, join_refused(gone)))
                if member.sync is not None:
                    effects.append(Reply(member.sync, sync_refused(gone)))
        under_way = [is_open.operation for is_open in self._open.values()]
        waiting = [operation for line in self._waiting.values() for operation in line]
        effects += [one.refused(gone) for one in (*under_way, *waiting) if isinstance(one, Request)]
        return effects

    def _closing(self, batch: int) -> Iterator[tuple[str, _OpenAppend]]:
        for group_id, is_open in self._open.items():
            if is_open.batch == batch:
                del self._open[group_id]
                yield group_id, is_open
                return

    def _go_on(self, group_id: str, now: Now) -> list[ShardEffect]:
        effects: list[ShardEffect] = []
        line = self._waiting.get(group_id)
        while line and group_id not in self._open:
            effects += self._carry_out(group_id, line.popleft(), now)
        if not line:
            self._waiting.pop(group_id, None)
        return effects

    def _carry_out(self, group_id: str, operation: Operation, now: Now) -> list[ShardEffect]:
        if isinstance(operation, TimerFired) and not self.timers.take_if_due(operation.key, now.mono):
            moved_to = self.timers.deadline(operation.key)
            return [] if moved_to is None else self._apply(Result(effects=(SetTimer(operation.key, moved_to),)))
        try:
            result = self._decide(group_id, operation, now)
            durable = [event for event in result.events if is_durable(event)]
            records = tuple([record_of(event) for event in durable])
        except ProtocolError:  # something in the request is longer than a record can hold
            return self._given_up(group_id, operation, ErrorCode.invalid_request, now)
        except Exception:
            # A decision writes nothing, so a failed one leaves no trace: queued requests and other groups go on.
            logger.exception("group %r: %s failed", group_id, type(operation).__name__)
            return self._given_up(group_id, operation, ErrorCode.unknown_server_error, now)
        if not durable:
            return self._apply(result) + _answer(operation, result)
        self._batches += 1
        self._open[group_id] = _OpenAppend(self._batches, operation, result)
        return [Append(self._partition, self._batches, records, _producer(result))]

    def _decide(self, group_id: str, operation: Operation, now: Now) -> Result:
        match operation:
            case Request(route, context, body):
                return route.decide(self._around, self.state, context, body, now)
            case RegexesDone(matches):
                group = self.state.group(group_id)
                return regexes_matched(self._around, group, matches, now) if isinstance(group, ConsumerGroup) else Result()
            case TimerFired(key) | Chore(key):
                return self._due_result(group_id, key, now)

    def _due_result(self, group_id: str, key: TimerKey, now: Now) -> Result:
        group = self.state.group(group_id)
        if group is None:
            return Result()
        match key:
            case (_, _, "expire"):
                return expire(self._around, self.state, group_id, now)
            case (_, _, "forget", tuple(topics)):
                return forget_topics(self._around, self.state, group_id, topics)
        if isinstance(group, ConsumerGroup):
            return timer_fired(self._around, group, key, now)
        draft = Draft(group, now)
        match key:
            case (_, _, "session", str(member_id)):
                session_expired(draft, self._around, member_id)
            case (_, _, "join"):
                join_phase_expired(draft, self._around)
            case (_, _, "sync"):
                sync_phase_expired(draft, self._around)
        return draft.result()

    def _settled(self, is_open: _OpenAppend) -> list[ShardEffect]:
        return self._apply(is_open.result) + _answer(is_open.operation, is_open.result)

    def _given_up(self, group_id: str, operation: Operation, error: ErrorCode, now: Now) -> list[ShardEffect]:
        """A chore and a timer's work are tried again soon; a request's is not, but it may leave something to be put in order."""
        if isinstance(operation, RegexesDone):
            return self._apply(Result((RegexesMatched(group_id),)))
        if not isinstance(operation, Request):
            again = SetTimer(operation.key, now.mono + self._around.config.append_retry_backoff_ms)
            return self._apply(Result(effects=(again,)))
        if operation.route.not_stored is None:
            return [operation.refused(error)]
        result = operation.route.not_stored(self._around, self.state, operation.body, error, now)
        assert not any(is_durable(event) for event in result.events), "what follows a failed append needs none"
        return self._apply(result) + _answer(operation, result)

    def _apply(self, result: Result) -> list[ShardEffect]:
        if result.events:
            self.state.replay(result.events)
        return [effect for effect in result.effects if not isinstance(effect, SetTimer | CancelTimer) or self.timers.note(effect)]


def _producer(result: Result) -> ProducerStamp | None:
    """In whose transaction a result is to be written."""
    return next((event.producer for event in result.events if isinstance(event, OffsetPending)), None)


def _answer(operation: Operation, result: Result) -> list[ShardEffect]:
    if isinstance(operation, Request) and result.answer is not None:
        return [operation.answered(result.answer)]
    return []
