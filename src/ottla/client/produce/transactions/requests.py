"""The requests of a transaction, and what their error codes mean for it.

Owns the messages and the table of error codes. Must not know states, retries or batches. Invariant: an error code that is not in
the table ends the transaction rather than being repeated for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.produce.sequences import ProducerIdAndEpoch
from ottla.errors import RETRY, OttlaError, ProducerFencedError, broker_error, error_class
from ottla.protocol import ErrorCode, duration
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    end_txn_request,
    init_producer_id_request,
    txn_offset_commit_request,
    txn_offset_commit_response,
)
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class TransactionReaction(enum.Enum):
    """The reaction to an error code of a coordinator."""

    RETRY = "repeat the request"
    FIND_COORDINATOR = "find the coordinator, then repeat the request"
    ABORT = "the transaction has to be aborted"
    NEW_EPOCH = "the coordinator has forgotten the transaction: abort, and get a new epoch"
    FATAL = "the producer cannot go on"


REACTIONS: Mapping[int, TransactionReaction] = {
    ErrorCode.unknown_topic_or_partition: TransactionReaction.RETRY,
    ErrorCode.request_timed_out: TransactionReaction.RETRY,
    ErrorCode.coordinator_load_in_progress: TransactionReaction.RETRY,
    ErrorCode.coordinator_not_available: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.not_coordinator: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.concurrent_transactions: TransactionReaction.RETRY,
    ErrorCode.operation_not_attempted: TransactionReaction.RETRY,
    ErrorCode.unstable_offset_commit: TransactionReaction.RETRY,
    ErrorCode.unknown_producer_id: TransactionReaction.NEW_EPOCH,
    ErrorCode.invalid_producer_id_mapping: TransactionReaction.NEW_EPOCH,
    ErrorCode.invalid_producer_epoch: TransactionReaction.FATAL,
    ErrorCode.producer_fenced: TransactionReaction.FATAL,
    ErrorCode.invalid_txn_state: TransactionReaction.FATAL,
    ErrorCode.invalid_transaction_timeout: TransactionReaction.FATAL,
    ErrorCode.transactional_id_authorization_failed: TransactionReaction.FATAL,
    ErrorCode.cluster_authorization_failed: TransactionReaction.FATAL,
    ErrorCode.unsupported_for_message_format: TransactionReaction.FATAL,
}
"""Error codes -> reaction. Any other code that a retry may fix is retried; all others abort the transaction."""

FENCED = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""The codes that say that the producer's epoch is not the latest one."""

NOT_ENDED = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_txn_state,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.transaction_abortable,
    }
)
"""The codes of an EndTxn that surely was not executed. With others the decision may be in the coordinator's log: NOT_COORDINATOR
and COORDINATOR_NOT_AVAILABLE, for example, are also the answers of one that has written it, and then not heard from the replicas.
"""

OF_MEMBER = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.stale_member_epoch,
        ErrorCode.fenced_member_epoch,
        ErrorCode.rebalance_in_progress,
        ErrorCode.group_id_not_found,
    }
)
"""The codes that say that the group has rebalanced: the partitions may belong to another member by now."""


def reaction_to(code: int) -> TransactionReaction:
    """The reaction to an error code."""
    if code in REACTIONS:
        return REACTIONS[code]
    return TransactionReaction.RETRY if error_class(code).action == RETRY else TransactionReaction.ABORT


def refusal(code: int, what: str, transactional_id: str, timeout_ms: int) -> OttlaError:
    """The error for a code of a coordinator, in ``what`` it refused."""
    if code in FENCED:
        hint = f"a producer that was initialized later has this id, or the transaction took more than {timeout_ms / 1000:g} s"
        error: OttlaError = ProducerFencedError(f"{what}: transactional id {transactional_id!r} has a newer epoch", hint=hint)
        error.fatal = True
        return error
    error = broker_error(code, what)
    if code == ErrorCode.invalid_transaction_timeout:
        error.hint = f"transaction.timeout.ms is {timeout_ms}, and the brokers' transaction.max.timeout.ms must not be lower"
    if code == ErrorCode.invalid_txn_state:
        error.hint = f"the coordinator has aborted the transaction if it took more than {timeout_ms / 1000:g} s"
    return error


class Identity(NamedTuple):
    """A transactional producer in its requests."""

    transactional_id: str
    producer: ProducerIdAndEpoch


def init_producer_id(who: Identity, timeout_ms: int) -> init_producer_id_request.InitProducerIdRequest:
    """The request for an epoch. With the present one it succeeds only if that is the latest (KIP-360)."""
    return init_producer_id_request.InitProducerIdRequest(
        transactional_id=who.transactional_id,
        transaction_timeout=duration(timeout_ms),
        producer_id=who.producer.producer_id,
        producer_epoch=who.producer.epoch,
    )


def add_partitions(who: Identity, partitions: Iterable[TopicPartition]) -> add_partitions_to_txn_request.AddPartitionsToTxnRequest:
    """The request that adds partitions to a transaction of version 1."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    transaction = add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
        transactional_id=who.transactional_id,
        producer_id=who.producer.producer_id,
        producer_epoch=who.producer.epoch,
        topics=tuple(
            add_partitions_to_txn_request.AddPartitionsToTxnTopic(name=name, partitions=tuple(numbers))
            for name, numbers in topics.items()
        ),
    )
    return add_partitions_to_txn_request.AddPartitionsToTxnRequest(transactions=(transaction,))


def codes_of_partitions(response: add_partitions_to_txn_response.AddPartitionsToTxnResponse) -> dict[TopicPartition, int]:
    """The error code of each partition."""
    return {
        TopicPartition(topic.name, item.partition_index): int(item.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for item in topic.results_by_partition
    }


def add_offsets(who: Identity, group_id: str) -> add_offsets_to_txn_request.AddOffsetsToTxnRequest:
    """The request that adds a group to a transaction of version 1."""
    return add_offsets_to_txn_request.AddOffsetsToTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.producer.producer_id,
        producer_epoch=who.producer.epoch,
        group_id=group_id,
    )


def commit_offsets(
    who: Identity, group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> txn_offset_commit_request.TxnOffsetCommitRequest:
    """The request that has the group's coordinator keep offsets until the transaction ends."""
    topics: dict[str, list[txn_offset_commit_request.TxnOffsetCommitRequestPartition]] = {}
    for tp, position in sorted(offsets.items()):
        topics.setdefault(tp.topic, []).append(
            txn_offset_commit_request.TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=position.offset,
                committed_leader_epoch=-1 if position.leader_epoch is None else position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return txn_offset_commit_request.TxnOffsetCommitRequest(
        transactional_id=who.transactional_id,
        group_id=group.group_id,
        producer_id=who.producer.producer_id,
        producer_epoch=who.producer.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=tuple(
            txn_offset_commit_request.TxnOffsetCommitRequestTopic(name=name, partitions=tuple(items))
            for name, items in topics.items()
        ),
    )


def codes_of_offsets(response: txn_offset_commit_response.TxnOffsetCommitResponse) -> dict[TopicPartition, int]:
    """The error code of each partition."""
    return {
        TopicPartition(topic.name, item.partition_index): int(item.error_code)
        for topic in response.topics
        for item in topic.partitions
    }


def end_txn(who: Identity, *, commit: bool) -> end_txn_request.EndTxnRequest:
    """The request that ends a transaction."""
    return end_txn_request.EndTxnRequest(
        transactional_id=who.transactional_id,
        producer_id=who.producer.producer_id,
        producer_epoch=who.producer.epoch,
        committed=commit,
    )
