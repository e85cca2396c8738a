"""OffsetCommit, OffsetFetch, OffsetDelete and DeleteGroups of central groups.

Owns the check of a commit's sender, and the deletion of offsets. Must not know how they are stored. Invariants: a commit of a
non-member or of another generation changes nothing; the offsets of one request are one append, and stored together if they fit
into one multi.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from uuid import UUID

from ottla.coordinator.central.decision import CentralContext, Result
from ottla.coordinator.central.events import GroupDeleted, OffsetsCommitted, OffsetsDeleted
from ottla.coordinator.central.group import CentralGroup, CommittedOffset
from ottla.coordinator.central.patterns import is_resolution_due
from ottla.coordinator.central.state import CentralState
from ottla.coordinator.central.states import CentralGroupState
from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.offset_deletion import delete_answer, offset_delete_refused
from ottla.coordinator.offsets import NOT_EXISTING, FetchPart, checked_partitions, commit_answer, fetch_answer
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.group_records import OffsetCommitValue
from ottla.protocol.messages import offset_commit_request, offset_delete_request, offset_delete_response
from ottla.types import Now, TopicPartition


def commit_offsets(
    coordinator: CentralContext,
    state: CentralState,
    context: RequestContext,
    request: offset_commit_request.OffsetCommitRequest,
    now: Now,
) -> Result:
    """Store offsets, or answer with an error for each partition. Metadata and leader epochs are not stored, as in Kafka 0.8."""
    group = state.group(request.group_id)
    group_error = _sender_error(group, context, request)
    limit = coordinator.config.offset_metadata_max_bytes
    answers: list[list[ErrorCode]] = []
    committed: dict[TopicPartition, CommittedOffset] = {}
    for topic in request.topics:
        name, errors = checked_partitions(coordinator.topics, limit, context, topic)
        if group_error is not None:
            errors = [error if error in NOT_EXISTING else group_error for error in errors]
        topic_id = coordinator.topics.topic_id(name)
        for place, partition in enumerate(topic.partitions):
            if errors[place] is ErrorCode.none and partition.committed_offset < 0:
                errors[place] = ErrorCode.invalid_request  # a node of Kafka 0.8 has no negative offset
            if errors[place] is ErrorCode.none and _is_of_another(group, request, name, partition.partition_index):
                errors[place] = ErrorCode.rebalance_in_progress
            if errors[place] is ErrorCode.none:
                offset = CommittedOffset(partition.committed_offset, topic_id)
                committed[TopicPartition(name, partition.partition_index)] = offset
        answers.append(errors)
    events = (OffsetsCommitted(request.group_id, committed),) if committed else ()
    return Result(events, answer=commit_answer(request, answers))


def _sender_error(
    group: CentralGroup | None, context: RequestContext, request: offset_commit_request.OffsetCommitRequest
) -> ErrorCode | None:
    """Return the error of a sender that may not commit for the group.

    The generation that ends may commit until all members have stopped. An owner that has not registered with a new coordinator so
    far is asked to try again. A consumer that assigns by hand has no generation, whatever its member id; it may commit while the
    group has no members.
    """
    generation, member_id = request.generation_id_or_member_epoch, request.member_id
    if group is None:
        known = VersionRule.GROUP_NOT_FOUND in context.version_rules
        return ErrorCode.group_id_not_found if known else ErrorCode.illegal_generation
    if generation < 0 and group.is_deserted:
        return ErrorCode.coordinator_load_in_progress if group.has_unknown_members else None
    if member_id in group.members:
        return None if generation == group.generation else ErrorCode.illegal_generation
    if member_id in group.found and generation == group.generation:
        return ErrorCode.coordinator_load_in_progress
    return ErrorCode.unknown_member_id


def _is_of_another(
    group: CentralGroup | None, request: offset_commit_request.OffsetCommitRequest, topic: str, partition: int
) -> bool:
    """Whether a member commits a partition that another one owns.

    1. A coordinator stops, and a commit waits for its answer. 2. Its successor rebalances the group. 3. The member commits again
    what it had in the old generation, now with the new one.
    """
    if group is None or request.generation_id_or_member_epoch < 0:
        return False
    owner = group.owners.get(TopicPartition(topic, partition))
    return owner is not None and owner.member_id != request.member_id


def fetch_offsets(coordinator: CentralContext, state: CentralState, context: RequestContext, part: FetchPart, now: Now) -> Result:
    """Return the committed offsets of one group; a group that does not exist has none."""
    return Result(answer=fetch_answer(coordinator.topics, context, part.group, _Values(state.offsets(part.group_id))))


class _Values(Mapping[TopicPartition, OffsetCommitValue]):
    """The offsets of a group as values of Kafka's log, each made when it is asked for: a group may have many, a request few."""

    def __init__(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._offsets = offsets

    def __getitem__(self, partition: TopicPartition) -> OffsetCommitValue:
        return OffsetCommitValue(offset=self._offsets[partition].offset, leader_epoch=-1, metadata="", commit_timestamp=-1)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def delete_offsets(
    coordinator: CentralContext,
    state: CentralState,
    context: RequestContext,
    request: offset_delete_request.OffsetDeleteRequest,
    now: Now,
) -> Result:
    """Handle an OffsetDelete: delete offsets of topics that no member reads."""
    group = state.group(request.group_id)
    if group is None:
        return Result(answer=offset_delete_refused(ErrorCode.group_id_not_found))
    if group.state is CentralGroupState.RECOVERING or group.has_unknown_members:
        # The topics of its members are not known yet.
        return Result(answer=offset_delete_refused(ErrorCode.coordinator_load_in_progress))
    if is_resolution_due(group, coordinator.topics):
        # 1. A member with a pattern reads on after an election, and registers. 2. Its pattern is not matched yet.
        return Result(answer=offset_delete_refused(ErrorCode.coordinator_load_in_progress))
    subscribed = group.subscribed_topics() | {partition.topic for partition in group.owners}
    deleted: dict[TopicPartition, None] = {}
    topics = []
    for topic in request.topics:
        answers = []
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            error = _deletion_error(coordinator, partition, subscribed)
            answers.append(
                offset_delete_response.OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=error)
            )
            if error is ErrorCode.none and partition in state.offsets(request.group_id):
                deleted[partition] = None
        topics.append(offset_delete_response.OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(answers)))
    events = (OffsetsDeleted(request.group_id, tuple(deleted)),) if deleted else ()
    answer = offset_delete_response.OffsetDeleteResponse(error_code=ErrorCode.none, throttle_time=NO_THROTTLE, topics=tuple(topics))
    return Result(events, answer=answer)


