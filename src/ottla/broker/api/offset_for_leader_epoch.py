"""OffsetForLeaderEpoch (23): where the records of a leader epoch end: what a client read beyond that is gone (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import offset_for_leader_epoch_request, offset_for_leader_epoch_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(
    state: BrokerState, context: RequestContext, request: offset_for_leader_epoch_request.OffsetForLeaderEpochRequest, now: Now
) -> list[Effect]:
    """Of each partition the largest epoch that is not above the one asked for, and its end; -1 and -1 where there is none."""
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            code, epoch, offset = ErrorCode.none, -1, -1
            try:
                log = state.catalog.log(topic.topic, wanted.partition)
                log.check_epoch(wanted.current_leader_epoch)
                epoch, offset = log.epochs.end_of(wanted.leader_epoch, log.end_offset)
            except ApiError as api_error:
                code = api_error.code
            partitions.append(
                offset_for_leader_epoch_response.EpochEndOffset(
                    error_code=code, partition=wanted.partition, leader_epoch=epoch, end_offset=offset
                )
            )
        topics.append(offset_for_leader_epoch_response.OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(partitions)))
    response = offset_for_leader_epoch_response.OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))
    return [Reply(context.ticket, response)]
