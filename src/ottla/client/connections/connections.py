"""When a connection is opened, logged in, given up, tried again or let go, and which request goes over which.

Owns the queue of requests that wait for a connection, reconnect back-off (KIP-144), set-up time-outs (KIP-601), request time-outs,
the limit of requests in flight, idle connections, the renewal of logins (KIP-368) and rebootstrap (KIP-899). Must not know sockets,
passwords, or what a request is about. Invariant: each ``Send`` that was enqueued becomes exactly one ``Completion``.

The shell performs the effects of ``poll`` and reports what became of them through the ``on_...`` methods; between two polls it may
report as much as it likes.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.connections.effects import (
    Authenticate,
    Close,
    Completion,
    Connect,
    ConnectionsPoll,
    Effect,
    Resolve,
    Write,
)
from ottla.client.connections.node_connections import (
    CONNECTED_STATES,
    ESTABLISHED_STATES,
    SETUP_STATES,
    STAGGER,
    Address,
    NodeConnection,
    NodeConnections,
    NodeEvent,
    NodeState,
    Request,
)
from ottla.client.effects import AnyNode, RequestManager, Send, ToCoordinator, ToNode
from ottla.config import ClientConfig
from ottla.errors import (
    AuthenticationError,
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    ProtocolError,
    TlsError,
)
from ottla.protocol.connection import ClientConnection, ConnectionState
from ottla.protocol.sasl import Proof
from ottla.types import Node, Now

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 100
"""Requests in flight on one connection at most, as in Kafka's consumer."""

RENEW_FROM, RENEW_UNTIL = 0.85, 0.95
"""The part of a login's lifetime after which it is renewed: at random in between, as Kafka's clients do."""


