"""What a decision says: what shall happen, what to do then, and what to answer.

Owns the value that every handler returns. Must not know who applies it. Invariant: a result is carried out whole or not at all;
nothing of one with durable events is, before they are in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.coordinator.effects import CancelTimer, Reply, SetTimer
from ottla.coordinator.events import Event

GroupEffect = Reply | SetTimer | CancelTimer
"""What a decision about a group may ask for: answers to requests that were parked, and timers."""


@dataclass(frozen=True, slots=True)
class Result:
    """``answer`` is the response to the request at hand; ``None``: it is parked, or its ``Reply`` is among the effects."""

    events: tuple[Event, ...] = ()
    effects: tuple[GroupEffect, ...] = ()
    answer: Any = None
