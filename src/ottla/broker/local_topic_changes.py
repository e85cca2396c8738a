"""The changes of topics of a broker that is its whole cluster.

Owns nothing: the catalog has the topics. Must not know requests. Invariant: a change is done when the method returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.topic_changes import TopicChange
from ottla.broker.topics import Topic


class LocalTopicChanges:
    """The changes of a broker that is its whole cluster: they are done when the method returns, or it raises ``ApiError``."""

    def __init__(self, catalog: BrokerCatalog) -> None:
        self._catalog = catalog

    def create(self, name: str, partitions: int, configs: Mapping[str, str], replicas: Sequence[int] | None = None) -> TopicChange:
        """Create a topic."""
        return TopicChange.completed(self._catalog.create_topic(name, partitions, configs))

    def create_missing(self, name: str) -> Topic:
        """Create a topic with the broker's defaults."""
        return self._catalog.create_topic(name, self._catalog.initial_partition_count(name), {})

    def extend(self, topic: Topic, replicas: Sequence[int] | None = None) -> TopicChange:
        """Give a topic more partitions."""
        self._catalog.replace_topic(topic)
        return TopicChange.completed(topic)

    def alter(self, topic: Topic) -> TopicChange:
        """Give a topic other settings."""
        self._catalog.replace_topic(topic)
        return TopicChange.completed(topic)

    def delete(self, topic: Topic) -> TopicChange:
        """Delete a topic."""
        self._catalog.delete_topic(topic)
        return TopicChange.completed(topic)
