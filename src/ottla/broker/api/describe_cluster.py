"""DescribeCluster (60): one broker, which is its own controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.operations import CLUSTER_OPERATIONS, NOT_ASKED
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_cluster_request, describe_cluster_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

_BROKERS, _CONTROLLERS = 1, 2


@serves(Api.DESCRIBE_CLUSTER)
def describe_cluster(
    state: BrokerState, context: RequestContext, request: describe_cluster_request.DescribeClusterRequest, now: Now
) -> list[Effect]:
    """This broker; controllers are not to be talked to here."""
    code, message = ErrorCode.none, None
    if request.endpoint_type == _CONTROLLERS:
        code, message = ErrorCode.mismatched_endpoint_type, "The request was sent to a broker, not to a controller."
    elif request.endpoint_type != _BROKERS:
        code, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {request.endpoint_type}."
    brokers = (
        describe_cluster_response.DescribeClusterBroker(
            broker_id=state.catalog.node_id, host=state.catalog.endpoint.host, port=state.catalog.endpoint.port, is_fenced=False
        ),
    )
    asked = request.include_cluster_authorized_operations
    response = describe_cluster_response.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        endpoint_type=request.endpoint_type,
        cluster_id=state.catalog.cluster_id,
        controller_id=state.catalog.node_id,
        brokers=brokers if code is ErrorCode.none else (),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked and code is ErrorCode.none else NOT_ASKED,
    )
    return [Reply(context.ticket, response)]
