"""A classic group becomes a consumer group when a member of the consumer protocol joins it.

Owns the conversion, and its conditions. Must not know how a heartbeat continues in the new group. Invariant: no member loses a
partition by the conversion; parked requests are answered with REBALANCE_IN_PROGRESS, so that their members join again.

Source: KIP-848, "Online migration"; the records are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from ottla.coordinator.classic.rebalance import join_refused, sync_refused
from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, ConsumerGroup, ConsumerGroupMember, MemberState
from ottla.coordinator.consumer.group_epoch import metadata_hash
from ottla.coordinator.consumer.heartbeat import check_request, heartbeat_refused, process_heartbeat
from ottla.coordinator.consumer.machine import ConsumerGroupDraft, current_value, target_value
from ottla.coordinator.decision import GroupContext, GroupEffect, Result, join_timer, session_timer, sync_timer
from ottla.coordinator.effects import ApiError, CancelTimer, Reply, RequestContext, SetTimer
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    MemberSubscriptionUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.coordinator.migration.blobs import by_topic_id, member_metadata
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import decode_assignment
from ottla.protocol.group_records import ConsumerGroupMetadataValue, ConsumerGroupTargetAssignmentMetadataValue
from ottla.protocol.messages import consumer_group_heartbeat_request
from ottla.types import Now

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
_POLICIES = ("upgrade", "bidirectional")


def join_classic_group(
    coordinator: GroupContext, group: ClassicGroup, context: RequestContext, request: _Heartbeat, now: Now
) -> Result:
    """Handle a ConsumerGroupHeartbeat for a classic group. A joining member converts the group with all its members."""
    try:
        check_request(coordinator, context, request)
        if request.member_epoch != JOIN_GROUP_EPOCH:
            raise ApiError(ErrorCode.group_id_not_found, f"Group {request.group_id} is not a consumer group.")
        if group.state is not ClassicGroupState.EMPTY:
            return process_heartbeat(upgrade_group(coordinator, group, now), coordinator, context, request)
        return process_heartbeat(
            ConsumerGroupDraft(ConsumerGroup(request.group_id), now, replacing=_delete_empty_group(group)),
            coordinator,
            context,
            request,
        )
    except ApiError as api_error:
        return Result(answer=heartbeat_refused(api_error.code, api_error.message))


def _delete_empty_group(group: ClassicGroup) -> Result:
    """Return the tombstone and the cancelled timers of a classic group without members."""
    timers = tuple(CancelTimer(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending))
    return Result((GroupMetadataDeleted(group.group_id),) if group.stored is not None else (), timers)


def upgrade_group(coordinator: GroupContext, group: ClassicGroup, now: Now) -> ConsumerGroupDraft:
    """Return the consumer group with the members of a classic group and their assignments. Raises ``ApiError``.

    The generation becomes the group epoch, the assignment epoch and the epoch of every member: so all of them have reached the
    target, and their next heartbeats with the generation remain valid.
    """
    _check_upgrade(coordinator, group)
    draft = ConsumerGroupDraft(ConsumerGroup(group.group_id), now, replacing=_delete_group(group, now))
    epoch = max(group.generation, 1)
    members = _members(coordinator, group, epoch)
    group_id = group.group_id
    draft.apply(*(MemberSubscriptionUpdated(group_id, member.member_id, member.metadata) for member in members))
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash(draft.group, coordinator.topics))
    draft.apply(GroupEpochUpdated(group_id, value))
    for member in members:
        target = {topic_id: tuple(sorted(partitions)) for topic_id, partitions in member.assigned.items()}
        draft.apply(TargetAssignmentUpdated(group_id, member.member_id, target_value(target)))
    draft.apply(TargetAssignmentEpochUpdated(group_id, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)))
    draft.apply(*(CurrentAssignmentUpdated(group_id, member.member_id, current_value(member)) for member in members))
    return draft


def _check_upgrade(coordinator: GroupContext, group: ClassicGroup) -> None:
    reason = None
    if coordinator.config.group_consumer_migration_policy not in _POLICIES:
        reason = "group.consumer.migration.policy does not allow the upgrade"
    elif group.protocol_type != "consumer":
        reason = f"its protocol type is {group.protocol_type}"
    elif len(group.members) > coordinator.config.group_consumer_max_size:
        reason = "it has more members than group.consumer.max.size"
    if reason is not None:
        raise _not_upgradable(group, reason)


def _not_upgradable(group: ClassicGroup, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.group_id_not_found, f"Group {group.group_id} is not a consumer group and cannot become one: {reason}."
    )


def _members(coordinator: GroupContext, group: ClassicGroup, epoch: int) -> list[ConsumerGroupMember]:
    taken: set[tuple[UUID, int]] = set()
    return [_member(coordinator, group, member, epoch, taken) for member in group.members.values()]


def _member(
    coordinator: GroupContext, group: ClassicGroup, member: ClassicGroupMember, epoch: int, taken: set[tuple[UUID, int]]
) -> ConsumerGroupMember:
    """Return a member with the partitions that the leader assigned to it. The first of two members with a partition keeps it."""
    try:
        assignment = decode_assignment(member.assignment)
        metadata = member_metadata(
            member.protocols,
            member.metadata(group.protocol) or member.protocols[0][1],
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout,
            session_timeout=member.session_timeout,
        )
    except ProtocolError as error:
        raise _not_upgradable(group, f"the metadata or assignment of member {member.member_id} is malformed ({error})") from error
    if assignment.user_data:
        raise _not_upgradable(group, "its assignor stores user data in assignments, which would be lost")
    assigned: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in by_topic_id(assignment.partitions, coordinator.topics).items():
        free = [number for number in sorted(partitions) if (topic_id, number) not in taken]
        taken.update((topic_id, number) for number in free)
        if free:
            assigned[topic_id] = dict.fromkeys(free, epoch)
    return replace(
        ConsumerGroupMember(member.member_id, metadata),
        epoch=epoch,
        previous_epoch=epoch,
        state=MemberState.STABLE,
        assigned=assigned,
    )


def _delete_group(group: ClassicGroup, now: Now) -> Result:
    """Return the tombstone of the classic group, and the effects that end it.

    Parked requests are answered with REBALANCE_IN_PROGRESS, so that their members join again. A client with a member id that has
    not joined yet will join the new group.
    """
    effects: list[GroupEffect] = [CancelTimer(join_timer(group.group_id)), CancelTimer(sync_timer(group.group_id))]
    for member in group.members.values():
        if member.join is not None:
            effects.append(Reply(member.join, join_refused(ErrorCode.rebalance_in_progress, member.member_id)))
        if member.sync is not None:
            effects.append(Reply(member.sync, sync_refused(ErrorCode.rebalance_in_progress)))
        effects.append(SetTimer(session_timer(group.group_id, member.member_id), now.mono + member.session_timeout))
    effects += [CancelTimer(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending)]
    return Result((GroupMetadataDeleted(group.group_id),), tuple(effects))
