"""InitProducerId with a transactional id: the new producer gets an epoch, and the previous one is fenced.

Owns the decision about one InitProducerId. Must not know how producer ids are kept unique. Invariant: no two producers of a
transactional id get the same producer id and epoch; only a repeated request gets the same again.

Source: KIP-98, KIP-360 (a producer may send its current id and epoch), KIP-588.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft, error_for_version
from ottla.coordinator.transactions.end import abort_by_coordinator, schedule_expiration
from ottla.coordinator.transactions.transaction import MAX_EPOCH, NONE, PREPARED, Transaction, TransactionState
from ottla.protocol import NO_THROTTLE, ErrorCode, milliseconds
from ottla.protocol.messages import init_producer_id_request, init_producer_id_response
from ottla.types import Now


class _Producer(NamedTuple):
    """The producer id and epoch in a request."""

    producer_id: int
    epoch: int


def init_producer_id(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: init_producer_id_request.InitProducerIdRequest,
    now: Now,
) -> Decision:
    """Give the sender an epoch of its own.

    If the previous producer has a transaction open, that is aborted first: the answer is CONCURRENT_TRANSACTIONS until the markers
    are written, and the client repeats the request.
    """
    timeout_ms = milliseconds(request.transaction_timeout)
    expected = _Producer(request.producer_id, request.producer_epoch)
    error = _request_error(coordinator, request, expected, timeout_ms) or _fencing_error(transaction, expected)
    if error is not None:
        return Decision(answer=producer_id_answer(error_for_version(context, error)))
    if transaction.state in PREPARED:
        return Decision(answer=producer_id_answer(ErrorCode.concurrent_transactions))
    draft = TransactionDraft(transaction, now)
    if transaction.state is TransactionState.ONGOING:
        if not abort_by_coordinator(draft, coordinator):
            return Decision(answer=producer_id_answer(ErrorCode.coordinator_not_available))
        return draft.decision(producer_id_answer(ErrorCode.concurrent_transactions))
    error = _initialize(draft, coordinator, expected, timeout_ms)
    if error is not None:
        return Decision(answer=producer_id_answer(error_for_version(context, error)))
    schedule_expiration(draft, coordinator)
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
    """Return an error unless the sender's producer id is the current one, or the previous one with exhausted epochs.

    ``_initialize`` checks the epoch.
    """
    if expected.producer_id == NONE or transaction.epoch == NONE or expected.producer_id == transaction.producer_id:
        return None
    if expected.producer_id == transaction.previous_producer_id and expected.epoch >= MAX_EPOCH - 1:
        return None
    return ErrorCode.producer_fenced


def _initialize(draft: TransactionDraft, coordinator: TransactionContext, expected: _Producer, timeout_ms: int) -> ErrorCode | None:
    transaction = draft.transaction
    is_anonymous = expected.producer_id == NONE
    is_current = is_anonymous or expected.epoch == transaction.epoch
    changes = {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_at": NONE}
    if transaction.epoch == NONE or (transaction.is_epoch_exhausted and is_current):
        producer_id = coordinator.producer_ids.new_producer_id()
        if producer_id is None:
            return ErrorCode.coordinator_not_available
        changes["previous_producer_id"] = producer_id if transaction.epoch == NONE else transaction.producer_id
        draft.transition_to(TransactionState.EMPTY, producer_id=producer_id, epoch=0, **changes)
        draft.keep_last_epoch(NONE if is_anonymous else transaction.epoch)
    elif is_current:
        draft.transition_to(TransactionState.EMPTY, epoch=transaction.epoch + 1, **changes)
        draft.keep_last_epoch(NONE if is_anonymous else transaction.epoch)
    elif expected.epoch == transaction.last_epoch:
        # The response to its InitProducerId was lost, and the producer repeats the request with its previous epoch: it gets the
        # same epoch again (KIP-360).
        draft.transition_to(TransactionState.EMPTY, **changes)
    else:
        return ErrorCode.producer_fenced
    return None


def producer_id_answer(
    error: ErrorCode, producer_id: int = NONE, epoch: int = NONE
) -> init_producer_id_response.InitProducerIdResponse:
    """Return the response to an InitProducerId."""
    return init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )
