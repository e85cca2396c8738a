"""WriteTxnMarkers (27): an administrator ends hanging transactions.

The coordinator of this broker writes its markers itself; this is for the administrator who aborts a transaction that hangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.markers import NewMarker
from ottla.coordinator.api_error import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import write_txn_markers_request, write_txn_markers_response
from ottla.types import Now, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.WRITE_TXN_MARKERS)
def write_txn_markers(
    state: BrokerState, context: RequestContext, request: write_txn_markers_request.WriteTxnMarkersRequest, now: Now
) -> list[Effect]:
    """Write each marker to each of its partitions, or say why not; the answer has each producer once, with what was said last."""
    said: dict[int, dict[TopicPartition, ErrorCode]] = {}
    nobody = any(wanted.producer_id < 0 or wanted.producer_epoch < 0 for wanted in request.markers)
    for wanted in request.markers:
        marker = NewMarker(wanted.transaction_result, wanted.producer_id, wanted.producer_epoch, wanted.coordinator_epoch)
        of_producer = said.setdefault(wanted.producer_id, {})
        for partition in (TopicPartition(topic.name, number) for topic in wanted.topics for number in topic.partition_indexes):
            # There is no marker without a producer; Kafka fails at it, and the whole request with it.
            of_producer[partition] = ErrorCode.unknown_server_error if nobody else _written(state, marker, partition, now)
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


def _written(state: BrokerState, marker: NewMarker, partition: TopicPartition, now: Now) -> ErrorCode:
    try:
        log = state.catalog.log(*partition)
        log.producers.check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        state.transactions.write_marker(log, marker, now)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.none
