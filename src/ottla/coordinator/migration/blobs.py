"""What members of the classic protocol say to one another, put into the terms of consumer groups and back.

Owns the mapping between blobs, which name topics, and assignments, which hold their ids. Must not know groups. Invariant: a member
is answered in the version of the blob that it wrote itself.

Source: KIP-848, "Consumer protocol upgrade/downgrade".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.coordinator.classic.group import Protocols
from ottla.coordinator.ports import TopicImage
from ottla.protocol.consumer_protocol import Assignment, decode_subscription, encode_assignment, version_of
from ottla.protocol.group_records import ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataValue
from ottla.types import TopicPartition

Partitions = dict[UUID, set[int]]


def by_topic_id(partitions: Iterable[TopicPartition], image: TopicImage) -> Partitions:
    """Partitions of topics that exist."""
    found: Partitions = {}
    for topic, partition in partitions:
        topic_id = image.topic_id(topic)
        if topic_id is not None:
            found.setdefault(topic_id, set()).add(partition)
    return found


def assignment_blob(partitions: Mapping[UUID, Iterable[int]], image: TopicImage, subscription: bytes) -> bytes:
    """An assignment as the member reads it that wrote this ``subscription``."""
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
    """What a member of the classic protocol asks for, as a consumer group keeps it. Raises ``ProtocolError`` for odd bytes."""
    wanted = decode_subscription(subscription)
    return ConsumerGroupMemberMetadataValue(
        instance_id=instance_id,
        rack_id=wanted.rack,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=tuple(sorted(set(wanted.topics))),
        rebalance_timeout_ms=rebalance_timeout,
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=session_timeout,
            supported_protocols=tuple(ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols),
        ),
    )


def protocols_of(metadata: ConsumerGroupMemberMetadataValue) -> Protocols:
    """The assignors that a member of the classic protocol knows."""
    classic = metadata.classic_member_metadata
    return () if classic is None else tuple((one.name, one.metadata) for one in classic.supported_protocols)
