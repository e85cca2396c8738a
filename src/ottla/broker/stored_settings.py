"""Stored settings that this release does not honour, or that damage has taken: which they are, and what is said of them.

Owns the separation of settings by known names, and the words for the log. Must not know how settings are stored. Invariant: what is
separated and merged again is what was stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ottla.broker.config import BROKER_SETTINGS, GROUP_SETTINGS
from ottla.broker.ports import StoredSettings
from ottla.broker.topics import Topic

_NAMED = 50
"""Topics named in one line of the log."""


def split(settings: StoredSettings) -> tuple[StoredSettings, StoredSettings]:
    """The settings that this release knows by name, and the others."""
    groups = {group: _split(values, GROUP_SETTINGS) for group, values in settings.groups.items()}
    broker, cluster = _split(settings.broker, BROKER_SETTINGS), _split(settings.cluster, BROKER_SETTINGS)
    known, unknown = (
        StoredSettings(broker[row], cluster[row], {group: both[row] for group, both in groups.items() if both[row]})
        for row in (0, 1)
    )
    return known, unknown


def merged(settings: StoredSettings, others: StoredSettings) -> StoredSettings:
    """Both of them, as they are stored."""
    if not any(others):
        return settings
    groups = {group: {**others.groups.get(group, {}), **values} for group, values in settings.groups.items()}
    return StoredSettings({**others.broker, **settings.broker}, {**others.cluster, **settings.cluster}, {**others.groups, **groups})


def describe_damage(topics: Iterable[Topic], not_honoured: StoredSettings) -> list[str]:
    """What an operator has to know at a start, in words."""
    said, unknown = [], []
    for topic in topics:
        if topic.settings_unknown:
            unknown.append(topic.name)
        if topic.not_honoured:
            settings = ", ".join(f"{name}={value}" for name, value in topic.not_honoured.items())
            said.append(f"topic {topic.name} has settings that this release does not support; they are kept: {settings}")
    if unknown:
        said.append(
            f"the settings of {len(unknown)} topic(s) are unknown, so nothing in them is deleted or compacted until "
            f"settings are set (ottla topic alter TOPIC --config NAME=VALUE): {_listed(unknown)}"
        )
    if any(not_honoured):
        names = {*not_honoured.broker, *not_honoured.cluster, *(name for group in not_honoured.groups.values() for name in group)}
        said.append(f"settings that this release does not support are kept: {', '.join(sorted(names))}")
    return said


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _split(values: Mapping[str, str], known: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    honoured = {name: value for name, value in values.items() if name in known}
    return honoured, {name: value for name, value in values.items() if name not in known}
