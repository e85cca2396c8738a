"""Members leave a consumer group, which becomes a classic group when its last member of the consumer protocol has left.

Owns the ways in which members leave, the condition of the downgrade, and the conversion. Invariant: every member keeps its
partitions until the rebalance that follows.

Source: KIP-848, "Online migration"; the records are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember
from ottla.coordinator.classic.machine import ClassicGroupDraft, MemberUpdated, metadata_value
from ottla.coordinator.classic.rebalance import start_rebalance
from ottla.coordinator.consumer.fencing import fence_members, mark_static_member_away, member_to_fence
from ottla.coordinator.consumer.group import LEAVE_GROUP_STATIC_EPOCH, ConsumerGroup, ConsumerGroupMember
from ottla.coordinator.consumer.heartbeat import check_request, heartbeat_answer, heartbeat_refused
from ottla.coordinator.consumer.machine import AssignorRunTimedOut, ConsumerEvent, ConsumerGroupDraft
from ottla.coordinator.consumer.membership import static_member, unknown_member
from ottla.coordinator.decision import MEMBER_TIMERS, GroupContext, Result
from ottla.coordinator.effects import ApiError, CancelTimer, RequestContext, TimerKey
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    GroupMetadataUpdated,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    ResolvedRegexUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.coordinator.migration.blobs import assignment_blob, protocols_of
from ottla.protocol import ErrorCode
from ottla.protocol.messages import consumer_group_heartbeat_request
from ottla.types import Now

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
_POLICIES = ("downgrade", "bidirectional")


def leave_group(
    coordinator: GroupContext, group: ConsumerGroup | None, context: RequestContext, request: _Heartbeat, now: Now
) -> Result:
    """Handle a ConsumerGroupHeartbeat by which a member leaves: for good or, if it is static, for a while."""
    try:
        check_request(coordinator, context, request)
        if group is None:
            raise ApiError(ErrorCode.group_id_not_found, f"Group {request.group_id} not found.")
        member = _leaver(group, request)
    except ApiError as api_error:
        return Result(answer=heartbeat_refused(api_error.code, api_error.message))
    answer = heartbeat_answer(member.member_id, request.member_epoch, 0)
    if request.member_epoch != LEAVE_GROUP_STATIC_EPOCH:
        return remove_members(coordinator, group, now, [member.member_id], answer)
    draft = ConsumerGroupDraft(group, now)
    mark_static_member_away(draft, member)
    return draft.result(answer)


def _leaver(group: ConsumerGroup, request: _Heartbeat) -> ConsumerGroupMember:
    """Return the sender. Raises ``ApiError`` for an unknown or fenced member."""
    if request.instance_id is not None:
        return static_member(group, request.member_id, request.instance_id)
    if request.member_id not in group.members:
        raise unknown_member(group, request.member_id)
    return group.members[request.member_id]


def timer_fired(coordinator: GroupContext, group: ConsumerGroup, key: TimerKey, now: Now) -> Result:
    """Handle a timer of a consumer group: remove a member, or give up the assignment that a member should compute."""
    member_id = member_to_fence(group, key)
    if member_id is not None:
        return remove_members(coordinator, group, now, [member_id])
    match key:
        case (_, _, "run", str(member_id)) if group.client.is_computing(member_id):
            return Result((AssignorRunTimedOut(group.group_id),))
    return Result()


def remove_members(
    coordinator: GroupContext, group: ConsumerGroup, now: Now, member_ids: Collection[str], answer: Any = None
) -> Result:
    """Remove members that leave or are fenced, and downgrade the group if only members of the classic protocol remain."""
    if may_downgrade(coordinator, group, member_ids):
        return downgrade_group(coordinator, group, now, without=member_ids, answer=answer)
    draft = ConsumerGroupDraft(group, now)
    fence_members(draft, coordinator, member_ids)
    return draft.result(answer)


def may_downgrade(coordinator: GroupContext, group: ConsumerGroup, without: Collection[str] = ()) -> bool:
    """Whether the group becomes a classic group when these members are removed."""
    if any(not member.uses_classic_protocol for member_id, member in group.members.items() if member_id not in without):
        return False
    remaining = len(group.members) - len(without)
    return coordinator.config.group_consumer_migration_policy in _POLICIES and 0 < remaining <= coordinator.config.group_max_size


def downgrade_group(
    coordinator: GroupContext,
    group: ConsumerGroup,
    now: Now,
    without: Collection[str] = (),
    answer: Any = None,
) -> Result:
    """Replace a consumer group by a classic group without these members.

    The classic group is stable with the target assignment as its own, and rebalances at once if that is out of date: members were
    removed, or there was no target for the group epoch yet.
    """
    remaining = [member for member_id, member in group.members.items() if member_id not in without]
    draft = ClassicGroupDraft(ClassicGroup(group.group_id), now)
    draft.apply(GroupMetadataUpdated(group.group_id, _value(coordinator, group, remaining, now)))
    for member in remaining:  # the record has only the elected protocol of each member, not the others that it supports
        classic = _classic_member(member)
        draft.apply(
            MemberUpdated(group.group_id, classic.member_id, classic.protocols, classic.rebalance_timeout, classic.session_timeout)
        )
    timers = tuple(CancelTimer(timer(group.group_id, member_id)) for member_id in group.members for timer in MEMBER_TIMERS)
    for classic in draft.group.members.values():
        draft.refresh_session(classic)
    if without or group.epoch > group.assignment_epoch:
        start_rebalance(draft, coordinator)
    result = draft.result(answer)
    return replace(result, events=(*_tombstones(group), *result.events), effects=(*timers, *result.effects))


def _value(coordinator: GroupContext, group: ConsumerGroup, remaining: list[ConsumerGroupMember], now: Now) -> Any:
    """Return the record of a stable group with the group epoch as its generation and the target assignment as its own."""
    members = {member.member_id: _classic_member(member) for member in remaining}
    classic = ClassicGroup(
        group.group_id,
        since=now.wall,
        protocol_type="consumer",
        generation=group.epoch,
        leader=remaining[0].member_id,
        members=members,
    )
    classic = replace(classic, protocol=classic.elect_protocol())
    assignments = {
        member_id: assignment_blob(group.target.get(member_id, {}), coordinator.topics, member.metadata(classic.protocol))
        for member_id, member in members.items()
    }
    return metadata_value(classic, assignments)


def _classic_member(member: ConsumerGroupMember) -> ClassicGroupMember:
    metadata, classic = member.metadata, member.metadata.classic_member_metadata
    return ClassicGroupMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout=metadata.rebalance_timeout_ms,
        session_timeout=0 if classic is None else classic.session_timeout_ms,
        protocols=protocols_of(metadata),
    )


def _tombstones(group: ConsumerGroup) -> tuple[ConsumerEvent, ...]:
    group_id = group.group_id
    return (
        *(CurrentAssignmentUpdated(group_id, member_id, None) for member_id in group.members),
        *(TargetAssignmentUpdated(group_id, member_id, None) for member_id in group.members),
        TargetAssignmentEpochUpdated(group_id, None),
        *(MemberSubscriptionUpdated(group_id, member_id, None) for member_id in group.members),
        *(ResolvedRegexUpdated(group_id, regex, None) for regex in group.regexes),
        PartitionMetadataDeleted(group_id),
        GroupEpochUpdated(group_id, None),
    )
