"""The transaction coordinator, as a broker's core sees it: requests, timers, appends and markers in, effects out.

Owns the order of what happens to a transactional id, its open append, and which partitions of ``__transaction_state`` are served.
Must not know what a request means, nor sockets, clocks or logs. Invariants: nothing of a decision is visible before its records are
in the log; while the append of an id is open its later requests and timers wait, in order, and other ids go on; every request
is answered once.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ottla.coordinator.effects import Append, CancelTimer, Reply, RequestContext, SetTimer, TimerKey
from ottla.coordinator.partitioner import partition_for
from ottla.coordinator.timers import Timers
from ottla.coordinator.transactions.decision import Decision, DecisionEffect, Draft, Surroundings, WriteMarkers, completion_timer
from ottla.coordinator.transactions.describe import describe_transaction, list_refused, list_transactions
from ottla.coordinator.transactions.end import complete, forget_if_unused, rest, transaction_timed_out, watch, write_markers
from ottla.coordinator.transactions.events import TransactionForgotten, TransactionWritten, record_of
from ottla.coordinator.transactions.routes import ROUTES
from ottla.coordinator.transactions.state import PartitionState
from ottla.coordinator.transactions.transaction import PREPARED, Transaction, TransactionState
from ottla.errors import ProtocolError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import add_partitions_to_txn_response, describe_transactions_response
from ottla.protocol.transaction_records import TransactionLogValue
from ottla.types import Now

Effect = Reply | SetTimer | CancelTimer | Append | WriteMarkers

logger = logging.getLogger("ottla.broker")


class _Absence(enum.Enum):
    """Why a partition's ids are not served; the values are the answers to clients."""

    NOT_HERE = ErrorCode.not_coordinator
    LOADING = ErrorCode.coordinator_load_in_progress


