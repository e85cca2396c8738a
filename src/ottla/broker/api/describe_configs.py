"""DescribeConfigs (32): the settings that are honoured, of the broker and of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.broker.api.registry import serves
from ottla.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, Setting
from ottla.broker.effects import Effect, Reply, RequestContext
from ottla.broker.refusal import Refusal
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import describe_configs_request, describe_configs_response
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

_TOPIC, _BROKER = 2, 4
_FROM_TOPIC, _FROM_BROKER, _FROM_DEFAULT = 1, 4, 5

Row = tuple[str, Setting, str, int]
"""Name, setting, value, and where the value comes from."""


@serves(Api.DESCRIBE_CONFIGS)
def describe_configs(
    core: BrokerCore, context: RequestContext, request: describe_configs_request.DescribeConfigsRequest, now: Now
) -> list[Effect]:
    """The settings of each resource; those asked for by name, or all."""
    results = []
    for resource in request.resources:
        code, message, rows = ErrorCode.none, None, list[Row]()
        try:
            rows = _rows(core, resource)
        except Refusal as refusal:
            code, message = refusal.code, refusal.message
        results.append(
            describe_configs_response.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_described(core, row, request) for row in rows),
            )
        )
    response = describe_configs_response.DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=tuple(results))
    return [Reply(context.ticket, response)]


def _rows(core: BrokerCore, resource: describe_configs_request.DescribeConfigsResource) -> list[Row]:
    if resource.resource_type == _TOPIC:
        topic = core.topic(resource.resource_name)
        rows = [
            (name, setting, setting.text(getattr(topic.config, attribute)), _source(core, name, setting, topic.overrides))
            for name, (attribute, setting) in TOPIC_SETTINGS.items()
        ]
    elif resource.resource_type == _BROKER:
        if resource.resource_name not in ("", str(core.node_id)):
            raise Refusal(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {core.node_id} but received {resource.resource_name}"
            )
        rows = [
            (name, setting, setting.text(getattr(core.config, attribute)), _broker_source(core.config, attribute, setting))
            for name, (attribute, setting) in BROKER_SETTINGS.items()
        ]
    else:
        raise Refusal(ErrorCode.invalid_request, f"Resource type {resource.resource_type} has no settings here.")
    wanted = resource.configuration_keys
    return [row for row in rows if wanted is None or row[0] in wanted]


def _source(core: BrokerCore, name: str, setting: Setting, overrides: Mapping[str, str]) -> int:
    if name in overrides:
        return _FROM_TOPIC
    if setting.broker_name is None:
        return _FROM_DEFAULT
    attribute, of_broker = BROKER_SETTINGS[setting.broker_name]
    return _broker_source(core.config, attribute, of_broker)


def _broker_source(config: BrokerConfig, attribute: str, setting: Setting) -> int:
    return _FROM_DEFAULT if getattr(config, attribute) == setting.default else _FROM_BROKER


def _described(
    core: BrokerCore, row: Row, request: describe_configs_request.DescribeConfigsRequest
) -> describe_configs_response.DescribeConfigsResourceResult:
    name, setting, value, source = row
    return describe_configs_response.DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=name in BROKER_SETTINGS,
        config_source=source,
        is_sensitive=False,
        synonyms=_synonyms(core, row) if request.include_synonyms else (),
        config_type=int(setting.kind),
        documentation=setting.doc if request.include_documentation else None,
    )


def _synonyms(core: BrokerCore, row: Row) -> tuple[describe_configs_response.DescribeConfigsSynonym, ...]:
    """Where the value could come from, the place that it does come from first."""
    name, setting, value, source = row
    rows = [(name, value, source)] if source != _FROM_DEFAULT else []
    of_broker = BROKER_SETTINGS.get(setting.broker_name or "")
    if of_broker is not None:
        attribute, setting = of_broker
        value = setting.text(getattr(core.config, attribute))
        rows += [(setting.name, value, _FROM_BROKER)] if source == _FROM_TOPIC and value != setting.text(setting.default) else []
    rows.append((setting.name, setting.text(setting.default), _FROM_DEFAULT))
    return tuple(describe_configs_response.DescribeConfigsSynonym(name=one, value=text, source=at) for one, text, at in rows)
