"""What a consumer group is subscribed to: a number that tells its topics apart, and the matching of regular expressions.

Owns the hash of the topics, which is Kafka's, and when expressions are matched. Must not know requests. Invariant: a group whose
topics come, go or grow gets a new epoch with the next heartbeat, and a group that they do not concern gets none.

Source: KIP-1101 for the hash: XXH3 over what matters of each topic, then over these hashes in the order of names.
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
    """A number for the topics that a group is subscribed to, as they are now; 0 if there are none."""
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
    """Without XXH3 another hash serves; a Kafka that reads this log finds other numbers and begins one epoch more than it need."""
    return hashlib.blake2b(content, digest_size=8).digest() if xxh3_64_digest is None else xxh3_64_digest(content)


def begin_epoch_if_changed(draft: ConsumerGroupDraft, image: TopicImage, changed: bool) -> None:
    """Begin a new group epoch if the subscription has ``changed``, or if what is subscribed to is not what it was."""
    looked_at = draft.group.image_version == image.version
    if not changed and looked_at:
        return
    number = metadata_hash(draft.group, image)
    if not looked_at:
        draft.apply(TopicMetadataRefreshed(draft.group.group_id, image.version))
    if changed or number != draft.group.metadata_hash:
        value = ConsumerGroupMetadataValue(epoch=draft.group.epoch + 1, metadata_hash=number)
        draft.apply(GroupEpochUpdated(draft.group.group_id, value))


def is_resolution_due(group: ConsumerGroup, coordinator: GroupContext, now: Now) -> bool:
    """Whether regular expressions must be matched: new ones, all of them when topics have come or gone, and now and then anyway."""
    if not group.regex_subscribers or group.resolving:
        return False
    if group.regex_version != coordinator.topics.version or not group.regex_subscribers.keys() <= group.regexes.keys():
        return True
    matched_at = min((one.timestamp for one in group.regexes.values()), default=0)
    return not _is_recent(coordinator, matched_at, now)


def resolve_if_due(draft: ConsumerGroupDraft, coordinator: GroupContext) -> None:
    """Have the regular expressions matched, if it is time."""
    group = draft.group
    if is_resolution_due(group, coordinator, draft.now):
        regexes = tuple(sorted(group.regex_subscribers))
        draft.apply(RegexResolutionStarted(group.group_id, coordinator.topics.version))
        draft.send(ResolveRegexes(group.group_id, regexes, tuple(coordinator.topics.names()), coordinator.topics.version))


def regexes_resolved(coordinator: GroupContext, group: ConsumerGroup, matches: ResolvedRegexes | None, now: Now) -> Result:
    """Apply what expressions match now. ``None``: unknown, so the next heartbeat resolves them again."""
    draft = ConsumerGroupDraft(group, now)
    draft.apply(RegexResolutionEnded(group.group_id))
    if matches is None:
        return draft.result()
    changed = False
    for regex in sorted(group.regex_subscribers.keys() & matches.topics.keys()):
        known, topics = group.regexes.get(regex), matches.topics[regex]
        changed = changed or topics != (known.topics if known is not None else ())
        if not _is_fresh(coordinator, known, topics, now):
            value = ConsumerGroupRegularExpressionValue(topics=topics, version=matches.version, timestamp=now.wall)
            draft.apply(ResolvedRegexUpdated(group.group_id, regex, value))
    if changed:
        begin_epoch_if_changed(draft, coordinator.topics, changed=True)
    return draft.result()


def _is_fresh(
    coordinator: GroupContext, known: ConsumerGroupRegularExpressionValue | None, topics: tuple[str, ...], now: Now
) -> bool:
    """Whether the record need not be written again."""
    if known is None or known.topics != topics:
        return False
    return _is_recent(coordinator, known.timestamp, now)


def _is_recent(coordinator: GroupContext, timestamp: int, now: Now) -> bool:
    """Whether it need not be matched again already. What was matched in the future, was before the clock was set back."""
    return 0 <= now.wall - timestamp <= coordinator.config.group_consumer_regex_refresh_interval_ms
