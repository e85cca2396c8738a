"""describe_topic_partitions_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    name: str

@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    topic_name: str
    partition_index: int

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    topics: tuple[TopicRequest, ...]
    response_partition_limit: int = ...
    cursor: Cursor | None = ...
