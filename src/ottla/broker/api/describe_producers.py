"""DescribeProducers (61): the recent producers of a partition, and the open transactions there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.topics import check_name
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_producers_request, describe_producers_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

_NO_TRANSACTION = -1


@serves(Api.DESCRIBE_PRODUCERS)
def describe_producers(
    state: BrokerState, context: RequestContext, request: describe_producers_request.DescribeProducersRequest, now: Now
) -> list[Effect]:
    """The producers that each partition remembers."""
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
    for producer_id, producer in producers.known.items():
        open_since = producers.open_since(producer_id)
        active.append(
            describe_producers_response.ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_seen,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=_NO_TRANSACTION if open_since is None else open_since,
            )
        )
    return describe_producers_response.PartitionResponse(
        partition_index=partition, error_code=ErrorCode.none, error_message=None, active_producers=tuple(active)
    )
