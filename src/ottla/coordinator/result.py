"""What a handler returns: events, effects and the answer.

Owns the value that every handler returns. Must not know who applies it. Invariant: a result is carried out whole or not at all;
nothing of one with durable events is, before they are in the log.
"""

from __future__ import annotations

from typing import Any

from ottla.coordinator.effects import CancelTimer, Reply, ResolveRegexes, SetTimer
from ottla.coordinator.events import Event
from ottla.values import light_dataclass

GroupEffect = Reply | SetTimer | CancelTimer | ResolveRegexes
"""What a decision about a group may ask for: answers to requests that were parked, timers, and work away from the loop."""


@light_dataclass(frozen=True, slots=True)
class Result:
    """``answer`` is the response to the request at hand; ``None``: it is parked, or its ``Reply`` is among the effects."""

    events: tuple[Event, ...] = ()
    effects: tuple[GroupEffect, ...] = ()
    answer: Any = None
