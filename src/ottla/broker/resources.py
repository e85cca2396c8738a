"""The settings of a topic, a group or the broker, as they are described and altered.

Owns the order of the sources of a value, and the checks of a change. Must not know requests. Invariants: the first source of a
setting is in effect; a change is stored before it takes effect, completely or not at all.

Source: KIP-226 (sources and synonyms), KIP-339 (incremental changes), KIP-1142 (which resources there are).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BROKER_SETTINGS, CLUSTER_WIDE, GROUP_SETTINGS, TOPIC_SETTINGS, group_settings
from ottla.broker.ports import StoredSettings
from ottla.broker.setting import Setting
from ottla.broker.topic_changes import TopicChange
from ottla.broker.topic_config import NO_CLEANUP
from ottla.broker.topics import Topic, check_name
from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode

Table = Mapping[str, tuple[str, Setting]]


class ResourceType(enum.IntEnum):
    """The types of resources with settings, by the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


KNOWN_TYPES = (*ResourceType, 8, 16)
"""Kafka's types of resources: these, loggers (8) and client metrics (16)."""


class ConfigSource(enum.IntEnum):
    """The source of a value, by the protocol's numbers."""

    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


class ConfigSynonym(NamedTuple):
    """A source of a value. It is in effect if the sources before it have none."""

    name: str
    value: str
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """A setting of a resource, with the sources of its value, the one in effect first.

    A topic's setting without an equivalent broker setting has the topic as its only source, as in Kafka.
    """

    name: str
    setting: Setting
    read_only: bool
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def effective(self) -> ConfigSynonym:
        """The source of the value."""
        return (
            self.synonyms[0]
            if self.synonyms
            else ConfigSynonym(self.name, self.setting.text(self.setting.default), ConfigSource.DEFAULT)
        )


def describe(catalog: BrokerCatalog, kind: int, name: str) -> list[DescribedConfig]:
    """Return the settings of a resource. Raises ``ApiError`` if there is no resource of that type and name."""
    match kind:
        case ResourceType.TOPIC:
            check_name(name)
            return of_topic(catalog, catalog.topic(name))
        case ResourceType.BROKER:
            return _of_broker(catalog, name)
        case ResourceType.GROUP:
            return _of_group(catalog, name)
    raise ApiError(ErrorCode.invalid_request, f"Resource type {kind} has no settings here.")


def names(catalog: BrokerCatalog, kind: ResourceType) -> list[str]:
    """Return the names of the resources of a type."""
    match kind:
        case ResourceType.TOPIC:
            return [topic.name for topic in catalog.topics]
        case ResourceType.BROKER:
            return [str(broker) for broker in catalog.cluster.brokers]
        case ResourceType.GROUP:
            return list(catalog.settings.groups)


def of_topic(catalog: BrokerCatalog, topic: Topic) -> list[DescribedConfig]:
    """Return the settings of a topic: its own, then the broker's defaults. If settings are unknown, ``cleanup.policy`` is empty:
    nothing is cleaned up until they are set."""
    overrides = {**topic.overrides, "cleanup.policy": NO_CLEANUP} if topic.settings_unknown else topic.overrides
    return _describe_overrides(catalog, TOPIC_SETTINGS, overrides, ConfigSource.TOPIC)


def _of_group(catalog: BrokerCatalog, group_id: str) -> list[DescribedConfig]:
    """Return the settings of a group, which may not exist yet."""
    if not group_id:
        raise ApiError(ErrorCode.invalid_request, "Group name must not be empty")
    return _describe_overrides(catalog, GROUP_SETTINGS, catalog.settings.groups.get(group_id, {}), ConfigSource.GROUP)


def _describe_overrides(
    catalog: BrokerCatalog, table: Table, overrides: Mapping[str, str], source: ConfigSource
) -> list[DescribedConfig]:
    described = []
    for name, (_, setting) in table.items():
        value = overrides.get(name)
        own = [ConfigSynonym(name, setting.text(setting.parse(value)), source)] if value is not None else []
        inherited = _synonyms_of_broker(catalog, setting.broker_name) if setting.broker_name is not None else []
        described.append(DescribedConfig(name, setting, False, (*own, *inherited)))
    return described


