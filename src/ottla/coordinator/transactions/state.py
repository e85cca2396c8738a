"""What one partition of ``__transaction_state`` knows: its transactional ids.

Owns the state, and ``replay``, the only function that writes it, live and on load alike. Must not know requests, answers or timers.
Invariant: replaying the durable events alone gives the durable part of the state; a log from which compaction has dropped any
superseded records gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ottla.coordinator.transactions.events import Event, TransactionDeleted, TransactionMetadataUpdated, event_of
from ottla.coordinator.transactions.machine import apply
from ottla.coordinator.transactions.transaction import Transaction, TransactionState, of_value, value_of
from ottla.protocol.transaction_records import TransactionLogValue


class PartitionState:
    """The transactional ids of one partition."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}

    def get(self, transactional_id: str) -> Transaction:
        """A transactional id; one that is not there is ``DEAD``."""
        return self._transactions.get(transactional_id) or Transaction(transactional_id)

    def transactions(self) -> Mapping[str, Transaction]:
        """All transactional ids."""
        return MappingProxyType(self._transactions)

    def durable(self) -> dict[str, TransactionLogValue]:
        """What the log holds: for each id its last record."""
        return {transactional_id: value_of(transaction) for transactional_id, transaction in self._transactions.items()}

    def replay(self, event: Event) -> None:
        """Apply an event."""
        after = apply(self.get(event.transactional_id), event)
        if after.state is TransactionState.DEAD:
            self._transactions.pop(event.transactional_id, None)
        else:
            self._transactions[event.transactional_id] = after

    def load(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take over what a log says, oldest first. Raises ``ProtocolError`` for a damaged record.

        Of each id the last record counts: those before it may have been compacted away, so that no step between two can be checked.
        """
        for key, value in records:
            match event_of(key, value):
                case TransactionMetadataUpdated(transactional_id, stored):
                    self._transactions[transactional_id] = of_value(transactional_id, stored)
                case TransactionDeleted(transactional_id):
                    self._transactions.pop(transactional_id, None)
