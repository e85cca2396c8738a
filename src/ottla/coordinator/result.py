"""The result of a handler: events, effects and the answer.

Must not know how the runtime applies it. Invariant: a result is applied as a whole or not at all; one with durable events only
after these are in the log.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.effects import CancelTimer, Reply, ResolveRegexes, SetTimer
from ottla.coordinator.events import Event
from ottla.values import light_dataclass

GroupEffect = Reply | SetTimer | CancelTimer | ResolveRegexes
"""The effects of a decision about a group: answers to parked requests, timers, and work away from the event loop."""


@light_dataclass(frozen=True, slots=True)
class Result:
    """``answer`` is the response to the current request; ``None`` if it is parked or its ``Reply`` is among the effects."""

    events: tuple[Event, ...] = ()
    effects: tuple[GroupEffect, ...] = ()
    answer: Any = None
