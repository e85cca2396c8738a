"""list_groups_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
    is_central: bool = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    throttle_time: timedelta
    error_code: ErrorCode
    groups: tuple[ListedGroup, ...]
