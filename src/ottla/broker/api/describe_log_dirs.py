"""DescribeLogDirs (35): the data directory, and what each partition takes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_log_dirs_request, describe_log_dirs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.DESCRIBE_LOG_DIRS)
def describe_log_dirs(
    state: BrokerState, context: RequestContext, request: describe_log_dirs_request.DescribeLogDirsRequest, now: Now
) -> list[Effect]:
    """The partitions asked for, or all; those that do not exist are left out."""
    if request.topics is None:
        wanted = {topic.name: list(topic.partitions) for topic in state.catalog.topics}
    else:
        wanted = {one.topic: list(one.partitions) for one in request.topics}
    topics = []
    for name, numbers in wanted.items():
        topic = state.catalog.topics.get(name)
        if topic is not None:
            partitions = tuple(
                describe_log_dirs_response.DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=state.catalog.logs.get(topic, number).size,
                    offset_lag=0,
                    is_future_key=False,
                )
                for number in numbers
                if number in topic.partitions
            )
            topics.append(describe_log_dirs_response.DescribeLogDirsTopic(name=name, partitions=partitions))
    try:
        disk = state.catalog.disk_usage()
    except OSError:
        result = describe_log_dirs_response.DescribeLogDirsResult(
            error_code=ErrorCode.kafka_storage_error, log_dir=state.catalog.log_dir, topics=()
        )
    else:
        result = describe_log_dirs_response.DescribeLogDirsResult(
            error_code=ErrorCode.none,
            log_dir=state.catalog.log_dir,
            topics=tuple(topics),
            total_bytes=disk.total,
            usable_bytes=disk.usable,
        )
    response = describe_log_dirs_response.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,)
    )
    return [Reply(context.ticket, response)]
