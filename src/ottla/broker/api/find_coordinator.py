"""FindCoordinator (10): of every group, this broker. The first question brings ``__consumer_offsets`` into being."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.refusal import NO_TRANSACTIONS, Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import find_coordinator_request, find_coordinator_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

_GROUP, _TRANSACTION = 0, 1


@serves(Api.FIND_COORDINATOR)
def find_coordinator(
    core: BrokerCore, context: RequestContext, request: find_coordinator_request.FindCoordinatorRequest, now: Now
) -> list[Effect]:
    """This broker for groups; transactions and share groups have no coordinator here."""
    code, message = ErrorCode.none, None
    try:
        _check(core, request.key_type)
    except Refusal as refusal:
        code, message = refusal.code, refusal.message
    found = code is ErrorCode.none
    coordinators = tuple(
        find_coordinator_response.Coordinator(
            key=key,
            node_id=core.node_id if found else -1,
            host=core.endpoint.host if found else "",
            port=core.endpoint.port if found else -1,
            error_code=code,
            error_message=message,
        )
        for key in request.coordinator_keys
    )
    response = find_coordinator_response.FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=coordinators)
    return [Reply(context.ticket, response)]


def _check(core: BrokerCore, key_type: int) -> None:
    if key_type == _TRANSACTION:
        raise Refusal(NO_TRANSACTIONS, "Transactions are not served by this broker.")
    if key_type != _GROUP:
        raise Refusal(ErrorCode.invalid_request, f"There is no coordinator of type {key_type} here.")
    core.groups.ensure_topic()
