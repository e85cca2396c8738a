"""The states of a producer's batch, from its first record to its outcome, as a table.

Owns the states and the transitions. Must not know why a transition is taken. Invariant: a batch has one outcome, and none of its
records is sent after that.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class BatchState(enum.Enum):
    """Where a batch is."""

    OPEN = "records are added to it"
    CLOSED = "complete; it waits for its turn"
    IN_FLIGHT = "a request with it has no response yet"
    RETRYING = "it was refused, or its response was lost, and it is sent again"
    ACKNOWLEDGED = "the broker has written it"
    FAILED = "it will not be sent again, and its records have an error"
    SPLIT = "it was too large: smaller batches have its records"

    __hash__ = object.__hash__
    """That of ``Enum`` is Python code, which a signal handler may interrupt, and the accumulator looks into the table below
    while it has its lock."""


class BatchInput(enum.Enum):
    """What happens to a batch."""

    CLOSE = "it is full, its linger time has passed, or a flush"
    SEND = "it becomes part of a request"
    ACKNOWLEDGE = "the response has its offset"
    RETRY = "an error that a retry may fix, or no response"
    FAIL = "an error that a retry does not fix"
    EXPIRE = "delivery.timeout.ms has passed"
    ABORT = "its transaction is aborted, or the producer is closed"
    SPLIT = "MESSAGE_TOO_LARGE, and it has several records"

    __hash__ = object.__hash__


_ENDS: Mapping[BatchInput, BatchState] = {
    BatchInput.FAIL: BatchState.FAILED,
    BatchInput.EXPIRE: BatchState.FAILED,
    BatchInput.ABORT: BatchState.FAILED,
}

TRANSITIONS: Mapping[BatchState, Mapping[BatchInput, BatchState]] = {
    BatchState.OPEN: {BatchInput.CLOSE: BatchState.CLOSED},
    BatchState.CLOSED: {BatchInput.SEND: BatchState.IN_FLIGHT, **_ENDS},
    BatchState.IN_FLIGHT: {
        BatchInput.ACKNOWLEDGE: BatchState.ACKNOWLEDGED,
        BatchInput.RETRY: BatchState.RETRYING,
        BatchInput.SPLIT: BatchState.SPLIT,
        **_ENDS,
    },
    BatchState.RETRYING: {BatchInput.SEND: BatchState.IN_FLIGHT, **_ENDS},
    BatchState.ACKNOWLEDGED: {},
    BatchState.FAILED: {},
    BatchState.SPLIT: {},
}
"""State -> input -> next state."""

OUTCOMES = frozenset({BatchState.ACKNOWLEDGED, BatchState.FAILED})
"""The states in which the outcome of the records is known."""
