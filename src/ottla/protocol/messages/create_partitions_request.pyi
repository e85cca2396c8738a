"""create_partitions_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None

@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    timeout: timedelta
    validate_only: bool
