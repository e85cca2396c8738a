"""One way to one broker: a name to resolve, addresses to try, at most one connection, and what is in flight on it.

Owns the state of a link and its transitions. Must not know sockets, nor which request goes where. Invariant:
a link has a connection exactly in the states from CONNECTING to RENEWING, and requests in flight only in READY and RENEWING.

::

    IDLE -> RESOLVING -> CONNECTING (-> SECURING) -> HANDSHAKE (-> LOGIN) -> READY <-> RENEWING
      ^         |            |  ^          |             |           |         |          |
      |         v            v  | next     v             v           v         v          v
      +------ BACKOFF <------+--+ address -+-------------+-----------+---------+----------+
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from ottla.client.effects import RequestManager, Send
from ottla.errors import AuthenticationError, DisconnectedError
from ottla.protocol import milliseconds
from ottla.protocol.apis import Api
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
    """The state of a link."""

    IDLE = "not needed yet"
    RESOLVING = "the name is being resolved"
    CONNECTING = "waiting for the TCP connection"
    SECURING = "waiting for the TLS handshake"
    HANDSHAKE = "connected, no answer to ApiVersions yet"
    LOGIN = "waiting for the SASL login"
    READY = "requests can be sent"
    RENEWING = "the login is being renewed: requests have to wait (KIP-368)"
    BACKOFF = "failed, waiting to try again"


class LinkEvent(enum.Enum):
    """What can happen to a link."""

    WANTED = "a request needs it"
    RESOLVED = "the resolver returned addresses"
    SECURE = "TCP is connected, TLS begins"
    CONNECTED = "bytes of Kafka's protocol can be sent"
    LOGIN = "the broker sent its versions and needs a login"
    READY = "the broker sent its versions, and the login is done or not needed"
    RENEW = "the login is about to expire"
    NEXT = "this address failed, there is another"
    FAILED = "no address is left, or the connection broke"
    RELEASED = "closed because it is idle or its broker moved"


_DOWN = {LinkEvent.FAILED: LinkState.BACKOFF, LinkEvent.RELEASED: LinkState.IDLE}
_UP = {LinkEvent.NEXT: LinkState.CONNECTING, **_DOWN}

TRANSITIONS: Mapping[LinkState, Mapping[LinkEvent, LinkState]] = {
    LinkState.IDLE: {LinkEvent.WANTED: LinkState.RESOLVING, LinkEvent.RELEASED: LinkState.IDLE},
    LinkState.RESOLVING: {
        LinkEvent.RESOLVED: LinkState.CONNECTING,
        LinkEvent.FAILED: LinkState.BACKOFF,
        LinkEvent.RELEASED: LinkState.IDLE,
    },
    LinkState.CONNECTING: {LinkEvent.SECURE: LinkState.SECURING, LinkEvent.CONNECTED: LinkState.HANDSHAKE, **_UP},
    LinkState.SECURING: {LinkEvent.CONNECTED: LinkState.HANDSHAKE, **_UP},
    LinkState.HANDSHAKE: {LinkEvent.LOGIN: LinkState.LOGIN, LinkEvent.READY: LinkState.READY, **_UP},
    LinkState.LOGIN: {LinkEvent.READY: LinkState.READY, **_UP},
    LinkState.READY: {LinkEvent.RENEW: LinkState.RENEWING, **_DOWN},
    LinkState.RENEWING: {LinkEvent.READY: LinkState.READY, **_DOWN},
    LinkState.BACKOFF: {LinkEvent.WANTED: LinkState.RESOLVING, LinkEvent.RELEASED: LinkState.IDLE},
}

SETUP_STATES = frozenset({LinkState.CONNECTING, LinkState.SECURING, LinkState.HANDSHAKE, LinkState.LOGIN})
"""A connection is being made, within ``setup_deadline``."""
ESTABLISHED_STATES = frozenset({LinkState.READY, LinkState.RENEWING})
CONNECTED_STATES = SETUP_STATES | ESTABLISHED_STATES
OPENING_STATES = SETUP_STATES | {LinkState.RESOLVING}

NEXT_ADDRESS = 1_000
"""Milliseconds after which the next address of a name is tried if there is no response. The time doubles with each failed round, up
to the set-up time-out, since the network may just be slow. (Java's client spends the whole time-out on each address.)"""

_AWAITED: Mapping[LinkState, str] = {
    LinkState.RESOLVING: "the name is not resolved yet",
    LinkState.CONNECTING: "no TCP connection",
    LinkState.SECURING: "connected, but no answer to the TLS handshake",
    LinkState.HANDSHAKE: "connected, but no answer to ApiVersions",
    LinkState.LOGIN: "connected, but the login has not finished",
}
"""What an opening link waits for, as an error says it."""

_DOUBTS: Mapping[LinkState, str] = {
    LinkState.SECURING: ": does this port speak TLS?",
    LinkState.HANDSHAKE: ": is it a Kafka port?",
}
"""What silence may mean at an address that has never been of use."""

_HUNG_UP: Mapping[LinkState, tuple[str, str]] = {
    LinkState.SECURING: (" during the TLS handshake", ": does this port speak TLS?"),
    LinkState.HANDSHAKE: (" before it answered ApiVersions", ": is it a Kafka port, and is security.protocol right?"),
    LinkState.LOGIN: (" during the login", ""),
    LinkState.READY: (" at the first request", ": does this port ask for a login? See security.protocol"),
}
"""When a peer hung up, and what it may mean by it at an address that has never been of use."""

_PROOF_AWAITED = "connected, but the login waits for a token: neither its provider nor an identity provider has given one yet"


@dataclass(eq=False, slots=True)
class Request:
    """A ``Send`` on its way: who asked, until when it may take, and, once sent, since when it is in flight."""

    manager: RequestManager
    send: Send
    deadline: int
    sent_at: int = 0
    done: bool = False
    """Its manager already has an outcome; a late answer is dropped."""


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
    """Why each address failed since a request was last answered."""
    failures: int = 0
    """Rounds that failed since a request was last answered."""
    refusal: AuthenticationError | None = None
    """Why the broker, or we, refused to go on, if that was how the latest round failed."""
    answered: bool = False
    """Whether the present connection has answered a request: only then is it known to be of use."""
    worked: bool = False
    """Whether some connection to the present address ever has: what fails there now is no question of settings."""
    renew_at: int | None = None
    """When the login has to be renewed."""
    retry_at: int = 0
    setup_deadline: int = 0
    setup_failures: int = 0
    opened_at: int = 0
    """When it was last begun to resolve the name, or to connect to one of its addresses."""
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
            self.connection = self.connection_id = self.renew_at = None
            self.answered = False

    def usable(self, now: Now) -> bool:
        """Whether it may be opened now."""
        return self.state is LinkState.IDLE or (self.state is LinkState.BACKOFF and now.mono >= self.retry_at)

    def dead_at(self, patience: int) -> int:
        """When the connection counts as broken for want of an answer to its oldest request, as answers come in order."""
        oldest = self.in_flight[0]
        return oldest.sent_at + max(patience, oldest.send.timeout)

    def is_idle(self, patience: int, now: Now) -> bool:
        """Whether the connection was unused for ``patience`` milliseconds; negative: it never counts as idle."""
        return self.state is LinkState.READY and not self.in_flight and 0 <= patience <= now.mono - self.last_used

    def deadlines(self, patience: int, idle_after: int) -> Iterator[int]:
        """When time alone will change something here; both settings in milliseconds, as ``dead_at`` and ``is_idle`` take them."""
        if self.state in SETUP_STATES or self.state is LinkState.RENEWING:
            yield self.setup_deadline
        elif self.renew_at is not None:
            yield self.renew_at
        if self.in_flight:
            yield self.dead_at(patience)
            yield from (request.deadline for request in self.in_flight if not request.done)
        elif self.state is LinkState.READY and idle_after >= 0:
            yield self.last_used + idle_after

    @property
    def awaited(self) -> str:
        """What it waits for while it is being opened, as an error says it."""
        proves = self.state is LinkState.LOGIN and self.connection is not None and self.connection.proves
        return _PROOF_AWAITED if proves else _AWAITED[self.state] + self._doubt

    def in_vain(self, now: Now) -> str:
        """The same of a link that has waited long enough."""
        return f"{_AWAITED[self.state]} after {(now.mono - self.opened_at) / 1000:g} s{self._doubt}"

    def hung_up(self, reason: str) -> str:
        """Why the peer, or the network, ended the connection, and when."""
        if self.answered or self.state not in _HUNG_UP:
            return reason
        moment, doubt = _HUNG_UP[self.state]
        return f"{reason}{moment}{'' if self.worked else doubt}"

    @property
    def _doubt(self) -> str:
        return "" if self.worked else _DOUBTS.get(self.state, "")

    @property
    def who(self) -> str:
        """What is at the other end, as an error says it."""
        node_id = getattr(self.key, "node_id", None)
        return "the bootstrap server" if node_id is None else f"node {node_id}"

    def opening(self, patience: int, now: Now) -> None:
        """The first of ``addresses`` is tried, for so many milliseconds at most."""
        self.opened_at = now.mono
        if len(self.addresses) > 1:
            patience = min(patience, NEXT_ADDRESS << min(self.failures, 16))
        self.setup_deadline = now.mono + patience

    def tcp_connected(self, patience: int, now: Now) -> None:
        """The peer has responded: from now on the full timeout applies."""
        if self.state is LinkState.CONNECTING and len(self.addresses) > 1:
            self.setup_deadline = now.mono + patience

    def ready(self, part: float, now: Now) -> None:
        """Requests may leave; a login that does not last for ever is renewed after this ``part`` of its lifetime."""
        self.move(LinkEvent.READY)
        self.setup_failures = 0
        lifetime = self.connection.lifetime if self.connection is not None else 0
        self.renew_at = now.mono + round(lifetime * part) if lifetime > 0 else None

    def sent(self, request: Request, now: Now) -> None:
        """A request left."""
        request.sent_at = self.last_used = now.mono
        self.in_flight.append(request)

    def answer(self, throttle: timedelta | None, now: Now) -> Request:
        """The oldest request was answered: whatever went wrong before is over. ``throttle``: how long to leave the broker alone."""
        self.last_used = now.mono
        if not self.answered:
            self.answered, self.refusal, self.failures = True, None, 0
            self.attempts.clear()
        if throttle:
            self.throttled_until = now.mono + milliseconds(throttle)
        return self.in_flight.popleft()

    def lacks(self, api: Api, feature: str) -> str | None:
        """Why the broker does not offer what comes with a feature of the cluster; ``None``: it does.

        Raises ``DisconnectedError`` where that is not known, for want of a connection.
        """
        if self.connection is None or self.state is not LinkState.READY:
            raise DisconnectedError(f"{self.name} is not connected")
        if api not in self.connection.versions:
            return f"the broker does not serve {api.name}"
        return None if self.connection.features.get(feature, 0) else f"{feature} of the cluster is 0"

    def take_in_flight(self) -> list[Request]:
        """What was in flight and will never be answered."""
        lost, self.in_flight = [request for request in self.in_flight if not request.done], deque()
        return lost
