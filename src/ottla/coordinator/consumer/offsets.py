"""Who may commit and fetch offsets of a consumer group.

Owns the checks; what is done then is the business of ``coordinator.offsets``. Invariant: a member whose partitions may belong to
someone else by now changes no offset.

Source: KIP-848 for epochs; KIP-1251 for commits of an epoch behind.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.coordinator.consumer.group import NO_PARTITIONS, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.ports import TopicImage
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
    """Why offsets of these partitions may not be committed; one partition that may not be spoils them all.

    Without members any client may.
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
    """Whether a member may commit: one of the present epoch any partition, one behind only what it has had since then."""
    return epoch == member.epoch or (epoch < member.epoch and all(_since(member, one, image) <= epoch for one in partitions))


def fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode | None:
    """Why a member may not fetch offsets; a request without a member id may."""
    if member_id is None and epoch < 0:
        return None
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.unknown_member_id
    if epoch == member.epoch:
        return None
    return ErrorCode.illegal_generation if member.uses_classic_protocol else ErrorCode.stale_member_epoch


_NEVER = 2**31


def _since(member: ConsumerGroupMember, partition: TopicPartition, image: TopicImage) -> int:
    """The epoch since which a member has a partition, given back or not."""
    topic_id = image.topic_id(partition.topic)
    if topic_id is None:
        return _NEVER
    for holding in (member.assigned, member.revoking):
        epoch = holding.get(topic_id, NO_PARTITIONS).get(partition.partition)
        if epoch is not None:
            return epoch
    return _NEVER
