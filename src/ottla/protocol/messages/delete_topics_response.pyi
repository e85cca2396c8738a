"""delete_topics_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableTopicResult:
    name: str | None
    topic_id: uuid.UUID | None
    error_code: ErrorCode
    error_message: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsResponse:
    throttle_time: timedelta
    responses: tuple[DeletableTopicResult, ...]
