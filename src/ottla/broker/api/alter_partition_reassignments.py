"""AlterPartitionReassignments (45): a partition can be given to this broker alone, which has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import alter_partition_reassignments_request, alter_partition_reassignments_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.ALTER_PARTITION_REASSIGNMENTS)
def alter_partition_reassignments(
    state: BrokerState,
    context: RequestContext,
    request: alter_partition_reassignments_request.AlterPartitionReassignmentsRequest,
    now: Now,
) -> list[Effect]:
    """Check what is asked for partition by partition; where it can be, it is so already."""
    responses = tuple(
        alter_partition_reassignments_response.ReassignableTopicResponse(
            name=topic.name, partitions=tuple(_answered(state, topic.name, wanted) for wanted in topic.partitions)
        )
        for topic in request.topics
    )
    response = alter_partition_reassignments_response.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.none,
        error_message=None,
        responses=responses,
    )
    return [Reply(context.ticket, response)]


def _answered(
    state: BrokerState, topic: str, wanted: alter_partition_reassignments_request.ReassignablePartition
) -> alter_partition_reassignments_response.ReassignablePartitionResponse:
    code, message = ErrorCode.none, None
    try:
        state.catalog.log(topic, wanted.partition_index)
        _check_replicas(state, wanted.replicas)
    except ApiError as api_error:
        code, message = api_error.code, api_error.message
    return alter_partition_reassignments_response.ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_code=code, error_message=message
    )


def _check_replicas(state: BrokerState, replicas: tuple[int, ...] | None) -> None:
    """Whether the replicas are this broker and no other; ``None`` would end a reassignment, and none is going on."""
    if replicas is None:
        raise ApiError(ErrorCode.no_reassignment_in_progress, "No reassignment of the partition is going on.")
    if replicas != (state.catalog.node_id,):
        message = f"The partition must have one replica, on broker {state.catalog.node_id}, the only one."
        raise ApiError(ErrorCode.invalid_replica_assignment, message)
