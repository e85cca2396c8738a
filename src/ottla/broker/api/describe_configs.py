"""DescribeConfigs (32): the settings that are honoured, of the broker and of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.resources import KNOWN_TYPES, Described, describe
from ottla.broker.slices import SIZE, Slices
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_configs_request, describe_configs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.DESCRIBE_CONFIGS)
def describe_configs(
    state: BrokerState, context: RequestContext, request: describe_configs_request.DescribeConfigsRequest, now: Now
) -> list[Effect]:
    """The settings of each resource; those asked for by name, or all."""
    return state.sliced.begin(context, _slices(state, context, request), now)


def _slices(state: BrokerState, context: RequestContext, request: describe_configs_request.DescribeConfigsRequest) -> Slices:
    unknown = any(resource.resource_type not in KNOWN_TYPES for resource in request.resources)
    results = []
    for number, resource in enumerate(request.resources):
        if number and not number % SIZE:
            yield []
        code, message, found = ErrorCode.none, "", list[Described]()
        wanted = resource.configuration_keys
        try:
            if unknown:  # Kafka says so of the whole request
                raise ApiError(ErrorCode.invalid_request, "The request names a resource type that there is not.")
            found = describe(state.catalog, resource.resource_type, resource.resource_name)
        except ApiError as api_error:
            code, message = api_error.code, api_error.message
        results.append(
            describe_configs_response.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_described(one, request) for one in found if wanted is None or one.name in wanted),
            )
        )
    response = describe_configs_response.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
    return [Reply(context.ticket, response)]


def _described(
    described: Described, request: describe_configs_request.DescribeConfigsRequest
) -> describe_configs_response.DescribeConfigsResourceResult:
    holds = described.holds
    synonyms = tuple(
        describe_configs_response.DescribeConfigsSynonym(name=place.name, value=place.value, source=place.source)
        for place in described.synonyms
    )
    return describe_configs_response.DescribeConfigsResourceResult(
        name=described.name,
        value=holds.value,
        read_only=described.read_only,
        config_source=holds.source,
        is_sensitive=False,
        synonyms=synonyms if request.include_synonyms else (),
        config_type=described.setting.kind,
        documentation=described.setting.doc if request.include_documentation else None,
    )
