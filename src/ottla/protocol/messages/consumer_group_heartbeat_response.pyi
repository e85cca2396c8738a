"""consumer_group_heartbeat_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: uuid.UUID | None
    partitions: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    error_message: str | None = ...
    member_id: str | None = ...
    member_epoch: int
    heartbeat_interval: timedelta
    assignment: Assignment | None = ...
    should_compute_assignment: bool = ...
    assignment_error: int = ...
    metadata_version: int = ...
    metadata: bytes = ...
