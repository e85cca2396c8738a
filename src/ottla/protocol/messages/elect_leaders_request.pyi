"""elect_leaders_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...] = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    election_type: int
    topic_partitions: tuple[TopicPartitions, ...] | None
    timeout: timedelta = ...
