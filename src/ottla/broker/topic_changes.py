"""The changes of topics that clients request: created, extended, altered and deleted topics.

Owns the interface of what carries them out. Must not know requests, nor where topics are stored. Invariants: a change is whole or
not at all; it has one outcome, after which nothing of it happens any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ottla.broker.topics import Topic
from ottla.coordinator.effects import ApiError


class TopicChange:
    """A change that was begun, and its outcome once it has one."""

    def __init__(self) -> None:
        self._topic: Topic | None = None
        self._error: ApiError | None = None

    @classmethod
    def completed(cls, topic: Topic) -> TopicChange:
        """Return a change that has succeeded already."""
        change = cls()
        change.succeed(topic)
        return change

    @property
    def is_done(self) -> bool:
        """Whether it has an outcome."""
        return self._topic is not None or self._error is not None

    def succeed(self, topic: Topic) -> None:
        """End it: ``topic`` is the topic after the change, or the one that was deleted."""
        if not self.is_done:
            self._topic = topic

    def fail(self, error: ApiError) -> None:
        """End it with an error."""
        if not self.is_done:
            self._error = error

    def result(self) -> Topic:
        """Return the topic after the change, or the one that was deleted. Raises ``ApiError``. Only once it is done."""
        if self._error is not None:
            raise self._error
        assert self._topic is not None, "the change is not done"
        return self._topic


class TopicChanges(Protocol):
    """Begins changes. The caller has checked them against the topics that are known; each may still fail. Each method raises
    ``ApiError`` if the change cannot even begin."""

    def create(self, name: str, partitions: int, configs: Mapping[str, str], replicas: Sequence[int] | None = None) -> TopicChange:
        """Create a topic. ``replicas``: the broker of each partition; ``None``: the cluster places them."""

    def create_missing(self, name: str) -> Topic:
        """Create a topic that a client has asked for, with the broker's defaults, and return it.

        Raises ``ApiError``: LEADER_NOT_AVAILABLE while it is being created.
        """

    def extend(self, topic: Topic, replicas: Sequence[int] | None = None) -> TopicChange:
        """Give a topic the partition count of ``topic``. ``replicas``: the broker of each new partition."""

    def alter(self, topic: Topic) -> TopicChange:
        """Give a topic the settings of ``topic``."""

    def delete(self, topic: Topic) -> TopicChange:
        """Delete a topic."""
