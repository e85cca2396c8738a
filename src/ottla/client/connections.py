"""Which request goes over which connection, and when a connection is opened, given up, tried again or let go.

Owns the links, the queue of requests that wait for one, reconnect back-off (KIP-144), set-up time-outs (KIP-601),
request time-outs, the limit of requests in flight, idle connections, bootstrap and rebootstrap (KIP-899). Must not know
sockets, or what a request is about. Invariant: each ``Send`` that was enqueued becomes exactly one ``Completion``.

The shell performs the effects of ``poll`` and reports what became of them through the ``on_...`` methods; between two
polls it may report as much as it likes. A connection is named by a number that is never used again, so that a late
report of a closed one does no harm.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.effects import AnyNode, RequestManager, Send, Target, ToCoordinator, ToNode
from ottla.client.link import CONNECTED_STATES, OPENING_STATES, Address, Link, LinkEvent, LinkState, Request
from ottla.config import ClientConfig, HostPort
from ottla.errors import ConnectionFailedError, DisconnectedError, OttlaError, OttlaTimeoutError, ProtocolError
from ottla.protocol import milliseconds
from ottla.protocol.connection import ClientConnection, ConnectionState
from ottla.protocol.framing import Piece
from ottla.types import Node, Now

MAX_IN_FLIGHT = 100
"""Requests in flight on one connection at most, as in Kafka's consumer."""

STAGGER = 250
"""Milliseconds after which, where any broker will do, another is tried beside one that has not answered yet (as RFC 8305)."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve a name; report ``on_resolved`` or ``on_resolve_failed`` with the same name and port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a TCP connection; report ``on_connected`` or ``on_connect_failed``. Bytes read belong in ``connection.get_buffer()``."""

    connection_id: int
    address: Address
    connection: ClientConnection


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes, after all that were to be sent before."""

    connection_id: int
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection and report nothing more of it."""

    connection_id: int
    reason: str


Effect = Resolve | Connect | Write | Close


class ConnectionsPoll(NamedTuple):
    """What the shell is to do now, and when to poll again at the latest (monotonic ms; ``None``: on the next event)."""

    effects: list[Effect]
    wake_at: int | None


class Completion(NamedTuple):
    """What became of a ``Send``: an answer, or the error that stands for it."""

    manager: RequestManager
    tag: Any
    message: Any
    error: OttlaError | None


