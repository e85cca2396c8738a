"""leave_group_request: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    member_id: str
    group_instance_id: str | None = ...
    reason: str | None = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[MemberIdentity, ...]
