"""One partition of ``__transaction_state``, as the coordinator's runtime uses it.

Owns the choice of the handler for a request or a timer. Must not know the order of operations (``runtime``), nor the meaning of a
request. Invariant: only ``replay`` and ``load`` change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ottla.coordinator.effects import ProducerStamp, Reply
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, RequestOperation, TimerFired
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft
from ottla.coordinator.transactions.end import (
    complete,
    expire_if_unused,
    schedule_expiration,
    schedule_timeout,
    transaction_timed_out,
    write_markers,
)
from ottla.coordinator.transactions.events import Event, TransactionDeleted, TransactionMetadataUpdated, record_of
from ottla.coordinator.transactions.state import PartitionState
from ottla.coordinator.transactions.transaction import PREPARED, Transaction, TransactionState
from ottla.protocol import ErrorCode
from ottla.types import Now


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
