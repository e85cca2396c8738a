"""A handler's working copy of a consumer group.

A handler applies events to the draft, reads their outcome from it, and adds effects; the result has all of them. Owns these events
and effects. Must not know any state but its own copy. Invariant: the events of the result, applied to the original group, give the
draft's group.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.consumer.events import ConsumerEvent
from ottla.coordinator.consumer.group import ConsumerGroup
from ottla.coordinator.consumer.machine import apply
from ottla.coordinator.decision import GroupEffect, Result
from ottla.coordinator.effects import CancelTimer, ResolveRegexes, SetTimer, TimerKey
from ottla.coordinator.events import GroupMetadataDeleted
from ottla.types import Now


class ConsumerGroupDraft:
    """A consumer group, the events applied to it at the time ``now``, and effects.

    ``replacing``: the end of a classic group with the same id, which this one replaces.
    """

    def __init__(self, group: ConsumerGroup, now: Now, replacing: Result = Result()) -> None:  # noqa: B008  # a frozen value
        self.group = group
        self.now = now
        self._events: list[ConsumerEvent | GroupMetadataDeleted] = [
            event for event in replacing.events if isinstance(event, GroupMetadataDeleted)
        ]
        self._effects: list[GroupEffect] = list(replacing.effects)

    def apply(self, *events: ConsumerEvent) -> None:
        """Apply events to the draft's group, and add them to the result."""
        self.group = apply(self.group, *events)
        self._events += events

    def set_timer(self, key: TimerKey, delay: int) -> None:
        """Set a timer ``delay`` milliseconds from now."""
        self._effects.append(SetTimer(key, self.now.mono + delay))

    def cancel_timer(self, key: TimerKey) -> None:
        """Cancel a timer."""
        self._effects.append(CancelTimer(key))

    def resolve_regexes(self, effect: ResolveRegexes) -> None:
        """Resolve regular expressions away from the event loop."""
        self._effects.append(effect)

    def result(self, answer: Any = None) -> Result:
        """Return the events and effects; ``answer`` is the response to the current request."""
        return Result(tuple(self._events), tuple(self._effects), answer)
