"""DeleteRecords (21): a log begins later from now on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.log import PartitionLog
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import delete_records_request, delete_records_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


_ALL, _NONE = -1, -1


@serves(Api.DELETE_RECORDS)
def delete_records(
    state: BrokerState, context: RequestContext, request: delete_records_request.DeleteRecordsRequest, now: Now
) -> list[Effect]:
    """Give up the records before an offset, -1 meaning all; the answer waits until the new beginnings are on disk."""
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
    # Even if the logs already began there: an earlier request may have moved the beginning and failed to store it.
    return state.answer_after(context.ticket, state.catalog.logs.checkpoint_starts(), response, _failed(response))


def _checked(log: PartitionLog, offset: int) -> int:
    """The offset meant; raises ``ApiError``: POLICY_VIOLATION where the log is compacted, OFFSET_OUT_OF_RANGE beyond its end."""
    if log.config.compacted and not log.config.expiring:
        raise ApiError(ErrorCode.policy_violation, f"{log.topic_partition} is not cleaned up by deletion.")
    wanted = log.high_watermark if offset == _ALL else offset
    if not 0 <= wanted <= log.high_watermark:
        raise ApiError(ErrorCode.offset_out_of_range, f"Offset {offset} is not between 0 and {log.high_watermark}.")
    return wanted


def _failed(response: delete_records_response.DeleteRecordsResponse) -> delete_records_response.DeleteRecordsResponse:
    """What is said where the disk failed: the records may come back with the next start."""
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
