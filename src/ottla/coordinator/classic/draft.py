"""A handler's working copy of a classic group.

A handler applies events to the draft, reads their outcome from it, and adds effects; the result has all of them. Owns these events
and effects. Must not know any state but its own copy. Invariant: the events of the result, applied to the original group, give the
draft's group.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.classic.events import ClassicEvent
from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember
from ottla.coordinator.classic.machine import apply
from ottla.coordinator.decision import GroupEffect, Result, session_timer
from ottla.coordinator.effects import CancelTimer, Reply, SetTimer, Ticket, TimerKey
from ottla.types import Now


class ClassicGroupDraft:
    """A classic group, the events applied to it at the time ``now``, and effects."""

    def __init__(self, group: ClassicGroup, now: Now) -> None:
        self.group = group
        self.now = now
        self._events: list[ClassicEvent] = []
        self._effects: list[GroupEffect] = []

    def apply(self, event: ClassicEvent) -> None:
        """Apply an event to the draft's group, and add it to the result."""
        self.group = apply(self.group, event)
        self._events.append(event)

    def reply(self, ticket: Ticket | None, response: Any) -> None:
        """Answer a parked request, if there is one."""
        if ticket is not None:
            self._effects.append(Reply(ticket, response))

    def set_timer(self, key: TimerKey, delay: int) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self._effects.append(SetTimer(key, self.now.mono + delay))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self._effects.append(CancelTimer(key))

    def refresh_session(self, member: ClassicGroupMember) -> None:
        """Restart the session timer of a member that has shown that it is alive."""
        self.set_timer(session_timer(self.group.group_id, member.member_id), member.session_timeout)

    def result(self, answer: Any = None) -> Result:
        """Return the events and effects; ``answer`` is the response to the current request, ``None`` if that is parked."""
        return Result(tuple(self._events), tuple(self._effects), answer)
