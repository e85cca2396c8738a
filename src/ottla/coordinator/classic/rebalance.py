"""The phases of a rebalance of a classic group, the removal of members, and the responses to JoinGroup and SyncGroup that end them.

Owns the steps that requests and timers share. Each changes a draft; none knows a request. Invariants: before a member is removed,
its parked requests are answered and its timer is cancelled; only the leader gets the list of members.

A rebalance has two phases. In the join phase (PREPARING_REBALANCE) JoinGroups are parked until all members have joined or the
rebalance timeout is over; then a generation starts, and all of them are answered at once. In the sync phase
(COMPLETING_REBALANCE) SyncGroups are parked until the leader's brings the assignment. The same steps are in
``GroupMetadataManager`` of Apache Kafka (``prepareRebalance``, ``completeClassicGroupJoin``).
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, InitialDelay
from ottla.coordinator.classic.machine import (
    TRANSITIONS,
    ClassicGroupDraft,
    ClassicGroupInput,
    GenerationStarted,
    InitialDelayExtended,
    MemberRemoved,
    PendingMemberRemoved,
    RebalanceStarted,
    SyncReceived,
    SyncsCompleted,
    empty_value,
)
from ottla.coordinator.decision import GroupContext, join_timer, session_timer, sync_timer
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import join_group_response, sync_group_response


def rebalance_or_complete(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """After a member joined, left or changed: start a rebalance, or complete the current join phase if no member is missing."""
    if ClassicGroupInput.REBALANCE in TRANSITIONS[draft.group.state]:
        start_rebalance(draft, coordinator)
    else:
        complete_if_all_joined(draft)


def start_rebalance(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """Start a join phase.

    That of an empty group waits for more members (``group.initial.rebalance.delay.ms``, KIP-134), so that ten consumers that start
    together make one rebalance and not ten.
    """
    group = draft.group
    answer_syncs(draft, ErrorCode.rebalance_in_progress)
    draft.cancel_timer(sync_timer(group.group_id))
    delay = coordinator.config.group_initial_rebalance_delay_ms
    if group.state is ClassicGroupState.EMPTY and delay > 0:
        initial_delay = InitialDelay(delay, max(group.rebalance_timeout - delay, 0))
        draft.apply(RebalanceStarted(group.group_id, draft.now.wall, initial_delay))
        draft.set_timer(join_timer(group.group_id), delay)
        return
    draft.apply(RebalanceStarted(group.group_id, draft.now.wall))
    timeout = group.rebalance_timeout
    if group.state is ClassicGroupState.EMPTY:
        timeout = min(timeout, coordinator.config.expected_member_wait_ms)
    draft.set_timer(join_timer(group.group_id), timeout)
    complete_if_all_joined(draft)


def complete_if_all_joined(draft: ClassicGroupDraft) -> None:
    """Complete the join phase if no member is missing and the initial delay, if any, is over."""
    group = draft.group
    if group.state is ClassicGroupState.PREPARING_REBALANCE and group.initial_delay is None and group.has_all_joined:
        complete_join_phase(draft)


def join_phase_expired(draft: ClassicGroupDraft, coordinator: GroupContext) -> None:
    """Handle the end of the rebalance timeout or of the initial delay: extend the delay, or complete the join phase."""
    group = draft.group
    initial_delay = group.initial_delay
    if group.state is not ClassicGroupState.PREPARING_REBALANCE:
        return
    if initial_delay is None or not initial_delay.extend or initial_delay.remaining == 0:
        complete_join_phase(draft)
        return
    # More members joined during the delay: wait once more, at most until the rebalance timeout.
    delay = min(coordinator.config.group_initial_rebalance_delay_ms, initial_delay.remaining)
    extended = InitialDelay(delay, max(initial_delay.remaining - initial_delay.delay, 0))
    draft.apply(InitialDelayExtended(group.group_id, extended))
    draft.set_timer(join_timer(group.group_id), delay)


def complete_join_phase(draft: ClassicGroupDraft) -> None:
    """End the join phase and start a generation.

    Dynamic members that did not rejoin are removed. Static ones stay until their session expires: a static member that restarts
    takes its time, and its partitions wait for it (KIP-345).
    """
    for member in draft.group.members.values():
        if member.join is None and member.instance_id is None:
            remove_member(draft, member.member_id)
    group = draft.group
    joined = [member for member in group.members.values() if member.join is not None]
    if group.members and not joined:  # only static members are left, and all of them are away: wait for one to return
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
    """Remove the members of this generation that did not send their SyncGroup in time, and start another rebalance."""
    missing = draft.group.pending_sync
    if not missing or ClassicGroupInput.REBALANCE not in TRANSITIONS[draft.group.state]:
        return
    for member_id in draft.group.members:
        if member_id in missing:
            remove_member(draft, member_id)
    start_rebalance(draft, coordinator)


def sync_received(draft: ClassicGroupDraft, member_id: str) -> None:
    """Note that a member has sent its SyncGroup; after the last one, cancel the timer of the sync phase."""
    draft.apply(SyncReceived(draft.group.group_id, member_id))
    if not draft.group.pending_sync:
        draft.cancel_timer(sync_timer(draft.group.group_id))


def answer_syncs(draft: ClassicGroupDraft, error: ErrorCode) -> None:
    """Answer every parked SyncGroup with an error, and restart the sessions of their senders, which are alive."""
    parked = [member for member in draft.group.members.values() if member.sync is not None]
    for member in parked:
        draft.reply(member.sync, sync_refused(error))
        draft.refresh_session(member)
    if parked:
        draft.apply(SyncsCompleted(draft.group.group_id))


def remove_member(draft: ClassicGroupDraft, member_id: str, join_error: ErrorCode = ErrorCode.unknown_member_id) -> None:
    """Remove a member, and answer its parked requests with an error: if it is alive, it must join again."""
    group = draft.group
    member = group.members[member_id]
    draft.reply(member.join, join_refused(join_error))
    draft.reply(member.sync, sync_refused(ErrorCode.unknown_member_id))
    draft.cancel_timer(session_timer(group.group_id, member_id))
    draft.apply(MemberRemoved(group.group_id, member_id))


def remove_pending_member(draft: ClassicGroupDraft, member_id: str) -> None:
    """Forget a member id that was given to a client which has not joined with it."""
    draft.cancel_timer(session_timer(draft.group.group_id, member_id))
    draft.apply(PendingMemberRemoved(draft.group.group_id, member_id))


def join_accepted(
    group: ClassicGroup, member_id: str, leader: str | None = None, skip_assignment: bool = False
) -> join_group_response.JoinGroupResponse:
    """Return the response with the current generation. ``leader`` overrides the group's leader in it."""
    leader = leader or group.leader or ""
    return join_group_response.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=_members(group) if member_id == leader else (),
    )


def _members(group: ClassicGroup) -> tuple[join_group_response.JoinGroupResponseMember, ...]:
    return tuple(
        join_group_response.JoinGroupResponseMember(
            member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata(group.protocol)
        )
        for member in group.members.values()
    )


def join_refused(error: ErrorCode, member_id: str = "") -> join_group_response.JoinGroupResponse:
    """Return the response with an error to a JoinGroup."""
    return join_group_response.JoinGroupResponse(
        throttle_time=NO_THROTTLE, error_code=error, protocol_name=None, leader="", member_id=member_id, members=()
    )


def sync_accepted(group: ClassicGroup, assignment: bytes) -> sync_group_response.SyncGroupResponse:
    """Return the response with a member's assignment."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=assignment,
    )


def sync_refused(error: ErrorCode) -> sync_group_response.SyncGroupResponse:
    """Return the response with an error to a SyncGroup."""
    return sync_group_response.SyncGroupResponse(throttle_time=NO_THROTTLE, error_code=error, assignment=b"")
