"""The runtime of a coordinator, for groups and transactions alike: decide, append, replay, answer.

Owns the partition of each key and the state of each partition (not served, loading, served), the order of the operations on each
key, the open appends, the deadlines of the timers, and the parts of split responses. Must not know the meaning of an operation or a
timer (the ``CoordinatorShard`` does), the destination of records, sockets and clocks. Invariants: no effect of a decision with
records is visible before they are in the log; while an append of a key is open, later operations on that key wait, in order, and
other keys go on; every request is answered once; a timer has an effect only if it is set and its deadline has passed, however late
or often the shell reports it, and none if it was moved or cancelled while its report waited in a queue.

Source: ``CoordinatorRuntime`` of Apache Kafka, which its coordinators share as well. It writes several decisions into one batch and
reverts them together; here the broker puts the appends of one turn into one batch, and a decision is applied only after its append,
so that there is nothing to revert.
"""

from __future__ import annotations

import enum
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, count, takewhile
from typing import Any, Generic, Protocol, TypeVar

from ottla.coordinator.effects import Append, CancelTimer, ProducerStamp, Reply, RequestContext, SetTimer, TimerKey
from ottla.errors import IllegalStateError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.types import Now
from ottla.values import light_dataclass

logger = logging.getLogger("ottla.broker")

_MOST_REFUSED = 16
"""The operations of one failed append that are each tried by themselves if none of them can be stored."""

F = TypeVar("F")
"""The effects of the coordinator's decisions."""

F_co = TypeVar("F_co", covariant=True)

Record = tuple[bytes, bytes | None]
"""Key and value of a record of the coordinator's topic; the value of a tombstone is ``None``."""


class NotServed(enum.Enum):
    """The states of a partition that is not served; the values are the errors for clients."""

    UNLOADED = ErrorCode.not_coordinator
    LOADING = ErrorCode.coordinator_load_in_progress


# Operations


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of a request, or of a part of one, about one key.

    ``decide`` has the arguments of the coordinator's own handlers. ``refuse(context, body, error)`` returns the response with an
    error. ``not_stored`` decides what else follows if records could not be appended. Some requests may have one append with others
    of their key, since none of them decides by what another one changes: ``part_of_append(body)`` returns which part of the largest
    such append one may need.
    """

    decide: Callable[..., Any]
    refuse: Callable[[RequestContext, Any, ErrorCode], Any]
    key_of: Callable[[Any], str]
    not_stored: Callable[..., Any] | None = None
    part_of_append: Callable[[Any], float] | None = None


@dataclass(frozen=True, slots=True)
class SplitRoute:
    """The handler of a request about several keys: ``split`` makes a part for each, and ``join`` a response of all answers."""

    part: Route
    split: Callable[[Any], Sequence[Any]]
    join: Callable[[tuple[Any, ...]], Any]


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """The answer to one key's part of a request. It does not leave the coordinator, which joins the parts."""

    context: RequestContext
    index: int
    answer: Any


class Operation:
    """An operation on one key. It waits while an append of that key is open. A coordinator may define its own operations."""

    __slots__ = ()


@light_dataclass(frozen=True, slots=True)
class RequestOperation(Operation):
    """A request, or a part of one at ``index``."""

    route: Route
    context: RequestContext
    body: Any
    index: int | None = None

    def answered(self, answer: Any) -> Reply | PartialAnswer:
        """Return an answer as the request's reply, or as its part of one."""
        return Reply(self.context.ticket, answer) if self.index is None else PartialAnswer(self.context, self.index, answer)

    def refused(self, error: ErrorCode) -> Reply | PartialAnswer:
        """Return the answer with an error."""
        return self.answered(self.route.refuse(self.context, self.body, error))


@dataclass(frozen=True, slots=True)
class TimerFired(Operation):
    """The shell has reported a timer of the key."""

    timer: TimerKey


@dataclass(frozen=True, slots=True)
class BackgroundTask(Operation):
    """Do the work of this timer as soon as possible. The timer itself is set only if that fails, for the next attempt."""

    timer: TimerKey


# The interface of a coordinator


class DecisionLike(Protocol[F_co]):
    """A decision. ``answer`` is the response to the current request; ``None`` if it is parked or there is none."""

    @property
    def events(self) -> tuple[Any, ...]: ...
    @property
    def effects(self) -> tuple[F_co, ...]: ...
    @property
    def answer(self) -> Any: ...


