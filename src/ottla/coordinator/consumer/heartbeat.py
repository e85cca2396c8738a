"""ConsumerGroupHeartbeat: the one request by which members join, stay, receive their assignment and acknowledge revocations.

Owns the order of the steps, the rules for the request's fields that hold for every group, and the responses. Invariants: a
heartbeat that changes nothing costs the same in a group of any size; an assignment is in the log before a response contains it.

Source: KIP-848, and KIP-1082 for member ids; the order of steps and of records and the error messages are those of Apache Kafka
4.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import lru_cache

from ottla.coordinator.consumer.client_side import NO_MESSAGE, AssignorMessage
from ottla.coordinator.consumer.group import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
)
from ottla.coordinator.consumer.machine import ConsumerGroupDraft
from ottla.coordinator.consumer.membership import find_or_create_member, new_member_id, updated_metadata
from ottla.coordinator.consumer.progress import advance
from ottla.coordinator.consumer.reconcile import ReportedPartitions
from ottla.coordinator.consumer.regex import check_regex, is_resolution_due
from ottla.coordinator.decision import (
    GroupContext,
    Result,
    heartbeat_interval,
    rebalance_timer,
    rejoin_timer,
    resync_timer,
    session_timeout,
    session_timer,
)
from ottla.coordinator.effects import ApiError, RequestContext, SetTimer
from ottla.protocol import NO_THROTTLE, ErrorCode, duration, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import consumer_group_heartbeat_request, consumer_group_heartbeat_response
from ottla.types import Now

_UNCHANGED = duration(-1)

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest

_LONGEST_STRING = 2**15 - 1
"""The longest string that a record's key can hold, in bytes."""


def consumer_group_heartbeat(
    coordinator: GroupContext, group: ConsumerGroup | None, context: RequestContext, request: _Heartbeat, now: Now
) -> Result:
    """Handle a heartbeat of a member that joins or stays."""
    if group is not None and _changes_nothing(coordinator, group, context, request, now):
        session = SetTimer(
            session_timer(group.group_id, request.member_id), now.mono + session_timeout(coordinator, group.group_id)
        )
        interval = heartbeat_interval(coordinator, group.group_id)
        return Result((), (session,), unchanged_answer(request.member_id, request.member_epoch, interval))
    try:
        check_request(coordinator, context, request)
        if group is None and request.member_epoch != JOIN_GROUP_EPOCH:
            raise ApiError(ErrorCode.group_id_not_found, f"Consumer group {request.group_id} not found.")
        return process_heartbeat(ConsumerGroupDraft(group or ConsumerGroup(request.group_id), now), coordinator, context, request)
    except ApiError as api_error:
        return Result(answer=heartbeat_refused(api_error.code, api_error.message))


def _changes_nothing(
    coordinator: GroupContext, group: ConsumerGroup, context: RequestContext, request: _Heartbeat, now: Now
) -> bool:
    """Whether neither the heartbeat nor the group has anything new for the member. Nearly all heartbeats are of this kind.

    This looks at one member only, so that its cost does not grow with the group.
    """
    member = group.members.get(request.member_id)
    return (
        member is not None
        and member.epoch == request.member_epoch == group.assignment_epoch == group.epoch
        and member.state is MemberState.STABLE
        and request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.client_assignors is None
        and request.rack_id is None
        and (request.instance_id is None or request.instance_id == member.metadata.instance_id)
        and request.rebalance_timeout == _UNCHANGED
        and group.image_version == coordinator.topics.version
        and (not group.regex_subscribers or not is_resolution_due(group, coordinator, now))
        and (member.metadata.client_id, member.metadata.client_host) == (context.client_id, context.client_host)
        and not member.uses_classic_protocol
    )


def process_heartbeat(draft: ConsumerGroupDraft, coordinator: GroupContext, context: RequestContext, request: _Heartbeat) -> Result:
    """Let the sender join the group or take its next step in it. Raises ``ApiError``."""
    group_id = request.group_id
    member_id = request.member_id or new_member_id(coordinator)
    owned = _reported_partitions(request)
    before = find_or_create_member(draft, request, member_id, owned, coordinator.config.group_consumer_max_size)
    after, stepped = advance(draft, coordinator, before, updated_metadata(coordinator, before, context, request), owned)
    if stepped and after.state is MemberState.UNREVOKED_PARTITIONS:
        draft.set_timer(rebalance_timer(group_id, member_id), after.metadata.rebalance_timeout_ms)
    elif stepped:
        draft.cancel_timer(rebalance_timer(group_id, member_id))
    if before.uses_classic_protocol:
        for timer in (rejoin_timer, resync_timer):
            draft.cancel_timer(timer(group_id, member_id))
    draft.set_timer(session_timer(group_id, member_id), session_timeout(coordinator, group_id))
    with_assignment = request.member_epoch == JOIN_GROUP_EPOCH or _is_full_request(request) or _differ(before, after)
    assignment = assignment_of(after) if with_assignment else None
    client = draft.group.client
    compute = client.run is not None and client.run.member_id == member_id and client.run.spec is None
    message = client.message_to(member_id) if with_assignment or after.epoch != before.epoch else NO_MESSAGE
    interval = heartbeat_interval(coordinator, group_id)
    return draft.result(heartbeat_answer(member_id, after.epoch, interval, assignment, compute=compute, message=message))


