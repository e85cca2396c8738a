"""ConsumerGroupDescribe: what tools ask of consumer groups.

Owns how a group is shown to people. Invariant: looking at a group changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from ottla.coordinator.consumer.target import assignor_name
from ottla.coordinator.describe import Described
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.ports import Surroundings, TopicImage
from ottla.coordinator.result import Result
from ottla.coordinator.state import ShardState
from ottla.protocol import ErrorCode
from ottla.protocol.messages import consumer_group_describe_request, consumer_group_describe_response
from ottla.types import Now

_CLASSIC, _CONSUMER = 0, 1
"""The types of members."""


def described_consumer_groups(request: consumer_group_describe_request.ConsumerGroupDescribeRequest) -> tuple[Described, ...]:
    """The parts of a ConsumerGroupDescribe."""
    return tuple(Described(group_id, request.include_authorized_operations) for group_id in request.group_ids)


def describe_consumer_group(
    around: Surroundings, state: ShardState, context: RequestContext, wanted: Described, now: Now
) -> Result:
    """One group, its members, what they have and what they shall have."""
    if not wanted.group_id:
        return Result(answer=_undescribed(wanted.group_id, ErrorCode.invalid_group_id))
    group = state.group(wanted.group_id)
    if not isinstance(group, ConsumerGroup):
        reason = "not found" if group is None else "is not a consumer group"
        return Result(answer=_undescribed(wanted.group_id, ErrorCode.group_id_not_found, f"Group {wanted.group_id} {reason}."))
    return Result(
        answer=consumer_group_describe_response.DescribedGroup(
            error_code=ErrorCode.none,
            group_id=group.group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=assignor_name(around, group),
            members=tuple(_member(group, member, around.topics) for member in group.members.values()),
            authorized_operations=wanted.operations,
        )
    )


def describe_refused(
    context: RequestContext, wanted: Described, error: ErrorCode
) -> consumer_group_describe_response.DescribedGroup:
    """The answer for a group that cannot be looked at."""
    return _undescribed(wanted.group_id, error)


def _undescribed(group_id: str, error: ErrorCode, message: str | None = None) -> consumer_group_describe_response.DescribedGroup:
    return consumer_group_describe_response.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def _member(group: ConsumerGroup, member: ConsumerMember, image: TopicImage) -> consumer_group_describe_response.Member:
    wants = member.metadata
    return consumer_group_describe_response.Member(
        member_id=member.member_id,
        instance_id=wants.instance_id,
        rack_id=wants.rack_id,
        member_epoch=member.epoch,
        client_id=wants.client_id,
        client_host=wants.client_host,
        subscribed_topic_names=wants.subscribed_topic_names,
        subscribed_topic_regex=wants.subscribed_topic_regex,
        assignment=_assignment(_held(member), image),
        target_assignment=_assignment(group.target.get(member.member_id, {}), image),
        member_type=_CLASSIC if member.speaks_classic else _CONSUMER,
    )


def _held(member: ConsumerMember) -> dict[UUID, list[int]]:
    """All partitions that no other member may have, including those that the member still has to give up."""
    held: dict[UUID, list[int]] = {}
    for topic_id, numbers in member.held():
        held.setdefault(topic_id, []).extend(numbers)
    return held


def _assignment(partitions: Mapping[UUID, Iterable[int]], image: TopicImage) -> consumer_group_describe_response.Assignment:
    """Partitions by topic; a topic that is gone has no name any more and is left out."""
    return consumer_group_describe_response.Assignment(
        topic_partitions=tuple(
            consumer_group_describe_response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(numbers))
            for topic_id, numbers in partitions.items()
            if (name := image.name_of(topic_id)) is not None
        )
    )
