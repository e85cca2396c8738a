"""JoinGroup: who becomes a member, and whether that makes the group rebalance.

Owns the decision about one JoinGroup. Must not know how a round goes on (``rebalance``). Source: KIP-62, KIP-345 (static members),
KIP-394 (member ids), KIP-814 (static leaders).
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordinator.classic.answers import join_accepted, join_refused, sync_refused
from ottla.coordinator.classic.draft import ClassicGroupDraft
from ottla.coordinator.classic.events import JoinParked, MemberJoined, MemberReplaced, MemberUpdated, PendingMemberAdded
from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState, Protocols
from ottla.coordinator.classic.machine import empty_value, metadata_value
from ottla.coordinator.classic.rebalance import (
    complete_if_all_joined,
    drop_pending,
    rebalance_or_complete,
    remove_member,
    start_rebalance,
)
from ottla.coordinator.classic.validate import sender_error
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.coordinator.ports import GroupContext
from ottla.coordinator.result import Result
from ottla.coordinator.timers import session_timer
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import join_group_request
from ottla.types import Now

_LONGEST_STRING = 2**15 - 1
"""What a record's string can hold, in bytes."""


def join_group(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    now: Now,
) -> Result:
    """Answer, park or refuse a JoinGroup."""
    error = request_error(coordinator, context, request)
    if error is not None:
        return Result(answer=join_refused(error, request.member_id))
    if group is None and request.member_id:
        return Result(answer=join_refused(ErrorCode.unknown_member_id, request.member_id))
    draft = ClassicGroupDraft(group or ClassicGroup(request.group_id), now)
    if group is None:
        draft.apply(GroupMetadataUpdated(request.group_id, empty_value(draft.group, 0, now.wall)))
    if not _has_room(draft.group, request.member_id, coordinator.config.group_max_size):
        return _turned_away(draft, request.member_id)
    if not draft.group.supports(request.protocol_type, _protocols(request)):
        return draft.result(join_refused(ErrorCode.inconsistent_group_protocol, request.member_id))
    if request.member_id:
        return _known_member(draft, coordinator, context, request)
    return _new_member(draft, coordinator, context, request)


