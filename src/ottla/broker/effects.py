"""The effects of the broker's core: those of the coordinators, jobs for the disk thread, and those of scripted faults.

Owns ``RunJob``. Must not know how effects are carried out. Invariant: the shell passes the outcome of each ``RunJob`` to
``BrokerCore.on_job`` exactly once, with its tag, and runs jobs one after the other, in the order in which they were requested.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ottla.broker.ports import DiskJob
from ottla.coordinator.effects import (
    CancelTimer,
    CloseConnection,
    HangUp,
    NoReply,
    Push,
    Reply,
    RequestContext,
    SetTimer,
    Ticket,
    TimerKey,
)
from ottla.errors import OttlaError

if TYPE_CHECKING:
    from ottla.zookeeper.session import Disconnect, Perform

JobTag = tuple[Hashable, ...]

ReceivedRequest = tuple[RequestContext, Any]
"""A decoded request with its context."""


class NodeEndpoint(NamedTuple):
    """A broker's id and address, as in responses to clients."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TruncatedReply:
    """Send the first half of a response, then close the connection. Only scripted faults use it."""

    ticket: Ticket
    response: Any


@dataclass(frozen=True, slots=True)
class MuteConnection:
    """Handle no further request of this connection until an ``UnmuteConnection`` with this ticket, as Kafka mutes a channel."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class UnmuteConnection:
    """End a ``MuteConnection``. The reply may follow later, or never if a scripted fault loses it."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class FaultStruck:
    """A scripted fault has struck once."""

    fault: int


@dataclass(frozen=True, slots=True)
class RunJob:
    """Run a job on the disk thread, then call ``on_job(tag, outcome)`` with its result or the exception that it raised."""

    tag: JobTag
    job: DiskJob


@dataclass(frozen=True, slots=True)
class Registered:
    """The broker is registered in ZooKeeper, for the first time since its start; or, with an ``error``, it never will be."""

    error: OttlaError | None = None


BrokerEffect: TypeAlias = (
    "Reply | NoReply | CloseConnection | SetTimer | CancelTimer | RunJob | TruncatedReply | MuteConnection | UnmuteConnection | "
    "FaultStruck | Registered | Push | HangUp | Perform | Disconnect"
)
"""``Perform`` and ``Disconnect`` concern ZooKeeper. The shell passes the outcome of a ``Perform`` to
``BrokerCore.on_session_report``. Quoted, so that a broker without ZooKeeper does not import them."""

__all__ = [
    "BrokerEffect",
    "CancelTimer",
    "CloseConnection",
    "FaultStruck",
    "HangUp",
    "JobTag",
    "MuteConnection",
    "NoReply",
    "NodeEndpoint",
    "Push",
    "ReceivedRequest",
    "Registered",
    "Reply",
    "RequestContext",
    "RunJob",
    "SetTimer",
    "Ticket",
    "TimerKey",
    "TruncatedReply",
    "UnmuteConnection",
]


class Outbox:
    """The effects of one broker, in the order in which they were decided.

    Code that changes state puts the effects of the change here at once, before the next step, which may raise.
    """

    def __init__(self) -> None:
        self._effects: list[BrokerEffect] = []

    def put(self, *effects: BrokerEffect) -> None:
        """Append effects."""
        self._effects += effects

    def take(self) -> list[BrokerEffect]:
        """Return and remove all effects."""
        effects, self._effects = self._effects, []
        return effects
