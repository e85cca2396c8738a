"""The responses to a ConsumerGroupHeartbeat.

Owns their content. Must not know when they are sent.
"""

from __future__ import annotations

from functools import lru_cache

from ottla.coordinator.consumer.client_side import NO_MESSAGE, AssignorMessage
from ottla.coordinator.consumer.group import ConsumerGroupMember
from ottla.protocol import NO_THROTTLE, ErrorCode, duration
from ottla.protocol.messages import consumer_group_heartbeat_response


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