def _reported_partitions(request: _Heartbeat) -> ReportedPartitions | None:
    if request.topic_partitions is None:
        return None
    owned: dict[uuid.UUID, set[int]] = {}
    for topic in request.topic_partitions:
        if topic.topic_id is not None:
            owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return owned


def _is_full_request(request: _Heartbeat) -> bool:
    """Whether the heartbeat has all fields set. A client sends such a one after a response may have been lost:

    1. The coordinator assigns new partitions, and the response with them is lost.
    2. The client repeats the heartbeat with all fields. Its assignment has not changed since step 1, so the rule "only what
       changed" would leave it out; it is sent because the request is full.
    """
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return subscribes and request.topic_partitions is not None and request.rebalance_timeout != _UNCHANGED


def _differ(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    """Whether a member's assigned partitions have changed."""
    if before.assigned is after.assigned:
        return False
    return {topic_id: set(one) for topic_id, one in before.assigned.items()} != {
        topic_id: set(one) for topic_id, one in after.assigned.items()
    }


def check_request(coordinator: GroupContext, context: RequestContext, request: _Heartbeat) -> None:
    """Raise ``ApiError`` for a request that is invalid for every group."""
    for text, is_wrong in _RULES:
        if is_wrong(context, request):
            raise ApiError(ErrorCode.invalid_request, text)
    assignor = request.server_assignor
    if assignor is not None and assignor not in coordinator.assignors:
        supported = ", ".join(coordinator.assignors)
        message = f"ServerAssignor {assignor} is not supported. Supported assignors: {supported}."
        raise ApiError(ErrorCode.unsupported_assignor, message)
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)


def _is_join(request: _Heartbeat) -> bool:
    return request.member_epoch == JOIN_GROUP_EPOCH


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


_RULES: tuple[tuple[str, Callable[[RequestContext, _Heartbeat], bool]], ...] = (
    (
        "MemberId can't be empty.",
        lambda context, request: (
            not request.member_id.strip() and (VersionRule.MAKES_MEMBER_ID in context.version_rules or not _is_join(request))
        ),
    ),
    ("GroupId can't be empty.", lambda context, request: not request.group_id.strip()),
    ("InstanceId can't be empty.", lambda context, request: _is_blank(request.instance_id)),
    ("RackId can't be empty.", lambda context, request: _is_blank(request.rack_id)),
    (
        "GroupId, MemberId, InstanceId and SubscribedTopicRegex must be shorter than 32768 bytes.",
        lambda context, request: any(
            len((text or "").encode()) > _LONGEST_STRING
            for text in (request.group_id, request.member_id, request.instance_id, request.subscribed_topic_regex)
        ),
    ),
    (
        "RebalanceTimeoutMs must be provided in first request.",
        lambda context, request: _is_join(request) and milliseconds(request.rebalance_timeout) == -1,
    ),
    (
        "TopicPartitions must be empty when (re-)joining.",
        lambda context, request: _is_join(request) and (request.topic_partitions is None or len(request.topic_partitions) > 0),
    ),
    (
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        lambda context, request: (
            _is_join(request) and request.subscribed_topic_names is None and request.subscribed_topic_regex is None
        ),
    ),
    (
        "InstanceId can't be null.",
        lambda context, request: request.member_epoch == LEAVE_GROUP_STATIC_EPOCH and request.instance_id is None,
    ),
    ("MemberEpoch is invalid.", lambda context, request: request.member_epoch < LEAVE_GROUP_STATIC_EPOCH),
)
"""Error messages, each with the condition for it; the first that applies is returned."""


def heartbeat_refused(
    code: ErrorCode, message: str | None = None
) -> consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse:
    """Return the response with an error."""
    return consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id=None,
        member_epoch=0,
        heartbeat_interval=NO_THROTTLE,
        assignment=None,
    )


def heartbeat_answer(
    member_id: str,
    epoch: int,
    interval_ms: int,
    assignment: consumer_group_heartbeat_response.Assignment | None = None,
    *,
    compute: bool = False,
    message: AssignorMessage = NO_MESSAGE,
) -> consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse:
    """Return the response to a member: its epoch, the heartbeat interval, and its assignment if that is new.

    ``compute``: the member shall compute an assignment. ``message``: the result of a client-side assignor for it.
    """
    return consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        member_id=member_id,
        member_epoch=epoch,
        heartbeat_interval=duration(interval_ms),
        assignment=assignment,
        should_compute_assignment=compute,
        assignment_error=message.error,
        metadata_version=message.version,
        metadata=message.metadata,
        assignment_error_message=message.error_message,
        assignor_name=message.assignor,
    )


@lru_cache(maxsize=20_000)
def unchanged_answer(
    member_id: str, epoch: int, interval_ms: int
) -> consumer_group_heartbeat_response.ConsumerGroupHeartbeatResponse:
    """Return the response to a member for which nothing has changed; cached, since nearly all responses are of this kind."""
    return heartbeat_answer(member_id, epoch, interval_ms)


def assignment_of(member: ConsumerGroupMember) -> consumer_group_heartbeat_response.Assignment:
    """Return the partitions that a member may read, without those that it must revoke."""
    return consumer_group_heartbeat_response.Assignment(
        topic_partitions=tuple(
            consumer_group_heartbeat_response.TopicPartitions(topic_id=topic_id, partitions=tuple(numbers))
            for topic_id, numbers in member.assigned.items()
        )
    )
