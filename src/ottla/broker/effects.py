"""What the broker's core asks of its shell: the coordinator's vocabulary, and work for the disk thread.

Owns ``RunJob``. Must not know who runs it. Invariant: each ``RunJob`` comes back exactly once through ``BrokerCore.on_job``,
with the tag it was given, and jobs run one after the other in the order in which they were asked for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.broker.ports import Job
from ottla.coordinator.effects import (
    CancelTimer,
    CloseConnection,
    NoReply,
    Reply,
    RequestContext,
    SetTimer,
    Ticket,
    TimerKey,
)

JobTag = tuple[Hashable, ...]


class NodeEndpoint(NamedTuple):
    """A broker as clients see it."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class HalfReply:
    """Send the first half of an answer, then close the connection; only a scripted fault asks for it."""

    ticket: Ticket
    response: Any


@dataclass(frozen=True, slots=True)
class HoldBack:
    """Handle no further request of this connection until ``GoOn`` comes for it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class GoOn:
    """What ``HoldBack`` waited for is done. The answer may come later, or never where a scripted fault has hold of it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Struck:
    """A scripted fault has struck once."""

    fault: int


@dataclass(frozen=True, slots=True)
class RunJob:
    """Do slow work on files, then tell ``on_job(tag, outcome)``: what it returned, or the ``OSError`` it raised."""

    tag: JobTag
    job: Job


Effect = Reply | NoReply | CloseConnection | SetTimer | CancelTimer | RunJob | HalfReply | HoldBack | GoOn | Struck

__all__ = [
    "CancelTimer",
    "CloseConnection",
    "Effect",
    "GoOn",
    "HalfReply",
    "HoldBack",
    "JobTag",
    "NoReply",
    "NodeEndpoint",
    "Reply",
    "RequestContext",
    "RunJob",
    "SetTimer",
    "Struck",
    "Ticket",
    "TimerKey",
]


class Outbox:
    """The effects of one broker, in the order in which they were decided.

    Code that changes a state puts in the effects of that change at once, before the next step, which may raise.
    """

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def put(self, *effects: Effect) -> None:
        """Add effects after the others."""
        self._effects += effects

    def take(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