def request_error(
    coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> ErrorCode | None:
    """What is wrong with a JoinGroup whatever group it is for."""
    config = coordinator.config
    if not request.group_id:
        return ErrorCode.invalid_group_id
    stored = (request.group_id, request.protocol_type, *(protocol.name for protocol in request.protocols))
    member_id = f"{request.group_instance_id or context.client_id}-{'x' * 36}"
    if any(len(text.encode()) > _LONGEST_STRING for text in (*stored, member_id)):
        return ErrorCode.invalid_request
    session_timeout = milliseconds(request.session_timeout)
    if not config.group_min_session_timeout_ms <= session_timeout <= config.group_max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    return None


def _has_room(group: ClassicGroup, member_id: str, limit: int) -> bool:
    """In a join phase the first members stay, so a group that is too big loses the last ones to rejoin."""
    member = group.members.get(member_id)
    if group.state is ClassicGroupState.EMPTY:
        return True
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        if member is not None and member.join is not None:
            return True
        return sum(other.join is not None for other in group.members.values()) < limit
    return member is not None or len(group.members) < limit


def _turned_away(draft: ClassicGroupDraft, member_id: str) -> Result:
    if member_id in draft.group.members:
        remove_member(draft, member_id)
    elif member_id in draft.group.pending:
        drop_pending(draft, member_id)
    complete_if_all_joined(draft)
    return draft.result(join_refused(ErrorCode.group_max_size_reached))


def _new_member(
    draft: ClassicGroupDraft, coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> Result:
    instance_id = request.group_instance_id
    member_id = f"{context.client_id if instance_id is None else instance_id}-{coordinator.ids.new_id()}"
    if instance_id is not None:
        old_member_id = draft.group.static_member_id(instance_id)
        if old_member_id is not None:
            return _returning_static(draft, coordinator, context, request, draft.group.members[old_member_id], member_id)
    elif VersionRule.NEEDS_MEMBER_ID in context.version_rules:
        draft.apply(PendingMemberAdded(request.group_id, member_id))
        draft.set_timer(session_timer(request.group_id, member_id), milliseconds(request.session_timeout))
        return draft.result(join_refused(ErrorCode.member_id_required, member_id))
    return _added(draft, coordinator, context, request, member_id)


def _known_member(
    draft: ClassicGroupDraft, coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> Result:
    group, member_id = draft.group, request.member_id
    if member_id in group.pending:
        if request.group_instance_id is not None:  # ids are given to dynamic members only
            return draft.result(join_refused(ErrorCode.unknown_server_error))
        return _added(draft, coordinator, context, request, member_id)
    error = sender_error(group, member_id, request.group_instance_id)
    if error is not None:
        return draft.result(join_refused(error, member_id))
    unchanged = group.members[member_id].protocols == _protocols(request)
    if group.state is ClassicGroupState.COMPLETING_REBALANCE and unchanged:
        return draft.result(join_accepted(group, member_id))  # the answer to its JoinGroup was lost
    if group.state is ClassicGroupState.STABLE and unchanged and member_id != group.leader:
        return draft.result(join_accepted(group, member_id))
    _update(draft, context, request, member_id)
    rebalance_or_complete(draft, coordinator)
    return draft.result()


def _added(
    draft: ClassicGroupDraft,
    coordinator: GroupContext,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    member_id: str,
) -> Result:
    """It cannot send heartbeats before it knows its generation, so another timer than the session's watches it until then."""
    member = replace(_member(context, request, member_id), is_new=True, join=context.ticket)
    draft.apply(MemberJoined(request.group_id, member, request.protocol_type))
    draft.set_timer(session_timer(request.group_id, member_id), coordinator.config.new_member_join_timeout_ms)
    rebalance_or_complete(draft, coordinator)
    return draft.result()


def _update(
    draft: ClassicGroupDraft, context: RequestContext, request: join_group_request.JoinGroupRequest, member_id: str
) -> None:
    """A JoinGroup of the same member that still waits is a lost one: the client has sent another."""
    draft.reply(draft.group.members[member_id].join, join_refused(ErrorCode.rebalance_in_progress, member_id))
    draft.apply(
        MemberUpdated(
            request.group_id,
            member_id,
            _protocols(request),
            milliseconds(request.rebalance_timeout),
            milliseconds(request.session_timeout),
        )
    )
    draft.apply(JoinParked(request.group_id, member_id, context.ticket))


def _returning_static(
    draft: ClassicGroupDraft,
    coordinator: GroupContext,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    old: ClassicGroupMember,
    member_id: str,
) -> Result:
    """A static member was restarted: it takes its own place, and its old self, should it still run, is fenced.

    A stable group does not even notice, unless the protocol that it would choose has changed.
    """
    group_id, old_leader = request.group_id, draft.group.leader
    draft.reply(old.join, join_refused(ErrorCode.fenced_instance_id, old.member_id))
    draft.reply(old.sync, sync_refused(ErrorCode.fenced_instance_id))
    member = replace(_member(context, request, member_id), assignment=old.assignment)
    draft.apply(MemberReplaced(group_id, old.member_id, member))
    draft.cancel_timer(session_timer(group_id, old.member_id))
    draft.refresh_session(member)
    group = draft.group
    if group.state is not ClassicGroupState.STABLE or group.elect_protocol() != group.protocol:
        draft.apply(JoinParked(group_id, member_id, context.ticket))
        if group.state is ClassicGroupState.PREPARING_REBALANCE:
            complete_if_all_joined(draft)
        else:
            start_rebalance(draft, coordinator)
        return draft.result()
    assignments = {other.member_id: other.assignment for other in group.members.values()}
    draft.apply(GroupMetadataUpdated(group_id, metadata_value(group, assignments)))
    if VersionRule.SKIP_ASSIGNMENT in context.version_rules:
        return draft.result(join_accepted(draft.group, member_id, skip_assignment=member_id == group.leader))
    # An older client would assign if it were the leader: the answer names its old id as the leader, which no member has.
    return draft.result(join_accepted(draft.group, member_id, leader=old_leader))


def _member(context: RequestContext, request: join_group_request.JoinGroupRequest, member_id: str) -> ClassicGroupMember:
    return ClassicGroupMember(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout=milliseconds(request.rebalance_timeout),
        session_timeout=milliseconds(request.session_timeout),
        protocols=_protocols(request),
    )


def _protocols(request: join_group_request.JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