class CoordinatorShard(Protocol[F_co]):
    """The state of one partition, and the decisions about operations on it."""

    KEY: str
    """The kind of key, for log lines: ``group``, ``transactional id``."""

    def decide(self, key: str, operation: Operation, now: Now) -> DecisionLike[F_co]:
        """Decide on an operation, and write nothing. Raises ``ProtocolError`` for a field that is too long for a record."""
        ...

    def records_of(self, events: Sequence[Any]) -> tuple[Record, ...]:
        """Return the records of the durable events. Raises ``ProtocolError`` for a field that is too long for a record."""
        ...

    def producer_of(self, events: Sequence[Any]) -> ProducerStamp | None:
        """Return the producer of the transaction that these events belong to, if any."""
        ...

    def replay(self, events: Iterable[Any]) -> None:
        """Apply events. The state changes in no other way."""
        ...

    def not_stored(self, key: str, operation: Operation, error: ErrorCode, now: Now) -> DecisionLike[F_co] | None:
        """Return what follows from an operation that failed, without durable events.

        ``None`` for the default: a request is answered with the error, and a timer's work is retried after a while.
        """
        ...

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """An append has succeeded or failed. ``open_producers`` returns the producers with open appends in their transactions."""
        ...

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """Return the error for clients after a failed append: they know nothing about that log."""
        ...

    def on_loaded(self, now: Now) -> Iterable[DecisionLike[F_co]]:
        """Return the decisions that follow from the loaded state, above all its timers, without durable events."""
        ...

    def answer_parked(self, error: ErrorCode) -> Iterable[Reply]:
        """Answer all parked requests with an error, before the partition is unloaded."""
        ...


S = TypeVar("S", bound=CoordinatorShard[Any])
"""The coordinator's type of shard."""


# The runtime


class Timers:
    """The timers that are set, with their deadlines (milliseconds on the monotonic clock).

    Every heartbeat moves a session timer, and an effect for each would cost more than the rest of the heartbeat. So the shell keeps
    the earlier deadline of a timer that moves back:

    1. A timer is set to 10 s, and an effect tells the shell.
    2. A heartbeat moves it to 13 s: only the deadline here changes.
    3. At 10 s the shell reports the timer. It is not due, so an effect sets it to its deadline of then.
    """

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._in_shell: dict[TimerKey, int] = {}
        """The deadlines that the shell knows; they may be earlier than the real ones."""

    def __iter__(self) -> Iterator[TimerKey]:
        return iter(self._deadlines)

    def deadline(self, key: TimerKey) -> int | None:
        """Return the deadline of a timer; ``None`` if it is not set."""
        return self._deadlines.get(key)

    def note(self, effect: SetTimer | CancelTimer) -> bool:
        """Note an effect. Return whether it must go out to the shell."""
        if isinstance(effect, CancelTimer):
            self._deadlines.pop(effect.key, None)
            self._in_shell.pop(effect.key, None)
            return True
        if effect.unless_set and effect.key in self._deadlines:
            return False
        self._deadlines[effect.key] = effect.at
        in_shell = self._in_shell.get(effect.key)
        if in_shell is not None and in_shell <= effect.at:
            return False
        self._in_shell[effect.key] = effect.at
        return True

    def reported(self, key: TimerKey) -> None:
        """Note that the shell has reported a timer, and so no longer has it."""
        self._in_shell.pop(key, None)

    def take_if_due(self, key: TimerKey, mono: int) -> bool:
        """Return whether a reported timer is due; if so, it is no longer set."""
        deadline = self._deadlines.get(key)
        if deadline is None or deadline > mono:
            return False
        del self._deadlines[key]
        return True


@light_dataclass(frozen=True, slots=True)
class _OpenAppend(Generic[F]):
    decided: tuple[tuple[Operation, DecisionLike[F]], ...]
    producer: ProducerStamp | None


@dataclass(slots=True)
class _Division:
    """The operations of an append that failed, which are tried again in parts."""

    parts: list[int] = field(default_factory=list)
    """How many of them have the next append together (the last number), how many the one after it, and so on."""
    refused: int = 0
    """Those that had an append for themselves, and failed."""
    is_partly_stored: bool = False

    @property
    def seems_hopeless(self) -> bool:
        """Whether the log would probably refuse all others as well."""
        return self.refused >= _MOST_REFUSED and not self.is_partly_stored


