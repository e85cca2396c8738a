"""offset_fetch_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = ...
    metadata: str | None
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    topic_id: uuid.UUID | None = ...
    partitions: tuple[OffsetFetchResponsePartitions, ...]
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str
    topics: tuple[OffsetFetchResponseTopics, ...]
    error_code: ErrorCode = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    throttle_time: timedelta
    groups: tuple[OffsetFetchResponseGroup, ...]
