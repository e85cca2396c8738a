"""The end of a membership: a member leaves, for good or for a while, or is fenced: its epoch is wrong, or its session expires.

Owns the check of the epoch, and the events and timers of the end. Invariants: a member with a wrong epoch does not continue; when a
member is removed its partitions are free at once, and a new group epoch begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ottla.coordinator.consumer.group import (
    LEAVE_GROUP_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    PartitionEpochs,
)
from ottla.coordinator.consumer.group_epoch import bump_epoch_if_changed
from ottla.coordinator.consumer.machine import ConsumerEvent, ConsumerGroupDraft, current_value
from ottla.coordinator.consumer.reconcile import ReportedPartitions
from ottla.coordinator.decision import (
    MEMBER_TIMERS,
    GroupContext,
    Result,
    rebalance_timer,
    run_timer,
    session_timeout,
    session_timer,
)
from ottla.coordinator.effects import ApiError, TimerKey
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    ResolvedRegexUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.protocol import ErrorCode
from ottla.types import Now

_TIMERS = (session_timer, rebalance_timer)
"""The timers of a member that does not use the classic protocol."""


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: ReportedPartitions | None) -> None:
    """Raise ``ApiError`` unless the member's epoch is the coordinator's, or the previous one after a lost response.

    1. The member reaches a new epoch, and the response is lost.
    2. The client repeats its heartbeat with the previous epoch and lists its partitions.
    3. If all of them are still assigned to it, it reads nothing that another member may own, so the heartbeat is accepted and the
       response brings the new epoch. Otherwise the member is fenced.
    """
    if epoch > member.epoch:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )
    response_was_lost = epoch == member.previous_epoch and owned is not None and _is_within(owned, member)
    if epoch < member.epoch and not response_was_lost:
        raise ApiError(
            ErrorCode.fenced_member_epoch,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _is_within(owned: ReportedPartitions, member: ConsumerGroupMember) -> bool:
    return all(numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in owned.items())


def fence_members(draft: ConsumerGroupDraft, coordinator: GroupContext, member_ids: Iterable[str]) -> None:
    """Remove members from the group and begin a new group epoch."""
    group_id = draft.group.group_id
    for member_id in member_ids:
        member = draft.group.members[member_id]
        if draft.group.client.is_computing(member_id):
            draft.cancel_timer(run_timer(group_id, member_id))
        draft.apply(
            CurrentAssignmentUpdated(group_id, member_id, None),
            TargetAssignmentUpdated(group_id, member_id, None),
            MemberSubscriptionUpdated(group_id, member_id, None),
        )
        regex = member.metadata.subscribed_topic_regex
        if regex and regex not in draft.group.regex_subscribers:
            draft.apply(ResolvedRegexUpdated(group_id, regex, None))
        for timer in MEMBER_TIMERS if member.uses_classic_protocol else _TIMERS:
            draft.cancel_timer(timer(group_id, member_id))
    bump_epoch_if_changed(draft, coordinator.topics, changed=True)


def member_to_fence(group: ConsumerGroup, key: TimerKey) -> str | None:
    """Return the member that a timer removes, if any: its session has expired, or it did not revoke or rejoin in time."""
    match key:
        case (_, _, "session", str(member_id)) if member_id in group.members:
            return member_id
        case (_, _, "rebalance", str(member_id)) if member_id in group.members:
            return member_id if group.members[member_id].state is MemberState.UNREVOKED_PARTITIONS else None
        case (_, _, "rejoin" | "resync", str(member_id)) if member_id in group.members:
            return member_id if group.members[member_id].uses_classic_protocol else None
    return None


def on_loaded(coordinator: GroupContext, group: ConsumerGroup, now: Now) -> Result:
    """Set the timers of a loaded group. Each starts from the beginning, since the log does not hold deadlines."""
    draft = ConsumerGroupDraft(group, now)
    for member in group.members.values():
        classic = member.metadata.classic_member_metadata
        session = session_timeout(coordinator, group.group_id) if classic is None else classic.session_timeout_ms
        draft.set_timer(session_timer(group.group_id, member.member_id), session)
        if classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            draft.set_timer(rebalance_timer(group.group_id, member.member_id), member.metadata.rebalance_timeout_ms)
    return draft.result()


def deletion_events(group: ConsumerGroup) -> tuple[ConsumerEvent, ...]:
    """Return the events that delete a group without members."""
    group_id = group.group_id
    return (TargetAssignmentEpochUpdated(group_id, None), PartitionMetadataDeleted(group_id), GroupEpochUpdated(group_id, None))


def mark_static_member_away(draft: ConsumerGroupDraft, member: ConsumerGroupMember) -> None:
    """Mark a static member as away. It keeps its assigned partitions, and no epoch begins unless its session expires first."""
    group_id = draft.group.group_id
    away = replace(member, epoch=LEAVE_GROUP_STATIC_EPOCH, assigned=_with_epoch_zero(member.assigned), revoking={})
    draft.apply(CurrentAssignmentUpdated(group_id, member.member_id, current_value(away)))
    draft.cancel_timer(rebalance_timer(group_id, member.member_id))


def _with_epoch_zero(assigned: PartitionEpochs) -> PartitionEpochs:
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in assigned.items()}
