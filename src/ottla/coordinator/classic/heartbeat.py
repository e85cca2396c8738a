"""Heartbeat, and the expiry of sessions.

Owns the table of responses by state, and the end of a session.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, generation_error
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.classic.rebalance import complete_if_all_joined, rebalance_or_complete, remove_member, remove_pending_member
from ottla.coordinator.decision import GroupContext, Result
from ottla.coordinator.effects import RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import heartbeat_request, heartbeat_response
from ottla.types import Now

_ANSWERS = {
    ClassicGroupState.PREPARING_REBALANCE: ErrorCode.rebalance_in_progress,
    ClassicGroupState.COMPLETING_REBALANCE: ErrorCode.none,
    ClassicGroupState.STABLE: ErrorCode.none,
}
"""State -> the response to a member of the current generation. An empty group has no members."""


def heartbeat(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    context: RequestContext,
    request: heartbeat_request.HeartbeatRequest,
    now: Now,
) -> Result:
    """Answer a Heartbeat, and restart the member's session."""
    if not request.group_id:
        return Result(answer=heartbeat_answer(ErrorCode.invalid_group_id))
    if group is None:
        return Result(answer=heartbeat_answer(ErrorCode.unknown_member_id))
    error = generation_error(group, request.member_id, request.group_instance_id, request.generation_id)
    if error is not None:
        return Result(answer=heartbeat_answer(error))
    draft = ClassicGroupDraft(group, now)
    draft.refresh_session(group.members[request.member_id])
    return draft.result(heartbeat_answer(_ANSWERS[group.state]))


def session_expired(draft: ClassicGroupDraft, coordinator: GroupContext, member_id: str) -> None:
    """Remove a member, or a member id that no client has joined with, whose session timeout has passed.

    A member with a parked JoinGroup or SyncGroup cannot send heartbeats, so its session restarts. Only a new member expires there,
    after ``new_member_join_timeout_ms``.
    """
    member = draft.group.members.get(member_id)
    if member is None:
        if member_id in draft.group.pending:
            remove_pending_member(draft, member_id)
            complete_if_all_joined(draft)
        return
    if not member.is_new and (member.join is not None or member.sync is not None):
        draft.refresh_session(member)
        return
    remove_member(draft, member_id)
    rebalance_or_complete(draft, coordinator)


def heartbeat_answer(error: ErrorCode) -> heartbeat_response.HeartbeatResponse:
    """Return the response to a Heartbeat."""
    return heartbeat_response.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error)
