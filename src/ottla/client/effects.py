"""The requests of the managers, and the effects of the connections, as values.

Owns the shape of a manager and of its requests, from the ``Send`` to the ``CompletedRequest``, and the effects by which the shell
carries requests out. Must not know sockets, threads or clocks, nor why a request or an effect is needed. Invariants: exactly one of
``on_response`` and ``on_failure`` of each ``Send`` is called, once; the id of a connection is never used again, since reports may
be late:

1. The core closes connection 7, and opens connection 8 to the same broker.
2. Before the shell performs the ``Close``, the peer ends connection 7, and the shell reports that.
3. There is no connection 7 any more, so the report has no effect on connection 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from ottla.errors import OttlaError
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.rpcs import RequestT, ResponseT, Rpc
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.protocol.connection import ClientConnection, Pushed
    from ottla.protocol.framing import Piece
    from ottla.protocol.sasl import SaslChallenge
    from ottla.zookeeper.session import AnyAsk


@dataclass(frozen=True, slots=True)
class AnyNode:
    """Any broker will do: the least loaded one that is connected, else one to connect to.

    ``in_turn``: the one whose turn is longest ago, among all brokers of the cluster and of the settings. For a question to which
    one broker may give a wrong answer again and again, since it is cut off from the others.
    """

    in_turn: bool = False


@dataclass(frozen=True, slots=True)
class ToNode:
    """The data connection to one broker."""

    node_id: int


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    """A connection of its own to the broker that coordinates the group, so that a long fetch never delays a heartbeat."""

    node_id: int


@dataclass(frozen=True, slots=True)
class ToChannel:
    """The channel of a member of a central group: a connection of its own to the broker that is the central coordinator.

    Only Register and Leave are sent to it. After a Register the coordinator sends requests on it, which ``Answer`` answers.
    """

    node_id: int


ToOneBroker = ToNode | ToCoordinator | ToChannel

Target = AnyNode | ToOneBroker


@dataclass(frozen=True, slots=True)
class Send(Generic[RequestT, ResponseT]):
    """One request. ``timeout`` (milliseconds) covers the wait for a connection and the wait for the response.

    Exactly one of the two functions is called, once, also if the manager has lost interest meanwhile: it then ignores the outcome.
    ``on_failure`` gets the error of a request without a response: disconnected, timed out, not supported, node unknown,
    authentication ...

    ``requires`` and ``excludes`` are rules that must, or must not, hold for the version of the request. ``on_sent`` is called when
    the request is handed to a connection: one that fails before that was not executed.
    """

    rpc: Rpc[RequestT, ResponseT]
    message: RequestT
    target: Target
    timeout: int
    on_response: Callable[[ResponseT, Now], None]
    on_failure: Callable[[OttlaError, Now], None]
    requires: VersionRule | None = None
    excludes: VersionRule | None = None
    on_sent: Callable[[], object] | None = None

    @property
    def api(self) -> Api:
        """The API of the request."""
        return self.rpc.api


AnySend = Send[Any, Any]
"""A request where its types do not matter: the manager that made it and mypy have matched them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request of the coordinator, on the connection on which it came; it is dropped if that is closed.

    It has no outcome: the coordinator's next request tells that it has arrived.
    """

    api: Api
    correlation_id: int
    message: Any
    target: ToChannel


class Poll(NamedTuple):
    """The requests of a manager, and the time of its next poll (monotonic ms; ``None``: on the next event).

    An ``Ask`` is a request to ZooKeeper, an operation on its nodes.
    """

    sends: tuple[AnySend | AnyAsk | Answer, ...] = ()
    wake_at: int | None = None


class RequestManager(Protocol):
    """A part of the client that sends requests. ``poll`` must not block, and may be called at any time, even without a change."""

    def poll(self, now: Now) -> Poll:
        """Return the requests to send now, and the time of the next poll."""


class Unreachable(Protocol):
    """Returns why no broker is connected, for the errors of managers, which do not know connections."""

    def __call__(self, who: str = "", targets: Iterable[ToOneBroker] = (), /) -> OttlaError | None:
        """Return why no broker is connected; if some are, why one of ``targets`` is not. The error calls these ``who``."""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A ``Send`` without an outcome: its manager, its deadline, and the time at which it was sent, if it was."""

    manager: RequestManager
    send: AnySend
    deadline: int
    sent_at: int = 0
    done: bool = False
    """Whether its manager already has an outcome. A request that has timed out in flight stays in ``in_flight``, since responses
    come in the order of the requests; its late response is dropped."""


class CompletedRequest(NamedTuple):
    """The outcome of a ``Send``: a response of the type that its ``Rpc`` names, or an error."""

    request: PendingRequest
    message: Any
    error: OttlaError | None


class PushedRequest(NamedTuple):
    """A request of the coordinator, and the channel on which it came."""

    target: ToChannel
    pushed: Pushed


class ChannelClosed(NamedTuple):
    """A channel whose connection is gone."""

    target: ToChannel
    reason: str


Arrival = CompletedRequest | PushedRequest | ChannelClosed


class Address(NamedTuple):
    """One numeric address of a socket."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve a name; report ``on_resolved`` or ``on_resolve_failed`` with the same name and port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to an address of ``host``. Put received bytes into ``connection.get_buffer()``.

    Report ``on_connected`` or ``on_connect_failed``; with TLS ``on_securing`` when TCP is connected, then ``on_connected`` or
    ``on_tls_failed``.
    """

    connection_id: int
    address: Address
    connection: ClientConnection
    host: str


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Have the SASL mechanism compute its answer; report ``on_sasl_response`` or ``on_sasl_failed``. This may take seconds."""

    connection_id: int
    challenge: SaslChallenge


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes, after those of earlier effects."""

    connection_id: int
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, and report nothing more about it."""

    connection_id: int
    reason: str


ConnectionEffect = Resolve | Connect | Authenticate | Write | Close


class ConnectionsPoll(NamedTuple):
    """The effects to perform now, and the time of the next poll at the latest (monotonic ms; ``None``: on the next event)."""

    effects: list[ConnectionEffect]
    wake_at: int | None
