"""Conversion between the blobs of the classic consumer protocol and the values of consumer groups.

Owns the mapping between blobs, which have names of topics, and assignments, which have their ids. Must not know groups. Invariant:
an assignment for a member is encoded in the version of the subscription that the member sent.

Source: KIP-848, "Consumer protocol upgrade/downgrade".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.coordinator.classic.group import Protocols
from ottla.coordinator.decision import TopicImage
from ottla.protocol.consumer_protocol import Assignment, decode_subscription, encode_assignment, version_of
from ottla.protocol.group_records import ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataValue
from ottla.types import TopicPartition

Partitions = dict[UUID, set[int]]


def by_topic_id(partitions: Iterable[TopicPartition], image: TopicImage) -> Partitions:
    """Return the partitions by topic id, without those of unknown topics."""
    by_id: Partitions = {}
    for topic, partition in partitions:
        topic_id = image.topic_id(topic)
        if topic_id is not None:
            by_id.setdefault(topic_id, set()).add(partition)
    return by_id


def assignment_blob(partitions: Mapping[UUID, Iterable[int]], image: TopicImage, subscription: bytes) -> bytes:
    """Return the encoded assignment for a member, in the version of its ``subscription``."""
    named = tuple(
        TopicPartition(name, number)
        for topic_id, numbers in partitions.items()
        if (name := image.name_of(topic_id)) is not None
        for number in sorted(numbers)
    )
    return encode_assignment(Assignment(named), version_of(subscription))


def member_metadata(
    protocols: Protocols,
    subscription: bytes,
    *,
    instance_id: str | None,
    client_id: str,
    client_host: str,
    rebalance_timeout: int,
    session_timeout: int,
) -> ConsumerGroupMemberMetadataValue:
    """Return a classic member's metadata in the form of a consumer group. Raises ``ProtocolError`` for malformed bytes."""
    decoded = decode_subscription(subscription)
    return ConsumerGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=decoded.rack,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=tuple(sorted(set(decoded.topics))),
        rebalance_timeout_ms=rebalance_timeout,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=session_timeout,
            supported_protocols=tuple(ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols),
        ),
    )


def protocols_of(metadata: ConsumerGroupMemberMetadataValue) -> Protocols:
    """Return the assignors that a member of the classic protocol supports; none for a member of the consumer protocol."""
    classic = metadata.classic_member_metadata
    return () if classic is None else tuple((one.name, one.metadata) for one in classic.supported_protocols)
