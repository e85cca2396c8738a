"""The states of a transactional producer, as a table.

Owns states, inputs and transitions. Must not know requests. Invariant: the ``TransactionManager`` alone moves from state to state;
an input that the table lacks for a state is a bug, or a call that is refused there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class TransactionState(enum.Enum):
    """The state of a transactional producer."""

    UNINITIALIZED = "it has no producer id"
    INITIALIZING = "InitProducerId is on its way: it ends the transaction of a predecessor, and fences it"
    READY = "no transaction is open"
    IN_TRANSACTION = "a transaction is open"
    PREPARING_TRANSACTION = "the last records of the transaction are on their way"
    PREPARED_TRANSACTION = "finish() decides, from any process; this producer has no part in that"
    COMMITTING_TRANSACTION = "the last records are on their way, then EndTxn"
    ABORTING_TRANSACTION = "requests in flight are awaited, then EndTxn"
    ABORTABLE_ERROR = "the transaction has failed, and has to be aborted"
    FATAL_ERROR = "the producer is fenced, or not allowed to go on: only initialize() makes it usable again"


class TransactionInput(enum.Enum):
    """What happens to a transactional producer."""

    INITIALIZE = "initialize(), the first transaction, or a new epoch is needed"
    INITIALIZED = "the coordinator has assigned a producer id and an epoch"
    BEGIN = "a transaction begins"
    PREPARE = "prepare()"
    PREPARED = "all records and offsets are acknowledged"
    COMMIT = "commit()"
    ABORT = "abort(), or an exception left the with block"
    ENDED = "EndTxn was executed, or nothing was sent in the transaction"
    FAIL = "an error after which the transaction cannot be committed"
    FATAL = "an error after which the producer cannot go on"


_State, _Input = TransactionState, TransactionInput

TRANSITIONS: Mapping[TransactionState, Mapping[TransactionInput, TransactionState]] = {
    _State.UNINITIALIZED: {_Input.INITIALIZE: _State.INITIALIZING},
    _State.INITIALIZING: {
        _Input.INITIALIZED: _State.READY,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.READY: {
        _Input.BEGIN: _State.IN_TRANSACTION,
        _Input.INITIALIZE: _State.INITIALIZING,
    },
    _State.IN_TRANSACTION: {
        _Input.PREPARE: _State.PREPARING_TRANSACTION,
        _Input.COMMIT: _State.COMMITTING_TRANSACTION,
        _Input.ABORT: _State.ABORTING_TRANSACTION,
        _Input.FAIL: _State.ABORTABLE_ERROR,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.PREPARING_TRANSACTION: {
        _Input.PREPARED: _State.PREPARED_TRANSACTION,
        _Input.ABORT: _State.ABORTING_TRANSACTION,
        _Input.FAIL: _State.ABORTABLE_ERROR,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.PREPARED_TRANSACTION: {_Input.INITIALIZE: _State.INITIALIZING},
    _State.COMMITTING_TRANSACTION: {
        _Input.ENDED: _State.READY,
        _Input.FAIL: _State.ABORTABLE_ERROR,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.ABORTING_TRANSACTION: {
        _Input.ENDED: _State.READY,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.ABORTABLE_ERROR: {
        _Input.ABORT: _State.ABORTING_TRANSACTION,
        _Input.FATAL: _State.FATAL_ERROR,
    },
    _State.FATAL_ERROR: {_Input.INITIALIZE: _State.INITIALIZING},
}
"""State -> input -> next state."""

OPEN_STATES = frozenset({_State.IN_TRANSACTION, _State.PREPARING_TRANSACTION, _State.COMMITTING_TRANSACTION})
"""The states in which records and offsets of the transaction are sent."""
