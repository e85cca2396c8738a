"""offset_for_leader_epoch_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    error_code: ErrorCode
    partition: int
    leader_epoch: int = ...
    end_offset: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: tuple[EpochEndOffset, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    throttle_time: timedelta
    topics: tuple[OffsetForLeaderTopicResult, ...]
