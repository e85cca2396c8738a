"""OffsetCommit and OffsetFetch: the committed offsets of a group.

Owns the checks of a commit, and the responses with committed offsets. Must not know how they are stored. Invariant: an error of one
partition does not affect the others; an error of the group applies to all partitions of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, generation_error
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.consumer.group import ConsumerGroup, commit_error, fetch_error
from ottla.coordinator.decision import GroupContext, Result, TopicImage
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import OffsetCommitted, topic_partition
from ottla.coordinator.state import ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import offset_commit_request, offset_commit_response, offset_fetch_request, offset_fetch_response
from ottla.types import Now, TopicPartition

_NO_ERROR = ErrorCode.none
NOT_EXISTING = (ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition)
"""The errors of partitions that do not exist; they take precedence over an error of the group."""
FetchedOffsets = Mapping[TopicPartition, OffsetCommitValue | None]
"""Committed offsets; ``None`` for an unstable one, which an open transaction may replace."""

_NONE_COMMITTED = -1
_BROKER_DECIDES = -1


def commit_offsets(
    coordinator: GroupContext,
    state: ShardState,
    context: RequestContext,
    request: offset_commit_request.OffsetCommitRequest,
    now: Now,
) -> Result:
    """Store offsets, or answer with an error for each partition."""
    checked = [
        checked_partitions(coordinator.topics, coordinator.config.offset_metadata_max_bytes, context, topic)
        for topic in request.topics
    ]
    group = state.group(request.group_id)
    if isinstance(group, ConsumerGroup):
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        group_error = commit_error(group, context, member_id, epoch, _existing(request, checked), coordinator.topics)
    else:
        group_error = _group_error(group, context, request)
    if group_error is not None:
        checked = [(name, [error if error in NOT_EXISTING else group_error for error in errors]) for name, errors in checked]
    answer = commit_answer(request, [errors for _, errors in checked])
    committed = tuple(
        [
            event
            for topic, (name, errors) in zip(request.topics, checked, strict=True)
            for event in _commit_events(coordinator, request, topic, name, errors, now)
        ]
    )
    if not isinstance(group, ClassicGroup) or not committed:
        return Result(committed, answer=answer)
    draft = ClassicGroupDraft(group, now)
    if request.member_id in group.members:
        draft.refresh_session(group.members[request.member_id])
    return Result(committed, draft.result().effects, answer)


def commit_refused(
    request: offset_commit_request.OffsetCommitRequest, error: ErrorCode
) -> offset_commit_response.OffsetCommitResponse:
    """Return the response with an error for all partitions of an OffsetCommit."""
    return commit_answer(request, [[error] * len(topic.partitions) for topic in request.topics])


def checked_partitions(
    image: TopicImage, metadata_max_bytes: int, context: RequestContext, topic: offset_commit_request.OffsetCommitRequestTopic
) -> tuple[str, list[ErrorCode]]:
    """Return the name of a topic, and the error code of each of its partitions."""
    by_id = VersionRule.BY_TOPIC_ID in context.version_rules
    name = _name_of(image, topic.topic_id) if by_id else topic.name
    if name is None:
        return "", [ErrorCode.unknown_topic_id] * len(topic.partitions)
    count = image.partition_count(name) or 0
    errors = []
    for partition in topic.partitions:
        if not 0 <= partition.partition_index < count:
            errors.append(ErrorCode.unknown_topic_or_partition)
        elif len(partition.committed_metadata or "") > metadata_max_bytes:
            errors.append(ErrorCode.offset_metadata_too_large)
        else:
            errors.append(_NO_ERROR)
    return name, errors


def _group_error(
    group: ClassicGroup | None, context: RequestContext, request: offset_commit_request.OffsetCommitRequest
) -> ErrorCode | None:
    """Return the error of a sender that may not commit for the group.

    Consumers with manual assignment and administrators send a negative generation; they may commit while the group has no members.
    """
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    if group is None:
        if generation < 0:
            return None
        return (
            ErrorCode.group_id_not_found if VersionRule.GROUP_NOT_FOUND in context.version_rules else ErrorCode.illegal_generation
        )
    if generation < 0 and group.state is ClassicGroupState.EMPTY:
        return None
    error = generation_error(group, member_id, request.group_instance_id, generation)
    if error is None and group.state is ClassicGroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return error


def _existing(
    request: offset_commit_request.OffsetCommitRequest, checked: Iterable[tuple[str, list[ErrorCode]]]
) -> Iterator[TopicPartition]:
    """Yield the partitions of a request that exist."""
    for topic, (name, errors) in zip(request.topics, checked, strict=True):
        for partition, error in zip(topic.partitions, errors, strict=True):
            if error not in NOT_EXISTING:
                yield TopicPartition(name, partition.partition_index)


def _commit_events(
    coordinator: GroupContext,
    request: offset_commit_request.OffsetCommitRequest,
    topic: offset_commit_request.OffsetCommitRequestTopic,
    name: str,
    errors: list[ErrorCode],
    now: Now,
) -> list[OffsetCommitted]:
    """Return the events of a topic's partitions without an error.

    Clients before version 5 may set a retention time (milliseconds). It is stored as the time of expiry, in a version of the record
    that has no leader epoch and no topic id.
    """
    retention = request.retention_time_ms
    expires = _java_long(now.wall + retention) if retention != _BROKER_DECIDES else -1
    topic_id = coordinator.topics.topic_id(name) if expires == -1 else None
    return [
        OffsetCommitted(
            request.group_id,
            topic_partition(name, partition.partition_index),
            OffsetCommitValue(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch if expires == -1 else -1,
                metadata=partition.committed_metadata or "",
                commit_timestamp=now.wall,
                expire_timestamp=expires,
                topic_id=topic_id,
            ),
        )
        for partition, error in zip(topic.partitions, errors, strict=True)
        if error is _NO_ERROR
    ]


def _java_long(number: int) -> int:
    """Return a sum as in Java's 64-bit arithmetic, which overflows from the largest to the smallest number, as Kafka's does."""
    return (number + 2**63) % 2**64 - 2**63


def commit_answer(
    request: offset_commit_request.OffsetCommitRequest, errors: Iterable[Iterable[ErrorCode]]
) -> offset_commit_response.OffsetCommitResponse:
    """Return the response to an OffsetCommit, with an error code for each partition of each topic."""
    topics = tuple(
        offset_commit_response.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                [_answered(partition.partition_index, error) for partition, error in zip(topic.partitions, of_topic, strict=True)]
            ),
        )
        for topic, of_topic in zip(request.topics, errors, strict=True)
    )
    return offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)


@lru_cache(maxsize=8192)
def _answered(partition: int, error: ErrorCode) -> offset_commit_response.OffsetCommitResponsePartition:
    """Return the result for a partition; cached, since there are few different ones and they are immutable."""
    return offset_commit_response.OffsetCommitResponsePartition(partition_index=partition, error_code=error)


@dataclass(frozen=True, slots=True)
class FetchPart:
    """One group's part of an OffsetFetch. ``require_stable``: an offset that an open transaction may replace is an error
    (KIP-447).
    """

    group: offset_fetch_request.OffsetFetchRequestGroup
    require_stable: bool

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self.group.group_id


def fetch_parts(request: offset_fetch_request.OffsetFetchRequest) -> tuple[FetchPart, ...]:
    """Return the parts of an OffsetFetch, one for each group."""
    return tuple(FetchPart(group, request.require_stable) for group in request.groups)


def join_offsets(groups: tuple[offset_fetch_response.OffsetFetchResponseGroup, ...]) -> offset_fetch_response.OffsetFetchResponse:
    """Return the response with the answers to all parts of an OffsetFetch."""
    return offset_fetch_response.OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=groups)


def fetch_offsets(coordinator: GroupContext, state: ShardState, context: RequestContext, part: FetchPart, now: Now) -> Result:
    """Return the committed offsets of one group; a group that does not exist has none."""
    request = part.group
    group = state.group(request.group_id)
    error = fetch_error(group, request.member_id, request.member_epoch) if isinstance(group, ConsumerGroup) else None
    if error is not None:
        return Result(answer=fetch_refused(context, part, error))
    unstable = state.pending.of_group(part.group_id) if part.require_stable else frozenset[TopicPartition]()
    offsets: FetchedOffsets = {**state.offsets(request.group_id), **dict.fromkeys(unstable)}
    return Result(answer=fetch_answer(coordinator.topics, context, request, offsets))


def fetch_answer(
    image: TopicImage, context: RequestContext, request: offset_fetch_request.OffsetFetchRequestGroup, offsets: FetchedOffsets
) -> offset_fetch_response.OffsetFetchResponseGroup:
    """Return the response for one group, with the requested ones of its offsets."""
    by_id = VersionRule.BY_TOPIC_ID in context.version_rules
    if request.topics is None:
        topics = _all_topics(image, offsets, by_id)
    else:
        topics = tuple(_fetched_topic(image, topic, offsets, by_id) for topic in request.topics)
    return offset_fetch_response.OffsetFetchResponseGroup(group_id=request.group_id, topics=topics)


def fetch_refused(context: RequestContext, part: FetchPart, error: ErrorCode) -> offset_fetch_response.OffsetFetchResponseGroup:
    """Return the response with an error for a group. The oldest versions have no error for a group, so each partition gets it."""
    request = part.group
    topics: tuple[offset_fetch_response.OffsetFetchResponseTopics, ...] = ()
    if VersionRule.GROUP_ERROR not in context.version_rules:
        topics = tuple(
            _topic(topic.name, None, [_partition(number, None, error) for number in topic.partition_indexes])
            for topic in request.topics or ()
        )
    return offset_fetch_response.OffsetFetchResponseGroup(group_id=request.group_id, topics=topics, error_code=error)


def _all_topics(
    image: TopicImage, offsets: FetchedOffsets, by_id: bool
) -> tuple[offset_fetch_response.OffsetFetchResponseTopics, ...]:
    """Return all topics with offsets. A deleted topic has no id, so a response with ids leaves it out."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in offsets:
        numbers.setdefault(topic, []).append(partition)
    return tuple(
        _topic(name, image.topic_id(name), [_committed(TopicPartition(name, number), offsets) for number in of_topic])
        for name, of_topic in numbers.items()
        if not by_id or image.topic_id(name) is not None
    )


