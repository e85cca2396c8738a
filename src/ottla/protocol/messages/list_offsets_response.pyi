"""list_offsets_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: int
    error_code: ErrorCode
    timestamp: int = ...
    offset: int = ...
    leader_epoch: int = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: str
    partitions: tuple[ListOffsetsPartitionResponse, ...]

@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    throttle_time: timedelta
    topics: tuple[ListOffsetsTopicResponse, ...]
