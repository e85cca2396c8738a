"""AlterReplicaLogDirs (34): there is one data directory, and every partition is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import alter_replica_log_dirs_request, alter_replica_log_dirs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.ALTER_REPLICA_LOG_DIRS)
def alter_replica_log_dirs(
    state: BrokerState, context: RequestContext, request: alter_replica_log_dirs_request.AlterReplicaLogDirsRequest, now: Now
) -> list[Effect]:
    """Let partitions stay where they are; of a partition that is named twice, the last directory counts."""
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for partition in topic.partitions:
                wanted.setdefault(topic.name, {})[partition] = directory.path
    results = tuple(
        alter_replica_log_dirs_response.AlterReplicaLogDirTopicResult(
            topic_name=name,
            partitions=tuple(
                alter_replica_log_dirs_response.AlterReplicaLogDirPartitionResult(
                    partition_index=partition,
                    error_code=_outcome(state, name, partition) if path == state.catalog.log_dir else ErrorCode.log_dir_not_found,
                )
                for partition, path in paths.items()
            ),
        )
        for name, paths in wanted.items()
    )
    response = alter_replica_log_dirs_response.AlterReplicaLogDirsResponse(throttle_time=NO_THROTTLE, results=results)
    return [Reply(context.ticket, response)]


def _outcome(state: BrokerState, topic: str, partition: int) -> ErrorCode:
    try:
        state.catalog.log(topic, partition)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.none
