"""CreatePartitions (37)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.api_errors import check_time_left
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.slices import SIZE, Slices
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import create_partitions_request, create_partitions_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.CREATE_PARTITIONS)
def create_partitions(
    state: BrokerState, context: RequestContext, request: create_partitions_request.CreatePartitionsRequest, now: Now
) -> list[Effect]:
    """Give each topic more partitions; a name that stands in the request twice is refused once."""
    return state.sliced.begin(context, _slices(state, context, request), now)


def _slices(state: BrokerState, context: RequestContext, request: create_partitions_request.CreatePartitionsRequest) -> Slices:
    times = Counter(wanted.name for wanted in request.topics)
    results: dict[str, create_partitions_response.CreatePartitionsTopicResult] = {}
    for number, wanted in enumerate(request.topics):
        if number and not number % SIZE:
            yield []
        code, message = ErrorCode.none, None
        try:
            if times[wanted.name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate topic name.")
            check_time_left(request.timeout)
            topic = state.catalog.topics.widened(state.catalog.topic(wanted.name), wanted.count)
            _check_placement(state, wanted, topic.partition_count - state.catalog.topic(wanted.name).partition_count)
            if not request.validate_only:
                state.catalog.replace_topic(topic)
        except ApiError as api_error:
            code, message = api_error.code, api_error.message
        results[wanted.name] = create_partitions_response.CreatePartitionsTopicResult(
            name=wanted.name, error_code=code, error_message=message
        )
    response = create_partitions_response.CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=tuple(results.values()))
    return [Reply(context.ticket, response)]


def _check_placement(state: BrokerState, wanted: create_partitions_request.CreatePartitionsTopic, added: int) -> None:
    """Whether every new partition that is placed by hand has its one replica on this broker."""
    if wanted.assignments is None:
        return
    if len(wanted.assignments) != added:
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) were specified.",
        )
    if any(assignment.broker_ids != (state.catalog.node_id,) for assignment in wanted.assignments):
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"Each new partition must have one replica, on broker {state.catalog.node_id}, the only one.",
        )
