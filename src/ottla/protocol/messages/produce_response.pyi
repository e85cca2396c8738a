"""produce_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: int
    batch_index_error_message: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = ...
    leader_epoch: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponse:
    index: int
    error_code: ErrorCode
    base_offset: int
    log_append_time_ms: int = ...
    log_start_offset: int = ...
    record_errors: tuple[BatchIndexAndErrorMessage, ...]
    error_message: str | None = ...
    current_leader: LeaderIdAndEpoch = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse:
    topic_id: uuid.UUID | None = ...
    partition_responses: tuple[PartitionProduceResponse, ...]
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    responses: tuple[TopicProduceResponse, ...]
    throttle_time: timedelta = ...
    node_endpoints: tuple[NodeEndpoint, ...] = ...
