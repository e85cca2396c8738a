"""What the request managers ask of the network, as values.

Owns the two shapes that every manager takes and gives. Must not know sockets, threads or clocks. Invariant: each ``Send`` comes
back exactly once to the manager that asked for it, as ``on_response`` or as ``on_failure``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ottla.errors import OttlaError
from ottla.protocol.apis import Api
from ottla.types import Now


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Any broker will do: the least loaded one that is connected, else one to connect to."""


@dataclass(frozen=True, slots=True)
class ToNode:
    """The data connection to one broker."""

    node_id: int


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """A connection of its own to the broker that coordinates the group, so that a long fetch never delays a heartbeat."""

    node_id: int


Target = AnyNode | ToNode | ToCoordinator


@dataclass(frozen=True, slots=True)
class Send:
    """One request. ``timeout`` (milliseconds) covers the wait for a connection and the wait for the answer.

    ``tag`` is the manager's own note of what it asked; it comes back with the answer or the failure.
    """

    api: Api
    message: Any
    target: Target
    tag: Any
    timeout: int


class Poll(NamedTuple):
    """What a manager wants now, and when it wants to be asked again at the latest (monotonic ms; ``None``: on the next event)."""

    sends: tuple[Send, ...] = ()
    wake_at: int | None = None


class Unreachable(Protocol):
    """Says why a question has no answer, to managers that know no connections."""

    def __call__(self, who: str = "", targets: Iterable[ToNode | ToCoordinator] = (), /) -> OttlaError | None:
        """Why no broker is connected; or, though some are, why one of ``targets`` is not, which are called ``who`` in the error."""


class AsksNothing:
    """A manager that is asked in each pass and has no requests."""

    def on_response(self, tag: Any, message: Any, now: Now) -> None:
        """Nothing was asked."""

    def on_failure(self, tag: Any, error: OttlaError, now: Now) -> None:
        """Nothing was asked."""


class RequestManager(Protocol):
    """Asked, never acts. ``poll`` must not block and may be called at any time, also when nothing changed."""

    def poll(self, now: Now) -> Poll:
        """Requests to send now, and the latest time to be asked again."""

    def on_response(self, tag: Any, message: Any, now: Now) -> None:
        """The neutral answer to a request of this manager."""

    def on_failure(self, tag: Any, error: OttlaError, now: Now) -> None:
        """A request of this manager got no answer: disconnected, timed out, not supported, node unknown, authentication ..."""
