"""OffsetCommit and OffsetFetch: where a group stands in each partition.

Owns who may commit what, and how committed offsets are told. Must not know how they are stored. Invariant: what one partition is
refused for does not touch the others; what the group refuses, no partition of the request gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from ottla.coordinator.classic.draft import Draft
from ottla.coordinator.classic.group import ClassicGroup, GroupState
from ottla.coordinator.classic.validate import generation_error
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import OffsetCommitted
from ottla.coordinator.ports import Surroundings, TopicImage
from ottla.coordinator.result import Result
from ottla.coordinator.state import Offsets, ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Fact
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import (
    offset_commit_request,
    offset_commit_response,
    offset_fetch_request,
    offset_fetch_response,
)
from ottla.types import Now, TopicPartition

_NONE_COMMITTED = -1


def commit_offsets(
    around: Surroundings,
    state: ShardState,
    context: RequestContext,
    request: offset_commit_request.OffsetCommitRequest,
    now: Now,
) -> Result:
    """Store offsets, or say for each partition why not."""
    verdicts = [_verdicts(around, context, topic) for topic in request.topics]
    group = state.group(request.group_id)
    if any(error is ErrorCode.none for _, errors in verdicts for error in errors):
        refused = _group_error(group, context, request)
        if refused is not None:
            verdicts = [(name, [error or refused for error in errors]) for name, errors in verdicts]
    answer = _commit_answer(request, [errors for _, errors in verdicts])
    committed = tuple(
        OffsetCommitted(request.group_id, TopicPartition(name, partition.partition_index), _value(around, name, partition, now))
        for topic, (name, errors) in zip(request.topics, verdicts, strict=True)
        for partition, error in zip(topic.partitions, errors, strict=True)
        if error is ErrorCode.none
    )
    if group is None or not committed:
        return Result(committed, answer=answer)
    draft = Draft(group, now)
    if request.member_id in group.members:
        draft.refresh_session(group.members[request.member_id])
    return Result(committed, draft.result().effects, answer)


def commit_refused(
    request: offset_commit_request.OffsetCommitRequest, error: ErrorCode
) -> offset_commit_response.OffsetCommitResponse:
    """The answer to an OffsetCommit of which nothing was stored."""
    return _commit_answer(request, [[error] * len(topic.partitions) for topic in request.topics])


def _verdicts(
    around: Surroundings, context: RequestContext, topic: offset_commit_request.OffsetCommitRequestTopic
) -> tuple[str, list[ErrorCode]]:
    """The name of a topic, and what is wrong with each of its partitions."""
    by_id = Fact.BY_TOPIC_ID in context.facts
    name = _name_of(around.topics, topic.topic_id) if by_id else topic.name
    if name is None:
        return "", [ErrorCode.unknown_topic_id] * len(topic.partitions)
    count = around.topics.partition_count(name) or 0
    limit = around.config.offset_metadata_max_bytes
    errors = []
    for partition in topic.partitions:
        if not 0 <= partition.partition_index < count:
            errors.append(ErrorCode.unknown_topic_or_partition)
        elif len(partition.committed_metadata or "") > limit:
            errors.append(ErrorCode.offset_metadata_too_large)
        else:
            errors.append(ErrorCode.none)
    return name, errors


def _group_error(
    group: ClassicGroup | None, context: RequestContext, request: offset_commit_request.OffsetCommitRequest
) -> ErrorCode | None:
    """Whether the sender may commit for the group.

    A negative generation is that of a consumer without membership, or of an administrator: both may commit while nobody else does.
    """
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    if group is None:
        if generation < 0:
            return None
        return ErrorCode.group_id_not_found if Fact.GROUP_NOT_FOUND in context.facts else ErrorCode.illegal_generation
    if generation < 0 and group.state is GroupState.EMPTY:
        return None
    error = generation_error(group, member_id, request.group_instance_id, generation)
    if error is None and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return error


def _value(
    around: Surroundings, name: str, partition: offset_commit_request.OffsetCommitRequestPartition, now: Now
) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now.wall,
        topic_id=around.topics.topic_id(name),
    )


def _commit_answer(
    request: offset_commit_request.OffsetCommitRequest, errors: Iterable[Iterable[ErrorCode]]
) -> offset_commit_response.OffsetCommitResponse:
    topics = tuple(
        offset_commit_response.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                offset_commit_response.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                for partition, error in zip(topic.partitions, of_topic, strict=True)
            ),
        )
        for topic, of_topic in zip(request.topics, errors, strict=True)
    )
    return offset_commit_response.OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics)


def fetch_offsets(
    around: Surroundings,
    state: ShardState,
    context: RequestContext,
    wanted: offset_fetch_request.OffsetFetchRequestGroup,
    now: Now,
) -> Result:
    """The committed offsets of one group; a group that is not there has committed none."""
    offsets = state.offsets(wanted.group_id)
    by_id = Fact.BY_TOPIC_ID in context.facts
    if wanted.topics is None:
        topics = _all_topics(around.topics, offsets, by_id)
    else:
        topics = tuple(_fetched(around.topics, topic, offsets, by_id) for topic in wanted.topics)
    return Result(answer=offset_fetch_response.OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics))


def fetch_refused(
    context: RequestContext, wanted: offset_fetch_request.OffsetFetchRequestGroup, error: ErrorCode
) -> offset_fetch_response.OffsetFetchResponseGroup:
    """The answer for a group whose offsets can not be told: the oldest clients look for the error in each partition."""
    topics: tuple[offset_fetch_response.OffsetFetchResponseTopics, ...] = ()
    if Fact.GROUP_ERROR not in context.facts:
        topics = tuple(
            _topic(topic.name, None, [_told(number, None, error) for number in topic.partition_indexes])
            for topic in wanted.topics or ()
        )
    return offset_fetch_response.OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics, error_code=error)


def _all_topics(image: TopicImage, offsets: Offsets, by_id: bool) -> tuple[offset_fetch_response.OffsetFetchResponseTopics, ...]:
    """Every topic with offsets; one that was deleted has no id and can be told by name only."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in offsets:
        numbers.setdefault(topic, []).append(partition)
    return tuple(
        _topic(name, image.topic_id(name), [_told(partition, offsets.get(TopicPartition(name, partition))) for partition in found])
        for name, found in numbers.items()
        if not by_id or image.topic_id(name) is not None
    )


def _fetched(
    image: TopicImage, topic: offset_fetch_request.OffsetFetchRequestTopics, offsets: Offsets, by_id: bool
) -> offset_fetch_response.OffsetFetchResponseTopics:
    name = _name_of(image, topic.topic_id) if by_id else topic.name
    if name is None:
        unknown = [_told(number, None, ErrorCode.unknown_topic_id) for number in topic.partition_indexes]
        return _topic("", topic.topic_id, unknown)
    told = [_told(number, offsets.get(TopicPartition(name, number))) for number in topic.partition_indexes]
    return _topic(name, topic.topic_id, told)


def _topic(
    name: str, topic_id: UUID | None, partitions: list[offset_fetch_response.OffsetFetchResponsePartitions]
) -> offset_fetch_response.OffsetFetchResponseTopics:
    return offset_fetch_response.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=tuple(partitions))


def _told(
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
