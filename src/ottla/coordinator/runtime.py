"""The runtime of a coordinator, whatever it coordinates: decide, append, replay, answer.

Owns which partitions of the coordinator's topic are served, the order of the operations on each key, the open appends, the timers
and the parts of answers. Must not know what an operation means (the ``CoordinatorShard`` does), where records go, sockets and
clocks. Invariants: nothing of a decision with records is visible before they are in the log; while the append of a key is open its
later operations wait, in order, and other keys go on; every request is answered once.

Source: ``CoordinatorRuntime`` of Apache Kafka, which has one for each of its coordinators as well.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from ottla.coordinator.effects import Append, CancelTimer, ProducerStamp, Reply, RequestContext, SetTimer, TimerKey
from ottla.coordinator.partitioner import partition_for
from ottla.coordinator.timers import Timers
from ottla.errors import IllegalStateError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.types import Now
from ottla.values import light_dataclass

logger = logging.getLogger("ottla.broker")

F = TypeVar("F")
"""An effect that a decision of the coordinator may have."""
F_co = TypeVar("F_co", covariant=True)

Record = tuple[bytes, bytes | None]
"""Key and value of a record of the coordinator's topic; ``None`` for a tombstone."""


class Absence(enum.Enum):
    """Why a partition is not served; the values are the answers to clients."""

    NOT_HERE = ErrorCode.not_coordinator
    LOADING = ErrorCode.coordinator_load_in_progress


# Operations


@dataclass(frozen=True, slots=True)
class Route:
    """How a request, or a part of one, is served that concerns one key.

    ``decide`` has the arguments of the coordinator's own handlers. ``refuse(context, body, error)`` makes the answer to a request
    that cannot be served, and ``not_stored`` decides what else follows from records that could not be appended.
    """

    decide: Callable[..., Any]
    refuse: Callable[[RequestContext, Any, ErrorCode], Any]
    key_of: Callable[[Any], str]
    not_stored: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class SplitRoute:
    """A request that concerns several keys: each gets its part, and the answers are put together when all are there."""

    part: Route
    split: Callable[[Any], Sequence[Any]]
    join: Callable[[tuple[Any, ...]], Any]


@dataclass(frozen=True, slots=True)
class Part:
    """The answer to one key's part of a request. It does not leave the coordinator, which puts the parts together."""

    context: RequestContext
    index: int
    answer: Any


class Operation:
    """What concerns one key, and waits while an append of that key is open. A coordinator may have operations of its own."""

    __slots__ = ()


@light_dataclass(frozen=True, slots=True)
class Request(Operation):
    """A request, or the part of one at ``index``."""

    route: Route
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
class TimerFired(Operation):
    """A timer of the key that the shell has reported."""

    timer: TimerKey


@dataclass(frozen=True, slots=True)
class BackgroundTask(Operation):
    """What this timer stands for, to be done as soon as it can be; the timer itself is for trying again."""

    timer: TimerKey


# What a coordinator plugs in


class Decided(Protocol[F_co]):
    """A decision. ``answer`` is the response to the request at hand; ``None``: it is parked, or there is none."""

    @property
    def events(self) -> tuple[Any, ...]: ...
    @property
    def effects(self) -> tuple[F_co, ...]: ...
    @property
    def answer(self) -> Any: ...


class CoordinatorShard(Protocol[F_co]):
    """The state of one partition, and what operations do to it."""

    KEY: str
    """What a key is called in the log."""

    def decide(self, key: str, operation: Operation, now: Now) -> Decided[F_co]:
        """What an operation does; it writes nothing. Raises ``ProtocolError`` for what a record cannot hold."""
        ...

    def records_of(self, events: Sequence[Any]) -> tuple[Record, ...]:
        """The records of those events that are durable. Raises ``ProtocolError`` for what a record cannot hold."""
        ...

    def producer_of(self, events: Sequence[Any]) -> ProducerStamp | None:
        """In whose transaction events are to be written; ``None`` for no transaction."""
        ...

    def replay(self, events: Iterable[Any]) -> None:
        """Apply events, the only way in which the state changes."""
        ...

    def not_stored(self, key: str, operation: Operation, error: ErrorCode, now: Now) -> Decided[F_co] | None:
        """What follows from an operation that could not be carried out. It has no durable events.

        ``None`` where nothing does: a request is refused then, and other work is tried again after a while.
        """
        ...

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """An append has ended, well or not. ``open_producers``: those with open appends in their transactions."""
        ...

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """What clients are answered when the log has refused records: they know nothing of that log."""
        ...

    def on_loaded(self, now: Now) -> Iterable[Decided[F_co]]:
        """What follows from the state that was loaded, above all timers. No durable events are among it."""
        ...

    def parked(self, error: ErrorCode) -> Iterable[Reply]:
        """The answers to all parked requests when they cannot be served any more."""
        ...


