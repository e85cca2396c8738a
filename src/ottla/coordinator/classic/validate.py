"""Checks of the sender of a request, shared by several requests.

Owns the check of member ids, instance ids and generations. Invariant: a check changes nothing, and returns ``None`` if the sender
is valid.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup
from ottla.protocol import ErrorCode


def sender_error(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Return the error for a sender that is no member, or that another process with its instance id has replaced."""
    if instance_id is not None:
        current = group.static_member_id(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in group.members else ErrorCode.unknown_member_id


def generation_error(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
    """Return the error for a sender that is no valid member or names another generation."""
    error = sender_error(group, member_id, instance_id)
    if error is None and generation != group.generation:
        return ErrorCode.illegal_generation
    return error
