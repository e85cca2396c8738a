"""offset_for_leader_epoch_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = ...
    leader_epoch: int

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: str
    partitions: tuple[OffsetForLeaderPartition, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    replica_id: int = ...
    topics: tuple[OffsetForLeaderTopic, ...]
