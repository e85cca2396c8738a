"""AlterConfigs, IncrementalAlterConfigs, DescribeConfigs and ListConfigResources.

Owns the shape of the requests and responses. Must not know which settings there are (``resources``). Invariant: each resource has
its own result, and its changes are made whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.api.registry import serves
from ottla.broker.effects import BrokerEffect, Reply, RequestContext
from ottla.broker.resources import KNOWN_TYPES, AlterConfigOp, Changes, DescribedConfig, ResourceType, alter, describe, names
from ottla.broker.slices import SIZE, Slices, Wait, until_done
from ottla.coordinator.effects import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import (
    alter_configs_request,
    alter_configs_response,
    describe_configs_request,
    describe_configs_response,
    incremental_alter_configs_request,
    incremental_alter_configs_response,
    list_config_resources_request,
    list_config_resources_response,
)
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


T = TypeVar("T")


@serves(Api.ALTER_CONFIGS)
def alter_configs(
    state: BrokerState, context: RequestContext, request: alter_configs_request.AlterConfigsRequest, now: Now
) -> list[BrokerEffect]:
    """Give each resource the named settings and no others."""
    return state.sliced_requests.begin(context, _alter_configs_slices(state, context, request), now)


def _altered(
    state: BrokerState,
    resources: Sequence[Any],
    changes_of: Callable[[Any], Changes],
    result_class: Callable[..., T],
    *,
    replacing: bool,
    validate_only: bool,
) -> Generator[list[BrokerEffect] | Wait, None, tuple[T, ...]]:
    """Change each resource, in slices, and return the results; a resource that occurs twice in the request is refused both
    times. ``changes_of``: the changes of one resource."""
    times = Counter((one.resource_type, one.resource_name) for one in resources)
    responses = []
    for number, resource in enumerate(resources):
        if number and not number % SIZE:
            yield []
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.none, None
        try:
            if times[kind, name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            changes = changes_of(resource)
            change = alter(
                state.catalog, kind, name, changes, state.alter_settings, replacing=replacing, validate_only=validate_only
            )
            if change is not None:
                yield from until_done(change)
                change.result()
        except ApiError as api_error:
            code, message = api_error.code, api_error.message
        responses.append(result_class(error_code=code, error_message=message, resource_type=kind, resource_name=name))
    return tuple(responses)


def _alter_configs_slices(
    state: BrokerState, context: RequestContext, request: alter_configs_request.AlterConfigsRequest
) -> Slices:
    responses = yield from _altered(
        state,
        request.resources,
        lambda resource: [(config.name, AlterConfigOp.SET, config.value) for config in resource.configs],
        alter_configs_response.AlterConfigsResourceResponse,
        replacing=True,
        validate_only=request.validate_only,
    )
    return [Reply(context.ticket, alter_configs_response.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses))]


def _incremental_alter_configs_slices(
    state: BrokerState, context: RequestContext, request: incremental_alter_configs_request.IncrementalAlterConfigsRequest
) -> Slices:
    responses = yield from _altered(
        state,
        request.resources,
        lambda resource: [(config.name, config.config_operation, config.value) for config in resource.configs],
        incremental_alter_configs_response.AlterConfigsResourceResponse,
        replacing=False,
        validate_only=request.validate_only,
    )
    response = incremental_alter_configs_response.IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
    return [Reply(context.ticket, response)]


@serves(Api.INCREMENTAL_ALTER_CONFIGS)
def incremental_alter_configs(
    state: BrokerState, context: RequestContext, request: incremental_alter_configs_request.IncrementalAlterConfigsRequest, now: Now
) -> list[BrokerEffect]:
    """Set, delete, append to or subtract from settings."""
    return state.sliced_requests.begin(context, _incremental_alter_configs_slices(state, context, request), now)


@serves(Api.DESCRIBE_CONFIGS)
def describe_configs(
    state: BrokerState, context: RequestContext, request: describe_configs_request.DescribeConfigsRequest, now: Now
) -> list[BrokerEffect]:
    """Describe the settings of each resource: those requested by name, or all."""
    return state.sliced_requests.begin(context, _describe_configs_slices(state, context, request), now)


def _describe_configs_slices(
    state: BrokerState, context: RequestContext, request: describe_configs_request.DescribeConfigsRequest
) -> Slices:
    unknown = any(resource.resource_type not in KNOWN_TYPES for resource in request.resources)
    results = []
    for number, resource in enumerate(request.resources):
        if number and not number % SIZE:
            yield []
        code, message, found = ErrorCode.none, "", list[DescribedConfig]()
        wanted = resource.configuration_keys
        try:
            if unknown:  # as in Kafka, this fails the whole request
                raise ApiError(ErrorCode.invalid_request, "The request has an unknown resource type.")
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
    described: DescribedConfig, request: describe_configs_request.DescribeConfigsRequest
) -> describe_configs_response.DescribeConfigsResourceResult:
    holds = described.effective
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


_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_WITHOUT_ANY = frozenset({_BROKER_LOGGER, _CLIENT_METRICS})
"""Kafka's types that have no resources here."""


@serves(Api.LIST_CONFIG_RESOURCES)
def list_config_resources(
    state: BrokerState, context: RequestContext, request: list_config_resources_request.ListConfigResourcesRequest, now: Now
) -> list[BrokerEffect]:
    """List the resources of the requested types, or of all; UNSUPPORTED_VERSION for an unknown type."""
    wanted = request.resource_types if VersionRule.ANY_RESOURCE in context.version_rules else (_CLIENT_METRICS,)
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