def _of_broker(catalog: BrokerCatalog, name: str) -> list[DescribedConfig]:
    if name == "":  # what is set for all brokers, and nothing else
        return [
            DescribedConfig(one, BROKER_SETTINGS[one][1], False, (ConfigSynonym(one, value, ConfigSource.CLUSTER),))
            for one, value in catalog.settings.cluster.items()
        ]
    _check_broker(catalog, name)
    return [
        DescribedConfig(one, setting, not setting.dynamic, tuple(_synonyms_of_broker(catalog, one)))
        for one, (_, setting) in BROKER_SETTINGS.items()
    ]


def _synonyms_of_broker(catalog: BrokerCatalog, name: str) -> list[ConfigSynonym]:
    attribute, setting = BROKER_SETTINGS[name]
    if name == _ADVERTISED:  # either given, or the address on which the broker listens
        return [ConfigSynonym(name, catalog.endpoint.listener, ConfigSource.STATIC)]
    started_with = getattr(catalog.static_config, attribute)
    synonyms = [
        ConfigSynonym(name, values[name], source)
        for values, source in ((catalog.settings.broker, ConfigSource.BROKER), (catalog.settings.cluster, ConfigSource.CLUSTER))
        if name in values
    ]
    if name in catalog.static_config.given:
        synonyms.append(ConfigSynonym(name, setting.text(started_with), ConfigSource.STATIC))
    return [*synonyms, ConfigSynonym(name, setting.text(setting.default), ConfigSource.DEFAULT)]


def _check_alone(catalog: BrokerCatalog, what: str, instead: str) -> None:
    """Raise ``ApiError`` if other brokers would not learn of a change."""
    if not catalog.cluster.is_alone:
        raise ApiError(ErrorCode.invalid_request, f"{what} are not shared by brokers with ZooKeeper. {instead}")


def _check_broker(catalog: BrokerCatalog, name: str) -> None:
    if name != str(catalog.node_id):
        raise ApiError(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {catalog.node_id} or empty string, but received {name}"
        )


_ADVERTISED = "advertised.listeners"


