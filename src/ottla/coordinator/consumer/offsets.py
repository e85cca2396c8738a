"""Checks of the sender of an OffsetCommit or OffsetFetch for a consumer group.

Owns the checks; ``coordinator.offsets`` does the rest. Invariant: a member cannot commit an offset of a partition that another
member may own by now.

Source: KIP-848 for epochs; KIP-1251 for commits with an older epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordinator.consumer.group import NO_PARTITIONS, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import RequestContext
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.types import TopicPartition


def commit_error(
    group: ConsumerGroup,
    context: RequestContext,
    member_id: str,
    epoch: int,
    partitions: Iterable[TopicPartition],
    image: TopicImage,
) -> ErrorCode | None:
    """Return the error of an OffsetCommit for these partitions, ``None`` if the sender may commit them all.

    Any client may commit offsets of a group without members.
    """
    if epoch < 0 and not group.members:
        return None
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    if not member.uses_classic_protocol and VersionRule.KNOWS_EPOCHS not in context.version_rules:
        return ErrorCode.unsupported_version
    if may_commit(member, epoch, partitions, image):
        return None
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


def may_commit(member: ConsumerGroupMember, epoch: int, partitions: Iterable[TopicPartition], image: TopicImage) -> bool:
    """Whether a member may commit these partitions with this epoch (KIP-1251).

    With its current epoch it may commit any partition. With an older one it may commit the partitions that it has owned since then:

    1. The member sends a commit with its epoch.
    2. Meanwhile its heartbeat brings it to the next epoch, in which it keeps the partition.
    3. The commit arrives with the older epoch. No other member has owned the partition in between, so the offset is valid.
    """
    return epoch == member.epoch or (
        epoch < member.epoch and all(_assignment_epoch(member, partition, image) <= epoch for partition in partitions)
    )


def fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode | None:
    """Return the error of an OffsetFetch by a member, ``None`` if it may fetch. A request without a member id always may."""
    if member_id is None and epoch < 0:
        return None
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    if epoch == member.epoch:
        return None
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


_NOT_OWNED = 2**31


def _assignment_epoch(member: ConsumerGroupMember, partition: TopicPartition, image: TopicImage) -> int:
    """Return the epoch in which a member got a partition that it owns; greater than any epoch if it does not own it."""
    topic_id = image.topic_id(partition.topic)
    if topic_id is None:
        return _NOT_OWNED
    for owned in (member.assigned, member.revoking):
        epoch = owned.get(topic_id, NO_PARTITIONS).get(partition.partition)
        if epoch is not None:
            return epoch
    return _NOT_OWNED
