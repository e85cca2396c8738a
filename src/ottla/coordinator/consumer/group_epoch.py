"""The epoch of a consumer group: when it is bumped, and the hash that shows that the metadata of its topics has changed.

Owns the hash, which is Kafka's. Must not know requests. Invariant: if a subscribed topic is created, is deleted or gets more
partitions, the next heartbeat begins a new group epoch; other topics begin none.

Source: KIP-1101 for the hash: XXH3 over the id, name and partitions of each topic, then over these hashes in the order of names.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from uuid import UUID

from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.machine import ConsumerGroupDraft, TopicMetadataRefreshed
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.events import GroupEpochUpdated
from ottla.protocol.group_records import ConsumerGroupMetadataValue

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


def bump_epoch_if_changed(draft: ConsumerGroupDraft, image: TopicImage, changed: bool) -> None:
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
