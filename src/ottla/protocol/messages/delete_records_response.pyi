"""delete_records_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: tuple[DeleteRecordsPartitionResult, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    throttle_time: timedelta
    topics: tuple[DeleteRecordsTopicResult, ...]