def _deletion_error(coordinator: CentralContext, partition: TopicPartition, subscribed: Collection[str]) -> ErrorCode:
    if not 0 <= partition.partition < (coordinator.topics.partition_count(partition.topic) or 0):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.group_subscribed_to_topic if partition.topic in subscribed else ErrorCode.none


def gone_topics(offsets: Mapping[TopicPartition, CommittedOffset], changed: Iterable[str], topics: TopicImage) -> tuple[str, ...]:
    """Return the changed topics of which there are offsets that must be deleted: they do not exist, or were created again."""
    ids: dict[str, set[UUID | None]] = {}
    for partition, committed in offsets.items():
        ids.setdefault(partition.topic, set()).add(committed.topic_id)
    return tuple(name for name in changed if name in ids and _are_gone(ids[name], topics.topic_id(name)))


def _are_gone(ids: set[UUID | None], topic_id: UUID | None) -> bool:
    """Whether there are others than those of this topic. An offset without a topic id says nothing about a topic that exists."""
    return topic_id is None or bool(ids - {None, topic_id})


def delete_offsets_of_topics(coordinator: CentralContext, state: CentralState, group_id: str, topics: Collection[str]) -> Result:
    """Delete a group's offsets of deleted topics, except those committed for a topic that was created again with the same name."""
    offsets = state.offsets(group_id)
    gone = frozenset(gone_topics(offsets, topics, coordinator.topics))
    deleted = tuple(
        partition
        for partition, committed in offsets.items()
        if partition.topic in gone and not _is_present(committed, coordinator.topics.topic_id(partition.topic))
    )
    return Result((OffsetsDeleted(group_id, deleted),) if deleted else ())


def delete_outdated_offsets(state: CentralState, group_id: str) -> Result:
    """Delete the offsets of which this coordinator has found that their topics were deleted before its election."""
    outdated = tuple(sorted(state.outdated(group_id)))
    return Result((OffsetsDeleted(group_id, outdated),) if outdated else ())


def _is_present(committed: CommittedOffset, topic_id: UUID | None) -> bool:
    return topic_id is not None and committed.topic_id == topic_id


def delete_group(coordinator: CentralContext, state: CentralState, context: RequestContext, group_id: str, now: Now) -> Result:
    """Handle a part of a DeleteGroups: delete one group without members, and its offsets."""
    group = state.group(group_id)
    if group is None:
        return Result(answer=delete_answer(group_id, ErrorCode.group_id_not_found))
    if group.state is not CentralGroupState.EMPTY or group.stored_members > 0:
        return Result(answer=delete_answer(group_id, ErrorCode.non_empty_group))
    return Result((GroupDeleted(group_id, tuple(state.offsets(group_id))),), answer=delete_answer(group_id, ErrorCode.none))
