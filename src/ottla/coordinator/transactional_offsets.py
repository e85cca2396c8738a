"""TxnOffsetCommit: where a group will stand if a producer's transaction is committed.

Owns who may commit in a transaction, and what. Must not know whether there is such a transaction: that was asked before. Invariant:
what is written here is invisible until the transaction's marker commits it.

Source: KIP-98, KIP-447 (members say who they are, so that one that was replaced is fenced).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.coordinator.classic.draft import ClassicGroupDraft
from ottla.coordinator.classic.group import ClassicGroup
from ottla.coordinator.classic.validate import generation_error
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.offsets import may_commit
from ottla.coordinator.effects import ProducerStamp, RequestContext
from ottla.coordinator.events import TransactionalOffsetCommitted
from ottla.coordinator.ports import GroupContext, TopicImage
from ottla.coordinator.result import Result
from ottla.coordinator.state import Group, ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import txn_offset_commit_request, txn_offset_commit_response
from ottla.types import Now, TopicPartition

Request = txn_offset_commit_request.TxnOffsetCommitRequest
Wanted = txn_offset_commit_request.TxnOffsetCommitRequestPartition
Verdict = Callable[[str, Wanted], ErrorCode]


def commit_in_transaction(
    coordinator: GroupContext, state: ShardState, context: RequestContext, request: Request, now: Now
) -> Result:
    """Write offsets that count once the transaction is committed, or say for each partition why not."""
    group = state.group(request.group_id)
    if group is None and state.pending.of_group(request.group_id):
        group = ClassicGroup(request.group_id)  # without members, and without committed offsets so far
    there = [
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
        if _exists(coordinator.topics, topic.name, one)
    ]
    refused = _group_error(group, request, there, coordinator.topics)

    def verdict(topic: str, partition: Wanted) -> ErrorCode:
        if not _exists(coordinator.topics, topic, partition):
            return ErrorCode.unknown_topic_or_partition
        if refused is not None:
            return refused
        too_large = len(partition.committed_metadata or "") > coordinator.config.offset_metadata_max_bytes
        return ErrorCode.offset_metadata_too_large if too_large else ErrorCode.none

    producer = ProducerStamp(request.producer_id, request.producer_epoch)
    written = tuple(
        TransactionalOffsetCommitted(request.group_id, TopicPartition(topic.name, one.partition_index), _value(one, now), producer)
        for topic in request.topics
        for one in topic.partitions
        if verdict(topic.name, one) is ErrorCode.none
    )
    answer = _answer(request, verdict)
    if not isinstance(group, ClassicGroup) or not written or request.member_id not in group.members:
        return Result(written, answer=answer)
    draft = ClassicGroupDraft(group, now)
    draft.refresh_session(group.members[request.member_id])
    return Result(written, draft.result().effects, answer)


def commit_in_transaction_refused(
    request: Request, topics: TopicImage | None, error: ErrorCode
) -> txn_offset_commit_response.TxnOffsetCommitResponse:
    """The answer to a TxnOffsetCommit of which nothing was written; where the topics are known, it says which do not exist."""
    unknown = ErrorCode.unknown_topic_or_partition
    return _answer(request, lambda topic, one: error if topics is None or _exists(topics, topic, one) else unknown)


def names_nothing_known(request: Request, topics: TopicImage) -> bool:
    """Whether no partition of the request exists: then its sender does not matter."""
    return not any(_exists(topics, topic.name, one) for topic in request.topics for one in topic.partitions)


def _exists(topics: TopicImage, topic: str, partition: Wanted) -> bool:
    return 0 <= partition.partition_index < (topics.partition_count(topic) or 0)


def _group_error(
    group: Group | None, request: Request, partitions: Iterable[TopicPartition], image: TopicImage
) -> ErrorCode | None:
    """Whether the sender may commit for the group. One that names no member may: its transactional id alone fences it."""
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


def _value(partition: Wanted, now: Now) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now.wall,
    )


def _answer(request: Request, verdict: Verdict) -> txn_offset_commit_response.TxnOffsetCommitResponse:
    return txn_offset_commit_response.TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            txn_offset_commit_response.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    txn_offset_commit_response.TxnOffsetCommitResponsePartition(
                        partition_index=one.partition_index, error_code=verdict(topic.name, one)
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