class AlterConfigOp(enum.IntEnum):
    """The operation on a setting, by the protocol's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_LISTS = (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT)

Changes = Iterable[tuple[str, int, str | None]]
"""Name, ``AlterConfigOp``, value."""


AlterSettings = Callable[[StoredSettings, bool], None]
"""``BrokerState.alter_settings``: the settings, and whether to only validate them."""


def alter(
    catalog: BrokerCatalog,
    kind: int,
    name: str,
    changes: Changes,
    alter_settings: AlterSettings,
    *,
    replacing: bool,
    validate_only: bool,
) -> TopicChange | None:
    """Change and store settings of a resource; ``replacing``: reset all others. The change of a topic may still be under way.

    Raises ``ApiError``; then nothing has changed.
    """
    changes = list(changes)
    if len({one for one, _, _ in changes}) != len(changes):
        raise ApiError(ErrorCode.invalid_request, "Error due to duplicate config keys")
    missing = next((one for one, change, value in changes if value is None and change != AlterConfigOp.DELETE), None)
    if missing is not None:
        raise ApiError(ErrorCode.invalid_request, f"Null value not supported for : {missing}")
    match kind:
        case ResourceType.TOPIC:
            return _alter_topic(catalog, name, changes, replacing, validate_only)
        case ResourceType.BROKER:
            _alter_broker(catalog, name, changes, alter_settings, replacing, validate_only)
        case ResourceType.GROUP:
            _alter_group(catalog, name, changes, alter_settings, replacing, validate_only)
        case _:
            raise ApiError(ErrorCode.invalid_request, f"Unknown resource type {kind}")
    return None


def _alter_topic(catalog: BrokerCatalog, name: str, changes: Changes, replacing: bool, validate_only: bool) -> TopicChange | None:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    check_name(name)
    topic = catalog.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    present = {described.name: described.effective.value for described in of_topic(catalog, topic)}
    own = {} if replacing else topic.overrides
    altered = catalog.topics.altered(topic, _changed(own, present, changes, TOPIC_SETTINGS))
    return None if validate_only else catalog.changes.alter(altered)


def _alter_broker(
    catalog: BrokerCatalog, name: str, changes: Changes, alter_settings: AlterSettings, replacing: bool, validate_only: bool
) -> None:
    if name:
        _check_broker(catalog, name)
    else:
        _check_alone(catalog, "Settings of all brokers", "Set them on each broker.")
    fixed = [one for one, _, _ in changes if one in BROKER_SETTINGS and not BROKER_SETTINGS[one][1].dynamic]
    if fixed:
        raise ApiError(ErrorCode.invalid_request, f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    present = {one: setting.text(getattr(catalog.config, attribute)) for one, (attribute, setting) in BROKER_SETTINGS.items()}
    stored = catalog.settings
    values = _changed({} if replacing else stored.broker if name else stored.cluster, present, changes, BROKER_SETTINGS)
    _check_cluster_wide(name, [one for one, _, _ in changes] if name else CLUSTER_WIDE.keys() - values)
    alter_settings(stored._replace(broker=values) if name else stored._replace(cluster=values), validate_only)


def _check_cluster_wide(broker: str, touched: Iterable[str]) -> None:
    """Raise ``ApiError`` for a setting that only the cluster has. ``touched``: the settings changed on a broker, or missing from
    the cluster's."""
    fixed = next((one for one in touched if one in CLUSTER_WIDE), None)
    if fixed is not None:
        where = f"altered on broker {broker} alone" if broker else "removed from the cluster's settings"
        raise ApiError(ErrorCode.invalid_config, f"{fixed} cannot be {where}.")


def _alter_group(
    catalog: BrokerCatalog, name: str, changes: Changes, alter_settings: AlterSettings, replacing: bool, validate_only: bool
) -> None:
    if not name:
        raise ApiError(ErrorCode.invalid_request, "Default group resources are not allowed.")
    _check_alone(catalog, "Settings of groups", "Set the brokers' defaults.")
    own = {} if replacing else catalog.settings.groups.get(name, {})
    values = _changed(own, {}, changes, GROUP_SETTINGS)
    try:
        group_settings(values, catalog.config)
    except ConfigError as error:
        raise ApiError(ErrorCode.invalid_config, str(error)) from error
    groups = {group: its for group, its in catalog.settings.groups.items() if group != name}
    alter_settings(catalog.settings._replace(groups={**groups, name: values} if values else groups), validate_only)


def _changed(own: Mapping[str, str], present: Mapping[str, str], changes: Changes, table: Table) -> dict[str, str]:
    """Return the settings of a resource after the changes. APPEND and SUBTRACT change the list in effect, ``present``."""
    result = dict(own)
    for name, change, value in changes:
        if change == AlterConfigOp.DELETE:
            result.pop(name, None)
        elif change == AlterConfigOp.SET:
            result[name] = value or ""
        elif change not in _LISTS:
            raise ApiError(ErrorCode.invalid_request, f"Unknown operation {change} on {name}.")
        elif name not in table or not table[name][1].is_list:
            raise ApiError(
                ErrorCode.invalid_config, f"Can't {AlterConfigOp(change).name} to key {name} because its type is not LIST."
            )
        else:
            result[name] = _changed_list(result.get(name, present[name]), change, value or "")
    return result


def _changed_list(present: str, change: int, value: str) -> str:
    items = [item for item in present.split(",") if item]
    given = [item.strip() for item in value.split(",")]
    if change == AlterConfigOp.APPEND:
        return ",".join([*items, *(item for item in given if item not in items)])
    return ",".join(item for item in items if item not in given)
