"""One partition of ``__transaction_state``, as the runtime of the coordinator uses it: its ids, and what operations do to them.

Owns the choice of the code that decides on a request or a timer. Must not know the order of operations (``runtime``), nor what a
request means. Invariant: only ``replay`` and ``load`` change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ottla.coordinator.effects import ProducerStamp, Reply
from ottla.coordinator.runtime import BackgroundTask, Operation, Record, Request, TimerFired
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft
from ottla.coordinator.transactions.end import complete, forget_if_unused, rest, transaction_timed_out, watch, write_markers
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
        """The records of the durable events. Raises ``ProtocolError``."""
        return tuple([record_of(event) for event in events if isinstance(event, TransactionMetadataUpdated | TransactionDeleted)])

    def producer_of(self, events: Sequence[Event]) -> ProducerStamp | None:
        """The state of transactions is not written in transactions."""
        return None

    def error_for_clients(self, error: ErrorCode) -> ErrorCode:
        """The answer when the log has refused records: the client shall ask again."""
        return ErrorCode.coordinator_not_available

    def on_loaded(self, now: Now) -> Iterator[Decision]:
        """The timers that the ids need. Transactions that were prepared are completed."""
        for transaction in list(self.state.transactions().values()):
            draft = TransactionDraft(transaction, now)
            if transaction.state in PREPARED:
                write_markers(draft, self._context)
            elif transaction.state is TransactionState.ONGOING:
                watch(draft)
            else:
                rest(draft, self._context)
            yield draft.decision()

    def parked(self, error: ErrorCode) -> tuple[Reply, ...]:
        """No request waits for others."""
        return ()

    def append_ended(self, open_producers: Callable[[], Collection[int]]) -> None:
        """Nothing waits for appends of other ids."""

    def not_stored(self, transactional_id: str, operation: Operation, error: ErrorCode, now: Now) -> Decision | None:
        """A client repeats its request, and timers are set again."""
        return None

    def decide(self, transactional_id: str, operation: Operation, now: Now) -> Decision:
        """What an operation does to a transactional id. Raises ``ProtocolError``."""
        transaction: Transaction = self.state.get(transactional_id)
        draft = TransactionDraft(transaction, now)
        match operation:
            case Request(route, context, body):
                decided: Decision = route.decide(self._context, transaction, context, body, now)
                return decided
            case TimerFired((_, _, "timeout")):
                transaction_timed_out(draft, self._context)
            case TimerFired((_, _, "expire")):
                forget_if_unused(draft, self._context)
            case TimerFired((_, _, "complete")) | BackgroundTask((_, _, "complete")):
                complete(draft, self._context)
            case _:
                raise AssertionError(f"no such operation: {operation}")
        return draft.decision()
