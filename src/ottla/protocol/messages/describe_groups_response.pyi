"""describe_groups_response: made by tools/make_message_stubs.py; do not edit."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from kio.schema.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None = ...
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: ErrorCode
    error_message: str | None = ...
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: int = ...
    is_central: bool = ...

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    throttle_time: timedelta
    groups: tuple[DescribedGroup, ...]
