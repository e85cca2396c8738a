"""Deletion of offsets and groups: with their topic, by age, or on request.

Owns the rules of retention, of OffsetDelete and of DeleteGroups. Must not know how a decision is stored. Invariant: the offsets of
a topic that a group subscribes to are not deleted while the topic exists, and no group with members is deleted.

Source: KIP-211 (retention), KIP-496 (OffsetDelete) and the behaviour of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, subscribed_topics
from ottla.coordinator.consumer.fencing import deletion_events
from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupState
from ottla.coordinator.decision import GroupContext, Result, session_timer
from ottla.coordinator.effects import CancelTimer, RequestContext
from ottla.coordinator.events import GroupMetadataDeleted, OffsetDeleted
from ottla.coordinator.state import Group, ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import delete_groups_request, delete_groups_response, offset_delete_request, offset_delete_response
from ottla.types import Now, TopicPartition

_EMPTY = (ClassicGroupState.EMPTY, ConsumerGroupState.EMPTY)
_CONSUMER = "consumer"
"""The protocol type of groups whose subscriptions the coordinator can read."""


# With their topic.


def has_offsets_of(state: ShardState, group_id: str, topics: Collection[str]) -> bool:
    """Whether a group has committed offsets of one of these topics."""
    return any(partition.topic in topics for partition in (*state.offsets(group_id), *state.pending.of_group(group_id)))


def delete_offsets_of_topics(coordinator: GroupContext, state: ShardState, group_id: str, topics: Collection[str]) -> Result:
    """Delete a group's offsets of deleted topics, except those committed for a topic that was created again with the same name."""
    deleted = tuple(
        OffsetDeleted(group_id, partition)
        for partition, value in state.offsets(group_id).items()
        if partition.topic in topics and not _is_of_topic(value, coordinator.topics.topic_id(partition.topic))
    )
    pending = sorted(
        partition
        for partition in state.pending.of_group(group_id)
        if partition.topic in topics and coordinator.topics.topic_id(partition.topic) is None
    )
    return Result(tuple(dict.fromkeys((*deleted, *(OffsetDeleted(group_id, partition) for partition in pending)))))


def _is_of_topic(value: OffsetCommitValue, topic_id: object) -> bool:
    return topic_id is not None and value.topic_id in (None, topic_id)


# By age.


def expire_offsets(coordinator: GroupContext, state: ShardState, group_id: str, now: Now) -> Result:
    """Delete the expired offsets of a group, and the group itself if it is empty and has no offsets left."""
    group = state.group(group_id)
    if group is None:
        return Result()
    offsets = state.offsets(group_id)
    retention = coordinator.config.offsets_retention_ms
    if offsets and not _may_expire(group):
        return Result()
    topics = _subscribed_topics(group)
    pending = state.pending.of_group(group_id)
    expired = tuple(
        partition
        for partition, value in offsets.items()
        if partition not in pending
        and not _is_subscribed(group, topics, partition.topic)
        and _has_expired(group, value, retention, now.wall)
    )
    if len(expired) == len(offsets) and not pending and group.state in _EMPTY:
        return _delete(state, group)
    return Result(tuple(OffsetDeleted(group_id, partition) for partition in expired))


def _subscribed_topics(group: Group) -> Collection[str] | None:
    return group.subscribed_topics() if isinstance(group, ConsumerGroup) else subscribed_topics(group)


def _may_expire(group: Group) -> bool:
    """Whether offsets of the group can expire. Those of a classic group that rebalances cannot: its next topics are unknown."""
    if isinstance(group, ConsumerGroup):
        return True
    reads = group.protocol_type == _CONSUMER and group.state is ClassicGroupState.STABLE and subscribed_topics(group) is not None
    return group.protocol_type is None or group.state is ClassicGroupState.EMPTY or reads


def _has_expired(group: Group, value: OffsetCommitValue, retention: int, now: int) -> bool:
    """Whether the retention time has passed since the commit and, for a classic group, since the group became empty (KIP-211).

    In an empty classic group Apache Kafka counts from the time when the group became empty even if the commit is newer.

    Clients before OffsetCommit version 5 may have set their own retention time, which is stored as the time of expiry.
    """
    if value.expire_timestamp != -1:
        return value.expire_timestamp <= now
    if isinstance(group, ConsumerGroup):
        return now - value.commit_timestamp >= retention
    became_empty = group.since if group.protocol_type is not None and group.state is ClassicGroupState.EMPTY else -1
    return now - max(value.commit_timestamp, became_empty) >= retention