class _Gathering:
    """An AddPartitionsToTxn for several transactions, of which some answers are still missing."""

    def __init__(self, size: int) -> None:
        self._answers: list[Any] = [None] * size
        self._missing = size

    def put(self, index: int, answer: Any) -> bool:
        """Keep one answer; whether it was the last."""
        self._answers[index] = answer
        self._missing -= 1
        return self._missing == 0

    def response(self) -> add_partitions_to_txn_response.AddPartitionsToTxnResponse:
        """All answers, in the order in which the transactions were named."""
        return add_partitions_to_txn_response.AddPartitionsToTxnResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(self._answers)
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, or the part of one at ``index``, that concerns one transactional id."""

    context: RequestContext
    body: Any
    index: int | None = None


@dataclass(frozen=True, slots=True)
class _TimerFired:
    key: TimerKey


@dataclass(frozen=True, slots=True)
class _MarkersWritten:
    """All partitions of the transaction have their marker."""


Operation = _Request | _TimerFired | _MarkersWritten


@dataclass(frozen=True, slots=True)
class _OpenAppend:
    batch: int
    operation: Operation
    decision: Decision


class TransactionCoordinator:
    """Serves transactional ids.

    Each partition of ``__transaction_state`` must be loaded (``load``, with no records if it is new) before its ids are served. An
    ``Append`` is told done by ``on_appended`` or failed by ``on_append_failed``, ``WriteMarkers`` by ``on_markers_written``, in any
    order. A timer is told by ``on_timer``; its key begins with ``decision.TRANSACTIONS``.
    """

    APIS: ClassVar[frozenset[Api]] = frozenset({*ROUTES, Api.DESCRIBE_TRANSACTIONS, Api.LIST_TRANSACTIONS})
    """The APIs that ``handle`` serves."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._partitions: dict[int, PartitionState | _Absence] = dict.fromkeys(
            range(around.config.state_topic_partitions), _Absence.NOT_HERE
        )
        self._timers = Timers()
        self._batches = 0
        self._open: dict[str, _OpenAppend] = {}
        self._waiting: dict[str, deque[Operation]] = {}
        self._gathering: dict[int, _Gathering] = {}

    def partition_for(self, transactional_id: str) -> int:
        """The partition of ``__transaction_state`` that a transactional id lives in."""
        return partition_for(transactional_id, self._around.config.state_topic_partitions)

    def handle(self, context: RequestContext, request: Any, now: Now) -> list[Effect]:
        """Serve a request of one of ``APIS``; its ``Reply`` is among these effects or among those of a later call."""
        if context.api is Api.DESCRIBE_TRANSACTIONS:
            return [Reply(context.ticket, self._described(request.transactional_ids))]
        if context.api is Api.LIST_TRANSACTIONS:
            return [Reply(context.ticket, self._listed(request, now))]
        if context.api is not Api.ADD_PARTITIONS_TO_TXN:
            return self._submit(str(request.transactional_id), _Request(context, request), now)
        self._gathering[context.ticket] = _Gathering(len(request.transactions))
        if not request.transactions:
            return [Reply(context.ticket, self._gathering.pop(context.ticket).response())]
        effects: list[Effect] = []
        for index, part in enumerate(request.transactions):
            effects += self._submit(part.transactional_id, _Request(context, part, index), now)
        return effects

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer has fired. One that is not armed any more does nothing."""
        self._timers.reported(key)
        return self._submit(str(key[1]), _TimerFired(key), now)

    def on_markers_written(self, transactional_id: str, now: Now) -> list[Effect]:
        """Every partition of a transaction that still exists has its marker."""
        return self._submit(transactional_id, _MarkersWritten(), now)

    def on_appended(self, partition: int, batch: int, now: Now) -> list[Effect]:
        """The records of an ``Append`` are in the log."""
        transactional_id, is_open = self._closed(batch)
        state = self._partitions[partition]
        if is_open is None or not isinstance(state, PartitionState):
            return []  # the partition was given up meanwhile
        effects = self._apply(state, is_open.decision)
        effects += self._answered(is_open.operation, is_open.decision.answer)
        return effects + self._go_on(transactional_id, now)

    def on_append_failed(self, partition: int, batch: int, error: ErrorCode, now: Now) -> list[Effect]:
        """The records of an ``Append`` are not in the log: nothing of it has happened, and who asked for it shall ask again."""
        transactional_id, is_open = self._closed(batch)
        if is_open is None:
            return []
        not_available = ErrorCode.coordinator_not_available
        return self._given_up(transactional_id, is_open.operation, not_available, now) + self._go_on(transactional_id, now)

    def start_loading(self, partition: int) -> None:
        """The log of a partition is being read: requests for its ids are answered with "loading"."""
        self._partitions[partition] = _Absence.LOADING

    def unload(self, partition: int) -> list[Effect]:
        """Stop serving a partition's ids: waiting requests are answered with NOT_COORDINATOR, and timers are removed."""
        self._partitions[partition] = _Absence.NOT_HERE
        effects: list[Effect] = []
        for key in [key for key in self._timers if self.partition_for(str(key[1])) == partition]:
            self._timers.note(CancelTimer(key))
            effects.append(CancelTimer(key))
        for name in [name for name in self._open if self.partition_for(name) == partition]:
            for operation in (self._open.pop(name).operation, *self._waiting.pop(name, ())):
                effects += self._answered(operation, self._refusal(operation, ErrorCode.not_coordinator))
        return effects

    def load(self, partition: int, records: Iterable[tuple[bytes, bytes | None]], now: Now) -> list[Effect]:
        """Take a partition over with the records of its log, oldest first, and serve its ids from now on.

        Transactions that were prepared are completed. Raises ``ProtocolError`` for a damaged record; the partition is not served
        then, and can be loaded again.
        """
        state = PartitionState()
        state.load(records)
        self._partitions[partition] = state
        effects: list[Effect] = []
        for transaction in list(state.transactions().values()):
            effects += self._apply(state, self._woken(transaction, now))
        return effects

    def transactions(self) -> dict[str, Transaction]:
        """All transactional ids as they are now."""
        return {name: one for state in self._loaded() for name, one in state.transactions().items()}

    def durable_state(self) -> dict[str, TransactionLogValue]:
        """What the log holds of each transactional id."""
        return {name: value for state in self._loaded() for name, value in state.durable().items()}

    def _loaded(self) -> list[PartitionState]:
        return [state for state in self._partitions.values() if isinstance(state, PartitionState)]

    def _woken(self, transaction: Transaction, now: Now) -> Decision:
        draft = Draft(transaction, now)
        if transaction.state in PREPARED:
            write_markers(draft, self._around)
        elif transaction.state is TransactionState.ONGOING:
            watch(draft)
        else:
            rest(draft, self._around)
        return draft.decision()

    def _submit(self, transactional_id: str, operation: Operation, now: Now) -> list[Effect]:
        if transactional_id in self._open:
            self._waiting.setdefault(transactional_id, deque()).append(operation)
            return []
        return self._carry_out(transactional_id, operation, now)

    def _go_on(self, transactional_id: str, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        line = self._waiting.get(transactional_id)
        while line and transactional_id not in self._open:
            effects += self._carry_out(transactional_id, line.popleft(), now)
        if not line:
            self._waiting.pop(transactional_id, None)
        return effects

    def _carry_out(self, transactional_id: str, operation: Operation, now: Now) -> list[Effect]:
        state = self._partitions[self.partition_for(transactional_id)]
        if not isinstance(state, PartitionState):
            return self._answered(operation, self._refusal(operation, state.value))
        if isinstance(operation, _TimerFired) and not self._timers.take_if_due(operation.key, now.mono):
            moved_to = self._timers.deadline(operation.key)
            return [] if moved_to is None else self._noted((SetTimer(operation.key, moved_to),))
        try:
            decision = self._decision(state.get(transactional_id), operation, now)
            durable = [event for event in decision.events if isinstance(event, TransactionWritten | TransactionForgotten)]
            records = tuple([record_of(event) for event in durable])
        except ProtocolError:  # something in the request is longer than a record can hold
            return self._answered(operation, self._refusal(operation, ErrorCode.invalid_request))
        except Exception:
            # A decision writes nothing, so a failed one leaves no trace: queued requests and other ids go on.
            logger.exception("transactional id %r: %s failed", transactional_id, type(operation).__name__)
            return self._given_up(transactional_id, operation, ErrorCode.unknown_server_error, now)
        if not durable:
            return self._apply(state, decision) + self._answered(operation, decision.answer)
        self._batches += 1
        self._open[transactional_id] = _OpenAppend(self._batches, operation, decision)
        return [Append(self.partition_for(transactional_id), self._batches, records)]

    def _decision(self, transaction: Transaction, operation: Operation, now: Now) -> Decision:
        draft = Draft(transaction, now)
        match operation:
            case _Request(context, body):
                return ROUTES[context.api].decide(self._around, transaction, context, body, now)
            case _TimerFired((_, _, "timeout")):
                transaction_timed_out(draft, self._around)
            case _TimerFired((_, _, "expire")):
                forget_if_unused(draft, self._around)
            case _:
                complete(draft, self._around)
        return draft.decision()

    def _apply(self, state: PartitionState, decision: Decision) -> list[Effect]:
        for event in decision.events:
            state.replay(event)
        return self._noted(decision.effects)

    def _noted(self, effects: Iterable[DecisionEffect]) -> list[Effect]:
        """The effects that must go out: without timers that the shell will report early enough anyway."""
        return [effect for effect in effects if not isinstance(effect, SetTimer | CancelTimer) or self._timers.note(effect)]

    def _given_up(self, transactional_id: str, operation: Operation, error: ErrorCode, now: Now) -> list[Effect]:
        """A client repeats its request; work without a request is retried by a timer."""
        if isinstance(operation, _Request):
            return self._answered(operation, self._refusal(operation, error))
        key = operation.key if isinstance(operation, _TimerFired) else completion_timer(transactional_id)
        return self._noted((SetTimer(key, now.mono + self._around.config.append_retry_backoff_ms),))

    def _closed(self, batch: int) -> tuple[str, _OpenAppend | None]:
        """The append of a batch; ``None`` where its partition was given up."""
        transactional_id = next((name for name, is_open in self._open.items() if is_open.batch == batch), "")
        return transactional_id, self._open.pop(transactional_id, None)

    def _refusal(self, operation: Operation, error: ErrorCode) -> Any:
        if not isinstance(operation, _Request):
            return None
        return ROUTES[operation.context.api].refuse(operation.body, error)

    def _answered(self, operation: Operation, answer: Any) -> list[Effect]:
        if not isinstance(operation, _Request):
            return []
        ticket = operation.context.ticket
        if operation.index is None:
            return [Reply(ticket, answer)]
        if self._gathering[ticket].put(operation.index, answer):
            return [Reply(ticket, self._gathering.pop(ticket).response())]
        return []

    def _described(self, transactional_ids: Iterable[str]) -> describe_transactions_response.DescribeTransactionsResponse:
        told = []
        for transactional_id in transactional_ids:
            state = self._partitions[self.partition_for(transactional_id)]
            if not transactional_id:
                told.append(describe_transaction(transactional_id, None, ErrorCode.invalid_request))
            elif isinstance(state, PartitionState):
                told.append(describe_transaction(transactional_id, state.transactions().get(transactional_id), None))
            else:
                told.append(describe_transaction(transactional_id, None, state.value))
        return describe_transactions_response.DescribeTransactionsResponse(
            throttle_time=NO_THROTTLE, transaction_states=tuple(told)
        )

    def _listed(self, request: Any, now: Now) -> Any:
        if _Absence.LOADING in self._partitions.values():
            return list_refused(ErrorCode.coordinator_load_in_progress)
        return list_transactions(request, self.transactions().values(), now)
