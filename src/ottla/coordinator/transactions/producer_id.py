"""InitProducerId with a transactional id: an epoch for the producer that comes, and an end for the one that was.

Owns the decision about one InitProducerId. Must not know how producer ids are kept unique. Invariant: no two producers of a
transactional id are given the same id and epoch, unless the second asks again for what it was given and did not hear.

Source: KIP-98, KIP-360 (a producer may ask with the id and epoch that it has), KIP-588.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.answers import as_known, producer_id_answer
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft
from ottla.coordinator.transactions.end import abort_by_coordinator, rest
from ottla.coordinator.transactions.transaction import MAX_EPOCH, NONE, PREPARED, Transaction, TransactionState
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.messages import init_producer_id_request
from ottla.types import Now


class _Producer(NamedTuple):
    """Who a producer says it is."""

    producer_id: int
    epoch: int


def init_producer_id(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: init_producer_id_request.InitProducerIdRequest,
    now: Now,
) -> Decision:
    """Give the producer an epoch of its own; one that has a transaction open is fenced first, and the new one asks again."""
    timeout_ms = milliseconds(request.transaction_timeout)
    expected = _Producer(request.producer_id, request.producer_epoch)
    error = _request_error(coordinator, request, expected, timeout_ms) or _fencing_error(transaction, expected)
    if error is not None:
        return Decision(answer=producer_id_answer(as_known(context, error)))
    if transaction.state in PREPARED:
        return Decision(answer=producer_id_answer(ErrorCode.concurrent_transactions))
    draft = TransactionDraft(transaction, now)
    if transaction.state is TransactionState.ONGOING:
        if not abort_by_coordinator(draft, coordinator):
            return Decision(answer=producer_id_answer(ErrorCode.coordinator_not_available))
        return draft.decision(producer_id_answer(ErrorCode.concurrent_transactions))
    error = _initialize(draft, coordinator, expected, timeout_ms)
    if error is not None:
        return Decision(answer=producer_id_answer(as_known(context, error)))
    rest(draft, coordinator)
    return draft.decision(producer_id_answer(ErrorCode.none, draft.transaction.producer_id, draft.transaction.epoch))


def _request_error(
    coordinator: TransactionContext, request: init_producer_id_request.InitProducerIdRequest, expected: _Producer, timeout_ms: int
) -> ErrorCode | None:
    if not request.transactional_id or (expected.producer_id == NONE) is not (expected.epoch == NONE):
        return ErrorCode.invalid_request
    if not 0 < timeout_ms <= coordinator.config.max_timeout_ms:
        return ErrorCode.invalid_transaction_timeout
    return None


def _fencing_error(transaction: Transaction, expected: _Producer) -> ErrorCode | None:
    """Whether the producer is the one that we know, or was until its epochs were used up. Its epoch is looked at later."""
    if expected.producer_id == NONE or transaction.epoch == NONE or expected.producer_id == transaction.producer_id:
        return None
    if expected.producer_id == transaction.previous_producer_id and expected.epoch >= MAX_EPOCH - 1:
        return None
    return ErrorCode.producer_fenced


def _initialize(draft: TransactionDraft, coordinator: TransactionContext, expected: _Producer, timeout_ms: int) -> ErrorCode | None:
    known = draft.transaction
    by_name = expected.producer_id == NONE
    is_current = by_name or expected.epoch == known.epoch
    changes = {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_at": NONE}
    if known.epoch == NONE or (known.epochs_used_up and is_current):
        producer_id = coordinator.producer_ids.new_producer_id()
        if producer_id is None:
            return ErrorCode.coordinator_not_available
        changes["previous_producer_id"] = producer_id if known.epoch == NONE else known.producer_id
        draft.write(TransactionState.EMPTY, producer_id=producer_id, epoch=0, **changes)
        draft.keep_last_epoch(NONE if by_name else known.epoch)
    elif is_current:
        draft.write(TransactionState.EMPTY, epoch=known.epoch + 1, **changes)
        draft.keep_last_epoch(NONE if by_name else known.epoch)
    elif expected.epoch == known.last_epoch:
        draft.write(TransactionState.EMPTY, **changes)
    else:
        return ErrorCode.producer_fenced
    return None
