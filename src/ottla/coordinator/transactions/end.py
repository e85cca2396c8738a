"""The end of a transaction: by its producer (EndTxn), by its timeout or by another producer; then markers and completion.

Owns the decisions from the open transaction to the completed one. Must not know how markers are written. Invariant: once a
transaction is prepared its outcome is fixed; ``WriteMarkers`` is an effect of the record with the outcome, so it goes out only
after the record is in the log.

Source: KIP-98; KIP-890 for version 2 (TV2), in which every end of a transaction raises the producer epoch.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.effects import CancelTimer, RequestContext, SetTimer
from ottla.coordinator.runtime import partition_for
from ottla.coordinator.transactions.decision import (
    Decision,
    TransactionContext,
    TransactionDraft,
    WriteMarkers,
    completion_timer,
    error_for_version,
    expiration_timer,
    timeout_timer,
)
from ottla.coordinator.transactions.machine import ProducerFenced, TransactionDeleted
from ottla.coordinator.transactions.transaction import MAX_EPOCH, NONE, PREPARED, Transaction, TransactionState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import end_txn_request, end_txn_response
from ottla.types import Now

_TV2 = 2
"""The version of transactions in which every end raises the producer epoch (KIP-890)."""

_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}

_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def end_transaction(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: end_txn_request.EndTxnRequest,
    now: Now,
) -> Decision:
    """Commit or abort a transaction. The response goes out when the outcome is stored; the markers follow."""
    is_v2 = VersionRule.TRANSACTION_V2 in context.version_rules
    repeated = is_v2 and _is_repeated(transaction, request)
    error = _sender_error(transaction, request, repeated)
    if error is not None:
        return Decision(answer=end_answer(error_for_version(context, error)))
    draft = TransactionDraft(transaction, now)
    commit = request.committed
    # With TV2 a client cannot tell whether its first Produce, which adds the partition, has arrived. So it may abort a transaction
    # that the coordinator does not know; the abort raises its epoch, which fences a Produce that arrives later.
    is_abort_without_partitions = is_v2 and not commit and not repeated
    match transaction.state:
        case TransactionState.ONGOING if not repeated:
            error = None if _prepare(draft, coordinator, commit, is_v2) else ErrorCode.coordinator_not_available
        case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
            same = transaction.state is _PREPARE[commit]
            error = ErrorCode.concurrent_transactions if same else ErrorCode.invalid_txn_state
        case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT if transaction.state is _COMPLETE[commit] and (
            repeated or not is_v2
        ):
            error = None  # the client repeats a request whose response was lost
        case TransactionState.EMPTY | TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT if (
            is_abort_without_partitions
        ):
            error = None if _prepare(draft, coordinator, commit, is_v2) else ErrorCode.coordinator_not_available
        case _:
            error = ErrorCode.invalid_txn_state
    if error is not None:
        return Decision(answer=end_answer(error))
    return draft.decision(_accepted(draft.transaction, is_v2))


def transaction_timed_out(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Abort a transaction after its timeout, and fence its producer. If that is not possible now, try again after a while."""
    if draft.transaction.state is TransactionState.ONGOING and not abort_by_coordinator(draft, coordinator):
        draft.add(
            SetTimer(timeout_timer(draft.transaction.transactional_id), draft.now.mono + coordinator.config.append_retry_backoff_ms)
        )


def abort_by_coordinator(draft: TransactionDraft, coordinator: TransactionContext) -> bool:
    """Abort an open transaction and fence its producer with a new epoch. Return whether that is possible now."""
    return _prepare(draft, coordinator, commit=False, is_v2=True, fences=True)