class Connections:
    """See the module."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.lost = 0
        """How often a connection broke or could not be made: when it grows, what is known of the cluster may be out of date."""
        self.unfinished = False
        """Whether what was received last completed nothing: no reason to poll."""
        self._config = config
        self._random = random
        self._reconnect = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random)
        self._setup = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, random
        )
        self._nodes: dict[int, Node] = {}
        self._links: dict[HostPort | ToNode | ToCoordinator, Link] = {}
        self._by_id: dict[int, Link] = {}
        self._next_id = 0
        self._unsent: deque[Request] = deque()
        self._effects: list[Effect] = []
        self._completions: list[Completion] = []

    def __repr__(self) -> str:
        return f"<Connections {list(self._links.values())}, {len(self._unsent)} unsent>"

    # -- what the core asks ---------------------------------------------------------------------------------------------

    def enqueue(self, manager: RequestManager, send: Send, now: Now) -> None:
        """Take a request on; it is sent by the next ``poll`` that finds a connection for it."""
        self._unsent.append(Request(manager, send, now.mono + send.timeout))

    def poll(self, now: Now) -> ConnectionsPoll:
        """Move everything on that time or an event has made possible."""
        self._expire_unsent(now)
        for link in list(self._links.values()):
            self._expire_link(link, now)
        waiting, self._unsent = self._unsent, deque()
        for request in waiting:
            if not self._dispatch(request, now):
                self._unsent.append(request)
        effects, self._effects = self._effects, []
        return ConnectionsPoll(effects, min(self._deadlines(now), default=None))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would give any."""
        return bool(self._completions)

    def take_completions(self) -> list[Completion]:
        """What has come to an end since the last call, in order."""
        done, self._completions = self._completions, []
        return done

    def set_nodes(self, nodes: Mapping[int, Node], now: Now) -> None:
        """What the cluster's metadata says now. Links to brokers that moved are let go."""
        self._nodes = dict(nodes)
        for node in nodes.values():
            self._adopt(ToNode(node.node_id), node)
            for key in (ToNode(node.node_id), ToCoordinator(node.node_id)):
                link = self._links.get(key)
                if link is not None and (link.host, link.port) != (node.host, node.port):
                    self._release(link, f"node {node.node_id} moved to {node.host}:{node.port}", now)
                    link.host, link.port = node.host, node.port

    def learn_node(self, node: Node, now: Now) -> None:
        """A broker that an answer named (a coordinator, a new leader), which the metadata may not have yet."""
        if self._nodes.get(node.node_id) != node:
            self.set_nodes({**self._nodes, node.node_id: node}, now)

    def disconnect(self, target: ToNode | ToCoordinator, reason: str, now: Now) -> None:
        """Close the connection to a target, if there is one; what is in flight on it fails as disconnected."""
        link = self._links.get(target)
        if link is not None and link.state in CONNECTED_STATES:
            self._release(link, reason, now)

    def rebootstrap(self, reason: str, now: Now) -> None:
        """Forget the cluster and begin again with the bootstrap servers (KIP-899, KIP-1102)."""
        for link in list(self._links.values()):
            self._release(link, reason, now)
        self._links.clear()
        self._nodes = {}

    def shut_down(self, error: OttlaError, now: Now) -> None:
        """Close all connections; whatever was asked and not answered fails with ``error``."""
        for link in self._links.values():
            for request in link.take_in_flight():
                self._complete(request, error=error)
            self._release(link, "the client is closed", now)
        while self._unsent:
            self._complete(self._unsent.popleft(), error=error)

    def bootstrap_failures(self) -> dict[str, str]:
        """Every address that was tried without success since it last answered -> why it failed, or what is still awaited."""
        failures: dict[str, str] = {}
        for link in self._links.values():
            failures.update(link.attempts)
            if link.state in OPENING_STATES:
                failures[link.address] = _AWAITED[link.state]
        return failures

    @property
    def has_failed(self) -> bool:
        """Whether any attempt came to a bad end since its broker last answered; those that are under way do not count."""
        return any(link.attempts for link in self._links.values())

    def connection_failure(self, message: str = "no broker could be reached") -> ConnectionFailedError | None:
        """An error that lists all that was tried, or ``None`` while some broker is connected or nothing has failed yet."""
        failures = self.bootstrap_failures()
        if not failures or any(link.state is LinkState.READY for link in self._links.values()):
            return None
        return ConnectionFailedError(message, failures, hint="check bootstrap_servers and that the brokers are up")

    # -- what the shell reports -------------------------------------------------------------------------------------------

    def on_resolved(self, host: str, port: int, addresses: Iterable[Address], now: Now) -> None:
        """A name has addresses, in the order to try them."""
        found = list(dict.fromkeys(addresses))
        for link in self._resolving(host, port):
            if found:
                link.addresses = deque(found)
                link.move(LinkEvent.RESOLVED)
                self._connect(link, now)
            else:
                self._round_failed(link, "the name has no address", now)

    def on_resolve_failed(self, host: str, port: int, reason: str, now: Now) -> None:
        """A name has no address, or nobody could be asked for it."""
        for link in self._resolving(host, port):
            self._round_failed(link, f"the name can not be resolved: {reason}", now)

    def on_connected(self, connection_id: int, now: Now) -> None:
        """TCP is connected: the opening dialogue begins."""
        link = self._by_id.get(connection_id)
        if link is not None and link.connection is not None:
            link.move(LinkEvent.CONNECTED)
            link.last_used = now.mono
            self._effects.append(Write(connection_id, link.connection.start()))

    def on_connect_failed(self, connection_id: int, reason: str, now: Now) -> None:
        """The address can not be reached."""
        link = self._by_id.pop(connection_id, None)
        if link is not None:
            self._address_failed(link, reason, now)

    def on_received(self, connection_id: int, count: int, now: Now) -> bool:
        """``count`` bytes were put in the connection's buffer. False: the connection is of no more use, read no further."""
        link = self._by_id.get(connection_id)
        if link is None or link.connection is None:
            return False
        try:
            response, pieces = link.connection.buffer_updated(count)
        except Exception as error:
            self._broken(link, _as_ottla_error(error), now)
            return False
        if pieces:
            self._effects.append(Write(connection_id, pieces))
        if link.state is LinkState.HANDSHAKE and link.connection.state is ConnectionState.READY:
            self._on_ready(link, now)
        if response is not None:
            self._on_answer(link, response.message, now)
        self.unfinished = response is None and not pieces and link.state is LinkState.READY
        return True

    def receive(self, connection_id: int, data: bytes, now: Now) -> None:
        """The same for bytes that are in memory already: in-memory links of tests and the simulator."""
        rest = memoryview(data)
        while rest and (link := self._by_id.get(connection_id)) is not None and link.connection is not None:
            buffer = link.connection.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            buffer.release()
            rest = rest[count:]
            self.on_received(connection_id, count, now)

    def on_closed(self, connection_id: int, reason: str, now: Now) -> None:
        """The peer, or the network, ended the connection."""
        link = self._by_id.pop(connection_id, None)
        if link is None:
            return
        if link.state is LinkState.READY:
            self._disconnected(link, reason, now)
        else:
            hint = " before it answered ApiVersions: is it a Kafka port, without TLS?" if link.state is LinkState.HANDSHAKE else ""
            self._address_failed(link, reason + hint, now)

    # -- routing ----------------------------------------------------------------------------------------------------------

    def _dispatch(self, request: Request, now: Now) -> bool:
        """Send a request, or fail it at once; False: it has to wait."""
        target = request.send.target
        link = self._any_link(now) if isinstance(target, AnyNode) else self._link_to(target)
        if link is None:
            if isinstance(target, AnyNode):
                return False
            self._complete(request, error=DisconnectedError(f"node {target.node_id} is not in the cluster's metadata"))
            return True
        if link.usable(now):
            self._open(link, now)
        if link.state is not LinkState.READY or link.throttled_until > now.mono or len(link.in_flight) >= MAX_IN_FLIGHT:
            return False
        self._send(link, request, now)
        return True

    def _link_to(self, target: ToNode | ToCoordinator) -> Link | None:
        link = self._links.get(target)
        node = self._nodes.get(target.node_id)
        if link is None and node is not None:
            link = self._links[target] = Link(target, node.host, node.port)
        return link if node is not None or (link is not None and link.state is LinkState.READY) else None

    def _any_link(self, now: Now) -> Link | None:
        """The least loaded link that is ready; else one to open, beside those that take long to answer."""
        ready = [link for link in self._links.values() if link.state is LinkState.READY and link.throttled_until <= now.mono]
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

    def _candidates(self) -> list[Link]:
        """Links to the brokers that are known; to the bootstrap servers while none is, or none of them can be reached."""
        known = [link for node_id in self._nodes if (link := self._link_to(ToNode(node_id))) is not None]
        rebootstrap = self._config.metadata_recovery_strategy == "rebootstrap" and all(link.failures for link in known)
        if known and not rebootstrap:
            return known
        return known + [self._links.setdefault(server, Link(server, *server)) for server in self._config.bootstrap_servers]

    def _adopt(self, key: ToNode, node: Node) -> None:
        """The connection to a bootstrap server that turns out to be this broker is kept as the broker's own."""
        if key in self._links:
            return
        place = (node.host, node.port)
        for server, link in self._links.items():
            if isinstance(server, HostPort) and link.state is LinkState.READY and place in (server, link.addresses[0]):
                del self._links[server]
                link.key, link.host, link.port = key, node.host, node.port
                self._links[key] = link
                return

    # -- the life of a link -----------------------------------------------------------------------------------------------

    def _open(self, link: Link, now: Now) -> None:
        link.move(LinkEvent.WANTED)
        link.opened_at = now.mono
        try:
            ipaddress.ip_address(link.host)
        except ValueError:
            if sum(1 for _ in self._resolving(link.host, link.port)) == 1:
                self._effects.append(Resolve(link.host, link.port))
        else:
            link.addresses = deque([Address(link.host, link.port)])
            link.move(LinkEvent.RESOLVED)
            self._connect(link, now)

    def _connect(self, link: Link, now: Now) -> None:
        self._next_id += 1
        link.connection, link.connection_id = ClientConnection(self._config.client_id), self._next_id
        link.setup_deadline = now.mono + self._setup.delay(link.setup_failures)
        self._by_id[self._next_id] = link
        self._effects.append(Connect(self._next_id, link.addresses[0], link.connection))

    def _on_ready(self, link: Link, now: Now) -> None:
        link.move(LinkEvent.READY)
        link.failures = link.setup_failures = 0
        link.attempts.clear()
        link.last_used = now.mono

    def _address_failed(self, link: Link, reason: str, now: Now) -> None:
        """One address did not work out: try the next one of the same name."""
        address = link.address
        link.addresses.popleft()
        if not link.addresses:
            return self._round_failed(link, reason, now, address)
        link.attempts[address] = reason
        link.move(LinkEvent.NEXT)
        return self._connect(link, now)

    def _round_failed(self, link: Link, reason: str, now: Now, address: str | None = None) -> None:
        """No address of the name worked out: wait, and fail what waits for this very broker."""
        address = address or link.name
        link.attempts[address] = reason
        self._back_off(link, now)
        error = DisconnectedError(f"{_who(link)} at {address} can not be reached: {reason}")
        waiting, self._unsent = self._unsent, deque()
        for request in waiting:
            if request.send.target == link.key:
                self._complete(request, error=error)
            else:
                self._unsent.append(request)

    def _disconnected(self, link: Link, reason: str, now: Now, first: OttlaError | None = None) -> None:
        """A connection that was in use broke; ``first`` is the error of the request at its head, where that is to blame."""
        error = DisconnectedError(f"the connection to {_who(link)} at {link.address} broke: {reason}")
        for request in link.take_in_flight():
            self._complete(request, error=first or error)
            first = None
        self._back_off(link, now)

    def _back_off(self, link: Link, now: Now) -> None:
        link.retry_at = now.mono + self._reconnect.delay(link.failures)
        link.failures += 1
        link.addresses.clear()
        link.move(LinkEvent.FAILED)
        self.lost += 1

    def _broken(self, link: Link, error: OttlaError, now: Now) -> None:
        """The peer broke the protocol, or did not answer in time."""
        self._close(link, str(error))
        if link.state is LinkState.READY:
            self._disconnected(link, str(error), now, first=error)
        else:
            self._address_failed(link, str(error), now)

    def _release(self, link: Link, reason: str, now: Now) -> None:
        """Let a link go of our own accord: it may be opened again at once."""
        error = DisconnectedError(f"the connection to {_who(link)} at {link.name} was closed: {reason}")
        for request in link.take_in_flight():
            self._complete(request, error=error)
        self._close(link, reason)
        link.addresses.clear()
        link.last_used = now.mono
        link.move(LinkEvent.RELEASED)

    def _close(self, link: Link, reason: str) -> None:
        if link.connection_id is not None and self._by_id.pop(link.connection_id, None) is not None:
            self._effects.append(Close(link.connection_id, reason))

    def _resolving(self, host: str, port: int) -> Iterator[Link]:
        found = [
            link for link in self._links.values() if link.state is LinkState.RESOLVING and (link.host, link.port) == (host, port)
        ]
        return iter(found)

    # -- the life of a request --------------------------------------------------------------------------------------------

    def _send(self, link: Link, request: Request, now: Now) -> None:
        assert link.connection is not None
        assert link.connection_id is not None
        try:
            pieces = link.connection.send(request, request.send.api, request.send.message)
        except Exception as error:
            return self._complete(request, error=_as_ottla_error(error))
        request.sent_at = link.last_used = now.mono
        link.in_flight.append(request)
        return self._effects.append(Write(link.connection_id, pieces))

    def _on_answer(self, link: Link, message: Any, now: Now) -> None:
        request = link.in_flight.popleft()
        link.last_used = now.mono
        throttle = getattr(message, "throttle_time", None)
        if throttle:
            link.throttled_until = now.mono + milliseconds(throttle)
        if not request.done:
            self._complete(request, message=message)

    def _complete(self, request: Request, message: Any = None, error: OttlaError | None = None) -> None:
        request.done = True
        self._completions.append(Completion(request.manager, request.send.tag, message, error))

    # -- time -------------------------------------------------------------------------------------------------------------

    def _expire_unsent(self, now: Now) -> None:
        waiting, self._unsent = self._unsent, deque()
        for request in waiting:
            if request.deadline <= now.mono:
                self._complete(request, error=self._not_sent(request))
            else:
                self._unsent.append(request)

    def _not_sent(self, request: Request) -> OttlaError:
        send = request.send
        within = f"within {send.timeout / 1000:g} s"
        if isinstance(send.target, AnyNode):
            failure = self.connection_failure(f"no broker could be reached {within}")
            return failure or OttlaTimeoutError(f"{send.api.name} could not be sent {within}: no broker was ready for it")
        link = self._links.get(send.target)
        said = "; ".join(f"{address}: {reason}" for address, reason in link.attempts.items()) if link is not None else ""
        state = said or (link.state.value if link is not None else "unknown")
        return OttlaTimeoutError(f"{send.api.name} could not be sent to node {send.target.node_id} {within}: {state}")

    def _expire_link(self, link: Link, now: Now) -> None:
        if link.state in (LinkState.CONNECTING, LinkState.HANDSHAKE) and link.setup_deadline <= now.mono:
            link.setup_failures += 1
            waited = f"{(now.mono - link.opened_at) / 1000:g} s"
            self._broken(link, OttlaTimeoutError(f"{_AWAITED[link.state]} after {waited}"), now)
        if link.state is not LinkState.READY:
            return
        for request in link.in_flight:
            if not request.done and request.deadline <= now.mono:
                within = f"within {request.send.timeout / 1000:g} s"
                text = f"{request.send.api.name} was not answered by {_who(link)} at {link.address} {within}"
                self._complete(request, error=OttlaTimeoutError(text))
        if link.in_flight and self._dead_at(link) <= now.mono:
            api = link.in_flight[0].send.api.name
            self._broken(
                link, DisconnectedError(f"no answer to {api} for {(now.mono - link.in_flight[0].sent_at) / 1000:g} s"), now
            )
        elif not link.in_flight and 0 <= self._config.connections_max_idle_ms <= now.mono - link.last_used:
            self._release(link, "idle", now)

    def _dead_at(self, link: Link) -> int:
        """When a connection whose oldest request has no answer counts as broken, as answers come in order."""
        oldest = link.in_flight[0]
        return oldest.sent_at + max(self._config.request_timeout_ms, oldest.send.timeout)

    def _deadlines(self, now: Now) -> Iterator[int]:
        for request in self._unsent:
            yield request.deadline
        for link in self._links.values():
            if link.state in (LinkState.CONNECTING, LinkState.HANDSHAKE):
                yield link.setup_deadline
            if link.in_flight:
                yield self._dead_at(link)
                yield from (request.deadline for request in link.in_flight if not request.done)
            elif link.state is LinkState.READY and self._config.connections_max_idle_ms >= 0:
                yield link.last_used + self._config.connections_max_idle_ms
            if self._unsent:
                waits = (link.retry_at, link.throttled_until, link.opened_at + STAGGER)
                yield from (at for at in waits if at > now.mono)


_AWAITED: Mapping[LinkState, str] = {
    LinkState.RESOLVING: "the name is not resolved yet",
    LinkState.CONNECTING: "no TCP connection",
    LinkState.HANDSHAKE: "connected, but no answer to ApiVersions: is it a Kafka port?",
}

assert set(_AWAITED) == OPENING_STATES


def _who(link: Link) -> str:
    return "the bootstrap server" if isinstance(link.key, HostPort) else f"node {link.key.node_id}"


def _as_ottla_error(error: Exception) -> OttlaError:
    if isinstance(error, OttlaError):
        return error
    return ProtocolError(f"{type(error).__name__}: {error}", cause=error)


__all__ = ["Address", "Close", "Completion", "Connect", "Connections", "ConnectionsPoll", "Effect", "Resolve", "Target", "Write"]
