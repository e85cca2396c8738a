"""IncrementalAlterConfigs (44): some settings of a resource, the others staying as they are (KIP-339)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.alter_configs import each_once
from ottla.broker.api.registry import serves
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.resources import alter
from ottla.broker.slices import Slices
from ottla.protocol import NO_THROTTLE
from ottla.protocol.apis import Api
from ottla.protocol.messages import incremental_alter_configs_request, incremental_alter_configs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.state import BrokerState


@serves(Api.INCREMENTAL_ALTER_CONFIGS)
def incremental_alter_configs(
    state: BrokerState, context: RequestContext, request: incremental_alter_configs_request.IncrementalAlterConfigsRequest, now: Now
) -> list[Effect]:
    """Set, delete, append to or subtract from settings."""
    return state.sliced.begin(context, _slices(state, context, request), now)


def _slices(
    state: BrokerState, context: RequestContext, request: incremental_alter_configs_request.IncrementalAlterConfigsRequest
) -> Slices:

    def change(resource: incremental_alter_configs_request.AlterConfigsResource) -> None:
        changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
        alter(
            state.catalog,
            resource.resource_type,
            resource.resource_name,
            changes,
            state.alter_settings,
            replacing=False,
            validate_only=request.validate_only,
        )

    responses = yield from each_once(request.resources, change, incremental_alter_configs_response.AlterConfigsResourceResponse)
    response = incremental_alter_configs_response.IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
    return [Reply(context.ticket, response)]
