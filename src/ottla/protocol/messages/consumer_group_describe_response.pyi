"""consumer_group_describe_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: uuid.UUID | None
    topic_name: str
    partitions: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    topic_partitions: tuple[TopicPartitions, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None = ...
    rack_id: str | None = ...
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ...
    subscribed_topic_regex: str | None = ...
    assignment: Assignment
    target_assignment: Assignment
    member_type: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: ErrorCode
    error_message: str | None = ...
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[Member, ...]
    authorized_operations: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    throttle_time: timedelta
    groups: tuple[DescribedGroup, ...]