S = TypeVar("S", bound=CoordinatorShard[Any])
"""The shards of the coordinator."""


# The runtime


@light_dataclass(frozen=True, slots=True)
class _OpenAppend(Generic[F]):
    batch: int
    operation: Operation
    result: Decided[F]
    producer: ProducerStamp | None


class PartitionRuntime(Generic[S, F]):
    """One partition that is served."""

    def __init__(self, partition: int, shard: S, batches: Iterator[int], retry_backoff_ms: int) -> None:
        self.timers = Timers()
        self._partition = partition
        self.shard = shard
        self._batches = batches
        self._retry_backoff_ms = retry_backoff_ms
        self._open: dict[str, _OpenAppend[F]] = {}
        self._waiting: dict[str, deque[Operation]] = {}

    def submit(self, key: str, operation: Operation, now: Now) -> list[F | Append | Reply | Part]:
        """Carry out what concerns a key, or let it wait for the key's open append."""
        if isinstance(operation, TimerFired):
            self.timers.reported(operation.timer)
        if key in self._open:
            self._waiting.setdefault(key, deque()).append(operation)
            return []
        return self._carry_out(key, operation, now)

    def fire_timer(self, key: str, timer: TimerKey, now: Now) -> list[F | Append | Reply | Part]:
        """Let a timer that is armed be due now."""
        if self.timers.deadline(timer) is None:
            return []
        self.timers.note(SetTimer(timer, now.mono))
        return self.submit(key, TimerFired(timer), now)

    def apply(self, result: Decided[F]) -> list[F | Append | Reply | Part]:
        """Let a decision take place that is stored, or has nothing to be stored."""
        if result.events:
            self.shard.replay(result.events)
        return [effect for effect in result.effects if not isinstance(effect, SetTimer | CancelTimer) or self.timers.note(effect)]

    def open_keys(self) -> tuple[str, ...]:
        """The keys whose appends are open."""
        return tuple(self._open)

    def open_producers(self) -> frozenset[int]:
        """The producers in whose transactions appends are open."""
        return frozenset([one.producer.producer_id for one in self._open.values() if one.producer is not None])

    def appended(self, batch: int, now: Now) -> list[F | Append | Reply | Part]:
        """The records of a batch are in the log: what they say happens, then what waited for it."""
        key = self._key_of(batch)
        if key is None:
            return []
        ended = self._open.pop(key)
        effects = self.apply(ended.result) + _answer(ended.operation, ended.result)
        self.shard.append_ended(self.open_producers)
        return effects + self._go_on(key, now)

    def append_failed(self, batch: int, error: ErrorCode, now: Now) -> list[F | Append | Reply | Part]:
        """The records of a batch are not in the log: none of it has happened, and the request gets an error."""
        key = self._key_of(batch)
        if key is None:
            return []
        ended = self._open.pop(key)
        self.shard.append_ended(self.open_producers)
        return self._given_up(key, ended.operation, self.shard.error_for_clients(error), now) + self._go_on(key, now)

    def unload(self) -> list[F | Append | Reply | Part]:
        """Another broker has this partition now: waiting requests are answered, and timers are removed."""
        effects: list[Any] = [CancelTimer(key) for key in self.timers]
        effects += self.shard.parked(Absence.NOT_HERE.value)
        waiting = [operation for line in self._waiting.values() for operation in line]
        operations = [*(one.operation for one in self._open.values()), *waiting]
        effects += [one.refused(Absence.NOT_HERE.value) for one in operations if isinstance(one, Request)]
        return effects

    def _key_of(self, batch: int) -> str | None:
        return next((key for key, one in self._open.items() if one.batch == batch), None)

    def _go_on(self, key: str, now: Now) -> list[F | Append | Reply | Part]:
        effects: list[F | Append | Reply | Part] = []
        line = self._waiting.get(key)
        while line and key not in self._open:
            effects += self._carry_out(key, line.popleft(), now)
        if not line:
            self._waiting.pop(key, None)
        return effects

    def _carry_out(self, key: str, operation: Operation, now: Now) -> list[F | Append | Reply | Part]:
        if isinstance(operation, TimerFired) and not self.timers.take_if_due(operation.timer, now.mono):
            moved_to = self.timers.deadline(operation.timer)
            return [] if moved_to is None else self._set_timer(operation.timer, moved_to)
        try:
            result = self.shard.decide(key, operation, now)
            records = self.shard.records_of(result.events)
        except ProtocolError:  # something in the request is longer than a record can hold
            return self._given_up(key, operation, ErrorCode.invalid_request, now)
        except Exception:
            # A decision writes nothing, so a failed one leaves no trace: queued requests and other keys go on.
            logger.exception("%s %r: %s failed", self.shard.KEY, key, type(operation).__name__)
            return self._given_up(key, operation, ErrorCode.unknown_server_error, now)
        if not records:
            return self.apply(result) + _answer(operation, result)
        batch, producer = next(self._batches), self.shard.producer_of(result.events)
        self._open[key] = _OpenAppend(batch, operation, result, producer)
        return [Append(self._partition, batch, records, producer)]

    def _given_up(self, key: str, operation: Operation, error: ErrorCode, now: Now) -> list[F | Append | Reply | Part]:
        """A chore and a timer's work are tried again soon; a request's is not, but it may leave something to be put in order."""
        result = self.shard.not_stored(key, operation, error, now)
        if result is not None:
            return self.apply(result) + _answer(operation, result)
        if isinstance(operation, Request):
            return [operation.refused(error)]
        assert isinstance(operation, TimerFired | BackgroundTask), "the shard says what follows from its own operations"
        return self._set_timer(operation.timer, now.mono + self._retry_backoff_ms)

    def _set_timer(self, timer: TimerKey, at: int) -> list[Any]:
        effect = SetTimer(timer, at)
        return [effect] if self.timers.note(effect) else []


