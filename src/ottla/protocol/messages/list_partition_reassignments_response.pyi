"""list_partition_reassignments_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingPartitionReassignment:
    partition_index: int
    replicas: tuple[int, ...] = ...
    adding_replicas: tuple[int, ...] = ...
    removing_replicas: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingTopicReassignment:
    name: str
    partitions: tuple[OngoingPartitionReassignment, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    error_message: str | None
    topics: tuple[OngoingTopicReassignment, ...]
