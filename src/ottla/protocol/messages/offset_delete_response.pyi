"""offset_delete_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: int
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    name: str
    partitions: tuple[OffsetDeleteResponsePartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    error_code: ErrorCode
    throttle_time: timedelta
    topics: tuple[OffsetDeleteResponseTopic, ...]
