"""One way to one broker: a name to resolve, addresses to try, at most one connection, and what is in flight on it.

Owns the state of a link and what each event makes of it. Must not know sockets, nor which request goes where. Invariant:
a link has a connection exactly in the states CONNECTING, HANDSHAKE and READY, and requests in flight only in READY.

::

    IDLE -> RESOLVING -> CONNECTING -> HANDSHAKE -> READY
      ^         |            |  ^           |         |
      |         v            v  | next      v         v
      +------ BACKOFF <------+--+ address --+---------+
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.effects import RequestManager, Send
from ottla.protocol.connection import ClientConnection
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.client.effects import ToCoordinator, ToNode
    from ottla.config import HostPort


class Address(NamedTuple):
    """One numeric address: where a socket connects to."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class LinkState(enum.Enum):
    """Where a link stands."""

    IDLE = "not wanted yet"
    RESOLVING = "the name is being resolved"
    CONNECTING = "waiting for the TCP connection"
    HANDSHAKE = "connected, no answer to ApiVersions yet"
    READY = "requests can be sent"
    BACKOFF = "failed, waiting to try again"


class LinkEvent(enum.Enum):
    """What can happen to a link."""

    WANTED = "a request needs it"
    RESOLVED = "the resolver gave addresses"
    CONNECTED = "TCP is connected"
    READY = "the broker told its versions"
    NEXT = "this address failed, there is another"
    FAILED = "no address is left, or the connection broke"
    RELEASED = "closed because it is idle or its broker moved"


_UP = {LinkEvent.NEXT: LinkState.CONNECTING, LinkEvent.FAILED: LinkState.BACKOFF, LinkEvent.RELEASED: LinkState.IDLE}

TRANSITIONS: Mapping[LinkState, Mapping[LinkEvent, LinkState]] = {
    LinkState.IDLE: {LinkEvent.WANTED: LinkState.RESOLVING, LinkEvent.RELEASED: LinkState.IDLE},
    LinkState.RESOLVING: {
        LinkEvent.RESOLVED: LinkState.CONNECTING,
        LinkEvent.FAILED: LinkState.BACKOFF,
        LinkEvent.RELEASED: LinkState.IDLE,
    },
    LinkState.CONNECTING: {LinkEvent.CONNECTED: LinkState.HANDSHAKE, **_UP},
    LinkState.HANDSHAKE: {LinkEvent.READY: LinkState.READY, **_UP},
    LinkState.READY: {LinkEvent.FAILED: LinkState.BACKOFF, LinkEvent.RELEASED: LinkState.IDLE},
    LinkState.BACKOFF: {LinkEvent.WANTED: LinkState.RESOLVING, LinkEvent.RELEASED: LinkState.IDLE},
}

CONNECTED_STATES = frozenset({LinkState.CONNECTING, LinkState.HANDSHAKE, LinkState.READY})
OPENING_STATES = frozenset({LinkState.RESOLVING, LinkState.CONNECTING, LinkState.HANDSHAKE})


@dataclass(eq=False, slots=True)
class Request:
    """A ``Send`` on its way: who asked, until when it may take, and, once sent, since when it is in flight."""

    manager: RequestManager
    send: Send
    deadline: int
    sent_at: int = 0
    done: bool = False
    """Its manager has been told already; an answer that still comes is dropped."""


@dataclass(eq=False, slots=True)
class Link:
    """See the module. Only ``move`` writes ``state``."""

    key: HostPort | ToNode | ToCoordinator
    host: str
    port: int
    state: LinkState = LinkState.IDLE
    connection: ClientConnection | None = None
    connection_id: int | None = None
    addresses: deque[Address] = field(default_factory=deque)
    """What is still to be tried in this round; the first is the one being tried."""
    attempts: dict[str, str] = field(default_factory=dict)
    """Why each address failed since the link was last READY."""
    failures: int = 0
    """Rounds that failed since the link was last READY."""
    retry_at: int = 0
    setup_deadline: int = 0
    setup_failures: int = 0
    opened_at: int = 0
    last_used: int = 0
    throttled_until: int = 0
    """The broker asked to be left alone until then (KIP-219)."""
    in_flight: deque[Request] = field(default_factory=deque)

    def __repr__(self) -> str:
        return f"<Link {self.name} {self.state.name}, {len(self.in_flight)} in flight>"

    @property
    def name(self) -> str:
        """HOST:PORT as the user or the cluster's metadata spells it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The name, and the address that is being tried or used where that says more."""
        if not self.addresses or self.addresses[0].ip == self.host:
            return self.name
        return f"{self.name} ({self.addresses[0]})"

    def move(self, event: LinkEvent) -> None:
        """Take the transition; a ``KeyError`` is a bug of this room."""
        self.state = TRANSITIONS[self.state][event]
        if self.state not in CONNECTED_STATES:
            self.connection = self.connection_id = None

    def usable(self, now: Now) -> bool:
        """Whether it may be opened now."""
        return self.state is LinkState.IDLE or (self.state is LinkState.BACKOFF and now.mono >= self.retry_at)

    def take_in_flight(self) -> list[Request]:
        """What was in flight and will never be answered."""
        lost, self.in_flight = [request for request in self.in_flight if not request.done], deque()
        return lost
