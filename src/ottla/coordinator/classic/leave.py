"""LeaveGroup: members leave, or an administrator removes them.

Owns the decision about one LeaveGroup.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, sender_error
from ottla.coordinator.classic.machine import ClassicGroupDraft
from ottla.coordinator.classic.rebalance import rebalance_or_complete, remove_member, remove_pending_member
from ottla.coordinator.decision import GroupContext, Result
from ottla.coordinator.effects import RequestContext
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import leave_group_request, leave_group_response
from ottla.types import Now


def leave_group(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    context: RequestContext,
    request: leave_group_request.LeaveGroupRequest,
    now: Now,
) -> Result:
    """Remove members, with a result for each; the group rebalances once."""
    if not request.group_id:
        return Result(answer=leave_answer(ErrorCode.invalid_group_id))
    if group is None:
        unknown = tuple(leave_result(identity, ErrorCode.unknown_member_id) for identity in request.members)
        return Result(answer=leave_answer(ErrorCode.none, unknown))
    draft = ClassicGroupDraft(group, now)
    results = tuple(leave_result(identity, _leave(draft, identity)) for identity in request.members)
    if group.state is not ClassicGroupState.EMPTY and any(result.error_code is ErrorCode.none for result in results):
        rebalance_or_complete(draft, coordinator)
    return draft.result(leave_answer(ErrorCode.none, results))


def _leave(draft: ClassicGroupDraft, identity: leave_group_request.MemberIdentity) -> ErrorCode:
    """Remove one member. A request with an instance id alone comes from an administrator and names no member id."""
    member_id: str | None = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        member_id = draft.group.static_member_id(identity.group_instance_id)
    if member_id in draft.group.pending:
        remove_pending_member(draft, member_id or "")
        return ErrorCode.none
    error = sender_error(draft.group, member_id or "", identity.group_instance_id)
    if error is None:
        remove_member(draft, member_id or "")
    return error or ErrorCode.none


def leave_answer(
    error: ErrorCode, members: tuple[leave_group_response.MemberResponse, ...] = ()
) -> leave_group_response.LeaveGroupResponse:
    """Return the response to a LeaveGroup: an error of the whole request, or a result for each member."""
    return leave_group_response.LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=error, members=members)


def leave_result(identity: leave_group_request.MemberIdentity, error: ErrorCode) -> leave_group_response.MemberResponse:
    """Return the result for one member of a LeaveGroup."""
    return leave_group_response.MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
    )
