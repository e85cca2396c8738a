"""The interfaces that the coordinator needs: topics, random ids, settings of single groups, assignors.

The broker and the tests' simulation implement them. Invariant: implementations answer from memory, without blocking.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.coordinator.config import GroupConfig


class TopicImage(Protocol):
    """The topics as they are now."""

    def topic_id(self, name: str) -> uuid.UUID | None:
        """Return the id of a topic, ``None`` if it does not exist."""
        ...

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the name of a topic, ``None`` if it does not exist."""
        ...

    def partition_count(self, name: str) -> int | None:
        """Return the number of partitions of a topic, ``None`` if it does not exist."""
        ...

    def names(self) -> Collection[str]:
        """Return the names of all topics."""
        ...

    @property
    def version(self) -> int:
        """A number that grows whenever a topic is created, is deleted or gets more partitions."""
        ...


class Ids(Protocol):
    """The source of random ids."""

    def new_id(self) -> str:
        """Return a random UUID (version 4) in its usual notation."""
        ...


class GroupConfigs(Protocol):
    """The settings of single groups (config resource type GROUP)."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Return the group's own settings by Kafka's names (``consumer.session.timeout.ms``), without defaults."""
        ...


class NoGroupConfigs:
    """No group has settings of its own."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Return an empty mapping."""
        return _NOTHING_SET


_NOTHING_SET: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class GroupContext:
    """The inputs of a decision besides the group."""

    config: GroupConfig
    """Replaced when a setting changes (``GroupCoordinator.reconfigure``)."""
    topics: TopicImage
    ids: Ids
    assignors: Mapping[str, PartitionAssignor] = field(default_factory=lambda: SERVER_ASSIGNORS)
    """The server-side assignors by name, the default first."""
    configs: GroupConfigs = field(default_factory=NoGroupConfigs)
