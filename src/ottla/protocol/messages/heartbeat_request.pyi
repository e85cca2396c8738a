"""heartbeat_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = ...
