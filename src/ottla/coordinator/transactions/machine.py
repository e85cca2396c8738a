"""The state machine of a transactional id: the table of its states, and what each event does to it.

Owns every change of a transaction. ``apply`` is a pure function; handlers use it to see where their decision leads, and ``replay``
to apply it, live and on load alike. Must not know requests, answers or timers. Invariants: a state changes by a row of
``TRANSITIONS`` or not at all; a transaction that was prepared to commit is never aborted, nor the other way round.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import assert_never

from ottla.coordinator.transactions.events import (
    Event,
    LastProducerEpochUpdated,
    ProducerFenced,
    TransactionDeleted,
    TransactionMetadataUpdated,
)
from ottla.coordinator.transactions.transaction import STATE, Transaction, TransactionState, of_value


class TransactionInput(enum.Enum):
    """What moves a transactional id from state to state."""

    INITIALIZED = "a producer got its epoch"
    PARTITIONS_ADDED = "the transaction has new partitions"
    FENCED = "the coordinator takes over the transaction"
    COMMIT = "the transaction is to be committed"
    ABORT = "the transaction is to be aborted"
    MARKERS_WRITTEN = "all partitions have their marker"
    EXPIRED = "the id has not been used for a long time"


_STATE, _INPUT = TransactionState, TransactionInput

_AT_REST = {
    _INPUT.INITIALIZED: _STATE.EMPTY,
    _INPUT.PARTITIONS_ADDED: _STATE.ONGOING,
    _INPUT.ABORT: _STATE.PREPARE_ABORT,  # from version 2 on: a producer may abort before anything was added
    _INPUT.EXPIRED: _STATE.DEAD,
}

TRANSITIONS: Mapping[TransactionState, Mapping[TransactionInput, TransactionState]] = MappingProxyType(
    {
        _STATE.DEAD: {_INPUT.INITIALIZED: _STATE.EMPTY},
        _STATE.EMPTY: _AT_REST,
        _STATE.COMPLETE_COMMIT: _AT_REST,
        _STATE.COMPLETE_ABORT: _AT_REST,
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
"""What must have happened where a record shows a state."""


def apply(transaction: Transaction, event: Event) -> Transaction:
    """The transaction after an event. Raises ``KeyError`` for an event that its state does not allow: a fault in the decision."""
    match event:
        case TransactionMetadataUpdated(_, value):
            _move(transaction, STATE[value.transaction_status])
            return replace(of_value(transaction.transactional_id, value), last_epoch=transaction.last_epoch)
        case TransactionDeleted(transactional_id):
            _move(transaction, TransactionState.DEAD)
            return Transaction(transactional_id)
        case ProducerFenced():
            return replace(transaction, state=TRANSITIONS[transaction.state][TransactionInput.FENCED])
        case LastProducerEpochUpdated(_, epoch):
            return replace(transaction, last_epoch=epoch)
        case _:
            assert_never(event)


def _move(transaction: Transaction, target: TransactionState) -> None:
    if TRANSITIONS[transaction.state][_INPUT_TO[target]] is not target:
        raise KeyError((transaction.state, target))
