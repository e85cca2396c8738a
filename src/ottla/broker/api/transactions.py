"""InitProducerId, TxnOffsetCommit, WriteTxnMarkers and DescribeProducers, without the parts of the transaction coordinator.

Owns the checks of these requests. Must not know the states of a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.markers import TxnMarkerEntry
from ottla.broker.topics import check_name
from ottla.broker.transaction_coordinator_service import TransactionalWriter, error_for_client
from ottla.coordinator.effects import ApiError
from ottla.coordinator.transactional_offsets import commit_in_transaction_refused, has_only_unknown_partitions
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    describe_producers_request,
    describe_producers_response,
    init_producer_id_request,
    init_producer_id_response,
    txn_offset_commit_request,
    write_txn_markers_request,
    write_txn_markers_response,
)
from ottla.types import Now, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1


@serves(Api.INIT_PRODUCER_ID)
def init_producer_id(
    state: BrokerState, context: RequestContext, request: init_producer_id_request.InitProducerIdRequest, now: Now
) -> list[BrokerEffect]:
    """Return a new id with epoch 0; with a transactional id, the transaction coordinator replies."""
    if request.transactional_id is not None:
        state.transactions.handle(context, request, now)
        return []
    code, producer_id, epoch = ErrorCode.none, -1, -1
    try:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise ApiError(ErrorCode.invalid_request, "A producer id and a producer epoch must be given together.")
        producer_id, epoch = state.catalog.producer_ids.allocate(), 0
    except ApiError as api_error:
        code = api_error.code
    response = init_producer_id_response.InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    return [Reply(context.ticket, response)]


@serves(Api.TXN_OFFSET_COMMIT)
def txn_offset_commit(
    state: BrokerState, context: RequestContext, request: txn_offset_commit_request.TxnOffsetCommitRequest, now: Now
) -> list[BrokerEffect]:
    """Pass the request to the group coordinator. If the producer has no open transaction in the group's log, the transaction
    coordinator adds or verifies the partition first (KIP-890)."""
    refused = partial(commit_in_transaction_refused, request, state.catalog.topics)
    if not request.group_id:
        return [Reply(context.ticket, refused(ErrorCode.invalid_group_id))]
    partition = state.groups.offsets_partition_of(request.group_id)
    try:
        state.groups.ensure_topic()
        log = state.catalog.log(partition.topic, partition.partition)
        log.producers.check_epoch(request.producer_id, request.producer_epoch)
    except ApiError as api_error:
        is_elsewhere = api_error.code is ErrorCode.not_leader_or_follower
        return [Reply(context.ticket, refused(ErrorCode.not_coordinator if is_elsewhere else api_error.code))]
    if has_only_unknown_partitions(request, state.catalog.topics) or log.producers.has_open_transaction(
        request.producer_id, request.producer_epoch
    ):
        state.groups.handle(context, request, now)
        return []
    writer = TransactionalWriter(request.transactional_id, request.producer_id, request.producer_epoch)

    def go_on(said: Mapping[TopicPartition, ErrorCode], at: Now) -> list[BrokerEffect]:
        error = error_for_client(context, said[partition])
        if error is not ErrorCode.none:
            return [Reply(context.ticket, refused(error))]
        state.groups.handle(context, request, at)
        return []

    state.transactions.add_or_verify_partitions(context, {writer: [partition]}, go_on, now)
    return []


@serves(Api.WRITE_TXN_MARKERS)
def write_txn_markers(
    state: BrokerState, context: RequestContext, request: write_txn_markers_request.WriteTxnMarkersRequest, now: Now
) -> list[BrokerEffect]:
    """Write each marker to each of its partitions; the response has each producer once, with the last result of each partition."""
    said: dict[int, dict[TopicPartition, ErrorCode]] = {}
    no_producer = any(wanted.producer_id < 0 or wanted.producer_epoch < 0 for wanted in request.markers)
    for wanted in request.markers:
        marker = TxnMarkerEntry(wanted.transaction_result, wanted.producer_id, wanted.producer_epoch, wanted.coordinator_epoch)
        of_producer = said.setdefault(wanted.producer_id, {})
        for partition in (TopicPartition(topic.name, number) for topic in wanted.topics for number in topic.partition_indexes):
            # A marker needs a producer; without one, Kafka fails the whole request.
            of_producer[partition] = ErrorCode.unknown_server_error if no_producer else _written(state, marker, partition, now)
    results = tuple(_result(producer_id, codes) for producer_id, codes in said.items())
    return [Reply(context.ticket, write_txn_markers_response.WriteTxnMarkersResponse(markers=results))]


def _result(producer_id: int, codes: Mapping[TopicPartition, ErrorCode]) -> write_txn_markers_response.WritableTxnMarkerResult:
    by_topic: dict[str, list[write_txn_markers_response.WritableTxnMarkerPartitionResult]] = {}
    for (topic, partition), code in codes.items():
        by_topic.setdefault(topic, []).append(
            write_txn_markers_response.WritableTxnMarkerPartitionResult(partition_index=partition, error_code=code)
        )
    return write_txn_markers_response.WritableTxnMarkerResult(
        producer_id=producer_id,
        topics=tuple(
            write_txn_markers_response.WritableTxnMarkerTopicResult(name=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )


def _written(state: BrokerState, marker: TxnMarkerEntry, partition: TopicPartition, now: Now) -> ErrorCode:
    try:
        log = state.catalog.log(*partition)
        log.producers.check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        state.transactions.write_marker(log, marker, now)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.none


_NO_TRANSACTION = -1


@serves(Api.DESCRIBE_PRODUCERS)
def describe_producers(
    state: BrokerState, context: RequestContext, request: describe_producers_request.DescribeProducersRequest, now: Now
) -> list[BrokerEffect]:
    """Describe the producers of each partition."""
    topics = tuple(
        describe_producers_response.TopicResponse(
            name=topic.name, partitions=tuple(_described(state, topic.name, number) for number in topic.partition_indexes)
        )
        for topic in request.topics
    )
    return [Reply(context.ticket, describe_producers_response.DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=topics))]


def _described(state: BrokerState, topic: str, partition: int) -> describe_producers_response.PartitionResponse:
    try:
        check_name(topic)
        producers = state.catalog.log(topic, partition).producers
    except ApiError as api_error:
        return describe_producers_response.PartitionResponse(
            partition_index=partition, error_code=api_error.code, error_message=api_error.message, active_producers=()
        )
    active = []
    for producer_id, producer in producers.entries.items():
        transaction_start = producers.transaction_start(producer_id)
        active.append(
            describe_producers_response.ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_seen,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=_NO_TRANSACTION if transaction_start is None else transaction_start,
            )
        )
    return describe_producers_response.PartitionResponse(
        partition_index=partition, error_code=ErrorCode.none, error_message=None, active_producers=tuple(active)
    )