class Connections:
    """See the module."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.lost = 0
        """How often a connection broke or could not be made: when it grows, what is known of the cluster may be out of date."""
        self.opened = self.sent = 0
        """How many connections were of use, and how many requests left."""
        self.unfinished = False
        """Whether what was received last completed nothing: no reason to poll."""
        self.links = NodeConnections(config, random)
        """Which connections there are, and why none is of use."""
        self._config = config
        self._random = random
        self._mechanism = config.sasl_mechanism if config.security_protocol.startswith("SASL") else None
        self._reconnect = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random)
        self._setup = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, random
        )
        self._by_id: dict[int, NodeConnection] = {}
        self._worked: set[Address] = set()
        """Where a request was ever answered."""
        self._next_id = 0
        self._requests = _RequestQueue()
        self._effects: list[Effect] = []

    def __repr__(self) -> str:
        return f"<Connections {list(self.links)}, {len(self._requests)} unsent>"

    # -- what the core asks ---------------------------------------------------------------------------------------------

    def enqueue(self, manager: RequestManager, send: Send, now: Now) -> None:
        """Take a request on; it is sent by the next ``poll`` that finds a connection for it."""
        self._requests.add(Request(manager, send, now.mono + send.timeout))

    def poll(self, now: Now) -> ConnectionsPoll:
        """Move everything on that time or an event has made possible."""
        self._requests.settle(lambda request: self._expired(request, now))
        for link in self.links:
            self._expire_link(link, now)
        self._requests.settle(lambda request: self._dispatch(request, now))
        effects, self._effects = self._effects, []
        return ConnectionsPoll(effects, min(self._deadlines(now), default=None))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would give any."""
        return self._requests.has_completions

    def take_completions(self) -> list[Completion]:
        """What has come to an end since the last call, in order."""
        return self._requests.take_completions()

    def set_nodes(self, nodes: Mapping[int, Node], now: Now) -> None:
        """What the cluster's metadata says now. NodeConnections to brokers that moved are let go."""
        for link, node in self.links.set_nodes(nodes):
            self._release(link, f"node {node.node_id} moved to {node.host}:{node.port}", now)
            link.host, link.port = node.host, node.port

    def learn_node(self, node: Node, now: Now) -> None:
        """A broker that an answer named (a coordinator, a new leader), which the metadata may not have yet."""
        if self.links.nodes.get(node.node_id) != node:
            self.set_nodes({**self.links.nodes, node.node_id: node}, now)

    def disconnect(self, target: ToNode | ToCoordinator, reason: str, now: Now) -> None:
        """Close the connection to a target, if there is one; what is in flight on it fails as disconnected."""
        link = self.links.get(target)
        if link is not None and link.state in CONNECTED_STATES:
            self._release(link, reason, now)

    def rebootstrap(self, reason: str, now: Now) -> None:
        """Forget the cluster and begin again with the bootstrap servers (KIP-899, KIP-1102)."""
        for link in self.links:
            self._release(link, reason, now)
        self.links.forget()

    def shut_down(self, error: OttlaError, now: Now) -> None:
        """Close all connections; whatever was asked and not answered fails with ``error``."""
        for link in self.links:
            for request in link.take_in_flight():
                self._requests.complete(request, error=error)
            self._release(link, "the client is closed", now)
        self._requests.fail_all(error)

    # -- what the shell reports -------------------------------------------------------------------------------------------

    def on_resolved(self, host: str, port: int, addresses: Iterable[Address], now: Now) -> None:
        """A name has addresses, in the order to try them."""
        found = list(dict.fromkeys(addresses))
        for link in self.links.resolving(host, port):
            if found:
                link.addresses = deque(found)
                link.move(NodeEvent.RESOLVED)
                self._connect(link, now)
            else:
                self._round_failed(link, "the name has no address", now)

    def on_resolve_failed(self, host: str, port: int, reason: str, now: Now) -> None:
        """A name has no address, or could not be resolved."""
        for link in self.links.resolving(host, port):
            self._round_failed(link, f"the name cannot be resolved: {reason}", now)

    def on_securing(self, connection_id: int, now: Now) -> None:
        """TCP is connected: TLS begins."""
        link = self._by_id.get(connection_id)
        if link is not None:
            link.tcp_connected(self._setup.delay(link.setup_failures), now)
            link.move(NodeEvent.SECURE)
            link.last_used = now.mono

    def on_tls_failed(self, connection_id: int, error: OttlaError, now: Now) -> None:
        """TLS failed; an ``AuthenticationError`` will not be fixed by a retry."""
        link = self._by_id.pop(connection_id, None)
        if link is not None and link.state in ESTABLISHED_STATES:
            self._disconnected(link, str(error), now)
        elif link is not None:
            self._failed_to_open(link, error, now)

    def on_connected(self, connection_id: int, now: Now) -> None:
        """The peer can be sent bytes: the opening dialogue begins."""
        link = self._by_id.get(connection_id)
        if link is not None and link.connection is not None:
            link.tcp_connected(self._setup.delay(link.setup_failures), now)
            link.move(NodeEvent.CONNECTED)
            link.last_used = now.mono
            self._effects.append(Write(connection_id, link.connection.start()))

    def on_proved(self, connection_id: int, proof: Proof, now: Now) -> None:
        """The mechanism has answered what it was asked."""
        link = self._by_id.get(connection_id)
        if link is None or link.connection is None:
            return None
        try:
            pieces = link.connection.proved(proof)
        except Exception as error:
            return self._broken(link, _as_ottla_error(error), now)
        if link.state is NodeState.READY:
            link.move(NodeEvent.RENEW)
            link.setup_deadline = now.mono + self._config.request_timeout_ms
        self._effects.append(Write(connection_id, pieces))
        return self._after_dialogue(link, now)

    def on_not_proved(self, connection_id: int, error: OttlaError, now: Now) -> None:
        """The mechanism has no answer: no token, or the broker's own proof is wrong."""
        link = self._by_id.get(connection_id)
        if link is None:
            return
        if link.state is NodeState.READY:
            # The present login is good for a little while yet: the next try may have a token.
            _log.warning("the login at %s could not be renewed: %s", link.name, error)
            link.renew_at = now.mono + self._config.reconnect_backoff_max_ms
        else:
            self._broken(link, error, now)

    def on_connect_failed(self, connection_id: int, reason: str, now: Now) -> None:
        """The address cannot be reached."""
        link = self._by_id.pop(connection_id, None)
        if link is not None:
            self._address_failed(link, reason, now)

    def on_received(self, connection_id: int, count: int, now: Now) -> bool:
        """``count`` bytes were put in the connection's buffer. False: the connection is of no more use, read no further."""
        link = self._by_id.get(connection_id)
        if link is None or link.connection is None:
            return False
        in_use, self.unfinished = link.state is NodeState.READY, False
        try:
            response, pieces = link.connection.buffer_updated(count)
        except Exception as error:
            self._broken(link, _unreadable(link, error), now)
            return False
        if pieces:
            self._effects.append(Write(connection_id, pieces))
        if response is not None:
            self._on_answer(link, response.message, now)
        else:
            self._after_dialogue(link, now)
        self.unfinished = in_use and response is None
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
        reason = link.hung_up(reason)
        if link.state in ESTABLISHED_STATES:
            self._disconnected(link, reason, now)
        else:
            self._address_failed(link, reason, now)

    # -- routing ----------------------------------------------------------------------------------------------------------

    def _dispatch(self, request: Request, now: Now) -> bool:
        """Send a request, or fail it at once; False: it has to wait."""
        target = request.send.target
        link = self.links.any(now) if isinstance(target, AnyNode) else self.links.to(target)
        if link is None:
            if isinstance(target, AnyNode):
                return self._refuse(request)
            self._requests.complete(request, error=DisconnectedError(f"node {target.node_id} is not in the cluster's metadata"))
            return True
        if link.usable(now):
            self._open(link, now)
        if link.state is not NodeState.READY or link.throttled_until > now.mono or len(link.in_flight) >= MAX_IN_FLIGHT:
            return False
        self._send(link, request, now)
        return True

    def _refuse(self, request: Request) -> bool:
        """Fail a request for which any broker would do, if all of them have been tried and refuse us."""
        refusal = self.links.refused_everywhere()
        return refusal is not None and self._requests.complete(request, error=refusal)

    # -- the life of a link -----------------------------------------------------------------------------------------------

    def _open(self, link: NodeConnection, now: Now) -> None:
        link.move(NodeEvent.WANTED)
        link.opened_at = now.mono
        try:
            ipaddress.ip_address(link.host)
        except ValueError:
            if len(self.links.resolving(link.host, link.port)) == 1:
                self._effects.append(Resolve(link.host, link.port))
        else:
            link.addresses = deque([Address(link.host, link.port)])
            link.move(NodeEvent.RESOLVED)
            self._connect(link, now)

    def _connect(self, link: NodeConnection, now: Now) -> None:
        self._next_id += 1
        link.connection, link.connection_id = ClientConnection(self._config.client_id, mechanism=self._mechanism), self._next_id
        link.opening(self._setup.delay(link.setup_failures), now)
        link.worked = link.addresses[0] in self._worked
        self._by_id[self._next_id] = link
        self._effects.append(Connect(self._next_id, link.addresses[0], link.connection, link.host))

    def _after_dialogue(self, link: NodeConnection, now: Now) -> None:
        """Where the connection's own dialogue stands after a step of it."""
        connection = link.connection
        assert connection is not None
        assert link.connection_id is not None
        if connection.state is ConnectionState.READY and link.state is not NodeState.READY:
            self._on_ready(link, now)
        elif connection.state is ConnectionState.LOGIN and link.state is NodeState.HANDSHAKE:
            link.move(NodeEvent.LOGIN)
            link.setup_deadline = now.mono + self._config.request_timeout_ms
        question = connection.take_question()
        if question is not None:
            self._effects.append(Authenticate(link.connection_id, question))

    def _renew(self, link: NodeConnection, now: Now) -> None:
        """Begin to log in once more; requests go on until the first bytes of it leave."""
        assert link.connection is not None
        link.renew_at = None
        link.connection.renew()
        self._after_dialogue(link, now)

    def _on_ready(self, link: NodeConnection, now: Now) -> None:
        if link.state is not NodeState.RENEWING:
            link.last_used = now.mono
            self.opened += 1
        link.ready(RENEW_FROM + (RENEW_UNTIL - RENEW_FROM) * self._random.random(), now)

    def _failed_to_open(self, link: NodeConnection, error: OttlaError, now: Now) -> None:
        """The dialogue with an address did not work out; a refusal is not tried at other addresses of the same name."""
        if not isinstance(error, AuthenticationError):
            return self._address_failed(link, str(error), now)
        return self._round_failed(link, str(error), now, link.address, _told_of(link, error))

    def _address_failed(self, link: NodeConnection, reason: str, now: Now) -> None:
        """One address did not work out: try the next one of the same name."""
        address = link.address
        link.addresses.popleft()
        if not link.addresses:
            return self._round_failed(link, reason, now, address)
        link.attempts[address] = reason
        link.move(NodeEvent.NEXT)
        return self._connect(link, now)

    def _round_failed(
        self, link: NodeConnection, reason: str, now: Now, address: str | None = None, refusal: AuthenticationError | None = None
    ) -> None:
        """No address of the name worked out: wait, and fail what waits for this very broker."""
        address = address or link.name
        link.attempts[address] = reason
        self._back_off(link, reason, now, refusal)
        error = refusal or DisconnectedError(f"{link.who} at {address} cannot be reached: {reason}")
        self._requests.settle(lambda request: request.send.target == link.key and self._requests.complete(request, error=error))

    def _disconnected(self, link: NodeConnection, reason: str, now: Now, first: OttlaError | None = None) -> None:
        """A connection that was in use broke; ``first`` is the error of the request at its head, where that is to blame."""
        refusal = _told_of(link, first) if isinstance(first, AuthenticationError) else None
        if not link.answered or refusal is not None:
            link.attempts[link.address] = reason
        error = refusal or DisconnectedError(f"the connection to {link.who} at {link.address} broke: {reason}")
        for request in link.take_in_flight():
            self._requests.complete(request, error=refusal or first or error)
            first = None
        self._back_off(link, reason, now, refusal)

    def _back_off(self, link: NodeConnection, reason: str, now: Now, refusal: AuthenticationError | None) -> None:
        _log.log(logging.DEBUG if link.failures else logging.WARNING, "%s at %s: %s", link.who, link.name, reason)
        link.refusal = refusal
        link.retry_at = now.mono + self._reconnect.delay(link.failures)
        link.failures += 1
        link.addresses.clear()
        link.move(NodeEvent.FAILED)
        self.lost += 1

    def _broken(self, link: NodeConnection, error: OttlaError, now: Now) -> None:
        """The peer broke the protocol, refused us, or did not answer in time."""
        self._close(link, str(error))
        if link.state not in ESTABLISHED_STATES:
            return self._failed_to_open(link, error, now)
        return self._disconnected(link, str(error), now, first=error)

    def _release(self, link: NodeConnection, reason: str, now: Now) -> None:
        """Let a link go of our own accord: it may be opened again at once."""
        error = DisconnectedError(f"the connection to {link.who} at {link.name} was closed: {reason}")
        for request in link.take_in_flight():
            self._requests.complete(request, error=error)
        self._close(link, reason)
        link.addresses.clear()
        link.last_used = now.mono
        link.move(NodeEvent.RELEASED)

    def _close(self, link: NodeConnection, reason: str) -> None:
        if link.connection_id is not None and self._by_id.pop(link.connection_id, None) is not None:
            self._effects.append(Close(link.connection_id, reason))

    # -- the life of a request --------------------------------------------------------------------------------------------

    def _send(self, link: NodeConnection, request: Request, now: Now) -> None:
        assert link.connection is not None
        assert link.connection_id is not None
        try:
            pieces = link.connection.send(request, request.send.api, request.send.message)
        except Exception as error:
            self._requests.complete(request, error=_as_ottla_error(error))
            return
        self.sent += 1
        link.sent(request, now)
        self._effects.append(Write(link.connection_id, pieces))

    def _on_answer(self, link: NodeConnection, message: Any, now: Now) -> None:
        if link.failures:
            _log.info("%s at %s answers again", link.who, link.name)
        if not link.worked:
            link.worked = True
            self._worked.add(link.addresses[0])
        request = link.answer(getattr(message, "throttle_time", None), now)
        if not request.done:
            self._requests.complete(request, message=message)

    # -- time -------------------------------------------------------------------------------------------------------------

    def _expired(self, request: Request, now: Now) -> bool:
        return request.deadline <= now.mono and self._requests.complete(request, error=self.links.not_sent(request.send))

    def _expire_link(self, link: NodeConnection, now: Now) -> None:
        if link.state in SETUP_STATES and link.setup_deadline <= now.mono:
            link.setup_failures += 1
            self._broken(link, OttlaTimeoutError(link.in_vain(now)), now)
        elif link.state is NodeState.RENEWING and link.setup_deadline <= now.mono:
            self._broken(link, DisconnectedError("the broker did not finish the renewal of the login"), now)
        elif link.state is NodeState.READY and link.renew_at is not None and link.renew_at <= now.mono:
            self._renew(link, now)
        if link.state in ESTABLISHED_STATES:
            self._expire_in_flight(link, now)

    def _expire_in_flight(self, link: NodeConnection, now: Now) -> None:
        for request in link.in_flight:
            if not request.done and request.deadline <= now.mono:
                within = f"within {request.send.timeout / 1000:g} s"
                text = f"{request.send.api.name} was not answered by {link.who} at {link.address} {within}"
                self._requests.complete(request, error=OttlaTimeoutError(text))
        if link.in_flight and link.dead_at(self._config.request_timeout_ms) <= now.mono:
            api = link.in_flight[0].send.api.name
            self._broken(
                link, DisconnectedError(f"no answer to {api} for {(now.mono - link.in_flight[0].sent_at) / 1000:g} s"), now
            )
        elif link.is_idle(self._config.connections_max_idle_ms, now):
            self._release(link, "idle", now)

    def _deadlines(self, now: Now) -> Iterator[int]:
        for request in self._requests:
            yield request.deadline
        for link in self.links:
            yield from link.deadlines(self._config.request_timeout_ms, self._config.connections_max_idle_ms)
            if self._requests:
                waits = (link.retry_at, link.throttled_until, link.opened_at + STAGGER)
                yield from (at for at in waits if at > now.mono)


