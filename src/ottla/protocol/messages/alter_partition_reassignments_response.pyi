"""alter_partition_reassignments_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: ErrorCode
    error_message: str | None

@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: str
    partitions: tuple[ReassignablePartitionResponse, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    throttle_time: timedelta
    allow_replication_factor_change: bool = ...
    error_code: ErrorCode
    error_message: str | None
    responses: tuple[ReassignableTopicResponse, ...]
