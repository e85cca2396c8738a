"""The sender of a heartbeat: an existing member, a new one, or a static one that returns.

Owns the checks of identity, and a member's subscription and settings. Invariant: an instance id belongs to one member.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace

from ottla.coordinator.consumer.fencing import check_epoch
from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.machine import ConsumerGroupDraft, current_value, target_value
from ottla.coordinator.consumer.reconcile import ReportedPartitions
from ottla.coordinator.decision import MEMBER_TIMERS, GroupContext
from ottla.coordinator.effects import ApiError, RequestContext
from ottla.coordinator.events import CurrentAssignmentUpdated, MemberSubscriptionUpdated, TargetAssignmentUpdated
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue
from ottla.protocol.messages import consumer_group_heartbeat_request

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest


def find_or_create_member(
    draft: ConsumerGroupDraft, request: _Heartbeat, member_id: str, owned: ReportedPartitions | None, limit: int
) -> ConsumerGroupMember:
    """Return the member as it was before this heartbeat; a new one, which is not in the group yet, has no epoch.

    Raises ``ApiError``.
    """
    group, instance_id = draft.group, request.instance_id
    member = group.members.get(member_id)
    if member is None and request.member_epoch == JOIN_GROUP_EPOCH and len(group.members) >= limit:
        raise ApiError(ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum capacity of {limit} members.")
    if instance_id is not None and request.member_epoch == JOIN_GROUP_EPOCH:
        current_id = group.static_members.get(instance_id)
        if current_id is not None:
            return _return_static_member(draft, group.members[current_id], member_id, instance_id)
    elif instance_id is not None:
        member = static_member(group, member_id, instance_id)
    if request.member_epoch == JOIN_GROUP_EPOCH:
        return member or ConsumerGroupMember(member_id)
    if member is None:
        raise unknown_member(group, member_id)
    check_epoch(member, request.member_epoch, owned)
    return member


def static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """Return the member with an instance id. Raises ``ApiError`` if it has another member id: then the sender is fenced."""
    current_id = group.static_members.get(instance_id)
    if current_id is None:
        raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if current_id != member_id:
        raise ApiError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {current_id}.",
        )
    return group.members[current_id]


def unknown_member(group: ConsumerGroup, member_id: str) -> ApiError:
    """Return the error for a member id that is not in the group."""
    return ApiError(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}.")


def updated_metadata(
    coordinator: GroupContext, member: ConsumerGroupMember, context: RequestContext, request: _Heartbeat
) -> ConsumerGroupMemberMetadataValue:
    """Return the member's metadata with the fields of the request; a field without a value keeps its previous one."""
    before = member.metadata
    offers = request.client_assignors if coordinator.config.group_consumer_client_assignors_enable else None
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    rebalance_timeout = milliseconds(request.rebalance_timeout)
    return replace(
        before,
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        subscribed_topic_names=before.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=before.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if rebalance_timeout == -1 else rebalance_timeout,
        server_assignor=before.server_assignor if request.server_assignor is None else request.server_assignor,
        classic_member_metadata=None,
        client_assignors=before.client_assignors if offers is None else offers,
    )


def new_member_id(coordinator: GroupContext) -> str:
    """Return a random member id in Kafka's format: 16 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.UUID(coordinator.ids.new_id()).bytes).decode().rstrip("=")


def _return_static_member(
    draft: ConsumerGroupDraft, old: ConsumerGroupMember, member_id: str, instance_id: str
) -> ConsumerGroupMember:
    """Let a static member return under a new member id. Raises ``ApiError`` if its predecessor has not left.

    A predecessor of the classic protocol is replaced at once: LeaveGroup has no way to leave for a while, so a restarted classic
    member never leaves.
    """
    if old.epoch != LEAVE_GROUP_STATIC_EPOCH and not old.uses_classic_protocol:
        raise ApiError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is"
            f" owned by {old.member_id} member.",
        )
    return replace_member(draft, old, member_id)


def replace_member(draft: ConsumerGroupDraft, old: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
    """Move a static member to a new member id, with its metadata, target and current assignment."""
    group = draft.group
    member = replace(old, member_id=member_id, epoch=JOIN_GROUP_EPOCH, previous_epoch=JOIN_GROUP_EPOCH)
    target = group.target.get(old.member_id)
    draft.apply(
        CurrentAssignmentUpdated(group.group_id, old.member_id, None),
        TargetAssignmentUpdated(group.group_id, old.member_id, None),
        MemberSubscriptionUpdated(group.group_id, old.member_id, None),
        MemberSubscriptionUpdated(group.group_id, member_id, member.metadata),
        *([] if target is None else [TargetAssignmentUpdated(group.group_id, member_id, target_value(target))]),
        CurrentAssignmentUpdated(group.group_id, member_id, current_value(member)),
    )
    for timer in MEMBER_TIMERS:
        draft.cancel_timer(timer(group.group_id, old.member_id))
    return member
