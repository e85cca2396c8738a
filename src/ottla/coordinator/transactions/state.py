"""The state of one partition of ``__transaction_state``: its transactional ids.

Owns the state; only ``replay`` and ``load`` write it. Must not know requests, responses or timers. Invariant: loading the durable
events alone gives the durable part of the state; a log from which compaction has dropped any superseded records gives the same.
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
