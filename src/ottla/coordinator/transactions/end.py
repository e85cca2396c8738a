"""How a transaction ends: by its producer (EndTxn), by its time-out, by another producer, and at last by its markers.

Owns the decisions from the open transaction to the completed one. Must not know how markers are written. Invariant: once a
transaction is prepared its outcome is fixed; ``WriteMarkers`` goes out no sooner than the record that says so is in the log.

Source: KIP-98; KIP-890 for version 2, in which each transaction ends with an epoch of its own.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.effects import CancelTimer, RequestContext, SetTimer
from ottla.coordinator.partitioner import partition_for
from ottla.coordinator.transactions.answers import as_known, end_answer
from ottla.coordinator.transactions.decision import (
    Decision,
    TransactionContext,
    TransactionDraft,
    WriteMarkers,
    completion_timer,
    expiration_timer,
    timeout_timer,
)
from ottla.coordinator.transactions.events import ProducerFenced, TransactionDeleted
from ottla.coordinator.transactions.transaction import MAX_EPOCH, NONE, PREPARED, Transaction, TransactionState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import end_txn_request
from ottla.types import Now

_EPOCH_EACH_TIME = 2
"""The version of transactions in which each has an epoch of its own."""

_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}
_PREPARE = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def end_transaction(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: end_txn_request.EndTxnRequest,
    now: Now,
) -> Decision:
    """Commit or abort: the answer leaves when the outcome is fixed, the markers follow."""
    epoch_each_time = VersionRule.TRANSACTION_V2 in context.version_rules
    repeated = epoch_each_time and _is_repeated(transaction, request)
    error = _sender_error(transaction, request, repeated)
    if error is not None:
        return Decision(answer=end_answer(as_known(context, error)))
    draft = TransactionDraft(transaction, now)
    commit = request.committed
    begins_with_abort = epoch_each_time and not commit and not repeated
    match transaction.state:
        case TransactionState.ONGOING if not repeated:
            error = None if _prepare(draft, coordinator, commit, epoch_each_time) else ErrorCode.coordinator_not_available
        case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
            same = transaction.state is _PREPARE[commit]
            error = ErrorCode.concurrent_transactions if same else ErrorCode.invalid_txn_state
        case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT if transaction.state is _COMPLETE[commit] and (
            repeated or not epoch_each_time
        ):
            error = None
        case TransactionState.EMPTY | TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT if begins_with_abort:
            error = None if _prepare(draft, coordinator, commit, epoch_each_time) else ErrorCode.coordinator_not_available
        case _:
            error = ErrorCode.invalid_txn_state
    if error is not None:
        return Decision(answer=end_answer(error))
    return draft.decision(_ended(draft.transaction, epoch_each_time))


def transaction_timed_out(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """A producer has taken too long: its transaction is aborted, and what it sends from now on is refused."""
    if draft.transaction.state is TransactionState.ONGOING and not abort_by_coordinator(draft, coordinator):
        draft.add(
            SetTimer(timeout_timer(draft.transaction.transactional_id), draft.now.mono + coordinator.config.append_retry_backoff_ms)
        )


def abort_by_coordinator(draft: TransactionDraft, coordinator: TransactionContext) -> bool:
    """Take an open transaction from its producer; whether that is possible now."""
    draft.apply(ProducerFenced(draft.transaction.transactional_id))
    return _prepare(draft, coordinator, commit=False, epoch_each_time=True)


def complete(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """All partitions have their marker."""
    known = draft.transaction
    if known.state not in PREPARED:
        return
    changes: dict[str, Any] = {"partitions": frozenset()}
    if known.next_producer_id != NONE:
        changes |= {"producer_id": known.next_producer_id, "next_producer_id": NONE, "epoch": 0}
    draft.write(_COMPLETE[known.state is TransactionState.PREPARE_COMMIT], **changes)
    draft.add(CancelTimer(completion_timer(known.transactional_id)))
    rest(draft, coordinator)


def forget_if_unused(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """Forget an id that began no transaction for long."""
    known = draft.transaction
    at_rest = known.state in (TransactionState.EMPTY, *_COMPLETE.values())
    if at_rest and known.updated_at + coordinator.config.id_expiration_ms <= draft.now.wall:
        draft.apply(TransactionDeleted(known.transactional_id))
    elif at_rest:
        rest(draft, coordinator)


def rest(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """No transaction is open: the id is forgotten if that stays so."""
    known = draft.transaction
    left = known.updated_at + coordinator.config.id_expiration_ms - draft.now.wall
    draft.add(SetTimer(expiration_timer(known.transactional_id), draft.now.mono + max(0, left)))


def watch(draft: TransactionDraft) -> None:
    """A transaction is open: its producer has a certain time to end it."""
    known = draft.transaction
    left = known.started_at + known.timeout_ms - draft.now.wall
    draft.add(CancelTimer(expiration_timer(known.transactional_id)))
    draft.add(SetTimer(timeout_timer(known.transactional_id), draft.now.mono + max(0, left)))


def write_markers(draft: TransactionDraft, coordinator: TransactionContext) -> None:
    """The outcome is fixed: let all partitions know."""
    known = draft.transaction
    draft.add(
        WriteMarkers(
            transactional_id=known.transactional_id,
            state_partition=partition_for(known.transactional_id, coordinator.config.state_topic_partitions),
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
            commit=known.state is TransactionState.PREPARE_COMMIT,
            partitions=tuple(sorted(known.partitions)),
        )
    )


def _prepare(draft: TransactionDraft, coordinator: TransactionContext, commit: bool, epoch_each_time: bool) -> bool:
    """Fix the outcome; ``False`` where the next producer id that this needs cannot be had now."""
    known = draft.transaction
    changes: dict[str, Any] = {"version": _EPOCH_EACH_TIME if epoch_each_time else 0}
    if epoch_each_time:
        next_producer_id = coordinator.producer_ids.new_producer_id() if known.epochs_used_up else NONE
        if next_producer_id is None:
            return False
        changes |= {"epoch": known.epoch + 1, "next_producer_id": next_producer_id}
    if known.state not in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE):
        changes |= {"started_at": draft.now.wall, "partitions": frozenset()}
    draft.write(_PREPARE[commit], **changes)
    if epoch_each_time:
        draft.keep_last_epoch(known.epoch)
    draft.add(CancelTimer(timeout_timer(known.transactional_id)))
    draft.add(CancelTimer(expiration_timer(known.transactional_id)))
    write_markers(draft, coordinator)
    return True


def _is_repeated(transaction: Transaction, request: end_txn_request.EndTxnRequest) -> bool:
    """Whether a producer asks again for what was done already: its epoch is the one before, maybe of the id before."""
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
        # A transaction that has not ended, or was begun again, cannot have been ended by the previous epoch.
        others = (TransactionState.ONGOING, TransactionState.EMPTY)
        return ErrorCode.producer_fenced if transaction.state in others else None
    if request.producer_id != transaction.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.producer_fenced if request.producer_epoch != transaction.epoch else None


def _ended(transaction: Transaction, epoch_each_time: bool) -> Any:
    if not epoch_each_time:
        return end_answer(ErrorCode.none)
    if transaction.next_producer_id != NONE:
        return end_answer(ErrorCode.none, transaction.next_producer_id, 0)
    return end_answer(ErrorCode.none, transaction.producer_id, transaction.epoch)