def _fetched_topic(
    image: TopicImage, topic: offset_fetch_request.OffsetFetchRequestTopics, offsets: FetchedOffsets, by_id: bool
) -> offset_fetch_response.OffsetFetchResponseTopics:
    name = _name_of(image, topic.topic_id) if by_id else topic.name
    if name is None:
        unknown = [_partition(number, None, ErrorCode.unknown_topic_id) for number in topic.partition_indexes]
        return _topic("", topic.topic_id, unknown)
    partitions = [_committed(TopicPartition(name, number), offsets) for number in topic.partition_indexes]
    return _topic(name, topic.topic_id, partitions)


def _topic(
    name: str, topic_id: UUID | None, partitions: list[offset_fetch_response.OffsetFetchResponsePartitions]
) -> offset_fetch_response.OffsetFetchResponseTopics:
    return offset_fetch_response.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=tuple(partitions))


def _committed(partition: TopicPartition, offsets: FetchedOffsets) -> offset_fetch_response.OffsetFetchResponsePartitions:
    value = offsets.get(partition)
    is_unstable = value is None and partition in offsets
    return _partition(partition.partition, value, ErrorCode.unstable_offset_commit if is_unstable else ErrorCode.none)


def _partition(
    number: int, value: OffsetCommitValue | None, error: ErrorCode = ErrorCode.none
) -> offset_fetch_response.OffsetFetchResponsePartitions:
    return offset_fetch_response.OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=_NONE_COMMITTED if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=error,
    )


def _name_of(image: TopicImage, topic_id: UUID | None) -> str | None:
    return None if topic_id is None else image.name_of(topic_id)
