"""The responses of the transaction coordinator.

Owns their content. Must not know when they are sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.coordinator.effects import RequestContext
from ottla.coordinator.transactions.transaction import NONE
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    add_offsets_to_txn_response,
    add_partitions_to_txn_request,
    add_partitions_to_txn_response,
    end_txn_response,
    init_producer_id_response,
)
from ottla.types import TopicPartition

AddedTransaction = add_partitions_to_txn_request.AddPartitionsToTxnTransaction
"""One transaction of an AddPartitionsToTxn."""


def producer_id_answer(
    error: ErrorCode, producer_id: int = NONE, epoch: int = NONE
) -> init_producer_id_response.InitProducerIdResponse:
    """Return the response to an InitProducerId."""
    return init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )


def end_answer(error: ErrorCode, producer_id: int = NONE, epoch: int = NONE) -> end_txn_response.EndTxnResponse:
    """Return the response to an EndTxn, with the producer's new id and epoch from version 2 of transactions on."""
    return end_txn_response.EndTxnResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=producer_id, producer_epoch=epoch
    )


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


def error_for_version(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """Return the error, or the one that replaces it for a client whose version does not know it."""
    if error is ErrorCode.producer_fenced and VersionRule.PRODUCER_FENCED not in context.version_rules:
        return ErrorCode.invalid_producer_epoch
    return error
