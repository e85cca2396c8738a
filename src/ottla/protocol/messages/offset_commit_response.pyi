"""offset_commit_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: int
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    topic_id: uuid.UUID | None = ...
    partitions: tuple[OffsetCommitResponsePartition, ...]
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    throttle_time: timedelta
    topics: tuple[OffsetCommitResponseTopic, ...]
