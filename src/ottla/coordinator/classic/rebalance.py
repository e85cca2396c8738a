"""The round of a classic group: how a join phase begins, waits and ends, and how members go.

Owns the steps that requests and timers share. Each takes a draft and carries it on; none looks at a request. Invariant: a
removed member is answered first, and its timer is cancelled.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordinator.classic.answers import join_accepted, join_refused, sync_refused
from ottla.coordinator.classic.draft import ClassicGroupDraft
from ottla.coordinator.classic.events import (
    GenerationStarted,
    InitialDelayExtended,
    MemberRemoved,
    PendingMemberRemoved,
    RebalanceStarted,
    SyncReceived,
    SyncsCompleted,
)
from ottla.coordinator.classic.group import ClassicGroupState, InitialDelay
from ottla.coordinator.classic.machine import TRANSITIONS, ClassicGroupInput, empty_value
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.timers import join_timer, session_timer, sync_timer
from ottla.protocol import ErrorCode


def rebalance_or_complete(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """A member joined, left or changed: begin a join phase, or check whether the current one is complete."""
    if ClassicGroupInput.REBALANCE in TRANSITIONS[draft.group.state]:
        start_rebalance(draft, coordinator)
    else:
        complete_if_all_joined(draft)


def start_rebalance(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """Begin a join phase. That of an empty group waits for more members, so that a group which starts up starts once."""
    group = draft.group
    answer_syncs(draft, ErrorCode.rebalance_in_progress)
    draft.cancel_timer(sync_timer(group.group_id))
    delay = coordinator.config.group_initial_rebalance_delay_ms
    if group.state is ClassicGroupState.EMPTY and delay > 0:
        waiting = InitialDelay(delay, max(group.rebalance_timeout - delay, 0))
        draft.apply(RebalanceStarted(group.group_id, draft.now.wall, waiting))
        draft.set_timer(join_timer(group.group_id), delay)
        return
    draft.apply(RebalanceStarted(group.group_id, draft.now.wall))
    timeout = group.rebalance_timeout
    if group.state is ClassicGroupState.EMPTY:
        timeout = min(timeout, coordinator.config.expected_member_wait_ms)
    draft.set_timer(join_timer(group.group_id), timeout)
    complete_if_all_joined(draft)


def complete_if_all_joined(draft: ClassicGroupDraft) -> None:
    """End the join phase once no member is missing, but not before an initial delay."""
    group = draft.group
    if group.state is ClassicGroupState.PREPARING_REBALANCE and group.initial_delay is None and group.has_all_joined:
        complete_join_phase(draft)


def join_phase_expired(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """The join phase has lasted as long as it may, or an initial delay has passed."""
    group = draft.group
    waiting = group.initial_delay
    if group.state is not ClassicGroupState.PREPARING_REBALANCE:
        return
    if waiting is None or not waiting.extend or waiting.remaining == 0:
        complete_join_phase(draft)
        return
    delay = min(coordinator.config.group_initial_rebalance_delay_ms, waiting.remaining)
    extended = InitialDelay(delay, max(waiting.remaining - waiting.delay, 0))
    draft.apply(InitialDelayExtended(group.group_id, extended))
    draft.set_timer(join_timer(group.group_id), delay)


def complete_join_phase(draft: ClassicGroupDraft) -> None:
    """End the join phase. Members that did not rejoin are removed, except static ones: their session decides."""
    for member in draft.group.members.values():
        if member.join is None and member.instance_id is None:
            remove_member(draft, member.member_id)
    group = draft.group
    joined = [member for member in group.members.values() if member.join is not None]
    if group.members and not joined:
        draft.set_timer(join_timer(group.group_id), group.rebalance_timeout)
        return
    draft.cancel_timer(join_timer(group.group_id))
    if not joined:
        draft.apply(GroupMetadataUpdated(group.group_id, empty_value(group, group.generation + 1, draft.now.wall)))
        return
    if group.members[group.leader or ""].join is None:
        group = replace(group, leader=joined[0].member_id)
    draft.apply(GenerationStarted(group.group_id, draft.now.wall, group.generation + 1, group.elect_protocol(), group.leader or ""))
    for member in group.members.values():
        draft.reply(member.join, join_accepted(draft.group, member.member_id))
        draft.refresh_session(member)
    draft.set_timer(sync_timer(group.group_id), group.rebalance_timeout)


def sync_phase_expired(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """Members of this generation that never sent their SyncGroup are removed, and the others begin again."""
    missing = draft.group.pending_sync
    if not missing or ClassicGroupInput.REBALANCE not in TRANSITIONS[draft.group.state]:
        return
    for member_id in draft.group.members:
        if member_id in missing:
            remove_member(draft, member_id)
    start_rebalance(draft, coordinator)


def sync_received(draft: ClassicGroupDraft, member_id: str) -> None:
    """A member has sent its SyncGroup; once all have, the timer is cancelled."""
    draft.apply(SyncReceived(draft.group.group_id, member_id))
    if not draft.group.pending_sync:
        draft.cancel_timer(sync_timer(draft.group.group_id))


def answer_syncs(draft: ClassicGroupDraft, error: ErrorCode) -> None:
    """Answer every parked SyncGroup with an error. Their senders are alive, so their sessions restart."""
    parked = [member for member in draft.group.members.values() if member.sync is not None]
    for member in parked:
        draft.reply(member.sync, sync_refused(error))
        draft.refresh_session(member)
    if parked:
        draft.apply(SyncsCompleted(draft.group.group_id))


def remove_member(draft: ClassicGroupDraft, member_id: str, join_error: ErrorCode = ErrorCode.unknown_member_id) -> None:
    """Take a member out of the group. What it still waits for is answered: if it is alive, it has to join again."""
    group = draft.group
    member = group.members[member_id]
    draft.reply(member.join, join_refused(join_error))
    draft.reply(member.sync, sync_refused(ErrorCode.unknown_member_id))
    draft.cancel_timer(session_timer(group.group_id, member_id))
    draft.apply(MemberRemoved(group.group_id, member_id))


def drop_pending(draft: ClassicGroupDraft, member_id: str) -> None:
    """Do not expect a client any more that was given a member id."""
    draft.cancel_timer(session_timer(draft.group.group_id, member_id))
    draft.apply(PendingMemberRemoved(draft.group.group_id, member_id))
