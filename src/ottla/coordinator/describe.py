"""DescribeGroups, ConsumerGroupDescribe and ListGroups.

Owns the descriptions of groups. Invariant: a description changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from ottla.coordinator.classic.group import ClassicGroupState
from ottla.coordinator.consumer.group import ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.target import assignor_name
from ottla.coordinator.decision import GroupContext, Result, TopicImage
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.state import Group, ShardState
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import (
    consumer_group_describe_request,
    consumer_group_describe_response,
    describe_groups_request,
    describe_groups_response,
    list_groups_request,
    list_groups_response,
)
from ottla.types import Now

_CLASSIC, _CONSUMER = "classic", "consumer"
"""The types of groups in ListGroups."""
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
"""The types of members in ConsumerGroupDescribe."""
_ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Read, delete, describe, describe and alter configs: one bit each, at the number of the operation in Kafka's AclOperation."""
_OPERATIONS_OMITTED = -(2**31)


@dataclass(frozen=True, slots=True)
class DescribeTarget:
    """One group of a DescribeGroups or ConsumerGroupDescribe, and whether the request includes the authorized operations."""

    group_id: str
    with_operations: bool

    @property
    def operations(self) -> int:
        """The operations that the client may perform, as bits: all of them, since there is no authorizer."""
        return _ALL_OPERATIONS if self.with_operations else _OPERATIONS_OMITTED


def described_groups(request: describe_groups_request.DescribeGroupsRequest) -> tuple[DescribeTarget, ...]:
    """Return the parts of a DescribeGroups."""
    return tuple(DescribeTarget(group_id, request.include_authorized_operations) for group_id in request.groups)


def join_described(groups: tuple[describe_groups_response.DescribedGroup, ...]) -> describe_groups_response.DescribeGroupsResponse:
    """Return the response with the answers to all parts of a DescribeGroups."""
    return describe_groups_response.DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=groups)


def describe_group(
    coordinator: GroupContext, state: ShardState, context: RequestContext, target: DescribeTarget, now: Now
) -> Result:
    """Describe one group and its members; with the members' metadata only while the group is stable."""
    group = state.classic_group(target.group_id)
    if group is None:
        return Result(
            answer=missing_group(context, target, "not found" if state.group(target.group_id) is None else "is not a classic group")
        )
    chosen = group.protocol if group.state is ClassicGroupState.STABLE else None
    members = tuple(
        describe_groups_response.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if chosen is None else member.metadata(chosen),
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    )
    return Result(
        answer=describe_groups_response.DescribedGroup(
            error_code=ErrorCode.none,
            group_id=target.group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=chosen or "",
            members=members,
            authorized_operations=target.operations,
        )
    )


def missing_group(context: RequestContext, target: DescribeTarget, reason: str) -> describe_groups_response.DescribedGroup:
    """Return the description of a group that cannot be described: it is dead for older clients, and not found for newer ones."""
    if VersionRule.GROUP_NOT_FOUND in context.version_rules:
        error, message = ErrorCode.group_id_not_found, f"Group {target.group_id} {reason}."
        return _undescribed(target.group_id, error, ClassicGroupState.DEAD, message)
    dead = _undescribed(target.group_id, ErrorCode.none, ClassicGroupState.DEAD)
    return replace(dead, authorized_operations=target.operations)


def describe_refused(context: RequestContext, target: DescribeTarget, error: ErrorCode) -> describe_groups_response.DescribedGroup:
    """Return the description with an error for a group that is not served here."""
    return _undescribed(target.group_id, error, None)


def _undescribed(
    group_id: str, error: ErrorCode, state: ClassicGroupState | None, message: str | None = None
) -> describe_groups_response.DescribedGroup:
    return describe_groups_response.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="" if state is None else state.value,
        protocol_type="",
        protocol_data="",
        members=(),
    )


def described_consumer_groups(request: consumer_group_describe_request.ConsumerGroupDescribeRequest) -> tuple[DescribeTarget, ...]:
    """Return the parts of a ConsumerGroupDescribe."""
    return tuple(DescribeTarget(group_id, request.include_authorized_operations) for group_id in request.group_ids)


def describe_consumer_group(
    coordinator: GroupContext, state: ShardState, context: RequestContext, target: DescribeTarget, now: Now
) -> Result:
    """Describe one group and its members, with their current and target assignments."""
    if not target.group_id:
        return Result(answer=_consumer_group_undescribed(target.group_id, ErrorCode.invalid_group_id))
    group = state.group(target.group_id)
    if not isinstance(group, ConsumerGroup):
        reason = "not found" if group is None else "is not a consumer group"
        return Result(
            answer=_consumer_group_undescribed(target.group_id, ErrorCode.group_id_not_found, f"Group {target.group_id} {reason}.")
        )
    return Result(
        answer=consumer_group_describe_response.DescribedGroup(
            error_code=ErrorCode.none,
            group_id=group.group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=assignor_name(coordinator, group),
            members=tuple(_described_member(group, member, coordinator.topics) for member in group.members.values()),
            authorized_operations=target.operations,
        )
    )


def describe_consumer_group_refused(
    context: RequestContext, target: DescribeTarget, error: ErrorCode
) -> consumer_group_describe_response.DescribedGroup:
    """Return the description with an error for a group that is not served here."""
    return _consumer_group_undescribed(target.group_id, error)


def _consumer_group_undescribed(
    group_id: str, error: ErrorCode, message: str | None = None
) -> consumer_group_describe_response.DescribedGroup:
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


def _described_member(
    group: ConsumerGroup, member: ConsumerGroupMember, image: TopicImage
) -> consumer_group_describe_response.Member:
    metadata = member.metadata
    return consumer_group_describe_response.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=_assignment(_owned_partitions(member), image),
        target_assignment=_assignment(group.target.get(member.member_id, {}), image),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _owned_partitions(member: ConsumerGroupMember) -> dict[UUID, list[int]]:
    """Return the partitions that no other member may get: the assigned ones and those not yet revoked."""
    owned: dict[UUID, list[int]] = {}
    for topic_id, numbers in member.owned_partitions():
        owned.setdefault(topic_id, []).extend(numbers)
    return owned


def _assignment(partitions: Mapping[UUID, Iterable[int]], image: TopicImage) -> consumer_group_describe_response.Assignment:
    """Return partitions by topic. A deleted topic has no name and is left out."""
    return consumer_group_describe_response.Assignment(
        topic_partitions=tuple(
            consumer_group_describe_response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(numbers))
            for topic_id, numbers in partitions.items()
            if (name := image.name_of(topic_id)) is not None
        )
    )


def list_groups(request: list_groups_request.ListGroupsRequest, groups: Iterable[Group]) -> list_groups_response.ListGroupsResponse:
    """Return the groups that pass the filters for states and types. An empty filter passes all groups, an unknown name none."""
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    listed = tuple(
        list_groups_response.ListedGroup(
            group_id=group.group_id,
            protocol_type=_CONSUMER if isinstance(group, ConsumerGroup) else group.protocol_type or "",
            group_state=state,
            group_type=kind,
        )
        for group in groups
        if (kind := _CONSUMER if isinstance(group, ConsumerGroup) else _CLASSIC) in (types or (kind,))
        and (state := group.state.value).lower() in (states or (state.lower(),))
    )
    return list_groups_response.ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=listed)


def list_refused(error: ErrorCode) -> list_groups_response.ListGroupsResponse:
    """Return the response with an error to a ListGroups, while groups are loaded."""
    return list_groups_response.ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=error, groups=())
