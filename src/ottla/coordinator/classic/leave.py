"""LeaveGroup: members go, by themselves or removed by an administrator.

Owns the decision about one LeaveGroup, member by member.
"""

from __future__ import annotations

from ottla.coordinator.classic.answers import leave_answer
from ottla.coordinator.classic.draft import Draft
from ottla.coordinator.classic.group import GroupState
from ottla.coordinator.classic.rebalance import drop_pending, rebalance_or_complete, remove_member
from ottla.coordinator.classic.validate import sender_error
from ottla.coordinator.consumer.answers import Refused
from ottla.coordinator.consumer.fencing import removed
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.membership import static_member
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.ports import Surroundings
from ottla.coordinator.result import Result
from ottla.coordinator.state import ShardState
from ottla.protocol import ErrorCode
from ottla.protocol.messages import leave_group_request, leave_group_response
from ottla.types import Now


def leave_group(
    around: Surroundings,
    state: ShardState,
    context: RequestContext,
    request: leave_group_request.LeaveGroupRequest,
    now: Now,
) -> Result:
    """Remove members, one answer for each; the group rebalances once."""
    if not request.group_id:
        return Result(answer=leave_answer(ErrorCode.invalid_group_id))
    group = state.group(request.group_id)
    if group is None:
        refused = tuple(_answer(identity, ErrorCode.unknown_member_id) for identity in request.members)
        return Result(answer=leave_answer(ErrorCode.none, refused))
    if isinstance(group, ConsumerGroup):
        return _leave_consumer_group(group, around, request, now)
    draft = Draft(group, now)
    answers = tuple(_answer(identity, _leave(draft, identity)) for identity in request.members)
    if group.state is not GroupState.EMPTY and any(answer.error_code is ErrorCode.none for answer in answers):
        rebalance_or_complete(draft, around)
    return draft.result(leave_answer(ErrorCode.none, answers))


def _leave_consumer_group(
    group: ConsumerGroup, around: Surroundings, request: leave_group_request.LeaveGroupRequest, now: Now
) -> Result:
    """Members of the classic protocol leave a consumer group; an administrator may remove any member so."""
    gone: dict[str, None] = {}
    answers = []
    for identity in request.members:
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.statics.get(identity.group_instance_id, "")
        error = _sender_error(group, member_id, identity.group_instance_id)
        if error is ErrorCode.none and member_id not in gone:
            gone[member_id] = None
        elif error is ErrorCode.none:
            error = ErrorCode.unknown_member_id
        answers.append(_answer(identity, error))
    answer = leave_answer(ErrorCode.none, tuple(answers))
    return removed(around, group, now, gone, answer) if gone else Result(answer=answer)


def _sender_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        if instance_id is not None:
            static_member(group, member_id, instance_id)
    except Refused as refused:
        return refused.code
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id


def _leave(draft: Draft, identity: leave_group_request.MemberIdentity) -> ErrorCode:
    """Without a member id, an administrator removes the member with an instance id."""
    member_id: str | None = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        member_id = draft.group.static_member_id(identity.group_instance_id)
    if member_id in draft.group.pending:
        drop_pending(draft, member_id or "")
        return ErrorCode.none
    error = sender_error(draft.group, member_id or "", identity.group_instance_id)
    if error is None:
        remove_member(draft, member_id or "")
    return error or ErrorCode.none


def _answer(identity: leave_group_request.MemberIdentity, error: ErrorCode) -> leave_group_response.MemberResponse:
    return leave_group_response.MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
    )
