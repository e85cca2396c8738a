"""The connections to brokers: the state of each, which one serves a target, and why none is of use.

Owns the known brokers, the state of a node's connection and its transitions, and the choice between connections. Must not know
sockets, nor open, close or send. Invariants: a ``NodeConnection`` has a connection exactly in the states from CONNECTING to
RENEWING, and requests in flight only in READY and RENEWING; while a broker that the cluster named can be reached, no bootstrap
server is asked.

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


from collections.abc import Iterable

from ottla.client.backoff import RandomPort
from ottla.client.effects import AnyNode, ToCoordinator, ToNode
from ottla.config import ClientConfig, HostPort
from ottla.errors import ConnectionFailedError, OttlaError, OttlaTimeoutError
from ottla.types import Node


class Address(NamedTuple):
    """One numeric address: where a socket connects to."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class NodeState(enum.Enum):
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


class NodeEvent(enum.Enum):
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


_DOWN = {NodeEvent.FAILED: NodeState.BACKOFF, NodeEvent.RELEASED: NodeState.IDLE}
_UP = {NodeEvent.NEXT: NodeState.CONNECTING, **_DOWN}

TRANSITIONS: Mapping[NodeState, Mapping[NodeEvent, NodeState]] = {
    NodeState.IDLE: {
        NodeEvent.WANTED: NodeState.RESOLVING,
        NodeEvent.RELEASED: NodeState.IDLE,
    },
    NodeState.RESOLVING: {
        NodeEvent.RESOLVED: NodeState.CONNECTING,
        NodeEvent.FAILED: NodeState.BACKOFF,
        NodeEvent.RELEASED: NodeState.IDLE,
    },
    NodeState.CONNECTING: {
        NodeEvent.SECURE: NodeState.SECURING,
        NodeEvent.CONNECTED: NodeState.HANDSHAKE,
        **_UP,
    },
    NodeState.SECURING: {NodeEvent.CONNECTED: NodeState.HANDSHAKE, **_UP},
    NodeState.HANDSHAKE: {
        NodeEvent.LOGIN: NodeState.LOGIN,
        NodeEvent.READY: NodeState.READY,
        **_UP,
    },
    NodeState.LOGIN: {NodeEvent.READY: NodeState.READY, **_UP},
    NodeState.READY: {NodeEvent.RENEW: NodeState.RENEWING, **_DOWN},
    NodeState.RENEWING: {NodeEvent.READY: NodeState.READY, **_DOWN},
    NodeState.BACKOFF: {
        NodeEvent.WANTED: NodeState.RESOLVING,
        NodeEvent.RELEASED: NodeState.IDLE,
    },
}

SETUP_STATES = frozenset({NodeState.CONNECTING, NodeState.SECURING, NodeState.HANDSHAKE, NodeState.LOGIN})
"""A connection is being made, within ``setup_deadline``."""
ESTABLISHED_STATES = frozenset({NodeState.READY, NodeState.RENEWING})
CONNECTED_STATES = SETUP_STATES | ESTABLISHED_STATES
OPENING_STATES = SETUP_STATES | {NodeState.RESOLVING}

NEXT_ADDRESS = 1_000
"""Milliseconds after which the next address of a name is tried if there is no response. The time doubles with each failed round, up
to the set-up time-out, since the network may just be slow. (Java's client spends the whole time-out on each address.)"""

_AWAITED: Mapping[NodeState, str] = {
    NodeState.RESOLVING: "the name is not resolved yet",
    NodeState.CONNECTING: "no TCP connection",
    NodeState.SECURING: "connected, but no answer to the TLS handshake",
    NodeState.HANDSHAKE: "connected, but no answer to ApiVersions",
    NodeState.LOGIN: "connected, but the login has not finished",
}
"""What an opening link waits for, as an error says it."""

_DOUBTS: Mapping[NodeState, str] = {
    NodeState.SECURING: ": does this port speak TLS?",
    NodeState.HANDSHAKE: ": is it a Kafka port?",
}
"""What silence may mean at an address that has never been of use."""

