"""AddPartitionsToTxn and AddOffsetsToTxn: what a transaction writes to.

Owns who may add partitions, and the check that a broker makes before it writes a transactional batch (KIP-890). Must not know who
writes. Invariant: a partition has been added, in the log, before the first batch of a transaction is in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.answers import Part, added_answer, as_known, offsets_added_answer
from ottla.coordinator.transactions.decision import Decision, TransactionContext, TransactionDraft
from ottla.coordinator.transactions.end import watch
from ottla.coordinator.transactions.transaction import PREPARED, Transaction, TransactionState
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import add_offsets_to_txn_request
from ottla.types import Now, TopicPartition


def add_partitions(
    coordinator: TransactionContext, transaction: Transaction, context: RequestContext, part: Part, now: Now
) -> Decision:
    """Let a transaction have more partitions, all of them or none; or only say whether it has them."""
    partitions = [TopicPartition(topic.name, number) for topic in part.topics for number in topic.partitions]
    refused = {one: error for one in partitions if (error := _partition_error(coordinator, context, one)) is not None}
    if refused:
        return Decision(answer=added_answer(part, dict.fromkeys(partitions, ErrorCode.operation_not_attempted) | refused))
    error = _sender_error(transaction, part.transactional_id, part.producer_id, part.producer_epoch)
    if error is not None:
        return Decision(answer=added_answer(part, as_known(context, error)))
    if part.verify_only:
        has, lacks = ErrorCode.none, ErrorCode.transaction_abortable
        return Decision(answer=added_answer(part, {one: has if one in transaction.partitions else lacks for one in partitions}))
    return _added(transaction, partitions, context, now, added_answer(part, ErrorCode.none))


def add_offsets(
    coordinator: TransactionContext,
    transaction: Transaction,
    context: RequestContext,
    request: add_offsets_to_txn_request.AddOffsetsToTxnRequest,
    now: Now,
) -> Decision:
    """Let a transaction have the partition in which a group's offsets are."""
    error = _sender_error(transaction, request.transactional_id, request.producer_id, request.producer_epoch)
    if error is not None:
        return Decision(answer=offsets_added_answer(as_known(context, error)))
    partition = coordinator.offsets_partition_of(request.group_id)
    return _added(transaction, [partition], context, now, offsets_added_answer(ErrorCode.none))


def _partition_error(coordinator: TransactionContext, context: RequestContext, partition: TopicPartition) -> ErrorCode | None:
    if VersionRule.FROM_BROKER not in context.version_rules and partition.topic in coordinator.internal_topics:
        return ErrorCode.topic_authorization_failed
    known = 0 <= partition.partition < (coordinator.topics.partition_count(partition.topic) or 0)
    return None if known else ErrorCode.unknown_topic_or_partition


def _sender_error(transaction: Transaction, transactional_id: str, producer_id: int, epoch: int) -> ErrorCode | None:
    if not transactional_id:
        return ErrorCode.invalid_request
    if transaction.state is TransactionState.DEAD or producer_id != transaction.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if epoch != transaction.epoch:
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if transaction.state in PREPARED else None


def _added(
    transaction: Transaction, partitions: Iterable[TopicPartition], context: RequestContext, now: Now, answer: Any
) -> Decision:
    is_open = transaction.state is TransactionState.ONGOING
    known = transaction.partitions if is_open else frozenset[TopicPartition]()
    if is_open and known.issuperset(partitions):
        return Decision(answer=answer)
    draft = TransactionDraft(transaction, now)
    draft.write(
        TransactionState.ONGOING,
        partitions=known.union(partitions),
        started_at=transaction.started_at if is_open else now.wall,
        version=2 if VersionRule.TRANSACTION_V2 in context.version_rules else 0,
    )
    if not is_open:
        watch(draft)
    return draft.decision(answer)
