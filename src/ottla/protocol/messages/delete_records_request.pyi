"""delete_records_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition:
    partition_index: int
    offset: int

@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]
    timeout: timedelta
