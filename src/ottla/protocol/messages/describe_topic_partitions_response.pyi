"""describe_topic_partitions_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int = ...
    replica_nodes: tuple[int, ...] = ...
    isr_nodes: tuple[int, ...] = ...
    eligible_leader_replicas: tuple[int, ...] | None = ...
    last_known_elr: tuple[int, ...] | None = ...
    offline_replicas: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: ErrorCode
    name: str | None
    topic_id: uuid.UUID | None
    is_internal: bool = ...
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...]
    topic_authorized_operations: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    topic_name: str
    partition_index: int

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    throttle_time: timedelta
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...]
    next_cursor: Cursor | None = ...
