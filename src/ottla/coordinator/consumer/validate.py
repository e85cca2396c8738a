"""Checks of a ConsumerGroupHeartbeat by itself, before looking at its group.

Owns the rules for fields and their combinations. Source: KIP-848, "ConsumerGroupHeartbeat"; KIP-1082 for member ids; the answers
are those of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.coordinator.api_error import ApiError
from ottla.coordinator.consumer.group import JOIN, LEAVE_FOR_A_WHILE
from ottla.coordinator.consumer.regex import check_regex
from ottla.coordinator.effects import RequestContext
from ottla.coordinator.ports import GroupContext
from ottla.protocol import ErrorCode, milliseconds
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import consumer_group_heartbeat_request

_Heartbeat = consumer_group_heartbeat_request.ConsumerGroupHeartbeatRequest
_LONGEST_STRING = 2**15 - 1
"""What a record's key can hold of an id, in bytes."""


def check_request(coordinator: GroupContext, context: RequestContext, request: _Heartbeat) -> None:
    """Raise ``ApiError`` for a request that no group could accept."""
    for text, is_wrong in _RULES:
        if is_wrong(context, request):
            raise ApiError(ErrorCode.invalid_request, text)
    assignor = request.server_assignor
    if assignor is not None and assignor not in coordinator.assignors:
        known = ", ".join(coordinator.assignors)
        raise ApiError(ErrorCode.unsupported_assignor, f"ServerAssignor {assignor} is not supported. Supported assignors: {known}.")
    if request.subscribed_topic_regex:
        check_regex(request.subscribed_topic_regex)


def _is_join(request: _Heartbeat) -> bool:
    return request.member_epoch == JOIN


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
        lambda context, request: request.member_epoch == LEAVE_FOR_A_WHILE and request.instance_id is None,
    ),
    ("MemberEpoch is invalid.", lambda context, request: request.member_epoch < LEAVE_FOR_A_WHILE),
)
"""The error message -> its condition."""
