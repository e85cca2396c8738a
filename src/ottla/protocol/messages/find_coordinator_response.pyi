"""find_coordinator_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    key: str
    node_id: int
    host: str
    port: int
    error_code: ErrorCode
    error_message: str | None

@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse:
    throttle_time: timedelta
    coordinators: tuple[Coordinator, ...]
