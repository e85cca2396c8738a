"""SyncGroup: the leader sends the assignment, and each member gets its part of it.

Owns the decision about one SyncGroup, and the new rebalance after an assignment that could not be stored. Invariant: no member
gets its part before the whole assignment is in the log.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupState, generation_error
from ottla.coordinator.classic.machine import ClassicGroupDraft, SyncParked, SyncsCompleted, metadata_value
from ottla.coordinator.classic.rebalance import answer_syncs, start_rebalance, sync_accepted, sync_received, sync_refused
from ottla.coordinator.decision import GroupContext, Result
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.events import GroupMetadataUpdated
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import sync_group_request
from ottla.types import Now

_ERROR_IN_STATE = {
    ClassicGroupState.EMPTY: ErrorCode.unknown_member_id,
    ClassicGroupState.PREPARING_REBALANCE: ErrorCode.rebalance_in_progress,
}


def sync_group(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    context: RequestContext,
    request: sync_group_request.SyncGroupRequest,
    now: Now,
) -> Result:
    """Answer or park a SyncGroup."""
    error = request_error(context, request)
    if error is not None:
        return Result(answer=sync_refused(error))
    if group is None:
        return Result(answer=sync_refused(ErrorCode.unknown_member_id))
    error = _sender_error(group, request) or _ERROR_IN_STATE.get(group.state)
    if error is not None:
        return Result(answer=sync_refused(error))
    draft = ClassicGroupDraft(group, now)
    member = group.members[request.member_id]
    sync_received(draft, member.member_id)
    if group.state is ClassicGroupState.STABLE:
        draft.refresh_session(member)
        return draft.result(sync_accepted(group, member.assignment))
    # A SyncGroup of this member that is still parked came over a connection that the client has given up: it has sent another.
    draft.reply(member.sync, sync_refused(ErrorCode.rebalance_in_progress))
    if member.member_id != group.leader:
        draft.apply(SyncParked(group.group_id, member.member_id, context.ticket))
        return draft.result()
    return _store_assignment(draft, request)


def request_error(context: RequestContext, request: sync_group_request.SyncGroupRequest) -> ErrorCode | None:
    """Return the error of a SyncGroup that is invalid for every group."""
    if VersionRule.NAMES_PROTOCOL in context.version_rules and None in (request.protocol_type, request.protocol_name):
        return ErrorCode.inconsistent_group_protocol
    return None if request.group_id else ErrorCode.invalid_group_id


def _sender_error(group: ClassicGroup, request: sync_group_request.SyncGroupRequest) -> ErrorCode | None:
    error = generation_error(group, request.member_id, request.group_instance_id, request.generation_id)
    if error is not None:
        return error
    pairs = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol))
    if any(sent is not None and current is not None and sent != current for sent, current in pairs):
        return ErrorCode.inconsistent_group_protocol
    return None


def _store_assignment(draft: ClassicGroupDraft, request: sync_group_request.SyncGroupRequest) -> Result:
    """Store the leader's assignment, then answer all parked SyncGroups with it. A member that it does not name gets no bytes."""
    group = draft.group
    sent = {item.member_id: item.assignment for item in request.assignments}
    assignments = {member_id: sent.get(member_id, b"") for member_id in group.members}
    waiting = [member for member in group.members.values() if member.sync is not None and member.member_id != group.leader]
    draft.apply(GroupMetadataUpdated(group.group_id, metadata_value(group, assignments)))
    for member in waiting:
        draft.reply(member.sync, sync_accepted(group, assignments[member.member_id]))
        draft.refresh_session(member)
    draft.apply(SyncsCompleted(group.group_id))
    draft.refresh_session(group.members[request.member_id])
    return draft.result(sync_accepted(group, assignments[request.member_id]))


def sync_not_stored(
    coordinator: GroupContext,
    group: ClassicGroup | None,
    request: sync_group_request.SyncGroupRequest,
    error: ErrorCode,
    now: Now,
) -> Result:
    """Answer all SyncGroups with an error and start another rebalance, since the assignment could not be stored."""
    assert group is not None, "no other operation is carried out on a group while its append is open"
    draft = ClassicGroupDraft(group, now)
    answer_syncs(draft, error)
    start_rebalance(draft, coordinator)
    return draft.result(sync_refused(error))
