"""JoinGroup: new and existing members join, and the group rebalances if that changes anything.

Owns the decision about one JoinGroup. Must not know the further course of a rebalance (``rebalance``). Source: KIP-62, KIP-345
(static members), KIP-394 (member ids), KIP-814 (static leaders).
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember, ClassicGroupState, Protocols, sender_error
from ottla.coordinator.classic.machine import (
    ClassicGroupDraft,
    JoinParked,
    MemberJoined,
    MemberReplaced,
    MemberUpdated,
    PendingMemberAdded,
    empty_value,
    metadata_value,
)
from ottla.coordinator.classic.rebalance import (
    complete_if_all_joined,
    join_accepted,
    join_refused,
    rebalance_or_complete,
    remove_member,
    remove_pending_member,
    start_rebalance,
    sync_refused,
)
from ottla.coordinator.decision import GroupContext, Result, session_timer
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import join_group_request
from ottla.types import Now

_LONGEST_STRING = 2**15 - 1
"""The longest string that a record can hold, in bytes."""


def join_group(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    now: Now,
) -> Result:
    """Answer or park a JoinGroup."""
    error = request_error(coordinator, context, request)
    if error is not None:
        return Result(answer=join_refused(error, request.member_id))
    if group is None and request.member_id:
        return Result(answer=join_refused(ErrorCode.unknown_member_id, request.member_id))
    draft = ClassicGroupDraft(group or ClassicGroup(request.group_id), now)
    if group is None:
        draft.apply(GroupMetadataUpdated(request.group_id, empty_value(draft.group, 0, now.wall)))
    if not _accepts_member(draft.group, request.member_id, coordinator.config.group_max_size):
        return _reject_in_full_group(draft, request.member_id)
    if not draft.group.supports(request.protocol_type, _protocols(request)):
        return draft.result(join_refused(ErrorCode.inconsistent_group_protocol, request.member_id))
    if request.member_id:
        return _join_existing_member(draft, coordinator, context, request)
    return _join_new_member(draft, coordinator, context, request)


def request_error(
    coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> ErrorCode | None:
    """Return the error of a JoinGroup that is invalid for every group."""
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


def _accepts_member(group: ClassicGroup, member_id: str, limit: int) -> bool:
    """Whether the group has room for a member.

    In a join phase the members that have already rejoined count, not all members. So a group that is too big, since the limit was
    lowered, keeps those that rejoin first and loses the last.
    """
    member = group.members.get(member_id)
    if group.state is ClassicGroupState.EMPTY:
        return True
    if group.state is ClassicGroupState.PREPARING_REBALANCE:
        if member is not None and member.join is not None:
            return True
        return sum(other.join is not None for other in group.members.values()) < limit
    return member is not None or len(group.members) < limit


def _reject_in_full_group(draft: ClassicGroupDraft, member_id: str) -> Result:
    if member_id in draft.group.members:
        remove_member(draft, member_id)
    elif member_id in draft.group.pending:
        remove_pending_member(draft, member_id)
    complete_if_all_joined(draft)
    return draft.result(join_refused(ErrorCode.group_max_size_reached))


def _join_new_member(
    draft: ClassicGroupDraft, coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> Result:
    instance_id = request.group_instance_id
    member_id = f"{context.client_id if instance_id is None else instance_id}-{coordinator.ids.new_id()}"
    if instance_id is not None:
        old_member_id = draft.group.static_member_id(instance_id)
        if old_member_id is not None:
            return _replace_static_member(draft, coordinator, context, request, draft.group.members[old_member_id], member_id)
    elif VersionRule.NEEDS_MEMBER_ID in context.version_rules:
        # KIP-394: 1. A client joins and its connection breaks, so it never sees the response with its member id. 2. It joins as
        # another new member. The first one stays in the group and holds up each rebalance until its session expires. So a client
        # first gets an id, and becomes a member by the JoinGroup that has it.
        draft.apply(PendingMemberAdded(request.group_id, member_id))
        draft.set_timer(session_timer(request.group_id, member_id), milliseconds(request.session_timeout))
        return draft.result(join_refused(ErrorCode.member_id_required, member_id))
    return _add_member(draft, coordinator, context, request, member_id)


def _join_existing_member(
    draft: ClassicGroupDraft, coordinator: GroupContext, context: RequestContext, request: join_group_request.JoinGroupRequest
) -> Result:
    group, member_id = draft.group, request.member_id
    if member_id in group.pending:
        if request.group_instance_id is not None:  # only dynamic members get ids this way
            return draft.result(join_refused(ErrorCode.unknown_server_error))
        return _add_member(draft, coordinator, context, request, member_id)
    error = sender_error(group, member_id, request.group_instance_id)
    if error is not None:
        return draft.result(join_refused(error, member_id))
    unchanged = group.members[member_id].protocols == _protocols(request)
    if group.state is ClassicGroupState.COMPLETING_REBALANCE and unchanged:
        # The response to its JoinGroup was lost: it gets the same generation again.
        return draft.result(join_accepted(group, member_id))
    if group.state is ClassicGroupState.STABLE and unchanged and member_id != group.leader:
        # A follower without changes needs no rebalance. A leader that joins again requests one, for example because topics have
        # changed.
        return draft.result(join_accepted(group, member_id))
    _update_member(draft, context, request, member_id)
    rebalance_or_complete(draft, coordinator)
    return draft.result()


def _add_member(
    draft: ClassicGroupDraft,
    coordinator: GroupContext,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    member_id: str,
) -> Result:
    """Add a new member and park its JoinGroup.

    Until it knows its generation it cannot send heartbeats, so ``new_member_join_timeout_ms`` applies instead of its session
    timeout.
    """
    member = replace(_member(context, request, member_id), is_new=True, join=context.ticket)
    draft.apply(MemberJoined(request.group_id, member, request.protocol_type))
    draft.set_timer(session_timer(request.group_id, member_id), coordinator.config.new_member_join_timeout_ms)
    rebalance_or_complete(draft, coordinator)
    return draft.result()


def _update_member(
    draft: ClassicGroupDraft, context: RequestContext, request: join_group_request.JoinGroupRequest, member_id: str
) -> None:
    """Update a member and park its JoinGroup.

    A JoinGroup of this member that is still parked came over a connection that the client has given up: it has sent another.
    """
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


def _replace_static_member(
    draft: ClassicGroupDraft,
    coordinator: GroupContext,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    old: ClassicGroupMember,
    member_id: str,
) -> Result:
    """Give the place of a static member to its successor after a restart (KIP-345).

    The old member id is fenced, in case the old process still runs. A stable group does not rebalance, unless it would now elect
    another protocol.
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
    # KIP-814: a returning leader must not assign again, since the group keeps its assignment. SKIP_ASSIGNMENT tells newer clients.
    # An older client would assign if it were the leader: so the response names its old id as the leader, which no member has.
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
