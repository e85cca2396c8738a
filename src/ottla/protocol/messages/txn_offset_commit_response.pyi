"""txn_offset_commit_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic:
    name: str
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse:
    throttle_time: timedelta
    topics: tuple[TxnOffsetCommitResponseTopic, ...]
