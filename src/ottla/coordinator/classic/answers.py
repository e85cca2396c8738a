"""The responses of the classic protocol.

Owns their content: only the leader gets the list of members. Must not know when they are sent.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup
from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.messages import (
    heartbeat_response,
    join_group_response,
    leave_group_request,
    leave_group_response,
    sync_group_response,
)


def join_refused(error: ErrorCode, member_id: str = "") -> join_group_response.JoinGroupResponse:
    """Return the response with an error to a JoinGroup."""
    return join_group_response.JoinGroupResponse(
        throttle_time=NO_THROTTLE, error_code=error, protocol_name=None, leader="", member_id=member_id, members=()
    )


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


def sync_refused(error: ErrorCode) -> sync_group_response.SyncGroupResponse:
    """Return the response with an error to a SyncGroup."""
    return sync_group_response.SyncGroupResponse(throttle_time=NO_THROTTLE, error_code=error, assignment=b"")


def sync_accepted(group: ClassicGroup, assignment: bytes) -> sync_group_response.SyncGroupResponse:
    """Return the response with a member's assignment."""
    return sync_group_response.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=assignment,
    )


def heartbeat_answer(error: ErrorCode) -> heartbeat_response.HeartbeatResponse:
    """Return the response to a Heartbeat."""
    return heartbeat_response.HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error)


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
