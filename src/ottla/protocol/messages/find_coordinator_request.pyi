"""find_coordinator_request: made by tools/make_message_stubs.py; do not edit."""

from dataclasses import dataclass

@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest:
    key_type: int = ...
    coordinator_keys: tuple[str, ...] = ...
