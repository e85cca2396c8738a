"""ListOffsets (2): the ends of a log, and offsets by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.log import PartitionLog
from ottla.broker.refusal import Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_offsets_request, list_offsets_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
_UNKNOWN = -1
_NO_EPOCH = -1


@serves(Api.LIST_OFFSETS)
def list_offsets(
    core: BrokerCore, context: RequestContext, request: list_offsets_request.ListOffsetsRequest, now: Now
) -> list[Effect]:
    """One offset a partition; -1 with timestamp -1 where no record fits."""
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            try:
                partitions.append(_answer(core.log(topic.name, wanted.partition_index), wanted))
            except Refusal as refusal:
                partitions.append(
                    list_offsets_response.ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index, error_code=refusal.code
                    )
                )
        topics.append(list_offsets_response.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return [Reply(context.ticket, list_offsets_response.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics)))]


def _answer(
    log: PartitionLog, wanted: list_offsets_request.ListOffsetsPartition
) -> list_offsets_response.ListOffsetsPartitionResponse:
    log.check_epoch(wanted.current_leader_epoch)
    offset, timestamp = _find(log, wanted.timestamp)
    return list_offsets_response.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.none,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=log.epochs.epoch_of(offset) if offset >= 0 else _NO_EPOCH,
    )


def _find(log: PartitionLog, timestamp: int) -> tuple[int, int]:
    """Offset and timestamp. The ends of a log are no records: they have no timestamp."""
    if timestamp == LATEST:
        return log.high_watermark, _UNKNOWN
    if timestamp == EARLIEST:
        return log.start_offset, _UNKNOWN
    if timestamp == MAX_TIMESTAMP:
        return log.find_largest_time() or (_UNKNOWN, _UNKNOWN)
    if timestamp < 0:
        raise Refusal(ErrorCode.unsupported_version, f"Timestamp {timestamp} has no meaning here.")
    return log.find_time(timestamp) or (_UNKNOWN, _UNKNOWN)
