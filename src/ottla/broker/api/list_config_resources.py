"""ListConfigResources (74): what has settings of its own (KIP-1142)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.resources import ResourceType, names
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import list_config_resources_request, list_config_resources_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_WITHOUT_ANY = frozenset({_BROKER_LOGGER, _CLIENT_METRICS})
"""Types that Kafka knows and of which there is nothing here."""


@serves(Api.LIST_CONFIG_RESOURCES)
def list_config_resources(
    state: BrokerState, context: RequestContext, request: list_config_resources_request.ListConfigResourcesRequest, now: Now
) -> list[Effect]:
    """The resources of the types asked for, or of all; UNSUPPORTED_VERSION for an unknown type."""
    wanted = request.resource_types if Fact.ANY_RESOURCE in context.facts else (_CLIENT_METRICS,)
    code = ErrorCode.none if set(wanted) <= {*ResourceType, *_WITHOUT_ANY} else ErrorCode.unsupported_version
    resources = tuple(
        list_config_resources_response.ConfigResource(resource_name=name, resource_type=kind)
        for kind in ResourceType
        if code is ErrorCode.none and (not wanted or kind in wanted)
        for name in names(state.catalog, kind)
    )
    response = list_config_resources_response.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE, error_code=code, config_resources=resources
    )
    return [Reply(context.ticket, response)]
