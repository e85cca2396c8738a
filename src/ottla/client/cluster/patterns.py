"""The topics that a subscribed pattern matches, where the client matches it (classic groups).

Owns the check of a pattern, and its meaning in classic groups: Python's ``re``, matched against the whole name, as Java's
``matches()`` does. Must not know requests or states. Invariant: the result depends only on the pattern, the metadata of all topics,
and topics in an assignment of the leader.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from ottla.client.cluster.metadata import MetadataManager
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import ConfigError
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)

_COUNTS = re.compile(r"\{[0-9]+,[0-9]*\}")


def checked(pattern: str, group_protocol: str) -> str:
    """Return the pattern as the group gets it. Raises ``ConfigError`` if it is not a regular expression, or none of this group.

    In consumer groups and in central groups the broker checks it. In a ZooKeeper group it is one of Java, since Java's members read
    it, too.
    """
    if group_protocol == "zookeeper":
        from ottla.zookeeper.topic_filter import TopicFilter

        try:
            return TopicFilter(pattern).pattern
        except ConfigError as error:
            if "," not in pattern:
                raise
            text = f"in the pattern {pattern!r} a comma separates alternatives, as in the topic filters of Kafka 0.8"
            hint = "write a|aa instead of a{1,2}" if _COUNTS.search(pattern) else error.hint
            raise ConfigError(f"{text}: {error.args[0]}", hint=hint, cause=error) from error
    if group_protocol not in ("consumer", "central"):
        try:
            re.compile(pattern)
        except re.error as error:
            where = "" if error.pos is None else f" at position {error.pos}"
            raise ConfigError(f"pattern={pattern!r} is not a regular expression: {error.msg}{where}") from None
    return pattern


class PatternTopics:
    """Updates the topics of a subscription with a pattern; does nothing for a subscription by names."""

    def __init__(self, config: ConsumerConfig, subscription: SubscriptionState, metadata: MetadataManager) -> None:
        self._group_id = config.group_id
        self._exclude_internal = config.exclude_internal_topics
        self._subscription = subscription
        self._metadata = metadata
        self._fresh_after = -1

    def refresh(self) -> None:
        """Match the pattern with the current metadata. If the result has changed, the next poll joins the group again."""
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

    def request_metadata(self) -> None:
        """Request fresh metadata before a join, so that its subscription has all topics that match now."""
        if self._subscription.pattern is not None:
            self._fresh_after = self._metadata.request_update()

    def awaits_metadata(self) -> bool:
        """Whether the join must wait for the metadata of ``request_metadata``."""
        return self._subscription.pattern is not None and self._metadata.current.version <= self._fresh_after

    def allows(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the subscription covers an assignment.

        The leader may have newer metadata than this member, and assign a topic that matches the pattern but is unknown here.
        """
        topics, pattern = self._subscription.topics, self._subscription.pattern
        unknown = frozenset(tp.topic for tp in partitions) - topics
        return not unknown or (pattern is not None and all(re.fullmatch(pattern, topic) for topic in unknown))
