"""One partition of ``__transaction_state``: its transactional ids, and the handler of each request and timer about one of them.

Owns the state, and the choice of the handler (``ROUTES`` by API). Must not know the order of operations (``runtime``), nor the
meaning of a request. Invariants: only ``replay`` and ``load`` change the state; loading the durable events alone gives the durable
part of it; a log from which compaction has dropped any superseded records gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ottla.coordinator.effects import ProducerStamp, Reply, RequestContext
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, RequestOperation, Route, SplitRoute, TimerFired
from ottla.coordinator.transactions.add_partitions import add_offsets, add_partitions, added_answer, offsets_added_answer
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft
from ottla.coordinator.transactions.end import (
    complete,
    end_answer,
    end_transaction,
    expire_if_unused,
    schedule_expiration,
    schedule_timeout,
    transaction_timed_out,
    write_markers,
)
from ottla.coordinator.transactions.machine import Event, TransactionDeleted, TransactionMetadataUpdated, apply, event_of, record_of
from ottla.coordinator.transactions.producer_id import init_producer_id, producer_id_answer
from ottla.coordinator.transactions.transaction import PREPARED, Transaction, TransactionState, of_value, value_of
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import add_partitions_to_txn_response
from ottla.protocol.transaction_records import TransactionLogValue
from ottla.types import Now


class PartitionState:
    """The transactional ids of one partition."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}

    def get(self, transactional_id: str) -> Transaction:
        """Return a transactional id; an unknown one is ``DEAD``."""
        return self._transactions.get(transactional_id) or Transaction(transactional_id)

    def transactions(self) -> Mapping[str, Transaction]:
        """Return a read-only view of all transactional ids."""
        return MappingProxyType(self._transactions)

    def durable(self) -> dict[str, TransactionLogValue]:
        """Return the last record of each id: the part of the state that the log holds."""
        return {transactional_id: value_of(transaction) for transactional_id, transaction in self._transactions.items()}

    def replay(self, event: Event) -> None:
        """Apply an event."""
        after = apply(self.get(event.transactional_id), event)
        if after.state is TransactionState.DEAD:
            self._transactions.pop(event.transactional_id, None)
        else:
            self._transactions[event.transactional_id] = after

    def load(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Load the records of a log, oldest first. Raises ``ProtocolError`` for a malformed record.

        The last record of each id counts. Compaction may have dropped any before it, so transitions between records cannot be
        checked.
        """
        for key, value in records:
            match event_of(key, value):
                case TransactionMetadataUpdated(transactional_id, stored):
                    self._transactions[transactional_id] = of_value(transactional_id, stored)
                case TransactionDeleted(transactional_id):
                    self._transactions.pop(transactional_id, None)


class TransactionShard:
    """The transactional ids of one partition."""

    KEY = "transactional id"

    def __init__(self, coordinator: TransactionContext) -> None:
        self.state = PartitionState()
        self._context = coordinator

    def replay(self, events: Iterable[Event]) -> None:
        """Apply events."""
        for event in events:
            self.state.replay(event)

    def records_of(self, events: Sequence[Event]) -> tuple[Record, ...]:
        """Return the records of the durable events. Raises ``ProtocolError``."""
        return tuple([record_of(event) for event in events if isinstance(event, TransactionMetadataUpdated | TransactionDeleted)])

    def producer_of(self, events: Sequence[Event]) -> ProducerStamp | None:
        """Return ``None``: these records are not part of transactions."""
        return None

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """Return the error for clients after a failed append: a retriable one."""
        return ErrorCode.coordinator_not_available

    def on_loaded(self, now: Now) -> Iterator[Decision]:
        """Set the timers of the loaded ids, and complete prepared transactions: their markers may be missing."""
        for transaction in list(self.state.transactions().values()):
            draft = TransactionDraft(transaction, now)
            if transaction.state in PREPARED:
                write_markers(draft, self._context)
            elif transaction.state is TransactionState.ONGOING:
                schedule_timeout(draft)
            else:
                schedule_expiration(draft, self._context)
            yield draft.decision()

    def answer_parked(self, error: ErrorCode) -> tuple[Reply, ...]:
        """Return nothing: no requests are parked."""
        return ()

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """Do nothing: nothing waits for appends of other ids."""

    def not_stored(self, transactional_id: str, operation: Operation, error: ErrorCode, now: Now) -> Decision | None:
        """Return ``None``: clients repeat their requests, and the runtime sets timers again."""
        return None

    def decide(self, transactional_id: str, operation: Operation, now: Now) -> Decision:
        """Decide on an operation on a transactional id. Raises ``ProtocolError``."""
        transaction: Transaction = self.state.get(transactional_id)
        draft = TransactionDraft(transaction, now)
        match operation:
            case RequestOperation(route, context, body):
                decision: Decision = route.decide(self._context, transaction, context, body, now)
                return decision
            case TimerFired((_, _, "timeout")):
                transaction_timed_out(draft, self._context)
            case TimerFired((_, _, "expire")):
                expire_if_unused(draft, self._context)
            case TimerFired((_, _, "complete")) | BackgroundTask((_, _, "complete")):
                complete(draft, self._context)
            case _:
                raise AssertionError(f"unknown operation: {operation}")
        return draft.decision()


Decide = Callable[[TransactionContext, Transaction, RequestContext, Any, Now], Decision]


def _route(decide: Decide, refuse: Callable[[Any, ErrorCode], Any]) -> Route:
    return Route(decide, lambda context, request, error: refuse(request, error), lambda request: str(request.transactional_id))


def _join_added(results: tuple[Any, ...]) -> Any:
    return add_partitions_to_txn_response.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=results
    )


ROUTES: Mapping[Api, Route | SplitRoute] = {
    Api.INIT_PRODUCER_ID: _route(init_producer_id, lambda request, error: producer_id_answer(error)),
    Api.ADD_PARTITIONS_TO_TXN: SplitRoute(
        _route(add_partitions, added_answer), split=lambda request: tuple(request.transactions), join=_join_added
    ),
    Api.ADD_OFFSETS_TO_TXN: _route(add_offsets, lambda request, error: offsets_added_answer(error)),
    Api.END_TXN: _route(end_transaction, lambda request, error: end_answer(error)),
}
"""API -> its handler, for one transactional id at a time."""