def _is_subscribed(group: Group, topics: Collection[str] | None, topic: str) -> bool:
    """Whether the group subscribes to a topic; ``True`` if its members are consumers with unknown topics."""
    if topics is not None:
        return topic in topics
    return isinstance(group, ClassicGroup) and group.protocol_type == _CONSUMER


# By request.


def delete_offsets(
    coordinator: GroupContext,
    state: ShardState,
    context: RequestContext,
    request: offset_delete_request.OffsetDeleteRequest,
    now: Now,
) -> Result:
    """Handle an OffsetDelete: delete offsets of topics that the group does not subscribe to."""
    group = state.group(request.group_id)
    error = _offset_delete_error(request, group)
    if error is not None or group is None:
        return Result(answer=offset_delete_refused(error or ErrorCode.group_id_not_found))
    subscribed = _subscribed_topics(group)
    deleted: dict[TopicPartition, None] = {}
    topics = []
    for topic in request.topics:
        is_subscribed = _is_subscribed(group, subscribed, topic.name)
        answers = []
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            error = _partition_error(coordinator, partition, is_subscribed)
            answers.append(
                offset_delete_response.OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error)
            )
            exists = partition in state.offsets(request.group_id) or partition in state.pending.of_group(request.group_id)
            if error is ErrorCode.none and exists:
                deleted[partition] = None
        topics.append(offset_delete_response.OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(answers)))
    answer = offset_delete_response.OffsetDeleteResponse(error_code=ErrorCode.none, throttle_time=NO_THROTTLE, topics=tuple(topics))
    return Result(tuple(OffsetDeleted(request.group_id, partition) for partition in deleted), answer=answer)


def offset_delete_refused(error: ErrorCode) -> offset_delete_response.OffsetDeleteResponse:
    """Return the response with an error to an OffsetDelete."""
    return offset_delete_response.OffsetDeleteResponse(error_code=error, throttle_time=NO_THROTTLE, topics=())


def _offset_delete_error(request: offset_delete_request.OffsetDeleteRequest, group: Group | None) -> ErrorCode | None:
    if not request.group_id:
        return ErrorCode.invalid_group_id
    if group is None:
        return ErrorCode.group_id_not_found
    if isinstance(group, ConsumerGroup):
        return None
    if group.state is not ClassicGroupState.EMPTY and group.protocol_type != _CONSUMER:
        return ErrorCode.non_empty_group
    return None


def _partition_error(coordinator: GroupContext, partition: TopicPartition, is_subscribed: bool) -> ErrorCode:
    if not 0 <= partition.partition < (coordinator.topics.partition_count(partition.topic) or 0):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.group_subscribed_to_topic if is_subscribed else ErrorCode.none


def delete_group(coordinator: GroupContext, state: ShardState, context: RequestContext, group_id: str, now: Now) -> Result:
    """Handle a part of a DeleteGroups: delete one group without members, and its offsets."""
    group = state.group(group_id)
    if group is None:
        return Result(answer=delete_answer(group_id, ErrorCode.group_id_not_found))
    if group.state not in _EMPTY:
        return Result(answer=delete_answer(group_id, ErrorCode.non_empty_group))
    return _delete(state, group, delete_answer(group_id, ErrorCode.none))


def delete_answer(group_id: str, error: ErrorCode) -> delete_groups_response.DeletableGroupResult:
    """Return the result for one group of a DeleteGroups."""
    return delete_groups_response.DeletableGroupResult(group_id=group_id, error_code=error)


def deleted_groups(request: delete_groups_request.DeleteGroupsRequest) -> tuple[str, ...]:
    """Return the parts of a DeleteGroups."""
    return tuple(dict.fromkeys(request.groups_names))


def join_deleted(results: tuple[delete_groups_response.DeletableGroupResult, ...]) -> delete_groups_response.DeleteGroupsResponse:
    """Return the response with the answers to all parts of a DeleteGroups."""
    return delete_groups_response.DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=results)


def _delete(state: ShardState, group: Group, answer: delete_groups_response.DeletableGroupResult | None = None) -> Result:
    """Delete a group with its offsets, also pending ones, and cancel the timers of clients that have not joined yet."""
    partitions = dict.fromkeys((*state.offsets(group.group_id), *sorted(state.pending.of_group(group.group_id))))
    offsets = tuple(OffsetDeleted(group.group_id, partition) for partition in partitions)
    if isinstance(group, ConsumerGroup):
        return Result((*offsets, *deletion_events(group)), (), answer)
    timers = tuple(CancelTimer(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending))
    return Result((*offsets, GroupMetadataDeleted(group.group_id)), timers, answer)
