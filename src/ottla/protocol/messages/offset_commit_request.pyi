"""offset_commit_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = ...
    committed_metadata: str | None

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    topic_id: uuid.UUID | None = ...
    partitions: tuple[OffsetCommitRequestPartition, ...]
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int = ...
    member_id: str
    group_instance_id: str | None = ...
    topics: tuple[OffsetCommitRequestTopic, ...]
    retention_time_ms: int = ...
