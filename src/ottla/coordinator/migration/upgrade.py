"""A classic group becomes a consumer group, because a member with the newer protocol joins it.

Owns the conversion, and when it is refused. Must not know what a heartbeat does in the group. Invariant: no member loses a
partition by it; waiting requests are answered with a request to join again.

Source: KIP-848, "Online migration"; what is written is what Apache Kafka 4.3 writes.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.classic.answers import join_refused, sync_refused
from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState
from ottla.coordinator.consumer.answers import heartbeat_refused
from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, ConsumerGroup, ConsumerGroupMember, MemberState
from ottla.coordinator.consumer.heartbeat import process_heartbeat
from ottla.coordinator.consumer.machine import current_value, target_value
from ottla.coordinator.consumer.subscription import metadata_hash
from ottla.coordinator.consumer.validate import check_request
from ottla.coordinator.effects import CancelTimer, Reply, RequestContext, SetTimer
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataDeleted,
    MemberSubscriptionUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.coordinator.migration.blobs import by_topic_id, member_metadata
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import GroupEffect, Result
from ottla.coordinator.timers import join_timer, session_timer, sync_timer
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.consumer_protocol import decode_assignment
from ottla.protocol.group_records import (
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from ottla.protocol.messages import consumer_group_heartbeat_request
from ottla.types import Now

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
_POLICIES = ("upgrade", "bidirectional")


def join_classic_group(
    coordinator: GroupContext, group: ClassicGroup, context: RequestContext, request: _Heartbeat, now: Now
) -> Result:
    """A ConsumerGroupHeartbeat for a classic group. A joining member converts it, with all its members."""
    try:
        check_request(coordinator, context, request)
        if request.member_epoch != JOIN_GROUP_EPOCH:
            raise ApiError(ErrorCode.group_id_not_found, f"Group {request.group_id} is not a consumer group.")
        if group.state is not ClassicGroupState.EMPTY:
            return process_heartbeat(upgraded(coordinator, group, now), coordinator, context, request)
        return process_heartbeat(
            ConsumerGroupDraft(ConsumerGroup(request.group_id), now, replacing=_ended(group)), coordinator, context, request
        )
    except ApiError as api_error:
        return Result(answer=heartbeat_refused(api_error.code, api_error.message))


def _ended(group: ClassicGroup) -> Result:
    """The end of a classic group without members in favour of a consumer group."""
    timers = tuple(CancelTimer(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending))
    return Result((GroupMetadataDeleted(group.group_id),) if group.stored is not None else (), timers)


def upgraded(coordinator: GroupContext, group: ClassicGroup, now: Now) -> ConsumerGroupDraft:
    """The group with its members, their assignments and its generation as the epoch of all. Raises ``ApiError``."""
    _check(coordinator, group)
    draft = ConsumerGroupDraft(ConsumerGroup(group.group_id), now, replacing=_end(group, now))
    epoch = max(group.generation, 1)
    members = _members(coordinator, group, epoch)
    group_id = group.group_id
    draft.apply(*(MemberSubscriptionUpdated(group_id, one.member_id, one.metadata) for one in members))
    number = metadata_hash(draft.group, coordinator.topics)
    draft.apply(GroupEpochUpdated(group_id, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=number)))
    for one in members:
        target = {topic_id: tuple(sorted(partitions)) for topic_id, partitions in one.assigned.items()}
        draft.apply(TargetAssignmentUpdated(group_id, one.member_id, target_value(target)))
    draft.apply(TargetAssignmentEpochUpdated(group_id, ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)))
    draft.apply(*(CurrentAssignmentUpdated(group_id, one.member_id, current_value(one)) for one in members))
    return draft


def _check(coordinator: GroupContext, group: ClassicGroup) -> None:
    why = None
    if coordinator.config.group_consumer_migration_policy not in _POLICIES:
        why = "group.consumer.migration.policy does not allow it to become one"
    elif group.protocol_type != "consumer":
        why = f"its members are of type {group.protocol_type}"
    elif len(group.members) > coordinator.config.group_consumer_max_size:
        why = "it has more members than a consumer group may have"
    if why is not None:
        raise _refused(group, why)


def _refused(group: ClassicGroup, why: str) -> ApiError:
    return ApiError(ErrorCode.group_id_not_found, f"Group {group.group_id} is not a consumer group: {why}.")


def _members(coordinator: GroupContext, group: ClassicGroup, epoch: int) -> list[ConsumerGroupMember]:
    taken: set[tuple[UUID, int]] = set()
    return [_member(coordinator, group, member, epoch, taken) for member in group.members.values()]


def _member(
    coordinator: GroupContext, group: ClassicGroup, member: ClassicGroupMember, epoch: int, taken: set[tuple[UUID, int]]
) -> ConsumerGroupMember:
    """A member with what the leader gave it. A partition that the leader gave twice is kept by the first."""
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
        raise _refused(group, f"what member {member.member_id} says cannot be read ({error})") from error
    if assignment.user_data:
        raise _refused(group, "its assignor is one of its own, and what that keeps in assignments would be lost")
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


def _end(group: ClassicGroup, now: Now) -> Result:
    """Waiting requests are answered with a request to join again; a member that has an id and has not joined yet finds the new
    group."""
    effects: list[GroupEffect] = [CancelTimer(join_timer(group.group_id)), CancelTimer(sync_timer(group.group_id))]
    for member in group.members.values():
        if member.join is not None:
            effects.append(Reply(member.join, join_refused(ErrorCode.rebalance_in_progress, member.member_id)))
        if member.sync is not None:
            effects.append(Reply(member.sync, sync_refused(ErrorCode.rebalance_in_progress)))
        effects.append(SetTimer(session_timer(group.group_id, member.member_id), now.mono + member.session_timeout))
    effects += [CancelTimer(session_timer(group.group_id, member_id)) for member_id in sorted(group.pending)]
    return Result((GroupMetadataDeleted(group.group_id),), tuple(effects))
