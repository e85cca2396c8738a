"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where the offsets of a log begin, end, and change epochs.

Owns the checks of these requests. Must not know segments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.log import PartitionLog
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    delete_records_request,
    delete_records_response,
    list_offsets_request,
    list_offsets_response,
    offset_for_leader_epoch_request,
    offset_for_leader_epoch_response,
)
from ottla.types import IsolationLevel, Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
_UNKNOWN = -1
_NO_EPOCH = -1


@serves(Api.LIST_OFFSETS)
def list_offsets(
    state: BrokerState, context: RequestContext, request: list_offsets_request.ListOffsetsRequest, now: Now
) -> list[BrokerEffect]:
    """Return one offset per partition; -1 with timestamp -1 if no record matches."""
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
                    raise ApiError(ErrorCode.invalid_request, "The partition occurs twice in the request.")
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
    log.check_leader_epoch(wanted.current_leader_epoch)
    end = log.last_stable_offset if committed else log.high_watermark
    offset, timestamp = _find(log, wanted.timestamp, end)
    return list_offsets_response.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        error_code=ErrorCode.none,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=log.leader_epochs.epoch_for_offset(offset) if offset >= 0 else _NO_EPOCH,
    )


def _find(log: PartitionLog, timestamp: int, end: int) -> tuple[int, int]:
    """Return offset and timestamp of a position before ``end``. The ends of a log are no records: they have no timestamp."""
    if timestamp == LATEST:
        return end, _UNKNOWN
    if timestamp == EARLIEST:
        return log.start_offset, _UNKNOWN
    if timestamp < MAX_TIMESTAMP:
        raise ApiError(ErrorCode.unsupported_version, f"Timestamp {timestamp} has no meaning here.")
    found = log.find_max_timestamp() if timestamp == MAX_TIMESTAMP else log.find_offset_by_timestamp(timestamp)
    return found if found is not None and found[0] < end else (_UNKNOWN, _UNKNOWN)


@serves(Api.OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(
    state: BrokerState, context: RequestContext, request: offset_for_leader_epoch_request.OffsetForLeaderEpochRequest, now: Now
) -> list[BrokerEffect]:
    """Return for each partition the largest epoch up to the requested one, and its end; -1 and -1 if there is none."""
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            code, epoch, offset = ErrorCode.none, -1, -1
            try:
                log = state.catalog.log(topic.topic, wanted.partition)
                log.check_leader_epoch(wanted.current_leader_epoch)
                epoch, offset = log.leader_epochs.end_offset_for(wanted.leader_epoch, log.end_offset)
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


_ALL, _NONE = -1, -1


@serves(Api.DELETE_RECORDS)
def delete_records(
    state: BrokerState, context: RequestContext, request: delete_records_request.DeleteRecordsRequest, now: Now
) -> list[BrokerEffect]:
    """Delete the records before an offset (-1: all); the response waits until the new start offsets are on disk."""
    topics = []
    done = False
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            code, start = ErrorCode.none, _NONE
            try:
                log = state.catalog.log(topic.name, wanted.partition_index)
                state.catalog.delete_records(log, _checked(log, wanted.offset))
                start, done = log.start_offset, True
            except ApiError as api_error:
                code = api_error.code
            partitions.append(
                delete_records_response.DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=start, error_code=code
                )
            )
        topics.append(delete_records_response.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(partitions)))
    response = delete_records_response.DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))
    if not done:
        return [Reply(context.ticket, response)]
    # Even if the logs already began there: 1. An earlier request moved the start offset. 2. The checkpoint could not be written. 3.
    # The client repeats the request, which must write it.
    return state.reply_after(context.ticket, state.catalog.logs.checkpoint_starts(), response, _failed(response))


def _checked(log: PartitionLog, offset: int) -> int:
    """Return the offset. Raises ``ApiError``: POLICY_VIOLATION if the log is only compacted, OFFSET_OUT_OF_RANGE beyond its end."""
    if log.config.compacted and not log.config.expiring:
        raise ApiError(ErrorCode.policy_violation, f"The cleanup.policy of {log.topic_partition} does not have delete.")
    wanted = log.high_watermark if offset == _ALL else offset
    if not 0 <= wanted <= log.high_watermark:
        raise ApiError(ErrorCode.offset_out_of_range, f"Offset {offset} is not between 0 and {log.high_watermark}.")
    return wanted


def _failed(response: delete_records_response.DeleteRecordsResponse) -> delete_records_response.DeleteRecordsResponse:
    """Return the response after a disk failure: the records may be there again after the next start."""
    return replace(
        response,
        topics=tuple(
            replace(
                topic,
                partitions=tuple(
                    replace(one, error_code=one.error_code or ErrorCode.kafka_storage_error, low_watermark=_NONE)
                    for one in topic.partitions
                ),
            )
            for topic in response.topics
        ),
    )
