"""leave_group_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode

@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    members: tuple[MemberResponse, ...]
