"""stop_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    group_id: str
    member_id: str
    coordinator_epoch: int
    generation: int
    reason: str
