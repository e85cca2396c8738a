"""A member of the classic protocol in a consumer group: its JoinGroup, SyncGroup and Heartbeat.

Owns these three requests, and LeaveGroup, for consumer groups. Must not know parked requests: no request waits for other members
here. Invariant: the generation in a response is the member's epoch, and the member is never the leader.

Such a member takes the steps of a consumer group (``consumer.progress``) in the requests that it has:

1. Heartbeat is answered with REBALANCE_IN_PROGRESS if a JoinGroup would bring the member a step further.
2. JoinGroup takes the step. The partitions that the member owns are in its subscription; the member has no other way to
   acknowledge a revocation.
3. SyncGroup returns the partitions that the member may read now. If it is still to revoke some, the next Heartbeat leads to step 1.

Source: KIP-848, "Consumer protocol upgrade/downgrade"; the checks and their order are those of Apache Kafka 4.3, except for one:
Kafka compares a member's epoch only with that of the target, and here a member must also rejoin to compute the next target.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.coordinator.classic.group import Protocols
from ottla.coordinator.classic.heartbeat import heartbeat_answer
from ottla.coordinator.classic.join import join_group, request_error
from ottla.coordinator.classic.leave import leave_answer, leave_result
from ottla.coordinator.classic.rebalance import join_refused, sync_refused
from ottla.coordinator.classic.sync import request_error as sync_request_error
from ottla.coordinator.consumer.fencing import deletion_events
from ottla.coordinator.consumer.group import NO_PARTITIONS, ConsumerGroup, ConsumerGroupMember, MemberState
from ottla.coordinator.consumer.machine import ConsumerGroupDraft
from ottla.coordinator.consumer.membership import new_member_id, replace_member, static_member, unknown_member
from ottla.coordinator.consumer.progress import advance
from ottla.coordinator.consumer.target import is_assignment_due
from ottla.coordinator.decision import GroupContext, Result, rebalance_timer, rejoin_timer, resync_timer, session_timer
from ottla.coordinator.effects import ApiError, CancelTimer, RequestContext, SetTimer
from ottla.coordinator.migration.blobs import assignment_blob, by_topic_id, member_metadata, protocols_of
from ottla.coordinator.migration.downgrade import downgrade_group, may_downgrade, remove_members
from ottla.errors import ProtocolError
from ottla.protocol import NO_THROTTLE, ErrorCode, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.consumer_protocol import decode_subscription
from ottla.protocol.messages import (
    heartbeat_request,
    join_group_request,
    join_group_response,
    leave_group_request,
    sync_group_request,
    sync_group_response,
)
from ottla.types import Now

_TYPE = "consumer"


def join_consumer_group(
    coordinator: GroupContext, group: ConsumerGroup, context: RequestContext, request: join_group_request.JoinGroupRequest, now: Now
) -> Result:
    """Handle the JoinGroup of a member of the classic protocol. A consumer group without members becomes a classic group."""
    error = request_error(coordinator, context, request)
    if error is not None:
        return Result(answer=join_refused(error, request.member_id))
    if not group.members:
        result = join_group(coordinator, None, context, request, now)
        return replace(result, events=(*deletion_events(group), *result.events)) if result.events else result
    member_id = request.member_id
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
    try:
        _check_join(group, coordinator, request, protocols)
        if not member_id:
            member_id = new_member_id(coordinator)
            if request.group_instance_id is None and VersionRule.NEEDS_MEMBER_ID in context.version_rules:
                return Result(answer=join_refused(ErrorCode.member_id_required, member_id))
        return _join(ConsumerGroupDraft(group, now), coordinator, context, request, member_id, protocols)
    except ApiError as api_error:
        return Result(answer=join_refused(api_error.code, request.member_id))
    except ProtocolError:
        return Result(answer=join_refused(ErrorCode.inconsistent_group_protocol, request.member_id))


def _check_join(
    group: ConsumerGroup, coordinator: GroupContext, request: join_group_request.JoinGroupRequest, protocols: Protocols
) -> None:
    is_known = request.member_id in group.members or (request.group_instance_id or "") in group.static_members
    limit = coordinator.config.group_consumer_max_size
    if not is_known and len(group.members) >= limit:
        raise ApiError(ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum capacity of {limit} members.")
    common = common_protocols(group)
    if request.protocol_type != _TYPE or not any(common is None or name in common for name, _ in protocols):
        raise ApiError(ErrorCode.inconsistent_group_protocol, "The members have no protocol in common.")


def common_protocols(group: ConsumerGroup) -> frozenset[str] | None:
    """Return the assignors that all members of the classic protocol support; ``None`` if there is no such member."""
    supported = [
        frozenset(name for name, _ in protocols_of(member.metadata))
        for member in group.members.values()
        if member.uses_classic_protocol
    ]
    return frozenset.intersection(*supported) if supported else None


def _join(
    draft: ConsumerGroupDraft,
    coordinator: GroupContext,
    context: RequestContext,
    request: join_group_request.JoinGroupRequest,
    member_id: str,
    protocols: Protocols,
) -> Result:
    group_id, instance_id = request.group_id, request.group_instance_id
    predecessor = draft.group.members.get(draft.group.static_members.get(instance_id or "", ""))
    before = _find_or_create_member(draft, request, member_id)
    session_timeout, rebalance_timeout = milliseconds(request.session_timeout), milliseconds(request.rebalance_timeout)
    metadata = member_metadata(
        protocols,
        protocols[0][1],
        instance_id=instance_id or before.instance_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout=rebalance_timeout,
        session_timeout=session_timeout,
    )
    owned = by_topic_id(decode_subscription(protocols[0][1]).owned, coordinator.topics)
    after, _ = advance(draft, coordinator, before, metadata, owned)
    answer = _join_answer(draft.group, after)
    if predecessor is not None and not predecessor.uses_classic_protocol and may_downgrade(coordinator, draft.group):
        # A classic member has replaced the last member of the consumer protocol, a static one.
        join, downgrade = draft.result(), downgrade_group(coordinator, draft.group, draft.now, answer=answer)
        return replace(downgrade, events=(*join.events, *downgrade.events), effects=(*join.effects, *downgrade.effects))
    draft.cancel_timer(rejoin_timer(group_id, member_id))
    draft.cancel_timer(rebalance_timer(group_id, member_id))
    draft.set_timer(session_timer(group_id, member_id), session_timeout)
    draft.set_timer(resync_timer(group_id, member_id), rebalance_timeout)
    return draft.result(answer)


def _find_or_create_member(
    draft: ConsumerGroupDraft, request: join_group_request.JoinGroupRequest, member_id: str
) -> ConsumerGroupMember:
    """Return the member as it was before this request; a new one has no epoch. Raises ``ApiError``."""
    group, instance_id = draft.group, request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id)
    if request.member_id:
        return static_member(group, member_id, instance_id)
    current_id = group.static_members.get(instance_id)
    return ConsumerGroupMember(member_id) if current_id is None else replace_member(draft, group.members[current_id], member_id)


def _join_answer(group: ConsumerGroup, member: ConsumerGroupMember) -> join_group_response.JoinGroupResponse:
    common = common_protocols(group) or frozenset()
    supported = [name for name, _ in protocols_of(member.metadata)]
    return join_group_response.JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        generation_id=member.epoch,
        protocol_type=_TYPE,
        protocol_name=next((name for name in supported if name in common), supported[0]),
        leader="",
        member_id=member.member_id,
        members=(),
    )


def sync_consumer_group(
    coordinator: GroupContext, group: ConsumerGroup, context: RequestContext, request: sync_group_request.SyncGroupRequest, now: Now
) -> Result:
    """Answer the SyncGroup of a member of the classic protocol with the partitions that it may read.

    Assignments in the request are ignored: the coordinator assigns.
    """
    error = sync_request_error(context, request)
    if error is not None:
        return Result(answer=sync_refused(error))
    try:
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
        supported = [name for name, _ in protocols_of(member.metadata)]
        if request.protocol_type not in (None, _TYPE) or request.protocol_name not in (None, *supported):
            raise ApiError(ErrorCode.inconsistent_group_protocol, f"Member {member.member_id} does not support this protocol.")
    except ApiError as api_error:
        return Result(answer=sync_refused(api_error.code))
    if member.state is not MemberState.UNREVOKED_PARTITIONS and _is_behind(group, coordinator, member, now):
        return Result((), (_await_rejoin(group, member, now),), sync_refused(ErrorCode.rebalance_in_progress))
    answer = sync_group_response.SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type=_TYPE,
        protocol_name=request.protocol_name or supported[0],
        assignment=assignment_blob(member.assigned, coordinator.topics, protocols_of(member.metadata)[0][1]),
    )
    timers = (CancelTimer(resync_timer(group.group_id, member.member_id)), _restart_session(group, member, now))
    return Result((), timers, answer)


def heartbeat_in_consumer_group(
    coordinator: GroupContext, group: ConsumerGroup, context: RequestContext, request: heartbeat_request.HeartbeatRequest, now: Now
) -> Result:
    """Answer the Heartbeat of a member of the classic protocol: REBALANCE_IN_PROGRESS if a JoinGroup would have an effect."""
    try:
        member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    except ApiError as api_error:
        return Result(answer=heartbeat_answer(api_error.code))
    session = _restart_session(group, member, now)
    must_rejoin = (
        member.state is MemberState.UNREVOKED_PARTITIONS
        or _is_behind(group, coordinator, member, now)
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _has_unreleased_partitions(group, member))
    )
    if must_rejoin:
        return Result((), (session, _await_rejoin(group, member, now)), heartbeat_answer(ErrorCode.rebalance_in_progress))
    return Result((), (session,), heartbeat_answer(ErrorCode.none))


def leave_consumer_group(
    coordinator: GroupContext,
    group: ConsumerGroup,
    context: RequestContext,
    request: leave_group_request.LeaveGroupRequest,
    now: Now,
) -> Result:
    """Handle a LeaveGroup for a consumer group: members of the classic protocol leave, or an administrator removes any members."""
    leaving: dict[str, None] = {}
    results = []
    for identity in request.members:
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.static_members.get(identity.group_instance_id, "")
        error = _member_error(group, member_id, identity.group_instance_id)
        if error is ErrorCode.none and member_id not in leaving:
            leaving[member_id] = None
        elif error is ErrorCode.none:
            error = ErrorCode.unknown_member_id
        results.append(leave_result(identity, error))
    answer = leave_answer(ErrorCode.none, tuple(results))
    return remove_members(coordinator, group, now, leaving, answer) if leaving else Result(answer=answer)


def _member_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    try:
        if instance_id is not None:
            static_member(group, member_id, instance_id)
    except ApiError as api_error:
        return api_error.code
    return ErrorCode.none if member_id in group.members else ErrorCode.unknown_member_id


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> ConsumerGroupMember:
    member = group.members.get(member_id) if instance_id is None else static_member(group, member_id, instance_id)
    if member is None or not member.uses_classic_protocol:
        raise unknown_member(group, member_id)
    if generation != member.epoch:
        raise ApiError(ErrorCode.illegal_generation, f"Member {member_id} is in generation {member.epoch}, not {generation}.")
    return member


def _is_behind(group: ConsumerGroup, coordinator: GroupContext, member: ConsumerGroupMember, now: Now) -> bool:
    """Whether there is a newer target, or the next JoinGroup would compute one."""
    return member.epoch < group.assignment_epoch or (
        group.assignment_epoch < group.epoch and is_assignment_due(coordinator, group, now)
    )


def _has_unreleased_partitions(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    return any(
        number in group.owners.get(topic_id, NO_PARTITIONS) and number not in member.assigned.get(topic_id, NO_PARTITIONS)
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        for number in numbers
    )


def _restart_session(group: ConsumerGroup, member: ConsumerGroupMember, now: Now) -> SetTimer:
    classic = member.metadata.classic_member_metadata
    timeout = 0 if classic is None else classic.session_timeout_ms
    return SetTimer(session_timer(group.group_id, member.member_id), now.mono + timeout)


def _await_rejoin(group: ConsumerGroup, member: ConsumerGroupMember, now: Now) -> SetTimer:
    """Start the time by which the member must join again; if it already runs, it goes on, however many heartbeats follow."""
    timeout = member.metadata.rebalance_timeout_ms
    return SetTimer(rejoin_timer(group.group_id, member.member_id), now.mono + timeout, unless_set=True)
