"""list_groups_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    states_filter: tuple[str, ...] = ...
    types_filter: tuple[str, ...] = ...
