"""The answer to a client when the transaction coordinator does not let it write.

Owns the producers of transactions, and the table from the coordinator's errors to the client's. Must not know requests. Invariant:
a client gets no code that its version does not know, and one that it may try again is one that its version tries again.

Source: KIP-890; the codes are those that Apache Kafka 4.3 sends.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.broker.effects import RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule


@dataclass(frozen=True, slots=True)
class Writer:
    """The producer in a transaction, as in the request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


_TRY_AGAIN = {Api.PRODUCE: ErrorCode.not_enough_replicas, Api.TXN_OFFSET_COMMIT: ErrorCode.coordinator_load_in_progress}
"""What has a client send the same again, whatever the reason and however old it is."""

_PASSING = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)


def verdict_for(context: RequestContext, said: ErrorCode) -> ErrorCode:
    """The coordinator's word in the version that a Produce or TxnOffsetCommit came in."""
    if said is ErrorCode.concurrent_transactions and VersionRule.TRANSACTION_V2 in context.version_rules:
        return said
    if said in _PASSING:
        return _TRY_AGAIN[context.api]
    if said is ErrorCode.transaction_abortable and VersionRule.TRANSACTION_ABORTABLE not in context.version_rules:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if said is ErrorCode.producer_fenced else said
