"""AlterConfigs (33): the settings of a resource, all that are not named going back to their defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.resources import Change, alter
from ottla.broker.slices import SIZE, Slices
from ottla.coordinator.api_error import ApiError
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import alter_configs_request, alter_configs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState

T = TypeVar("T")


@serves(Api.ALTER_CONFIGS)
def alter_configs(
    state: BrokerState, context: RequestContext, request: alter_configs_request.AlterConfigsRequest, now: Now
) -> list[Effect]:
    """Give each resource the settings named and no others."""
    return state.sliced.begin(context, _slices(state, context, request), now)


def _slices(state: BrokerState, context: RequestContext, request: alter_configs_request.AlterConfigsRequest) -> Slices:

    def change(resource: alter_configs_request.AlterConfigsResource) -> None:
        changes = [(config.name, Change.SET, config.value) for config in resource.configs]
        alter(
            state.catalog,
            resource.resource_type,
            resource.resource_name,
            changes,
            state.alter_settings,
            replacing=True,
            validate_only=request.validate_only,
        )

    responses = yield from each_once(request.resources, change, alter_configs_response.AlterConfigsResourceResponse)
    return [Reply(context.ticket, alter_configs_response.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses))]


def each_once(
    resources: Sequence[Any], change: Callable[[Any], None], told: Callable[..., T]
) -> Generator[list[Effect], None, tuple[T, ...]]:
    """Change each resource, in slices, and return the results; a resource that occurs twice in the request is refused both
    times."""
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
            change(resource)
        except ApiError as api_error:
            code, message = api_error.code, api_error.message
        responses.append(told(error_code=code, error_message=message, resource_type=kind, resource_name=name))
    return tuple(responses)
