"""FindCoordinator (10): the leader of its partition coordinates a group or a transactional id. The first request creates the
coordinator's topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_request, find_coordinator_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

_GROUP, _TRANSACTION = 0, 1


@serves(Api.FIND_COORDINATOR)
def find_coordinator(
    state: BrokerState, context: RequestContext, request: find_coordinator_request.FindCoordinatorRequest, now: Now
) -> list[BrokerEffect]:
    """Return the broker for each group and transactional id; share groups have no coordinator here."""
    coordinators = tuple(_coordinator(state, key, request.key_type) for key in request.coordinator_keys)
    response = find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators)
    return [Reply(context.ticket, response)]


def _coordinator(state: BrokerState, key: str, key_type: int) -> find_coordinator_response.Coordinator:
    try:
        _check(state, key_type)
        endpoint = (state.groups if key_type == _GROUP else state.transactions).coordinator_of(key)
        if endpoint is None:
            raise ApiError(ErrorCode.coordinator_not_available, f"There is no coordinator for '{key}' now.")
    except ApiError as api_error:
        return find_coordinator_response.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=api_error.code, error_message=api_error.message
        )
    return find_coordinator_response.Coordinator(
        key=key, node_id=endpoint.node_id, host=endpoint.host, port=endpoint.port, error_code=ErrorCode.none, error_message=None
    )


def _check(state: BrokerState, key_type: int) -> None:
    if key_type == _TRANSACTION:
        state.transactions.check_alone()
        state.transactions.ensure_topic()
    elif key_type == _GROUP:
        state.groups.ensure_topic()
    else:
        raise ApiError(ErrorCode.invalid_request, f"There is no coordinator of type {key_type} here.")