def _answer(operation: Operation, result: Decided[Any]) -> list[Any]:
    if isinstance(operation, Request) and result.answer is not None:
        return [operation.answered(result.answer)]
    return []


class _PendingResponse:
    """A request for several keys, of which some answers are still missing."""

    def __init__(self, route: SplitRoute, size: int) -> None:
        self._route = route
        self._answers: list[Any] = [None] * size
        self._missing = size

    def put(self, index: int, answer: Any) -> bool:
        """Keep one answer; whether it was the last."""
        self._answers[index] = answer
        self._missing -= 1
        return self._missing == 0

    def response(self) -> Any:
        """All answers as one response, in the order in which the keys were asked for."""
        return self._route.join(tuple(self._answers))


class CoordinatorRuntime(Generic[S, F]):
    """All partitions of a coordinator's topic.

    Each must be loaded before its keys are served. The numbers of appends are unique among all of them: the outcome of an append is
    never taken for that of a later one of a partition that was given up, and taken over again, in between.
    """

    def __init__(self, topic: str, partitions: int, retry_backoff_ms: int) -> None:
        self._topic = topic
        self._retry_backoff_ms = retry_backoff_ms
        self._partitions: dict[int, PartitionRuntime[S, F] | Absence] = dict.fromkeys(range(partitions), Absence.NOT_HERE)
        self._batches = count(1)
        self._gathering: dict[int, _PendingResponse] = {}

    def partition_for(self, key: str) -> int:
        """The partition that a key lives in."""
        return partition_for(key, len(self._partitions))

    # Partitions

    def start_loading(self, partition: int) -> None:
        """The log of a partition is being read: requests for its keys are answered with "loading"."""
        if isinstance(self._partitions[partition], PartitionRuntime):
            raise IllegalStateError(f"partition {partition} of {self._topic} is loaded", hint="unload it first")
        self._partitions[partition] = Absence.LOADING

    def load(self, partition: int, shard: S, now: Now) -> list[F | Append | Reply]:
        """Serve the keys of a partition from now on, with the state that the shard has replayed from its log."""
        self.start_loading(partition)
        loaded: PartitionRuntime[S, F] = PartitionRuntime(partition, shard, self._batches, self._retry_backoff_ms)
        effects = [effect for result in shard.on_loaded(now) for effect in loaded.apply(result)]
        self._partitions[partition] = loaded
        return self.collect(effects)

    def unload(self, partition: int) -> list[F | Append | Reply]:
        """Stop serving a partition's keys; waiting requests are answered with NOT_COORDINATOR."""
        served = self.served(partition)
        self._partitions[partition] = Absence.NOT_HERE
        return self.collect(served.unload()) if served is not None else []

    def served(self, partition: int) -> PartitionRuntime[S, F] | None:
        """A partition; ``None`` if it is not served here, or not yet."""
        found = self._partitions[partition]
        return found if isinstance(found, PartitionRuntime) else None

    def all_served(self) -> list[PartitionRuntime[S, F]]:
        """All partitions that are served."""
        return [one for one in self._partitions.values() if isinstance(one, PartitionRuntime)]

    def armed_timers(self) -> dict[TimerKey, int]:
        """All timers that are set, and when they are due (milliseconds on the monotonic clock)."""
        return {key: served.timers.deadline(key) or 0 for served in self.all_served() for key in served.timers}

    @property
    def is_loading(self) -> bool:
        """Whether the log of any partition is being read."""
        return Absence.LOADING in self._partitions.values()

    # Operations

    def handle(self, route: Route | SplitRoute, context: RequestContext, request: Any, now: Now) -> list[F | Append | Reply]:
        """Serve a request; its ``Reply`` is among these effects or among those of a later call."""
        if isinstance(route, Route):
            return self.collect(self._submit(Request(route, context, request), now))
        parts = route.split(request)
        if not parts:
            return [Reply(context.ticket, route.join(()))]
        self._gathering[context.ticket] = _PendingResponse(route, len(parts))
        effects: list[F | Append | Reply | Part] = []
        for index, part in enumerate(parts):
            effects += self._submit(Request(route.part, context, part, index), now)
        return self.collect(effects)

    def _submit(self, request: Request, now: Now) -> list[F | Append | Reply | Part]:
        key = request.route.key_of(request.body)
        found = self._partitions[partition_for(key, len(self._partitions))]
        if isinstance(found, PartitionRuntime):
            return found.submit(key, request, now)
        return [request.refused(found.value)]

    def submit(self, key: str, operation: Operation, now: Now) -> list[F | Append | Reply]:
        """Carry out what is not a request. Where the key is not served there is nothing to do."""
        served = self.served(self.partition_for(key))
        return self.collect(served.submit(key, operation, now)) if served is not None else []

    def on_appended(self, partition: int, batch: int, now: Now) -> list[F | Append | Reply]:
        """The records of an ``Append`` are in the log."""
        served = self.served(partition)
        return self.collect(served.appended(batch, now)) if served is not None else []

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[F | Append | Reply]:
        """The records of an ``Append`` are not in the log, and never will be; ``error`` is the log's."""
        served = self.served(partition)
        return self.collect(served.append_failed(batch, error, now)) if served is not None else []

    def absence(self, key: str) -> ErrorCode | None:
        """Why a key is not served; ``None`` if it is."""
        found = self._partitions[self.partition_for(key)]
        return found.value if isinstance(found, Absence) else None

    def collect(self, effects: Iterable[F | Append | Reply | Part]) -> list[F | Append | Reply]:
        """Keep the parts of answers; let a whole answer, and everything else, go out."""
        outgoing: list[F | Append | Reply] = []
        for effect in effects:
            if not isinstance(effect, Part):
                outgoing.append(effect)
            elif self._gathering[effect.context.ticket].put(effect.index, effect.answer):
                whole = self._gathering.pop(effect.context.ticket)
                outgoing.append(Reply(effect.context.ticket, whole.response()))
        return outgoing
