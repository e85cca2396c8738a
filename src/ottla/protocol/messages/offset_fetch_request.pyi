"""offset_fetch_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    topic_id: uuid.UUID | None = ...
    partition_indexes: tuple[int, ...] = ...
    name: str = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: str
    member_id: str | None = ...
    member_epoch: int = ...
    topics: tuple[OffsetFetchRequestTopics, ...] | None

@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    groups: tuple[OffsetFetchRequestGroup, ...]
    require_stable: bool = ...
