"""How members go: they leave, for good or for a while, or they are fenced.

Owns the end of a membership. Invariant: what a member held is free the moment it is gone, and the group has a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ottla.coordinator.consumer.draft import ConsumerGroupDraft
from ottla.coordinator.consumer.events import ConsumerEvent
from ottla.coordinator.consumer.group import LEAVE_FOR_A_WHILE, ConsumerGroup, ConsumerGroupMember, MemberState, PartitionEpochs
from ottla.coordinator.consumer.machine import current_value
from ottla.coordinator.consumer.settings import session_timeout
from ottla.coordinator.consumer.subscription import begin_epoch_if_changed
from ottla.coordinator.effects import TimerKey
from ottla.coordinator.events import (
    CurrentAssignmentUpdated,
    GroupEpochUpdated,
    MemberSubscriptionUpdated,
    PartitionMetadataDeleted,
    ResolvedRegexUpdated,
    TargetAssignmentEpochUpdated,
    TargetAssignmentUpdated,
)
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import Result
from ottla.coordinator.timers import MEMBER_TIMERS, rebalance_timer, run_timer, session_timer
from ottla.types import Now

_TIMERS = (session_timer, rebalance_timer)
"""Those of a member that does not speak the classic protocol."""


def remove(draft: ConsumerGroupDraft, coordinator: GroupContext, member_ids: Iterable[str]) -> None:
    """Members are gone for good."""
    group_id = draft.group.group_id
    for member_id in member_ids:
        member = draft.group.members[member_id]
        if draft.group.client.is_asked(member_id):
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
    begin_epoch_if_changed(draft, coordinator.topics, changed=True)


def expired(group: ConsumerGroup, key: TimerKey) -> str | None:
    """The member that a timer removes: it was silent for too long, or did not give back in time what it was asked for."""
    match key:
        case (_, _, "session", str(member_id)) if member_id in group.members:
            return member_id
        case (_, _, "rebalance", str(member_id)) if member_id in group.members:
            return member_id if group.members[member_id].state is MemberState.UNREVOKED_PARTITIONS else None
        case (_, _, "rejoin" | "resync", str(member_id)) if member_id in group.members:
            return member_id if group.members[member_id].uses_classic_protocol else None
    return None


def on_loaded(coordinator: GroupContext, group: ConsumerGroup, now: Now) -> Result:
    """A group that was loaded: its members have all the time that they would have after a heartbeat."""
    draft = ConsumerGroupDraft(group, now)
    for member in group.members.values():
        classic = member.metadata.classic_member_metadata
        session = session_timeout(coordinator, group.group_id) if classic is None else classic.session_timeout_ms
        draft.set_timer(session_timer(group.group_id, member.member_id), session)
        if classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            draft.set_timer(rebalance_timer(group.group_id, member.member_id), member.metadata.rebalance_timeout_ms)
    return draft.result()


def deletion(group: ConsumerGroup) -> tuple[ConsumerEvent, ...]:
    """The end of a group without members."""
    group_id = group.group_id
    return (TargetAssignmentEpochUpdated(group_id, None), PartitionMetadataDeleted(group_id), GroupEpochUpdated(group_id, None))


def pause(draft: ConsumerGroupDraft, member: ConsumerGroupMember) -> None:
    """A static member will return soon: it keeps its partitions, and other members notice nothing unless its session expires
    first."""
    group_id = draft.group.group_id
    paused = replace(member, epoch=LEAVE_FOR_A_WHILE, assigned=_since_ever(member.assigned), revoking={})
    draft.apply(CurrentAssignmentUpdated(group_id, member.member_id, current_value(paused)))
    draft.cancel_timer(rebalance_timer(group_id, member.member_id))


def _since_ever(holding: PartitionEpochs) -> PartitionEpochs:
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in holding.items()}
