"""FindCoordinator (10): the leader of its partition coordinates a group or a transactional id, and the elected broker
a central group. The first request creates the coordinator's topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, NodeEndpoint, Reply, RequestContext
from ottla.broker.slices import Slices, Wait
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_request, find_coordinator_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.central_coordinator_service import CentralCoordinatorService
    from ottla.broker.state import BrokerState

_GROUP, _TRANSACTION = 0, 1


@serves(Api.FIND_COORDINATOR)
def find_coordinator(
    state: BrokerState, context: RequestContext, request: find_coordinator_request.FindCoordinatorRequest, now: Now
) -> list[BrokerEffect]:
    """Return the broker for each group and transactional id; share groups have no coordinator here."""
    if state.central is None or request.key_type != _GROUP:
        return [_response(state, context, request, now)]
    return state.sliced_requests.begin(context, _after_lookup(state, state.central, context, request, now), now)


def _after_lookup(
    state: BrokerState,
    central: CentralCoordinatorService,
    context: RequestContext,
    request: find_coordinator_request.FindCoordinatorRequest,
    now: Now,
) -> Slices:
    """Answer when it is known which groups are central. If ZooKeeper does not tell in time, what was known last is true."""
    lookup = central.look(request.coordinator_keys, now)
    while not lookup.is_done:
        yield Wait.FOR_ANSWER
    return [_response(state, context, request, now)]


def _response(
    state: BrokerState, context: RequestContext, request: find_coordinator_request.FindCoordinatorRequest, now: Now
) -> Reply:
    coordinators = tuple(_coordinator(state, key, request.key_type, now) for key in request.coordinator_keys)
    response = find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators)
    return Reply(context.ticket, response)


def _coordinator(state: BrokerState, key: str, key_type: int, now: Now) -> find_coordinator_response.Coordinator:
    try:
        endpoint = _endpoint(state, key, key_type, now)
        if endpoint is None:
            raise ApiError(ErrorCode.coordinator_not_available, f"There is no coordinator for '{key}' now.")
    except ApiError as api_error:
        return find_coordinator_response.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=api_error.code, error_message=api_error.message
        )
    return find_coordinator_response.Coordinator(
        key=key, node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, error_code=ErrorCode.none, error_message=None
    )


def _endpoint(state: BrokerState, key: str, key_type: int, now: Now) -> NodeEndpoint | None:
    if key_type == _GROUP and state.central is not None and state.central.is_central(key):
        return state.central.endpoint(now)
    _check(state, key_type)
    return (state.groups if key_type == _GROUP else state.transactions).coordinator_of(key)


def _check(state: BrokerState, key_type: int) -> None:
    if key_type == _TRANSACTION:
        state.transactions.check_alone()
        state.transactions.ensure_topic()
    elif key_type == _GROUP:
        state.groups.ensure_topic()
    else:
        raise ApiError(ErrorCode.invalid_request, f"There is no coordinator of type {key_type} here.")
