"""The active faults, and the requests and responses that they hold back.

Owns the rules, their numbers of strikes, and everything that is held back: delayed and lost responses, and all inputs of a frozen
broker. Must not know sockets, threads or clocks. Invariants: of the faults that match a request the oldest strikes, and beside it
the oldest delay; a fault is removed with its last strike; after ``let_go`` nothing waits for a fault that has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.effects import (
    BrokerEffect,
    CloseConnection,
    FaultStruck,
    HangUp,
    NoReply,
    Push,
    ReceivedRequest,
    Reply,
    RequestContext,
    SetTimer,
    Ticket,
    TimerKey,
    TruncatedReply,
)
from ottla.broker.faults.messages import (
    NameOf,
    error_response,
    groups_in,
    joined,
    split_by_topic,
    topics_in,
    transactional_ids_in,
    with_error,
)
from ottla.broker.faults.rules import Delay, Drop, Fail, FailAppends, Freeze, LoseReply, Match, Moment, MoveCoordinator, Rule
from ottla.protocol import ErrorCode
from ottla.protocol.apis import PUSHED, Api
from ottla.types import Now, TopicPartition

FAULT = "fault"
"""The first word of the keys of these timers."""

logger = logging.getLogger("ottla.broker")

_REASON = "broker.faults is set to"


@dataclass(slots=True)
class _Armed:
    rule: Rule
    spared: int = 0
    struck: int = 0


class _Mark(NamedTuple):
    """What happens to the response of a request."""

    connection: int
    change: Callable[[Any], Any] | None = None
    delay: int = 0
    delayed_by: int = 0
    fate: Drop | LoseReply | None = None
    fated_by: int = 0

    def without(self, fault: int) -> _Mark:
        """Return the mark without a fault that has ended."""
        mark = self._replace(delay=0) if self.delayed_by == fault else self
        return mark._replace(fate=None) if mark.fated_by == fault else mark


class _Late(NamedTuple):
    connection: int
    fault: int
    effect: BrokerEffect
    behind: list[BrokerEffect]
    """What the coordinator sends on the same connection meanwhile: in a stream of bytes it cannot arrive before the response."""

    def all(self) -> list[BrokerEffect]:
        """Return the response and what comes behind it."""
        return [self.effect, *self.behind]


class _Lost(NamedTuple):
    connection: int
    fault: int


def _moved(action: MoveCoordinator, request: Any) -> bool:
    """Whether a request names something whose coordinator has moved."""
    groups = groups_in(request) if action.of_groups else ()
    transactional_ids = transactional_ids_in(request) if action.of_transactions else ()
    return any(action.group in (None, one) for one in groups) or any(
        action.transactional_id in (None, one) for one in transactional_ids
    )


class FaultTable:
    """The faults of one broker. While it is not ``active``, it need not be called."""

    def __init__(self, name_of: NameOf) -> None:
        self._name_of = name_of
        self.active = False
        """Whether a fault is set or something is held back, as of the last ``outgoing``; read with every request."""
        self._armed: dict[int, _Armed] = {}
        self._marks: dict[Ticket, _Mark] = {}
        self._late: dict[Ticket, _Late] = {}
        self._lost: dict[Ticket, _Lost] = {}
        self._requests: list[ReceivedRequest] = []
        self._timers: dict[TimerKey, None] = {}
        self._answers: list[BrokerEffect] = []

    @property
    def frozen(self) -> bool:
        """Whether the broker stands still."""
        return self._freezing() is not None

    # Setting and ending.

    def add(self, rule: Rule, now: Now) -> list[BrokerEffect]:
        """Set a fault."""
        self.active = True
        self._armed[rule.number] = _Armed(rule)
        return [] if rule.lasts is None else [SetTimer((FAULT, "over", rule.number), now.mono + rule.lasts)]

    def remove(self, number: int) -> Rule | None:
        """Remove a fault; return ``None`` if it is already gone."""
        armed = self._armed.pop(number, None)
        return armed.rule if armed is not None else None

    def numbers(self) -> list[int]:
        """Return the numbers of the faults that are set, or still hold something back, oldest first."""
        holding = [*(one.fault for one in self._late.values()), *(one.fault for one in self._lost.values())]
        marking = [fault for mark in self._marks.values() for fault in (mark.delayed_by, mark.fated_by) if fault]
        return sorted({*self._armed, *holding, *marking})

    def let_go(self, fault: int) -> list[BrokerEffect]:
        """Release the responses that an ended fault holds back: delayed ones are sent, connections with a lost one are closed."""
        self._marks = {ticket: mark.without(fault) for ticket, mark in self._marks.items()}
        late = [ticket for ticket, one in self._late.items() if one.fault == fault]
        lost = [ticket for ticket, one in self._lost.items() if one.fault == fault]
        for ticket in lost:
            del self._lost[ticket]
        closed = [CloseConnection(ticket, f"{_REASON} lose an answer") for ticket in lost]
        return [*(effect for ticket in late for effect in self._late.pop(ticket).all()), *closed]

    # What happens while the broker is frozen.

    def hold_request(self, context: RequestContext, request: Any) -> list[BrokerEffect]:
        """Hold back a request of a frozen broker."""
        self._requests.append((context, request))
        freezing = self._freezing()
        assert freezing is not None
        freezing.struck += 1
        return [FaultStruck(freezing.rule.number)]

    def hold_timer(self, key: TimerKey) -> None:
        """Hold back a timer of a frozen broker."""
        self._timers[key] = None

    def take_held(self) -> tuple[list[ReceivedRequest], list[TimerKey], list[BrokerEffect]]:
        """Return and remove the requests, timers and responses that were held back."""
        held = self._requests, list(self._timers), self._answers
        self._requests, self._timers, self._answers = [], {}, []
        return held

    # Called by the core.

    def apply(self, context: RequestContext, request: Any) -> tuple[Any | None, list[BrokerEffect]]:
        """Apply the faults to a request; return the part for the core to carry out (``None`` for nothing), and effects."""
        struck = [self._strike(context, request, kind) for kind in (Delay, MoveCoordinator, Fail | Drop | LoseReply)]
        effects: list[BrokerEffect] = [FaultStruck(rule.number) for rule in struck if rule is not None]
        delaying, _, rule = struck
        mark = _Mark(context.connection)
        if delaying is not None and isinstance(delaying.action, Delay):
            mark = mark._replace(delay=delaying.action.delay, delayed_by=delaying.number)
        match rule.action if rule is not None else None:
            case Drop(Moment.REQUEST):
                return None, [*effects, CloseConnection(context.ticket, f"{_REASON} drop it at a request")]
            case Drop() | LoseReply() as fate if rule is not None:
                mark = mark._replace(fate=fate, fated_by=rule.number)
            case Fail(error) if rule is not None:
                request, mark, answer = self._failed(context, request, error, rule.match, mark)
                effects += answer
        if mark != _Mark(context.connection):
            self._marks[context.ticket] = mark
        return request, effects

    def fail_append(self, partition: TopicPartition) -> int | None:
        """Return the fault that fails an append to a partition, if there is one, and count the strike."""
        for armed in self._armed.values():
            action = armed.rule.action
            if not isinstance(action, FailAppends) or action.topic != partition.topic:
                continue
            if action.partition in (None, partition.partition) and self._count_strike(armed):
                return armed.rule.number
        return None

    def outgoing(self, effects: Iterable[BrokerEffect], now: Now) -> list[BrokerEffect]:
        """Return the effects for the shell: without responses that are held back, and with changed ones."""
        out: list[BrokerEffect] = []
        for effect in effects:
            if not isinstance(effect, Reply | NoReply | CloseConnection | Push | HangUp):
                out.append(effect)
            elif self.frozen:
                self._answers.append(effect)
            elif isinstance(effect, Push | HangUp):
                out += self._behind_late(effect)
            else:
                try:
                    out += self._answered(effect, now)
                except Exception:  # later effects must not be lost
                    logger.exception("closing a connection: broker.faults could not change an answer")
                    out.append(CloseConnection(effect.ticket, "the broker failed to serve it"))
        self.active = bool(self._armed or self._marks or self._late or self._lost)
        return out

    def on_late(self, ticket: Ticket) -> list[BrokerEffect]:
        """Return a delayed response that is due."""
        late = self._late.pop(ticket, None)
        return late.all() if late is not None else []

    def on_disconnect(self, connection: int) -> None:
        """Drop the responses of a closed connection."""
        self._marks = {ticket: mark for ticket, mark in self._marks.items() if mark.connection != connection}
        self._late = {ticket: late for ticket, late in self._late.items() if late.connection != connection}
        self._lost = {ticket: lost for ticket, lost in self._lost.items() if lost.connection != connection}

    # Internals.

    def _freezing(self) -> _Armed | None:
        return next((armed for armed in self._armed.values() if isinstance(armed.rule.action, Freeze)), None)

    def _strike(self, context: RequestContext, request: Any, kinds: Any) -> Rule | None:
        """The oldest fault of some kinds that strikes this request."""
        for armed in list(self._armed.values()):
            rule = armed.rule
            if isinstance(rule.action, kinds) and self._fits(rule, context, request) and self._count_strike(armed):
                return rule
        return None

    def _fits(self, rule: Rule, context: RequestContext, request: Any) -> bool:
        match = rule.match
        if isinstance(rule.action, Fail) and getattr(request, "session_epoch", 0) > 0:
            return False  # an incremental fetch may name no partition that could fail; its client is about to begin a new session
        if match.apis and context.api not in match.apis:
            return False
        if match.client_id is not None and match.client_id != context.client_id:
            return False
        if match.topic is not None and match.topic not in topics_in(request, self._name_of):
            return False
        if match.transactional_id is not None and match.transactional_id not in transactional_ids_in(request):
            return False
        if isinstance(rule.action, MoveCoordinator):
            return _moved(rule.action, request)
        return match.group is None or match.group in groups_in(request)

    def _count_strike(self, armed: _Armed) -> bool:
        """Count a match; return whether the fault strikes. Its last strike removes it."""
        if armed.spared < armed.rule.after:
            armed.spared += 1
            return False
        armed.struck += 1
        if armed.struck == armed.rule.times:
            del self._armed[armed.rule.number]
        return True

    def _failed(
        self, context: RequestContext, request: Any, error: ErrorCode, match: Match, mark: _Mark
    ) -> tuple[Any | None, _Mark, list[BrokerEffect]]:
        """Fail a request or its part; return the rest of it, the mark of the response to the rest, and the immediate effects."""
        if context.api is Api.METADATA and error is not ErrorCode.rebootstrap_required:
            topics = frozenset() if match.topic is None else frozenset({match.topic})
            return replace(request, allow_auto_topic_creation=False), mark._replace(change=partial(with_error, topics, error)), []
        failed, rest = (request, None) if match.topic is None else split_by_topic(request, match.topic, self._name_of)
        if getattr(request, "acks", None) == 0 or context.api in PUSHED:
            return None, mark, [CloseConnection(context.ticket, f"{_REASON} fail a request that wants no answer")]
        answer = error_response(context.api, failed, error)
        if rest is None:
            return None, mark, [Reply(context.ticket, answer)]
        return rest, mark._replace(change=partial(joined, answer)), []

    def _answered(self, effect: Reply | NoReply | CloseConnection, now: Now) -> list[BrokerEffect]:
        mark = self._marks.pop(effect.ticket, None)
        if mark is None or not isinstance(effect, Reply):
            return [effect]
        answer = self._at_last(effect if mark.change is None else Reply(effect.ticket, mark.change(effect.response)), mark)
        if not mark.delay or answer is None:
            return [] if answer is None else [answer]
        self._late[effect.ticket] = _Late(mark.connection, mark.delayed_by, answer, [])
        return [SetTimer((FAULT, "late", effect.ticket), now.mono + mark.delay)]

    def _behind_late(self, effect: Push | HangUp) -> list[BrokerEffect]:
        """Keep the order of one connection: hold back what comes behind a delayed response, and send nothing behind a lost one."""
        late = [one for one in self._late.values() if one.connection == effect.connection]
        if late:
            late[-1].behind.append(effect)
            return []
        is_lost = isinstance(effect, Push) and any(one.connection == effect.connection for one in self._lost.values())
        return [] if is_lost else [effect]

    def _at_last(self, reply: Reply, mark: _Mark) -> BrokerEffect | None:
        match mark.fate:
            case Drop(Moment.REPLY):
                return CloseConnection(reply.ticket, f"{_REASON} drop it before an answer")
            case Drop():
                return TruncatedReply(reply.ticket, reply.response)
            case LoseReply():
                self._lost[reply.ticket] = _Lost(mark.connection, mark.fated_by)
                return None
        return reply
