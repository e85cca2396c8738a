"""The error for a client that the transaction coordinator does not allow to write.

Owns the mapping of the coordinator's errors to the client's. Must not know requests. Invariant: a client gets no code that its
version does not know; for a temporary error it gets one that its version retries.

Source: KIP-890; the codes are those that Apache Kafka 4.3 sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.effects import RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule


@dataclass(frozen=True, slots=True)
class TransactionalWriter:
    """The producer in a transaction, as in the request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


_RETRY = {Api.PRODUCE: ErrorCode.not_enough_replicas, Api.TXN_OFFSET_COMMIT: ErrorCode.coordinator_load_in_progress}
"""The error codes with which clients of all versions retry."""

_TEMPORARY = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)


def error_for_client(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """Return the coordinator's error in the version of the Produce or TxnOffsetCommit request."""
    if error is ErrorCode.concurrent_transactions and VersionRule.TRANSACTION_V2 in context.version_rules:
        return error
    if error in _TEMPORARY:
        return _RETRY[context.api]
    if error is ErrorCode.transaction_abortable and VersionRule.TRANSACTION_ABORTABLE not in context.version_rules:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error