def complete(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Complete a prepared transaction: all its partitions have their marker."""
    transaction = draft.transaction
    if transaction.state not in PREPARED:
        return
    changes: dict[str, Any] = {"partitions": frozenset()}
    if transaction.next_producer_id != NONE:
        changes |= {"producer_id": transaction.next_producer_id, "next_producer_id": NONE, "epoch": 0}
    draft.transition_to(_COMPLETE[transaction.state is TransactionState.PREPARE_COMMIT], **changes)
    draft.add(CancelTimer(completion_timer(transaction.transactional_id)))
    schedule_expiration(draft, coordinator)


def expire_if_unused(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Delete an id without an open transaction whose expiration time has passed."""
    transaction = draft.transaction
    has_ended = transaction.state in (TransactionState.EMPTY, *_COMPLETE.values())
    if has_ended and transaction.updated_at + coordinator.config.id_expiration_ms <= draft.now.wall:
        draft.apply(TransactionDeleted(transaction.transactional_id))
    elif has_ended:
        schedule_expiration(draft, coordinator)


def schedule_expiration(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Set the timer that deletes an id unless it begins another transaction."""
    transaction = draft.transaction
    remaining = transaction.updated_at + coordinator.config.id_expiration_ms - draft.now.wall
    draft.add(SetTimer(expiration_timer(transaction.transactional_id), draft.now.mono + max(0, remaining)))


def schedule_timeout(draft: TransactionDraft) -> None:
    """Set the timer that aborts an open transaction, and cancel that of the id's expiration."""
    transaction = draft.transaction
    remaining = transaction.started_at + transaction.timeout_ms - draft.now.wall
    draft.add(CancelTimer(expiration_timer(transaction.transactional_id)))
    draft.add(SetTimer(timeout_timer(transaction.transactional_id), draft.now.mono + max(0, remaining)))


def write_markers(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Have the markers of a prepared transaction written to its partitions."""
    transaction = draft.transaction
    draft.add(
        WriteMarkers(
            transactional_id=transaction.transactional_id,
            state_partition=partition_for(transaction.transactional_id, coordinator.config.state_topic_partitions),
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            commit=transaction.state is TransactionState.PREPARE_COMMIT,
            partitions=tuple(sorted(transaction.partitions)),
        )
    )


def _prepare(draft: TransactionDraft, coordinator: TransactionContext, commit: bool, is_v2: bool, *, fences: bool = False) -> bool:
    """Store the outcome, and with ``fences`` fence the producer. Return ``False`` if that needs a new producer id and there is none
    now: then nothing has changed, so that the next attempt finds the transaction as it was."""
    transaction = draft.transaction
    changes: dict[str, Any] = {"version": _TV2 if is_v2 else 0}
    if is_v2:
        next_producer_id = coordinator.producer_ids.new_producer_id() if transaction.is_epoch_exhausted else NONE
        if next_producer_id is None:
            return False
        changes |= {"epoch": transaction.epoch + 1, "next_producer_id": next_producer_id}
    if fences:
        draft.apply(ProducerFenced(transaction.transactional_id))
        transaction = draft.transaction
    if transaction.state not in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE):
        changes |= {"started_at": draft.now.wall, "partitions": frozenset()}
    draft.transition_to(_PREPARE[commit], **changes)
    if is_v2:
        draft.keep_last_epoch(transaction.epoch)
    draft.add(CancelTimer(timeout_timer(transaction.transactional_id)))
    draft.add(CancelTimer(expiration_timer(transaction.transactional_id)))
    write_markers(draft, coordinator)
    return True


def _is_repeated(transaction: Transaction, request: end_txn_request.EndTxnRequest) -> bool:
    """Whether an EndTxn repeats one that has raised the epoch already (TV2).

    1. The coordinator stores the outcome with the next epoch; the response with that epoch is lost.
    2. The producer repeats the request with its previous epoch, or, if its epochs are exhausted, also its previous producer id.
    """
    if request.producer_id == transaction.producer_id:
        return request.producer_epoch + 1 == transaction.epoch
    was_last = request.producer_id == transaction.previous_producer_id and request.producer_epoch == MAX_EPOCH - 1
    return was_last and transaction.epoch == 0


def _sender_error(transaction: Transaction, request: end_txn_request.EndTxnRequest, repeated: bool) -> ErrorCode | None:
    if not request.transactional_id:
        return ErrorCode.invalid_request
    if transaction.state is TransactionState.DEAD:
        return ErrorCode.invalid_producer_id_mapping
    if repeated:
        # If the previous epoch had ended a transaction, the id would be prepared or complete. In another state the epoch was raised
        # by InitProducerId: another producer has taken over.
        not_ended = (TransactionState.ONGOING, TransactionState.EMPTY)
        return ErrorCode.producer_fenced if transaction.state in not_ended else None
    if request.producer_id != transaction.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.producer_fenced if request.producer_epoch != transaction.epoch else None


def _accepted(transaction: Transaction, is_v2: bool) -> Any:
    if not is_v2:
        return end_answer(ErrorCode.none)
    if transaction.next_producer_id != NONE:
        return end_answer(ErrorCode.none, transaction.next_producer_id, 0)
    return end_answer(ErrorCode.none, transaction.producer_id, transaction.epoch)


def end_answer(error: ErrorCode, producer_id: int = NONE, epoch: int = NONE) -> end_txn_response.EndTxnResponse:
    """Return the response to an EndTxn, with the producer's new id and epoch from version 2 of transactions on."""
    return end_txn_response.EndTxnResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )
