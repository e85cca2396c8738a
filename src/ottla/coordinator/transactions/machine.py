"""How a transactional id changes: its events, and the table of its states.

*Durable* events are the records of ``__transaction_state``; *volatile* ones are never written. Owns the events, the mapping between
durable events and records, and every change of a transaction. ``apply`` is a pure function: handlers use it to compute the outcome
of their decision, and ``replay`` to apply events live (``PartitionState.load`` takes the last record of each id instead). Must not
know requests, responses or timers. Invariants: ``event_of(*record_of(event)) == event``; a state changes only by a row of
``TRANSITIONS``; a transaction that is prepared to commit is never aborted, nor the other way round.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import assert_never

from ottla.coordinator.transactions.transaction import STATE, Transaction, TransactionState, of_value
from ottla.errors import ProtocolError
from ottla.protocol.transaction_records import TransactionLogValue, decode_record, encode_record

# Durable.


@dataclass(frozen=True, slots=True)
class TransactionMetadataUpdated:
    """The transactional id has the state of this record."""

    transactional_id: str
    value: TransactionLogValue


@dataclass(frozen=True, slots=True)
class TransactionDeleted:
    """The transactional id was deleted."""

    transactional_id: str


# Volatile.


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """The coordinator is about to abort the transaction and fence its producer."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class LastProducerEpochUpdated:
    """The producer's previous epoch, by which repeated requests are recognized."""

    transactional_id: str
    epoch: int


DurableEvent = TransactionMetadataUpdated | TransactionDeleted

Event = DurableEvent | ProducerFenced | LastProducerEpochUpdated


def record_of(event: DurableEvent) -> tuple[bytes, bytes | None]:
    """Return the record of a durable event. Raises ``ProtocolError`` if a field is too long for the record."""
    return encode_record(event.transactional_id, event.value if isinstance(event, TransactionMetadataUpdated) else None)


def event_of(key: bytes, value: bytes | None) -> DurableEvent | None:
    """Return the event of a record; ``None`` for an unknown type of record. Raises ``ProtocolError`` for malformed bytes."""
    decoded = decode_record(key, value)
    if decoded is None:
        return None
    transactional_id, stored = decoded
    if stored is None:
        return TransactionDeleted(transactional_id)
    if not 0 <= stored.transaction_status <= 7:
        raise ProtocolError(
            f"the record of transactional id {transactional_id!r} has status {stored.transaction_status}; 0 to 7 are valid"
        )
    return TransactionMetadataUpdated(transactional_id, stored)


class TransactionInput(enum.Enum):
    """The causes of a change of state."""

    INITIALIZED = "a producer got its epoch"
    PARTITIONS_ADDED = "the transaction has new partitions"
    FENCED = "the coordinator takes over the transaction"
    COMMIT = "the transaction is to be committed"
    ABORT = "the transaction is to be aborted"
    MARKERS_WRITTEN = "all partitions have their marker"
    EXPIRED = "the id has not been used for a long time"


_STATE, _INPUT = TransactionState, TransactionInput

_WITHOUT_TRANSACTION = {
    _INPUT.INITIALIZED: _STATE.EMPTY,
    _INPUT.PARTITIONS_ADDED: _STATE.ONGOING,
    _INPUT.ABORT: _STATE.PREPARE_ABORT,  # from version 2 on: a producer may abort before any partition was added
    _INPUT.EXPIRED: _STATE.DEAD,
}

TRANSITIONS: Mapping[TransactionState, Mapping[TransactionInput, TransactionState]] = MappingProxyType(
    {
        _STATE.DEAD: {_INPUT.INITIALIZED: _STATE.EMPTY},
        _STATE.EMPTY: _WITHOUT_TRANSACTION,
        _STATE.COMPLETE_COMMIT: _WITHOUT_TRANSACTION,
        _STATE.COMPLETE_ABORT: _WITHOUT_TRANSACTION,
        _STATE.ONGOING: {
            _INPUT.PARTITIONS_ADDED: _STATE.ONGOING,
            _INPUT.COMMIT: _STATE.PREPARE_COMMIT,
            _INPUT.ABORT: _STATE.PREPARE_ABORT,
            _INPUT.FENCED: _STATE.PREPARE_EPOCH_FENCE,
        },
        _STATE.PREPARE_EPOCH_FENCE: {_INPUT.ABORT: _STATE.PREPARE_ABORT},
        _STATE.PREPARE_COMMIT: {_INPUT.MARKERS_WRITTEN: _STATE.COMPLETE_COMMIT},
        _STATE.PREPARE_ABORT: {_INPUT.MARKERS_WRITTEN: _STATE.COMPLETE_ABORT},
    }
)

_INPUT_TO: Mapping[TransactionState, TransactionInput] = {
    _STATE.EMPTY: _INPUT.INITIALIZED,
    _STATE.ONGOING: _INPUT.PARTITIONS_ADDED,
    _STATE.PREPARE_COMMIT: _INPUT.COMMIT,
    _STATE.PREPARE_ABORT: _INPUT.ABORT,
    _STATE.COMPLETE_COMMIT: _INPUT.MARKERS_WRITTEN,
    _STATE.COMPLETE_ABORT: _INPUT.MARKERS_WRITTEN,
    _STATE.DEAD: _INPUT.EXPIRED,
}
"""State in a record -> the cause that leads to it."""


def apply(transaction: Transaction, event: Event) -> Transaction:
    """Return the transaction after an event. Raises ``KeyError`` for an event that its state does not allow: a bug in a handler."""
    match event:
        case TransactionMetadataUpdated(_, value):
            _check_transition(transaction, STATE[value.transaction_status])
            return replace(of_value(transaction.transactional_id, value), last_epoch=transaction.last_epoch)
        case TransactionDeleted(transactional_id):
            _check_transition(transaction, TransactionState.DEAD)
            return Transaction(transactional_id)
        case ProducerFenced():
            return replace(transaction, state=TRANSITIONS[transaction.state][TransactionInput.FENCED])
        case LastProducerEpochUpdated(_, epoch):
            return replace(transaction, last_epoch=epoch)
        case _:
            assert_never(event)


def _check_transition(transaction: Transaction, target: TransactionState) -> None:
    if TRANSITIONS[transaction.state][_INPUT_TO[target]] is not target:
        raise KeyError((transaction.state, target))
