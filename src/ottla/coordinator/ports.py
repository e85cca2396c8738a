"""What the coordinator asks of its surroundings: topics, fresh ids, settings of single groups, assignors.

Owns the interfaces; the broker and the simulator implement them. Invariant: both answer at once and from memory.
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
        """The id of a topic, ``None`` if there is no such topic."""
        ...

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic, ``None`` if there is no such topic."""
        ...

    def partition_count(self, name: str) -> int | None:
        """The number of partitions of a topic, ``None`` if there is no such topic."""
        ...

    def names(self) -> Collection[str]:
        """The names of all topics."""
        ...

    @property
    def version(self) -> int:
        """Grows whenever a topic comes, goes or gets more partitions."""
        ...


class Ids(Protocol):
    """Where random ids come from."""

    def new_id(self) -> str:
        """A random uuid (version 4) in its usual notation; never the same twice."""
        ...


class GroupConfigs(Protocol):
    """The settings of single groups (config resource type GROUP)."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """What was set on a group, by Kafka's names (``consumer.session.timeout.ms``); what was not set is not in there."""
        ...


class NoGroupConfigs:
    """No group has settings of its own."""

    def of_group(self, group_id: str) -> Mapping[str, int]:
        """Nothing was set."""
        return _NOTHING_SET


_NOTHING_SET: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class GroupContext:
    """All that a decision may look at besides the group itself."""

    config: GroupConfig
    """Another one when a setting is changed (``GroupCoordinator.reconfigure``)."""
    topics: TopicImage
    ids: Ids
    assignors: Mapping[str, PartitionAssignor] = field(default_factory=lambda: SERVER_ASSIGNORS)
    """The assignors of consumer groups by the name that members ask for, the default first."""
    configs: GroupConfigs = field(default_factory=NoGroupConfigs)