_HUNG_UP: Mapping[NodeState, tuple[str, str]] = {
    NodeState.SECURING: (" during the TLS handshake", ": does this port speak TLS?"),
    NodeState.HANDSHAKE: (" before it answered ApiVersions", ": is it a Kafka port, and is security.protocol right?"),
    NodeState.LOGIN: (" during the login", ""),
    NodeState.READY: (" at the first request", ": does this port ask for a login? See security.protocol"),
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
class NodeConnection:
    """One way to one broker: a name to resolve, addresses to try, at most one connection, and what is in flight on it.

    Only ``move`` writes ``state``.
    """

    key: HostPort | ToNode | ToCoordinator
    host: str
    port: int
    state: NodeState = NodeState.IDLE
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
        return f"<NodeConnection {self.name} {self.state.name}, {len(self.in_flight)} in flight>"

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

    def move(self, event: NodeEvent) -> None:
        """Take the transition; a ``KeyError`` is a bug of this room."""
        self.state = TRANSITIONS[self.state][event]
        if self.state not in CONNECTED_STATES:
            self.connection = self.connection_id = self.renew_at = None
            self.answered = False

    def usable(self, now: Now) -> bool:
        """Whether it may be opened now."""
        return self.state is NodeState.IDLE or (self.state is NodeState.BACKOFF and now.mono >= self.retry_at)

    def dead_at(self, patience: int) -> int:
        """When the connection counts as broken for want of an answer to its oldest request, as answers come in order."""
        oldest = self.in_flight[0]
        return oldest.sent_at + max(patience, oldest.send.timeout)

    def is_idle(self, patience: int, now: Now) -> bool:
        """Whether the connection was unused for ``patience`` milliseconds; negative: it never counts as idle."""
        return self.state is NodeState.READY and not self.in_flight and 0 <= patience <= now.mono - self.last_used

    def deadlines(self, patience: int, idle_after: int) -> Iterator[int]:
        """When time alone will change something here; both settings in milliseconds, as ``dead_at`` and ``is_idle`` take them."""
        if self.state in SETUP_STATES or self.state is NodeState.RENEWING:
            yield self.setup_deadline
        elif self.renew_at is not None:
            yield self.renew_at
        if self.in_flight:
            yield self.dead_at(patience)
            yield from (request.deadline for request in self.in_flight if not request.done)
        elif self.state is NodeState.READY and idle_after >= 0:
            yield self.last_used + idle_after

    @property
    def awaited(self) -> str:
        """What it waits for while it is being opened, as an error says it."""
        proves = self.state is NodeState.LOGIN and self.connection is not None and self.connection.proves
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
        if self.state is NodeState.CONNECTING and len(self.addresses) > 1:
            self.setup_deadline = now.mono + patience

    def ready(self, part: float, now: Now) -> None:
        """Requests may leave; a login that does not last for ever is renewed after this ``part`` of its lifetime."""
        self.move(NodeEvent.READY)
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
        if self.connection is None or self.state is not NodeState.READY:
            raise DisconnectedError(f"{self.name} is not connected")
        if api not in self.connection.versions:
            return f"the broker does not serve {api.name}"
        return None if self.connection.features.get(feature, 0) else f"{feature} of the cluster is 0"

    def take_in_flight(self) -> list[Request]:
        """What was in flight and will never be answered."""
        lost, self.in_flight = [request for request in self.in_flight if not request.done], deque()
        return lost


STAGGER = 250
"""Milliseconds after which, where any broker will do, another is tried beside one that has not answered yet (as RFC 8305)."""

_ELSEWHERE = "clients connect to the addresses that the cluster advertises: check advertised.listeners and the network"


class NodeConnections:
    """All connections of a client: which one serves a target, which one is to be opened, and why none is of use."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.nodes: dict[int, Node] = {}
        self._config = config
        self._random = random
        self._links: dict[HostPort | ToNode | ToCoordinator, NodeConnection] = {}

    def __iter__(self) -> Iterator[NodeConnection]:
        return iter(list(self._links.values()))

    def get(self, key: HostPort | ToNode | ToCoordinator) -> NodeConnection | None:
        """The link to a target, if there is one."""
        return self._links.get(key)

    def set_nodes(self, nodes: Mapping[int, Node]) -> list[tuple[NodeConnection, Node]]:
        """What the cluster's metadata says now; gives the links whose brokers have moved, and where they are now."""
        self.nodes = dict(nodes)
        moved: list[tuple[NodeConnection, Node]] = []
        for node in nodes.values():
            self._adopt(ToNode(node.node_id), node)
            for key in (ToNode(node.node_id), ToCoordinator(node.node_id)):
                link = self._links.get(key)
                if link is not None and (link.host, link.port) != (node.host, node.port):
                    moved.append((link, node))
        return moved

    def forget(self) -> None:
        """Know nothing of the cluster any more."""
        self._links.clear()
        self.nodes = {}

    def to(self, target: ToNode | ToCoordinator) -> NodeConnection | None:
        """The link to one broker; ``None`` where the cluster has no such broker."""
        link = self._links.get(target)
        node = self.nodes.get(target.node_id)
        if link is None and node is not None:
            link = self._links[target] = NodeConnection(target, node.host, node.port)
        return link if node is not None or (link is not None and link.state in ESTABLISHED_STATES) else None

    def any(self, now: Now) -> NodeConnection | None:
        """The least loaded link that is ready; else one to open, beside those that take long to answer."""
        ready = [link for link in self._links.values() if link.state is NodeState.READY and link.throttled_until <= now.mono]
        if ready:
            return min(ready, key=lambda link: len(link.in_flight))
        candidates = self._candidates()
        if any(link.state in OPENING_STATES and now.mono < link.opened_at + STAGGER for link in candidates):
            return None
        usable = [link for link in candidates if link.usable(now)]
        if not usable:
            return None
        fewest = min(link.failures for link in usable)
        usable = [link for link in usable if link.failures == fewest]
        return usable[int(self._random.random() * len(usable))]

    def resolving(self, host: str, port: int) -> list[NodeConnection]:
        """The links that wait for the addresses of a name."""
        return [
            link for link in self._links.values() if link.state is NodeState.RESOLVING and (link.host, link.port) == (host, port)
        ]

    def _candidates(self) -> list[NodeConnection]:
        """NodeConnections to the brokers that are known; to the bootstrap servers while none is, or none of them can be reached."""
        known = [link for node_id in self.nodes if (link := self.to(ToNode(node_id))) is not None]
        rebootstrap = self._config.metadata_recovery_strategy == "rebootstrap" and all(link.failures for link in known)
        if known and not rebootstrap:
            return known
        return known + [
            self._links.setdefault(server, NodeConnection(server, *server)) for server in self._config.bootstrap_servers
        ]

    def _adopt(self, key: ToNode, node: Node) -> None:
        """The connection to a bootstrap server that turns out to be this broker is kept as the broker's own."""
        if key in self._links:
            return
        place = (node.host, node.port)
        for server, link in self._links.items():
            if isinstance(server, HostPort) and link.state is NodeState.READY and place in (server, link.addresses[0]):
                del self._links[server]
                link.key, link.host, link.port = key, node.host, node.port
                self._links[key] = link
                return

    # -- why none is of use -----------------------------------------------------------------------------------------------

    def failures(self) -> dict[str, str]:
        """Every address that was tried without success since it last answered -> why it failed, or what is still awaited."""
        failures: dict[str, str] = {}
        for link in self._links.values():
            failures.update(link.attempts)
            if link.state in OPENING_STATES:
                failures.setdefault(link.address, link.awaited)  # what went wrong the last time says more
        return failures

    @property
    def first_try_since(self) -> int | None:
        """Since when, at an address that was never tried before, an attempt is under way; ``None``: all have been tried."""
        tries = [link.opened_at for link in self._links.values() if link.state in OPENING_STATES and not link.failures]
        return max(tries, default=None)

    def failures_of(self, target: ToNode | ToCoordinator) -> Mapping[str, str]:
        """Why one broker cannot be reached, address by address; empty while it answers or was not tried."""
        link = self._links.get(target)
        return {} if link is None or link.answered else link.attempts

    def unreachable(self, who: str = "", targets: Iterable[ToNode | ToCoordinator] = (), /) -> OttlaError | None:
        """See ``effects.Unreachable``."""
        failures: dict[str, str] = {}
        for target in targets:
            failures.update(self.failures_of(target))
        cut_off = ConnectionFailedError(f"{who} could not be reached", failures, hint=_ELSEWHERE) if failures else None
        return self.connection_failure() or cut_off

    def refusal(self) -> AuthenticationError | None:
        """The login, or the TLS handshake, that was refused when a broker was last tried."""
        return next((link.refusal for link in self._links.values() if link.refusal is not None), None)

    def refused_everywhere(self) -> AuthenticationError | None:
        """A refusal, once every broker has been tried and none is of use: there is nothing to wait for."""
        refusal = self.refusal()
        if refusal is None or not all(link.failures and link.state not in OPENING_STATES for link in self._candidates()):
            return None
        return refusal

    def connection_failure(self) -> ConnectionFailedError | AuthenticationError | None:
        """An error that lists all that was tried, or ``None`` while some broker answers or nothing has failed yet."""
        if any(link.answered for link in self._links.values()):
            return None
        failures = self.failures()
        if not failures:
            return None
        refusal = self.refusal()
        if refusal is not None and all(link.failures for link in self._candidates()):
            return refusal
        return ConnectionFailedError(
            "no broker could be reached", failures, hint="check bootstrap_servers and that the brokers are up"
        )

    def not_sent(self, send: Send) -> OttlaError:
        """Why a request could not be sent in its time."""
        within = f"within {send.timeout / 1000:g} s"
        if isinstance(send.target, AnyNode):
            failure = self.connection_failure()
            return failure or OttlaTimeoutError(f"{send.api.name} could not be sent {within}: no broker was ready for it")
        link = self._links.get(send.target)
        if link is not None and link.refusal is not None:
            return link.refusal
        said = "; ".join(f"{address}: {reason}" for address, reason in link.attempts.items()) if link is not None else ""
        state = said or (link.state.value if link is not None else "unknown")
        return OttlaTimeoutError(f"{send.api.name} could not be sent to node {send.target.node_id} {within}: {state}")
