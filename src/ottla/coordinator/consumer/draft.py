"""A decision about a consumer group in the making.

Owns the way from a group to what it will be: a handler applies events to a draft, sees where they lead, and adds effects.
Must not know any state but its own copy. Invariant: the events of the result lead from the group that the draft began with to the
one that it shows now.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.consumer.events import ConsumerEvent
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.machine import apply
from ottla.coordinator.effects import CancelTimer, ResolveRegexes, SetTimer, TimerKey
from ottla.coordinator.events import GroupMetadataDeleted
from ottla.coordinator.result import GroupEffect, Result
from ottla.types import Now


class ConsumerGroupDraft:
    """The group as it will be, at the time ``now``. ``replacing``: how a group of the other protocol, under the same id, ends."""

    def __init__(self, group: ConsumerGroup, now: Now, replacing: Result = Result()) -> None:  # noqa: B008  # a frozen value
        self.group = group
        self.now = now
        self._events: list[ConsumerEvent | GroupMetadataDeleted] = [
            event for event in replacing.events if isinstance(event, GroupMetadataDeleted)
        ]
        self._effects: list[GroupEffect] = list(replacing.effects)

    def apply(self, *events: ConsumerEvent) -> None:
        """Apply events to the draft."""
        self.group = apply(self.group, *events)
        self._events += events

    def set_timer(self, key: TimerKey, delay: int) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self._effects.append(SetTimer(key, self.now.mono + delay))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self._effects.append(CancelTimer(key))

    def send(self, effect: ResolveRegexes) -> None:
        """Have work done away from here."""
        self._effects.append(effect)

    def result(self, answer: Any = None) -> Result:
        """What was decided; ``answer`` is the response to the request at hand."""
        return Result(tuple(self._events), tuple(self._effects), answer)
