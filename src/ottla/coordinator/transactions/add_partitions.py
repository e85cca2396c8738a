"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions of a transaction.

Owns the checks of their senders, and the verification that a broker requests before it appends a transactional batch (KIP-890).
Must not know who appends. Invariant: the log of the coordinator has a partition before the first batch of the transaction is
appended to it, so that an outcome always reaches all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft, error_for_version
from ottla.coordinator.transactions.end import schedule_timeout
from ottla.coordinator.transactions.transaction import PREPARED, Transaction, TransactionState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_offsets_to_txn_response,
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
)
from ottla.types import Now, TopicPartition

AddedTransaction = add_partitions_to_txn_request.AddPartitionsToTxnTransaction
"""One transaction of an AddPartitionsToTxn."""


def add_partitions(
    coordinator: TransactionContext, transaction: Transaction, context: RequestContext, part: AddedTransaction, now: Now
) -> Decision:
    """Add partitions to a transaction, all of them or none; with ``verify_only``, only check that it has them."""
    partitions = [TopicPartition(topic.name, number) for topic in part.topics for number in topic.partitions]
    errors = {one: error for one in partitions if (error := _partition_error(coordinator, context, one)) is not None}
    if errors:
        return Decision(answer=added_answer(part, dict.fromkeys(partitions, ErrorCode.operation_not_attempted) | errors))
    error = _sender_error(transaction, part.transactional_id, part.producer_id, part.producer_epoch)
    if error is not None:
        return Decision(answer=added_answer(part, error_for_version(context, error)))
    if part.verify_only:
        has, lacks = ErrorCode.none, ErrorCode.transaction_abortable
        return Decision(answer=added_answer(part, {one: has if one in transaction.partitions else lacks for one in partitions}))
    return _add(transaction, partitions, context, now, added_answer(part, ErrorCode.none))


def add_offsets(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: add_offsets_to_txn_request.AddOffsetsToTxnRequest,
    now: Now,
) -> Decision:
    """Add the partition of ``__consumer_offsets`` with a group's offsets to a transaction."""
    error = _sender_error(transaction, request.transactional_id, request.producer_id, request.producer_epoch)
    if error is not None:
        return Decision(answer=offsets_added_answer(error_for_version(context, error)))
    partition = coordinator.offsets_partition_of(request.group_id)
    return _add(transaction, [partition], context, now, offsets_added_answer(ErrorCode.none))


def _partition_error(coordinator: TransactionContext, context: RequestContext, partition: TopicPartition) -> ErrorCode | None:
    if VersionRule.FROM_BROKER not in context.version_rules and partition.topic in coordinator.internal_topics:
        return ErrorCode.topic_authorization_failed
    exists = 0 <= partition.partition < (coordinator.topics.partition_count(partition.topic) or 0)
    return None if exists else ErrorCode.unknown_topic_or_partition


def _sender_error(transaction: Transaction, transactional_id: str, producer_id: int, epoch: int) -> ErrorCode | None:
    if not transactional_id:
        return ErrorCode.invalid_request
    if transaction.state is TransactionState.DEAD or producer_id != transaction.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if epoch != transaction.epoch:
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if transaction.state in PREPARED else None


def _add(
    transaction: Transaction, partitions: Iterable[TopicPartition], context: RequestContext, now: Now, answer: Any
) -> Decision:
    is_open = transaction.state is TransactionState.ONGOING
    present = transaction.partitions if is_open else frozenset[TopicPartition]()
    if is_open and present.issuperset(partitions):
        return Decision(answer=answer)
    draft = TransactionDraft(transaction, now)
    draft.transition_to(
        TransactionState.ONGOING,
        partitions=present.union(partitions),
        started_at=transaction.started_at if is_open else now.wall,
        version=2 if VersionRule.TRANSACTION_V2 in context.version_rules else 0,
    )
    if not is_open:
        schedule_timeout(draft)
    return draft.decision(answer)


def offsets_added_answer(error: ErrorCode) -> add_offsets_to_txn_response.AddOffsetsToTxnResponse:
    """Return the response to an AddOffsetsToTxn."""
    return add_offsets_to_txn_response.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error)


def added_answer(
    part: AddedTransaction, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]
) -> add_partitions_to_txn_response.AddPartitionsToTxnResult:
    """Return one transaction's part of the response to an AddPartitionsToTxn: one error for all partitions, or one for each."""
    return add_partitions_to_txn_response.AddPartitionsToTxnResult(
        transactional_id=part.transactional_id,
        topic_results=tuple(
            add_partitions_to_txn_response.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    add_partitions_to_txn_response.AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=errors
                        if isinstance(errors, ErrorCode)
                        else errors[TopicPartition(topic.name, number)],
                    )
                    for number in topic.partitions
                ),
            )
            for topic in part.topics
        ),
    )
