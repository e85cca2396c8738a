"""stop_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    partition: int
    offset: int

@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPositions:
    topic: str
    partitions: tuple[Position, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class StopResponse:
    error_code: ErrorCode
    group_id: str
    member_id: str
    coordinator_epoch: int
    generation: int
    topics: tuple[TopicPositions, ...] = ...