def _told_of(link: NodeConnection, error: AuthenticationError) -> AuthenticationError:
    """The same error, which says where it happened."""
    kind = TlsError if isinstance(error, TlsError) else AuthenticationError  # a user's own class may want other arguments
    return kind(f"{link.who} at {link.address}: {error.args[0]}", hint=error.hint, cause=error.cause)


def _unreadable(link: NodeConnection, error: Exception) -> OttlaError:
    """What is wrong with bytes that were received."""
    found = _as_ottla_error(error)
    if type(found) is ProtocolError:
        doubt = "does anything between here and the broker change the data?"
        found.hint = doubt if link.worked else f"is it a Kafka port, and {doubt}"
    return found


def _as_ottla_error(error: Exception) -> OttlaError:
    if isinstance(error, OttlaError):
        return error
    return ProtocolError(f"{type(error).__name__}: {error}", cause=error)


__all__ = [
    "Authenticate",
    "Close",
    "Completion",
    "Connect",
    "Connections",
    "ConnectionsPoll",
    "Effect",
    "Resolve",
    "Write",
]


class _RequestQueue:
    """The requests that wait for a connection, and the completions of those that have ended.

    A request in flight is kept by its node connection, and comes back here to be completed. Each becomes exactly one completion.
    """

    def __init__(self) -> None:
        self._waiting: deque[Request] = deque()
        self._completions: list[Completion] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """One more, behind those that wait already."""
        self._waiting.append(request)

    def settle(self, handled: Callable[[Request], bool]) -> None:
        """Ask of each that waits whether it is dealt with; the others go on waiting, in order."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, deque()
        self._waiting.extend(request for request in waiting if not handled(request))

    def complete(self, request: Request, message: Any = None, error: OttlaError | None = None) -> bool:
        """A request has come to an end; always true."""
        request.done = True
        self._completions.append(Completion(request, message, error))
        return True

    def fail_all(self, error: OttlaError) -> None:
        """None of those that wait will be sent."""
        self.settle(lambda request: self.complete(request, error=error))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would give any."""
        return bool(self._completions)

    def take_completions(self) -> list[Completion]:
        """What has come to an end since the last call, in order."""
        done, self._completions = self._completions, []
        return done
