"""Which topics a pattern matches, where the client has to find that out itself.

Owns the meaning of a pattern in a classic group: Python's ``re``, matched against the whole name, as Java's ``matches()`` does.
Must not know requests or states. Invariant: what a pattern matches depends on the pattern and the metadata of all topics alone,
and on what the leader of the group knew before us.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from ottla.client.cluster.metadata import MetadataManager
from ottla.client.subscription import Subscription
from ottla.config import ConsumerConfig
from ottla.errors import ConfigError
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)


def check(pattern: str) -> None:
    """Raises ``ConfigError`` for what is not a regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        raise ConfigError(f"pattern={pattern!r} is not a regular expression: {error.msg}{where}") from None


class PatternTopics:
    """Keeps the topics of a subscription what its pattern matches; does nothing for a subscription by names."""

    def __init__(self, config: ConsumerConfig, subscription: Subscription, metadata: MetadataManager) -> None:
        self._group_id = config.group_id
        self._exclude_internal = config.exclude_internal_topics
        self._subscription = subscription
        self._metadata = metadata
        self._fresh_after = -1

    def refresh(self) -> None:
        """Match again, if there is new metadata; the next poll joins again if the result has changed."""
        pattern, current = self._subscription.pattern, self._metadata.current
        if pattern is None or not self._metadata.follows_all or not current.version:
            return
        topics = frozenset(
            name
            for name, topic in current.topics.items()
            if topic.error is None and not (self._exclude_internal and topic.is_internal) and re.fullmatch(pattern, name)
        )
        if topics != self._subscription.topics:
            _log.info("group %r: %r now matches %s", self._group_id, pattern, ", ".join(sorted(topics)) or "no topic")
            self._subscription.subscribe(topics, pattern)

    def look_again(self) -> None:
        """A join begins: it is to name what there is now."""
        if self._subscription.pattern is not None:
            self._fresh_after = self._metadata.request_update()

    def awaits_metadata(self) -> bool:
        """Whether the join has to wait for what ``look_again`` asked for."""
        return self._subscription.pattern is not None and self._metadata.current.version <= self._fresh_after

    def allows(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether all of an assignment is subscribed to. The leader may know of topics that match before we do."""
        topics, pattern = self._subscription.topics, self._subscription.pattern
        unknown = frozenset(tp.topic for tp in partitions) - topics
        return not unknown or (pattern is not None and all(re.fullmatch(pattern, topic) for topic in unknown))
