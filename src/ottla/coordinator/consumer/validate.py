"""Checks of a ConsumerGroupHeartbeat that do not depend on its group.

Owns the rules for fields and their combinations. Source: KIP-848, "ConsumerGroupHeartbeat"; KIP-1082 for member ids; the error
messages are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinator.consumer.group import JOIN_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH
from ottla.coordinator.consumer.regex import check_regex
from ottla.coordinator.decision import GroupContext
from ottla.coordinator.effects import ApiError, RequestContext
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import consumer_group_heartbeat_request

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
_LONGEST_STRING = 2**15 - 1
"""The longest string that a record's key can hold, in bytes."""


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
