"""create_topics_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfigs:
    name: str
    value: str | None
    read_only: bool
    config_source: int = ...
    is_sensitive: bool

@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicResult:
    name: str
    topic_id: uuid.UUID | None
    error_code: ErrorCode
    error_message: str | None
    topic_config_error_code: int = ...
    num_partitions: int = ...
    replication_factor: int = ...
    configs: tuple[CreatableTopicConfigs, ...] | None

@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    throttle_time: timedelta
    topics: tuple[CreatableTopicResult, ...]
