"""The requests of the managers, as values.

Owns the shape of a manager and of its requests. Must not know sockets, threads or clocks. Invariant: exactly one of ``on_response``
and ``on_failure`` of each ``Send`` is called, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

from ottla.errors import OttlaError
from ottla.protocol.apis import Api
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
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
class Send(Generic[RequestT, ResponseT]):
    """One request. ``timeout`` (milliseconds) covers the wait for a connection and the wait for the response.

    ``on_failure`` gets the error of a request without a response: disconnected, timed out, not supported, node unknown,
    authentication ...
    """

    rpc: Rpc[RequestT, ResponseT]
    message: RequestT
    target: Target
    timeout: int
    on_response: Callable[[ResponseT, Now], None]
    on_failure: Callable[[OttlaError, Now], None]

    @property
    def api(self) -> Api:
        """The API of the request."""
        return self.rpc.api


AnySend = Send[Any, Any]
"""A request where its types do not matter: the manager that made it and mypy have matched them."""


class Poll(NamedTuple):
    """The requests of a manager, and the time of its next poll (monotonic ms; ``None``: on the next event)."""

    sends: tuple[AnySend, ...] = ()
    wake_at: int | None = None


class Unreachable(Protocol):
    """Returns why no broker is connected, for the errors of managers, which do not know connections."""

    def __call__(self, who: str = "", targets: Iterable[ToNode | ToCoordinator] = (), /) -> OttlaError | None:
        """Return why no broker is connected; if some are, why one of ``targets`` is not. The error calls these ``who``."""


class RequestManager(Protocol):
    """A part of the client that sends requests. ``poll`` must not block, and may be called at any time, even without a change."""

    def poll(self, now: Now) -> Poll:
        """Return the requests to send now, and the time of the next poll."""
