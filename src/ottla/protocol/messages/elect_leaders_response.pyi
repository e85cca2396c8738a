"""elect_leaders_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_id: int
    error_code: ErrorCode
    error_message: str | None

@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: str
    partition_result: tuple[PartitionResult, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    replica_election_results: tuple[ReplicaElectionResult, ...]
