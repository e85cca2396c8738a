"""join_group_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponseMember:
    member_id: str
    group_instance_id: str | None = ...
    metadata: bytes

@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    generation_id: int = ...
    protocol_type: str | None = ...
    protocol_name: str | None
    leader: str
    skip_assignment: bool = ...
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]
