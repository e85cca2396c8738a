"""Checks of the sender of a group's request, shared by several requests.

Owns the identity of a sender. Invariant: a check only looks, and says ``None`` if there is nothing to object.
"""

from __future__ import annotations

from ottla.coordinator.classic.group import ClassicGroup
from ottla.protocol import ErrorCode


def sender_error(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """What is wrong with a member's identity: it is not known, or another process took its instance id over."""
    if instance_id is not None:
        current = group.static_member_id(instance_id)
        if current is None:
            return ErrorCode.unknown_member_id
        if current != member_id:
            return ErrorCode.fenced_instance_id
    return None if member_id in group.members else ErrorCode.unknown_member_id


def generation_error(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
    """What is wrong with a member's identity, or with the generation that it believes to be in."""
    error = sender_error(group, member_id, instance_id)
    if error is None and generation != group.generation:
        return ErrorCode.illegal_generation
    return error
