"""fetch_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    epoch: int = ...
    end_offset: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = ...
    leader_epoch: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    end_offset: int = ...
    epoch: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int

@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int = ...
    log_start_offset: int = ...
    diverging_epoch: EpochEndOffset = ...
    current_leader: LeaderIdAndEpoch = ...
    snapshot_id: SnapshotId = ...
    aborted_transactions: tuple[AbortedTransaction, ...] | None
    preferred_read_replica: int = ...
    records: bytes | None

@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse:
    topic_id: uuid.UUID | None = ...
    partitions: tuple[PartitionData, ...]
    topic: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    session_id: int = ...
    responses: tuple[FetchableTopicResponse, ...]
    node_endpoints: tuple[NodeEndpoint, ...] = ...
