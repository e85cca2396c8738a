"""alter_partition_reassignments_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    partition_index: int
    replicas: tuple[int, ...] | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    name: str
    partitions: tuple[ReassignablePartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    timeout: timedelta = ...
    allow_replication_factor_change: bool = ...
    topics: tuple[ReassignableTopic, ...]
