"""A decision in the making.

Owns the way from a group to what it will be: a handler applies events to a draft, sees where they lead, and adds effects; the
draft's result is what it has decided. Must not know any state but its own copy. Invariant: the events of the result lead from the
group that the draft began with to the one that it shows now.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.classic.events import ClassicEvent
from ottla.coordinator.classic.group import ClassicGroup, ClassicGroupMember
from ottla.coordinator.classic.machine import apply
from ottla.coordinator.effects import CancelTimer, Reply, SetTimer, Ticket, TimerKey
from ottla.coordinator.result import GroupEffect, Result
from ottla.coordinator.timers import session_timer
from ottla.types import Now


class ClassicGroupDraft:
    """The group as it will be, at the time ``now``."""

    def __init__(self, group: ClassicGroup, now: Now) -> None:
        self.group = group
        self.now = now
        self._events: list[ClassicEvent] = []
        self._effects: list[GroupEffect] = []

    def apply(self, event: ClassicEvent) -> None:
        """Apply an event to the draft."""
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
        """The member is alive: its session restarts."""
        self.set_timer(session_timer(self.group.group_id, member.member_id), member.session_timeout)

    def result(self, answer: Any = None) -> Result:
        """What was decided; ``answer`` is the response to the request at hand, ``None`` if it is not answered now."""
        return Result(tuple(self._events), tuple(self._effects), answer)
