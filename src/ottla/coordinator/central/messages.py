"""The requests of the coordinator to a member, and its responses to Register and Leave.

Owns their fields. Must not know when they are sent. Invariant: each request has the epoch of the coordinator and the generation of
the group.
"""

from __future__ import annotations

from ottla.coordinator.central.group import CentralGroup
from ottla.coordinator.effects import ApiError
from ottla.protocol import ErrorCode
from ottla.protocol.messages import (
    leave_response,
    ping_request,
    register_request,
    register_response,
    start_request,
    stop_request,
)
from ottla.types import TopicPartition


def ping(group: CentralGroup, member_id: str, epoch: int) -> ping_request.PingRequest:
    """Return a Ping."""
    return ping_request.PingRequest(
        group_id=group.group_id, member_id=member_id, coordinator_epoch=epoch, generation=group.generation
    )


def stop(group: CentralGroup, member_id: str, epoch: int) -> stop_request.StopRequest:
    """Return a Stop of the generation that ends, with the reason that the group has for it."""
    return stop_request.StopRequest(
        group_id=group.group_id,
        member_id=member_id,
        coordinator_epoch=epoch,
        generation=group.generation,
        reason=group.reason,
    )


def start(group: CentralGroup, member_id: str, epoch: int) -> start_request.StartRequest:
    """Return a Start with the member's share of the present generation."""
    topics: dict[str, list[start_request.AssignedPartition]] = {}
    for (topic, partition), thread in sorted(group.share_of(member_id).items()):
        topics.setdefault(topic, []).append(start_request.AssignedPartition(partition=partition, thread=thread))
    return start_request.StartRequest(
        group_id=group.group_id,
        member_id=member_id,
        coordinator_epoch=epoch,
        generation=group.generation,
        topics=tuple(
            start_request.AssignedTopic(topic=topic, partitions=tuple(partitions)) for topic, partitions in topics.items()
        ),
    )


def registered(group: CentralGroup, epoch: int, ping_interval_ms: int) -> register_response.RegisterResponse:
    """Return the response to a successful Register."""
    return register_response.RegisterResponse(
        error_code=ErrorCode.none, coordinator_epoch=epoch, generation=group.generation, ping_interval_ms=ping_interval_ms
    )


def register_refused(error: ErrorCode | ApiError) -> register_response.RegisterResponse:
    """Return the response with an error to a Register."""
    code, message = (error.code, error.message) if isinstance(error, ApiError) else (error, _MESSAGES.get(error))
    return register_response.RegisterResponse(
        error_code=code, error_message=message, coordinator_epoch=-1, generation=-1, ping_interval_ms=0
    )


_MESSAGES = {
    ErrorCode.inconsistent_group_protocol: (
        "the group has members of Kafka 0.8, which ZooKeeper coordinates: stop them first, or use another group"
    )
}
"""The reasons of a refusal that comes from ZooKeeper."""


def left(error: ErrorCode, message: str | None = None) -> leave_response.LeaveResponse:
    """Return the response to a Leave."""
    return leave_response.LeaveResponse(error_code=error, error_message=message)


def held(request: register_request.RegisterRequest) -> dict[TopicPartition, int]:
    """Return the partitions that a member holds -> the thread that reads each."""
    return {
        TopicPartition(topic.topic, partition.partition): partition.thread
        for topic in request.owned_topics
        for partition in topic.partitions
    }
