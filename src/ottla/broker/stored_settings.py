"""Stored settings that this release does not support, or that damage has destroyed.

Owns the separation of settings by names and values, and the messages for the log. Must not know how settings are stored. Invariant:
merging separated settings gives the stored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.broker.config import BROKER_SETTINGS, GROUP_SETTINGS, BrokerConfig, group_bound
from ottla.broker.ports import StoredSettings
from ottla.broker.topics import Topic
from ottla.types import short_list

_NAMED = 50
"""Topics named in one line of the log."""


def split_supported(settings: StoredSettings) -> tuple[StoredSettings, StoredSettings]:
    """Return the supported settings, and the others. An unsupported value of a broker's setting stays with the first, and fails the
    start: such a setting may decide which records are deleted."""
    groups = {group: _split(values, _is_of_group) for group, values in settings.groups.items()}
    broker, cluster = (_split(values, _is_of_broker) for values in (settings.broker, settings.cluster))
    known, unknown = (
        StoredSettings(broker[row], cluster[row], {group: both[row] for group, both in groups.items() if both[row]})
        for row in (0, 1)
    )
    return known, unknown


def merge(settings: StoredSettings, others: StoredSettings) -> StoredSettings:
    """Merge supported and unsupported settings, to be stored."""
    if not any(others):
        return settings
    groups = {group: {**others.groups.get(group, {}), **values} for group, values in settings.groups.items()}
    return StoredSettings({**others.broker, **settings.broker}, {**others.cluster, **settings.cluster}, {**others.groups, **groups})


def describe_damage(topics: Iterable[Topic], unsupported: StoredSettings) -> list[str]:
    """Return messages for the operator at a start."""
    messages, unknown = [], []
    for topic in topics:
        if topic.settings_unknown:
            unknown.append(topic.name)
        if topic.unsupported:
            settings = ", ".join(f"{name}={value}" for name, value in topic.unsupported.items())
            messages.append(f"topic {topic.name} has settings that this release does not support; they are kept: {settings}")
    if unknown:
        messages.append(
            f"the settings of {len(unknown)} topic(s) are unknown, so nothing in them is deleted or compacted until "
            f"settings are set (ottla topic alter TOPIC --config NAME=VALUE): {_listed(unknown)}"
        )
    if any(unsupported):
        tables = [unsupported.broker, unsupported.cluster, *unsupported.groups.values()]
        shown = sorted({f"{name}={value}" for table in tables for name, value in table.items()})
        messages.append(f"settings of the broker or of groups that this release does not support are kept: {', '.join(shown)}")
    return messages


def _listed(names: Collection[str]) -> str:
    return short_list(sorted(names), _NAMED)


def _is_of_broker(name: str, value: str) -> bool:
    return name in BROKER_SETTINGS


def _is_of_group(name: str, value: str) -> bool:
    return name in GROUP_SETTINGS and GROUP_SETTINGS[name][1].accepts(value)


def _split(values: Mapping[str, str], is_known: Callable[[str, str], bool]) -> tuple[dict[str, str], dict[str, str]]:
    honoured = {name: value for name, value in values.items() if is_known(name, value)}
    return honoured, {name: value for name, value in values.items() if name not in honoured}


class StoredGroupConfigs:
    """The lookup of ``GroupConfigs`` in the current settings."""

    def __init__(self, settings: Callable[[], StoredSettings], broker: Callable[[], BrokerConfig]) -> None:
        self._settings = settings
        self._broker = broker

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Return the settings of a group, by Kafka's names, without those that are not set."""
        stored = self._settings().groups.get(group_id)
        if not stored:
            return {}
        broker = self._broker()
        return {
            name: max(group_bound(name, "min", broker), min(int(value), group_bound(name, "max", broker)))
            for name, value in stored.items()
        }
