"""ListOffsets (2): the ends of a log, and offsets by time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.log import PartitionLog
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_offsets_request, list_offsets_response
from ottla.types import IsolationLevel, Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
_UNKNOWN = -1
_NO_EPOCH = -1


@serves(Api.LIST_OFFSETS)
def list_offsets(
    state: BrokerState, context: RequestContext, request: list_offsets_request.ListOffsetsRequest, now: Now
) -> list[Effect]:
    """One offset a partition; -1 with timestamp -1 where no record fits."""
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    times = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            try:
                if request.isolation_level not in tuple(IsolationLevel):
                    raise ApiError(ErrorCode.unknown_server_error, f"There is no isolation level {request.isolation_level}.")
                if times[topic.name, wanted.partition_index] > 1:
                    raise ApiError(ErrorCode.invalid_request, "The partition stands in the request twice.")
                partitions.append(_answer(state.catalog.log(topic.name, wanted.partition_index), wanted, committed))
            except ApiError as api_error:
                partitions.append(
                    list_offsets_response.ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index, error_code=api_error.code
                    )
                )
        topics.append(list_offsets_response.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return [Reply(context.ticket, list_offsets_response.ListOffsetsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics)))]


def _answer(
    log: PartitionLog, wanted: list_offsets_request.ListOffsetsPartition, committed: bool
) -> list_offsets_response.ListOffsetsPartitionResponse:
    log.check_epoch(wanted.current_leader_epoch)
    end = log.last_stable_offset if committed else log.high_watermark
    offset, timestamp = _find(log, wanted.timestamp, end)
    return list_offsets_response.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.none,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=log.epochs.epoch_of(offset) if offset >= 0 else _NO_EPOCH,
    )


def _find(log: PartitionLog, timestamp: int, end: int) -> tuple[int, int]:
    """Offset and timestamp, of what lies before ``end``. The ends of a log are no records: they have no timestamp."""
    if timestamp == LATEST:
        return end, _UNKNOWN
    if timestamp == EARLIEST:
        return log.start_offset, _UNKNOWN
    if timestamp < MAX_TIMESTAMP:
        raise ApiError(ErrorCode.unsupported_version, f"Timestamp {timestamp} has no meaning here.")
    found = log.find_largest_time() if timestamp == MAX_TIMESTAMP else log.find_time(timestamp)
    return found if found is not None and found[0] < end else (_UNKNOWN, _UNKNOWN)
