"""describe_groups_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...] = ...
    include_authorized_operations: bool
