"""alter_replica_log_dirs_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirPartitionResult:
    partition_index: int
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirTopicResult:
    topic_name: str
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReplicaLogDirsResponse:
    throttle_time: timedelta
    results: tuple[AlterReplicaLogDirTopicResult, ...]
