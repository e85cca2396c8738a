"""describe_log_dirs_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: str
    partitions: tuple[DescribeLogDirsPartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult:
    error_code: ErrorCode
    log_dir: str
    topics: tuple[DescribeLogDirsTopic, ...]
    total_bytes: int = ...
    usable_bytes: int = ...
    is_cordoned: bool = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    results: tuple[DescribeLogDirsResult, ...]
