"""What the coordinator asks of its surroundings: topics and fresh ids.

Owns the interfaces; the broker and the simulator implement them. Invariant: both answer at once and from memory.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Protocol

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


class Ids(Protocol):
    """Where random ids come from."""

    def new_id(self) -> str:
        """A random uuid (version 4) in its usual notation; never the same twice."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that a decision may look at besides the group itself."""

    config: GroupConfig
    topics: TopicImage
    ids: Ids
