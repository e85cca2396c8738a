"""ElectLeaders (43): each partition is led by its one replica, so no election is ever needed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import elect_leaders_request, elect_leaders_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


class ElectionType(enum.IntEnum):
    """The election type, by the protocol's numbers: the first of the replicas, or any that is left (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@serves(Api.ELECT_LEADERS)
def elect_leaders(
    state: BrokerState, context: RequestContext, request: elect_leaders_request.ElectLeadersRequest, now: Now
) -> list[Effect]:
    """Say of each partition asked about that it needs no election; of all partitions, each topic is named and that is all."""
    known = request.election_type in list(ElectionType)
    if request.topic_partitions is None:
        asked: list[tuple[str, tuple[int, ...]]] = [(topic.name, ()) for topic in state.catalog.topics] if known else []
    else:
        asked = [(one.topic, one.partitions) for one in request.topic_partitions]
    results = tuple(
        elect_leaders_response.ReplicaElectionResult(
            topic=topic, partition_result=tuple(_result(state, request.election_type, topic, partition) for partition in partitions)
        )
        for topic, partitions in asked
    )
    response = elect_leaders_response.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.invalid_request,
        replica_election_results=results,
    )
    return [Reply(context.ticket, response)]


def _result(state: BrokerState, kind: int, topic: str, partition: int) -> elect_leaders_response.PartitionResult:
    try:
        if kind not in list(ElectionType):
            raise ApiError(ErrorCode.invalid_request, f"There is no election type {kind}.")
        state.catalog.log(topic, partition)
        raise ApiError(ErrorCode.election_not_needed, "The partition is led by its one replica.")
    except ApiError as api_error:
        return elect_leaders_response.PartitionResult(
            partition_id=partition, error_code=api_error.code, error_message=api_error.message
        )