class PartitionRuntime(Generic[S, F]):
    """One loaded partition."""

    def __init__(self, partition: int, shard: S, batches: Iterator[int], retry_backoff_ms: int) -> None:
        self.timers = Timers()
        self._partition = partition
        self.shard = shard
        self._batches = batches
        self._retry_backoff_ms = retry_backoff_ms
        self._open: dict[str, _OpenAppend[F]] = {}
        self._keys: dict[int, str] = {}
        """Batch -> the key whose open append it is."""
        self._waiting: dict[str, deque[Operation]] = {}
        self._divisions: dict[str, _Division] = {}
        """The key's first waiting operations are those of an append that failed."""

    def submit(self, key: str, operation: Operation, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        """Execute an operation, or queue it behind the key's open append."""
        if isinstance(operation, TimerFired):
            self.timers.reported(operation.timer)
        if key in self._open:
            self._waiting.setdefault(key, deque()).append(operation)
            return []
        return self._execute(key, (operation,), now)

    def fire_timer(self, key: str, timer: TimerKey, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        """Fire a timer now if it is set."""
        if self.timers.deadline(timer) is None:
            return []
        self.timers.note(SetTimer(timer, now.mono))
        return self.submit(key, TimerFired(timer), now)

    def apply(self, result: DecisionLike[F]) -> list[F | Append | Reply | PartialAnswer]:
        """Apply a decision whose records are in the log, or that has none. Return its effects."""
        if result.events:
            self.shard.replay(result.events)
        return [effect for effect in result.effects if not isinstance(effect, SetTimer | CancelTimer) or self.timers.note(effect)]

    def open_keys(self) -> tuple[str, ...]:
        """Return the keys with open appends."""
        return tuple(self._open)

    def is_open(self, key: str) -> bool:
        """Whether a key has an open append."""
        return key in self._open

    def key_of(self, batch: int) -> str | None:
        """Return the key of an open append."""
        return self._keys.get(batch)

    def waiting(self, key: str) -> Collection[Operation]:
        """Return the operations that wait for the open append of a key."""
        return self._waiting.get(key, ())

    def open_producers(self) -> frozenset[int]:
        """Return the producers with open appends in their transactions."""
        return frozenset([one.producer.producer_id for one in self._open.values() if one.producer is not None])

    def appended(self, batch: int, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        """Apply and answer the operations of an append, then execute those that waited for it."""
        key = self._keys.pop(batch, None)
        if key is None:
            return []
        ended = self._open.pop(key)
        if key in self._divisions:
            self._divisions[key].is_partly_stored = True
        effects: list[F | Append | Reply | PartialAnswer] = []
        for operation, result in ended.decided:
            effects += self.apply(result) + _answer(operation, result)
        self.shard.append_ended(self.open_producers)
        return effects + self._execute_waiting(key, now)

    def append_failed(self, batch: int, error: ErrorCode, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        """Answer the operation of an append with an error, without any change, then execute those that waited.

        Of several operations each gets an answer of its own, except for an error that concerns all of them, or seems to.
        """
        key = self._keys.pop(batch, None)
        if key is None:
            return []
        ended = self._open.pop(key)
        self.shard.append_ended(self.open_producers)
        effects: list[F | Append | Reply | PartialAnswer] = []
        told, operations = self.shard.error_for_clients(error), [operation for operation, _ in ended.decided]
        if len(operations) > 1 and told is ErrorCode.coordinator_not_available:
            refused = self._divide(key, operations)
        else:
            refused = [*operations, *self._like_those_before(key)]
        for operation in refused:
            effects += self._handle_failure(key, operation, told, now)
        return effects + self._execute_waiting(key, now)

    def _divide(self, key: str, operations: Sequence[Operation]) -> Sequence[Operation]:
        """Execute operations again next, in two halves, or only the second one (``_like_those_before``). Return the others.

        1. A topic has offsets that the log refuses. 2. A member commits some, and commits of others share the append, which fails.
        3. The member tries again, and so do the others: with one answer for all, none of them would ever commit.
        """
        first, second = operations[: len(operations) // 2], operations[len(operations) // 2 :]
        division, waiting = self._divisions.setdefault(key, _Division()), self._waiting.setdefault(key, deque())
        division.parts.append(len(second))
        waiting.extendleft(reversed(second))
        if division.seems_hopeless:
            return first
        division.parts.append(len(first))
        waiting.extendleft(reversed(first))
        return ()

    def _like_those_before(self, key: str) -> list[Operation]:
        """Take the operations of a divided append that would probably fail as well:

        1. The log refuses all records of a key, and 200 members commit. 2. Each one by itself, with the halves before, would take
        400 appends, and delay all else of the key. 3. After some that had an append for themselves, and none that was stored, only
        the last half of the others is tried, then the last half of that, and so on: clients may try again in the same order, so
        those that come first must not be the only ones. They are not tried after later ones, which may be of the same client.
        """
        division = self._divisions.get(key)
        if division is None:
            return []
        division.refused += 1
        if not division.seems_hopeless:
            return []
        others = sum(division.parts)
        division.parts = [others - others // 2] if others else []
        queue = self._waiting.get(key, deque())
        return [queue.popleft() for _ in range(others // 2)]

    def unload(self) -> list[F | Append | Reply | PartialAnswer]:
        """Answer all waiting and parked requests with NOT_COORDINATOR, and cancel all timers."""
        effects: list[Any] = [CancelTimer(key) for key in self.timers]
        effects += self.shard.answer_parked(NotServed.UNLOADED.value)
        waiting = [operation for queue in self._waiting.values() for operation in queue]
        operations = [*(operation for one in self._open.values() for operation, _ in one.decided), *waiting]
        effects += [one.refused(NotServed.UNLOADED.value) for one in operations if isinstance(one, RequestOperation)]
        return effects

    def _execute_waiting(self, key: str, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        effects: list[F | Append | Reply | PartialAnswer] = []
        queue = self._waiting.get(key)
        while queue and key not in self._open:
            together = [queue.popleft() for _ in range(self._how_many(key, queue))]
            effects += self._execute(key, together, now)
        if not queue:
            self._waiting.pop(key, None)
            if key not in self._open:
                self._divisions.pop(key, None)
        return effects

    def _how_many(self, key: str, queue: Iterable[Operation]) -> int:
        """Return how many of these operations have the next append together.

        1. The append of a key takes some milliseconds, and each of 200 members commits. 2. One append after the other, they would
        delay all else of the key for longer and longer.
        """
        division = self._divisions.get(key)
        if division is not None and division.parts:
            return division.parts.pop()
        self._divisions.pop(key, None)
        needed = accumulate(map(_part_of_append, queue))
        return max(1, sum(1 for _ in takewhile(lambda part: part <= 1, needed)))

    def _execute(self, key: str, operations: Sequence[Operation], now: Now) -> list[F | Append | Reply | PartialAnswer]:
        """Execute an operation, or several that share an append."""
        effects: list[F | Append | Reply | PartialAnswer] = []
        decided: list[tuple[Operation, DecisionLike[F]]] = []
        records: tuple[Record, ...] = ()
        producer = None
        for operation in operations:
            result, done, more = self._decide(key, operation, now)
            effects += done
            if result is not None:
                decided.append((operation, result))
                records, producer = records + more, self.shard.producer_of(result.events)
        if decided:
            batch = next(self._batches)
            self._open[key], self._keys[batch] = _OpenAppend(tuple(decided), producer), key
            effects.append(Append(self._partition, batch, records, producer))
        return effects

    def _decide(
        self, key: str, operation: Operation, now: Now
    ) -> tuple[DecisionLike[F] | None, list[F | Append | Reply | PartialAnswer], tuple[Record, ...]]:
        """Return a decision that must be appended, with its records, or ``None`` and the effects of an operation that is over."""
        if isinstance(operation, TimerFired) and not self.timers.take_if_due(operation.timer, now.mono):
            # The timer was cancelled or moved while the operation waited, or the shell knew only an earlier deadline (``Timers``).
            moved_to = self.timers.deadline(operation.timer)
            return None, [] if moved_to is None else self._set_timer(operation.timer, moved_to), ()
        try:
            result = self.shard.decide(key, operation, now)
            records = self.shard.records_of(result.events)
        except ProtocolError:  # a field of the request is too long for a record
            return None, self._handle_failure(key, operation, ErrorCode.invalid_request, now), ()
        except Exception:
            # A handler writes nothing, so the state is as before: queued requests and other keys go on.
            logger.exception("%s %r: %s failed", self.shard.KEY, key, _name_of(operation))
            return None, self._handle_failure(key, operation, ErrorCode.unknown_server_error, now), ()
        if not records:
            return None, self.apply(result) + _answer(operation, result), ()
        return result, [], records

    def _handle_failure(
        self, key: str, operation: Operation, error: ErrorCode, now: Now
    ) -> list[F | Append | Reply | PartialAnswer]:
        """Handle a failed operation: the shard's own reaction, else an error for a request and a retry for a timer's work."""
        result = self.shard.not_stored(key, operation, error, now)
        if result is not None:
            return self.apply(result) + _answer(operation, result)
        if isinstance(operation, RequestOperation):
            return [operation.refused(error)]
        assert isinstance(operation, TimerFired | BackgroundTask), "the shard handles the failure of its own operations"
        return self._set_timer(operation.timer, now.mono + self._retry_backoff_ms)

    def _set_timer(self, timer: TimerKey, at: int) -> list[Any]:
        effect = SetTimer(timer, at)
        return [effect] if self.timers.note(effect) else []


def _answer(operation: Operation, result: DecisionLike[Any]) -> list[Any]:
    if isinstance(operation, RequestOperation) and result.answer is not None:
        return [operation.answered(result.answer)]
    return []


def _part_of_append(operation: Operation) -> float:
    """Return which part of an append an operation may need; one that has none with others needs more than there is."""
    if isinstance(operation, RequestOperation) and operation.route.part_of_append is not None:
        return operation.route.part_of_append(operation.body)
    return math.inf


def _name_of(operation: Operation) -> str:
    return operation.context.api.name if isinstance(operation, RequestOperation) else type(operation).__name__


class _PendingResponse:
    """The response to a split request, of which some parts are still missing."""

    def __init__(self, route: SplitRoute, size: int) -> None:
        self._route = route
        self._answers: list[Any] = [None] * size
        self._missing = size

    def put(self, index: int, answer: Any) -> bool:
        """Add one answer. Return whether the response is complete."""
        self._answers[index] = answer
        self._missing -= 1
        return self._missing == 0

    def response(self) -> Any:
        """Return all answers as one response, in the order of the parts."""
        return self._route.join(tuple(self._answers))


@lru_cache(maxsize=4096)
def partition_for(group_id: str, partitions: int) -> int:
    """Return the partition of a key (a group id, a transactional id) among ``partitions``: the one that Kafka computes, so that
    Ottla and Apache Kafka can read each other's logs.

    Source: Java's ``String.hashCode`` over UTF-16 code units, its absolute value modulo the number of partitions.
    """
    units = group_id.encode("utf-16-le", "surrogatepass")
    code = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    if code == 0x80000000:  # Java's smallest int has no absolute value, and Kafka takes 0
        return 0
    return min(code, 0x100000000 - code) % partitions


class CoordinatorRuntime(Generic[S, F]):
    """All partitions of a coordinator's topic. Each must be loaded before its keys are served.

    The numbers of appends are unique among all partitions, and never start again:

    1. An append of a partition is open, and the partition is unloaded.
    2. It is loaded again, and another append goes out.
    3. The outcome of the first append arrives. With the same number it would be taken for the outcome of the second.
    """

    def __init__(self, topic: str, partitions: int, retry_backoff_ms: int) -> None:
        self._topic = topic
        self._retry_backoff_ms = retry_backoff_ms
        self._partitions: dict[int, PartitionRuntime[S, F] | NotServed] = dict.fromkeys(range(partitions), NotServed.UNLOADED)
        self._batches = count(1)
        self._pending_responses: dict[int, _PendingResponse] = {}

    def partition_for(self, key: str) -> int:
        """Return the partition of a key."""
        return partition_for(key, len(self._partitions))

    # Partitions

    def start_loading(self, partition: int) -> None:
        """Answer requests for a partition's keys with COORDINATOR_LOAD_IN_PROGRESS while its log is read."""
        if isinstance(self._partitions[partition], PartitionRuntime):
            raise IllegalStateError(f"partition {partition} of {self._topic} is already loaded", hint="unload it first")
        self._partitions[partition] = NotServed.LOADING

    def load(self, partition: int, shard: S, now: Now) -> list[F | Append | Reply]:
        """Serve the keys of a partition from now on, with a shard that has replayed its log."""
        self.start_loading(partition)
        loaded: PartitionRuntime[S, F] = PartitionRuntime(partition, shard, self._batches, self._retry_backoff_ms)
        effects = [effect for result in shard.on_loaded(now) for effect in loaded.apply(result)]
        self._partitions[partition] = loaded
        return self.collect(effects)

    def unload(self, partition: int) -> list[F | Append | Reply]:
        """Stop serving a partition's keys, and answer its waiting requests with NOT_COORDINATOR."""
        served = self.served(partition)
        self._partitions[partition] = NotServed.UNLOADED
        return self.collect(served.unload()) if served is not None else []

    def served(self, partition: int) -> PartitionRuntime[S, F] | None:
        """Return a partition; ``None`` if it is not loaded."""
        current = self._partitions[partition]
        return current if isinstance(current, PartitionRuntime) else None

    def all_served(self) -> list[PartitionRuntime[S, F]]:
        """Return all loaded partitions."""
        return [one for one in self._partitions.values() if isinstance(one, PartitionRuntime)]

    def armed_timers(self) -> dict[TimerKey, int]:
        """Return all timers that are set, with their deadlines (milliseconds on the monotonic clock)."""
        return {key: served.timers.deadline(key) or 0 for served in self.all_served() for key in served.timers}

    @property
    def is_loading(self) -> bool:
        """Whether the log of any partition is being read."""
        return NotServed.LOADING in self._partitions.values()

    # Operations

    def handle(self, route: Route | SplitRoute, context: RequestContext, request: Any, now: Now) -> list[F | Append | Reply]:
        """Handle a request; its ``Reply`` is among the returned effects or among those of a later call."""
        if isinstance(route, Route):
            return self.collect(self._submit(RequestOperation(route, context, request), now))
        parts = route.split(request)
        if not parts:
            return [Reply(context.ticket, route.join(()))]
        self._pending_responses[context.ticket] = _PendingResponse(route, len(parts))
        effects: list[F | Append | Reply | PartialAnswer] = []
        for index, part in enumerate(parts):
            effects += self._submit(RequestOperation(route.part, context, part, index), now)
        return self.collect(effects)

    def _submit(self, request: RequestOperation, now: Now) -> list[F | Append | Reply | PartialAnswer]:
        key = request.route.key_of(request.body)
        partition = self._partitions[partition_for(key, len(self._partitions))]
        if isinstance(partition, PartitionRuntime):
            return partition.submit(key, request, now)
        return [request.refused(partition.value)]

    def submit(self, key: str, operation: Operation, now: Now) -> list[F | Append | Reply]:
        """Execute or queue an operation other than a request; a no-op if the key's partition is not loaded."""
        served = self.served(self.partition_for(key))
        return self.collect(served.submit(key, operation, now)) if served is not None else []

    def on_appended(self, partition: int, batch: int, now: Now) -> list[F | Append | Reply]:
        """Apply and answer an operation whose records are in the log now."""
        served = self.served(partition)
        return self.collect(served.appended(batch, now)) if served is not None else []

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[F | Append | Reply]:
        """Fail an operation whose records are not in the log and never will be; ``error`` is the log's."""
        served = self.served(partition)
        return self.collect(served.append_failed(batch, error, now)) if served is not None else []

    def unavailable_error(self, key: str) -> ErrorCode | None:
        """Return the error for a key whose partition is not loaded; ``None`` if it is."""
        partition = self._partitions[self.partition_for(key)]
        return partition.value if isinstance(partition, NotServed) else None

    def collect(self, effects: Iterable[F | Append | Reply | PartialAnswer]) -> list[F | Append | Reply]:
        """Put parts aside until their response is complete, and return that and all other effects."""
        outgoing: list[F | Append | Reply] = []
        for effect in effects:
            if not isinstance(effect, PartialAnswer):
                outgoing.append(effect)
            elif self._pending_responses[effect.context.ticket].put(effect.index, effect.answer):
                complete = self._pending_responses.pop(effect.context.ticket)
                outgoing.append(Reply(effect.context.ticket, complete.response()))
        return outgoing
