"""describe_producers_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    producer_id: int
    producer_epoch: int
    last_sequence: int = ...
    last_timestamp: int = ...
    coordinator_epoch: int
    current_txn_start_offset: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    partition_index: int
    error_code: ErrorCode
    error_message: str | None = ...
    active_producers: tuple[ProducerState, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    name: str
    partitions: tuple[PartitionResponse, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    throttle_time: timedelta
    topics: tuple[TopicResponse, ...]
