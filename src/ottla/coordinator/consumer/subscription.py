"""The topics of a consumer group: the hash of their metadata, and the resolution of regular expressions.

Owns the hash, which is Kafka's, and the times at which regular expressions are resolved. Must not know requests. Invariant: if a
subscribed topic is created, is deleted or gets more partitions, the next heartbeat begins a new group epoch; other topics begin
none.

Source: KIP-1101 for the hash: XXH3 over the id, name and partitions of each topic, then over these hashes in the order of names.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from uuid import UUID

from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.events import RegexResolutionEnded, RegexResolutionStarted, TopicMetadataRefreshed
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.effects import ResolvedRegexes, ResolveRegexes
from ottla.coordinator.events import GroupEpochUpdated, ResolvedRegexUpdated
from ottla.coordinator.ports import GroupContext, TopicImage
from ottla.coordinator.result import Result
from ottla.protocol.group_records import ConsumerGroupMetadataValue, ConsumerGroupRegularExpressionValue
from ottla.types import Now

try:
    from xxhash import xxh3_64_digest
except ImportError:
    xxh3_64_digest = None  # type: ignore[assignment]


def metadata_hash(group: ConsumerGroup, image: TopicImage) -> int:
    """Return a hash of the metadata of the group's topics as they are now; 0 if there are none."""
    content = b""
    for name in sorted(group.subscribed_topics()):
        topic_id, count = image.topic_id(name), image.partition_count(name)
        if topic_id is not None and count is not None:
            content += _topic_hash(topic_id, name, count)
    return int.from_bytes(_digest(content), "big", signed=True) if content else 0


@lru_cache(maxsize=4096)
def _topic_hash(topic_id: UUID, name: str, partitions: int) -> bytes:
    high, low = divmod(topic_id.int, 1 << 64)
    head = b"\0" + struct.pack("<QQ", high, low) + name.encode("utf-16-le") + struct.pack("<ii", len(name), partitions)
    return _digest(head + struct.pack(f"<{partitions}i", *range(partitions)))[::-1]


def _digest(content: bytes) -> bytes:
    """Hash with XXH3, or with BLAKE2 if ``xxhash`` is not installed.

    An Apache Kafka that takes over a log with BLAKE2 hashes sees other numbers and begins one superfluous epoch per group.
    """
    return hashlib.blake2b(content, digest_size=8).digest() if xxh3_64_digest is None else xxh3_64_digest(content)


def begin_epoch_if_changed(draft: ConsumerGroupDraft, image: TopicImage, changed: bool) -> None:
    """Begin a new group epoch if the subscription has ``changed``, or if the metadata of the subscribed topics has."""
    is_current = draft.group.image_version == image.version
    if not changed and is_current:
        return
    number = metadata_hash(draft.group, image)
    if not is_current:
        draft.apply(TopicMetadataRefreshed(draft.group.group_id, image.version))
    if changed or number != draft.group.metadata_hash:
        value = ConsumerGroupMetadataValue(epoch=draft.group.epoch + 1, metadata_hash=number)
        draft.apply(GroupEpochUpdated(draft.group.group_id, value))


def is_resolution_due(group: ConsumerGroup, coordinator: GroupContext, now: Now) -> bool:
    """Whether regular expressions must be resolved: there are new ones, topics have changed, or the refresh interval has passed."""
    if not group.regex_subscribers or group.resolving:
        return False
    if group.regex_version != coordinator.topics.version or not group.regex_subscribers.keys() <= group.regexes.keys():
        return True
    resolved_at = min((resolved.timestamp for resolved in group.regexes.values()), default=0)
    return not _is_recent(coordinator, resolved_at, now)


def resolve_if_due(draft: ConsumerGroupDraft, coordinator: GroupContext) -> None:
    """Start the resolution of the regular expressions if it is due."""
    group = draft.group
    if is_resolution_due(group, coordinator, draft.now):
        regexes = tuple(sorted(group.regex_subscribers))
        draft.apply(RegexResolutionStarted(group.group_id, coordinator.topics.version))
        draft.resolve_regexes(
            ResolveRegexes(group.group_id, regexes, tuple(coordinator.topics.names()), coordinator.topics.version)
        )


def regexes_resolved(coordinator: GroupContext, group: ConsumerGroup, matches: ResolvedRegexes | None, now: Now) -> Result:
    """Store the topics that regular expressions match. ``None``: the resolution failed, and the next heartbeat starts it again."""
    draft = ConsumerGroupDraft(group, now)
    draft.apply(RegexResolutionEnded(group.group_id))
    if matches is None:
        return draft.result()
    changed = False
    for regex in sorted(group.regex_subscribers.keys() & matches.topics.keys()):
        old, topics = group.regexes.get(regex), matches.topics[regex]
        changed = changed or topics != (old.topics if old is not None else ())
        if not _is_stored(coordinator, old, topics, now):
            value = ConsumerGroupRegularExpressionValue(topics=topics, version=matches.version, timestamp=now.wall)
            draft.apply(ResolvedRegexUpdated(group.group_id, regex, value))
    if changed:
        begin_epoch_if_changed(draft, coordinator.topics, changed=True)
    return draft.result()


def _is_stored(
    coordinator: GroupContext, old: ConsumerGroupRegularExpressionValue | None, topics: tuple[str, ...], now: Now
) -> bool:
    """Whether the last record has the same topics and a recent timestamp, so that it need not be written again."""
    if old is None or old.topics != topics:
        return False
    return _is_recent(coordinator, old.timestamp, now)


def _is_recent(coordinator: GroupContext, timestamp: int, now: Now) -> bool:
    """Whether a resolution is younger than the refresh interval. A timestamp in the future dates from before the clock was set back
    and does not count as recent.
    """
    return 0 <= now.wall - timestamp <= coordinator.config.group_consumer_regex_refresh_interval_ms
