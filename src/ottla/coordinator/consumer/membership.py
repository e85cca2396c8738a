"""The sender of a heartbeat: a known member, a new one, or a static one that takes its own place.

Owns the checks of identity and epoch, and what a member asks for. Invariant: an instance id belongs to one member; a member
with a wrong epoch is fenced.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.group import JOIN, LEAVE_FOR_A_WHILE, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.machine import current_value, target_value
from ottla.coordinator.consumer.reconcile import Owned
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import CurrentAssignmentUpdated, MemberSubscriptionUpdated, TargetAssignmentUpdated
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.timers import MEMBER_TIMERS
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.group_records import ConsumerGroupMemberMetadataValue
from ottla.protocol.messages import consumer_group_heartbeat_request

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest


def sender(draft: ConsumerGroupDraft, request: _Heartbeat, member_id: str, owned: Owned | None, limit: int) -> ConsumerGroupMember:
    """The member as it was before this heartbeat; a new one, which is not in the group yet, has no epoch. Raises ``ApiError``."""
    group, instance_id = draft.group, request.instance_id
    known = group.members.get(member_id)
    if known is None and request.member_epoch == JOIN and len(group.members) >= limit:
        raise ApiError(ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum capacity of {limit} members.")
    if instance_id is not None and request.member_epoch == JOIN:
        holder = group.static_members.get(instance_id)
        if holder is not None:
            return _returning(draft, group.members[holder], member_id, instance_id)
    elif instance_id is not None:
        known = static_member(group, member_id, instance_id)
    if request.member_epoch == JOIN:
        return known or ConsumerGroupMember(member_id)
    if known is None:
        raise unknown_member(group, member_id)
    _check_epoch(known, request.member_epoch, owned)
    return known


def static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """The member of an instance id, if it is who it says it is. Raises ``ApiError``."""
    holder = group.static_members.get(instance_id)
    if holder is None:
        raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise ApiError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )
    return group.members[holder]


def unknown_member(group: ConsumerGroup, member_id: str) -> ApiError:
    """No member has this id."""
    return ApiError(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {group.group_id}.")


def merged(
    coordinator: GroupContext, member: ConsumerGroupMember, context: RequestContext, request: _Heartbeat
) -> ConsumerGroupMemberMetadataValue:
    """What the member asks for now: a field without a value is as it was."""
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
    """As Kafka makes them: 16 random bytes in base64 that URLs can hold."""
    return base64.urlsafe_b64encode(uuid.UUID(coordinator.ids.new_id()).bytes).decode().rstrip("=")


def _returning(draft: ConsumerGroupDraft, old: ConsumerGroupMember, member_id: str, instance_id: str) -> ConsumerGroupMember:
    """A static member that has left for a while takes its place again. Raises ``ApiError`` if it has not left."""
    if old.epoch != LEAVE_FOR_A_WHILE and not old.uses_classic_protocol:
        raise ApiError(
            ErrorCode.unreleased_instance_id,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is"
            f" owned by {old.member_id} member.",
        )
    return replaced(draft, old, member_id)


def replaced(draft: ConsumerGroupDraft, old: ConsumerGroupMember, member_id: str) -> ConsumerGroupMember:
    """A static member is there again under a new member id, with all that it had under its old one."""
    group = draft.group
    member = replace(old, member_id=member_id, epoch=JOIN, previous_epoch=JOIN)
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


def _check_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned | None) -> None:
    """An epoch behind is in order if the last answer was lost: then the client has nothing that is not its own."""
    if epoch > member.epoch:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )
    lost_answer = epoch == member.previous_epoch and owned is not None and _is_within(owned, member)
    if epoch < member.epoch and not lost_answer:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _is_within(owned: Owned, member: ConsumerGroupMember) -> bool:
    return all(numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in owned.items())
