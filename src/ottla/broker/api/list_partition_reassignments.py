"""ListPartitionReassignments (46): with one broker nothing ever moves; ``kafka-topics --describe`` asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import list_partition_reassignments_request, list_partition_reassignments_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.LIST_PARTITION_REASSIGNMENTS)
def list_partition_reassignments(
    state: BrokerState,
    context: RequestContext,
    request: list_partition_reassignments_request.ListPartitionReassignmentsRequest,
    now: Now,
) -> list[Effect]:
    """No reassignment is going on."""
    response = list_partition_reassignments_response.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, topics=()
    )
    return [Reply(context.ticket, response)]
