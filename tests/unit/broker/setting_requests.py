"""The request that changes settings of a resource."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import Api
from ottla.protocol.messages import incremental_alter_configs_request
from tests.simulation.broker import CoreUnderTest

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def change(broker: CoreUnderTest, kind: int, name: str, *ops: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    """One resource through IncrementalAlterConfigs."""
    configs = tuple(
        incremental_alter_configs_request.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops
    )
    resource = incremental_alter_configs_request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    message = incremental_alter_configs_request.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    return broker.ask(Api.INCREMENTAL_ALTER_CONFIGS, message).responses[0]
