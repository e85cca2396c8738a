"""TxnOffsetCommit: offsets that become committed when a producer's transaction is committed.

Owns the checks of the sender and of the offsets. Must not know whether the transaction exists: the transaction coordinator has
verified that before. Invariant: these offsets are pending, and not visible, until the transaction's marker commits them.

Source: KIP-98, KIP-447 (the request has the member's id and generation, so that a replaced member is fenced).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.coordinator.classic.group import ClassicGroup, generation_error
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.consumer.group import ConsumerGroup, may_commit
from ottla.coordinator.decision import GroupContext, Result, TopicImage
from ottla.coordinator.effects import ProducerStamp, RequestContext
from ottla.coordinator.events import TransactionalOffsetCommitted
from ottla.coordinator.state import Group, ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import txn_offset_commit_request, txn_offset_commit_response
from ottla.types import Now, TopicPartition

_CommitRequest = txn_offset_commit_request.TxnOffsetCommitRequest
_CommitPartition = txn_offset_commit_request.TxnOffsetCommitRequestPartition
_ErrorOf = Callable[[str, _CommitPartition], ErrorCode]


def commit_in_transaction(
    coordinator: GroupContext, state: ShardState, context: RequestContext, request: _CommitRequest, now: Now
) -> Result:
    """Store the offsets of a transaction as pending, or answer with an error for each partition."""
    group = state.group(request.group_id)
    if group is None and state.pending.of_group(request.group_id):
        group = ClassicGroup(request.group_id)  # without members and committed offsets so far
    existing = [
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
        if _exists(coordinator.topics, topic.name, one)
    ]
    group_error = _group_error(group, request, existing, coordinator.topics)

    def error_of(topic: str, partition: _CommitPartition) -> ErrorCode:
        if not _exists(coordinator.topics, topic, partition):
            return ErrorCode.unknown_topic_or_partition
        if group_error is not None:
            return group_error
        too_large = len(partition.committed_metadata or "") > coordinator.config.offset_metadata_max_bytes
        return ErrorCode.offset_metadata_too_large if too_large else ErrorCode.none

    producer = ProducerStamp(request.producer_id, request.producer_epoch)
    committed = tuple(
        TransactionalOffsetCommitted(request.group_id, TopicPartition(topic.name, one.partition_index), _value(one, now), producer)
        for topic in request.topics
        for one in topic.partitions
        if error_of(topic.name, one) is ErrorCode.none
    )
    answer = _answer(request, error_of)
    if not isinstance(group, ClassicGroup) or not committed or request.member_id not in group.members:
        return Result(committed, answer=answer)
    draft = ClassicGroupDraft(group, now)
    draft.refresh_session(group.members[request.member_id])
    return Result(committed, draft.result().effects, answer)


def commit_in_transaction_refused(
    request: _CommitRequest, topics: TopicImage | None, error: ErrorCode
) -> txn_offset_commit_response.TxnOffsetCommitResponse:
    """Return the response with an error to a TxnOffsetCommit; with ``topics``, partitions that do not exist get their own error."""
    unknown = ErrorCode.unknown_topic_or_partition
    return _answer(request, lambda topic, one: error if topics is None or _exists(topics, topic, one) else unknown)


def has_only_unknown_partitions(request: _CommitRequest, topics: TopicImage) -> bool:
    """Whether no partition of the request exists, so that its sender need not be verified."""
    return not any(_exists(topics, topic.name, one) for topic in request.topics for one in topic.partitions)


def _exists(topics: TopicImage, topic: str, partition: _CommitPartition) -> bool:
    return 0 <= partition.partition_index < (topics.partition_count(topic) or 0)


def _group_error(
    group: Group | None, request: _CommitRequest, partitions: Iterable[TopicPartition], image: TopicImage
) -> ErrorCode | None:
    """Return the error of a sender that may not commit for the group.

    A request without a member is allowed: producers from before KIP-447 are fenced by their transactional id alone.
    """
    is_anonymous = request.generation_id < 0 and not request.member_id and request.group_instance_id is None
    if is_anonymous:
        return None
    if group is None:
        return None if request.generation_id < 0 else ErrorCode.illegal_generation
    if request.generation_id < 0 and not group.members:
        return None
    if isinstance(group, ConsumerGroup):
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        return None if may_commit(member, request.generation_id, partitions, image) else ErrorCode.illegal_generation
    return generation_error(group, request.member_id, request.group_instance_id, request.generation_id)


def _value(partition: _CommitPartition, now: Now) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now.wall,
    )


def _answer(request: _CommitRequest, error_of: _ErrorOf) -> txn_offset_commit_response.TxnOffsetCommitResponse:
    return txn_offset_commit_response.TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            txn_offset_commit_response.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    txn_offset_commit_response.TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=error_of(topic.name, one)
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
