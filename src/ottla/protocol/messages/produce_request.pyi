"""produce_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceData:
    index: int
    records: bytes | None

@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData:
    topic_id: uuid.UUID | None = ...
    partition_data: tuple[PartitionProduceData, ...]
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    transactional_id: str | None = ...
    acks: int
    timeout: timedelta
    topic_data: tuple[TopicProduceData, ...]
