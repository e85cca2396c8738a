"""The life of connections, and the dispatch of requests to them.

Owns the queue of requests that wait for a connection, what arrives on the channels of members, reconnect back-off (KIP-144), setup
timeouts (KIP-601), request timeouts, the limit of requests in flight, idle connections, the renewal of logins (KIP-368) and
rebootstrap (KIP-899). Must not know sockets, passwords, or the meaning of a request. Invariant: each ``Send`` that was enqueued
becomes exactly one ``CompletedRequest``.

The shell performs the effects of ``poll`` and reports their outcome by the ``on_...`` methods, any number between two polls.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from ottla.client.backoff import ExponentialBackoff, RandomPort
from ottla.client.connections.node_connections import (
    CONNECTED_STATES,
    ESTABLISHED_STATES,
    SETUP_STATES,
    STAGGER,
    NodeConnection,
    NodeConnections,
    NodeEvent,
    NodeState,
)
from ottla.client.effects import (
    Address,
    Answer,
    AnyNode,
    AnySend,
    Arrival,
    Authenticate,
    ChannelClosed,
    Close,
    CompletedRequest,
    Connect,
    ConnectionEffect,
    ConnectionsPoll,
    PendingRequest,
    PushedRequest,
    RequestManager,
    Resolve,
    ToChannel,
    ToOneBroker,
    Write,
)
from ottla.config import ClientConfig
from ottla.errors import (
    AuthenticationError,
    DisconnectedError,
    OttlaError,
    OttlaTimeoutError,
    ProtocolError,
    TlsError,
)
from ottla.protocol.connection import ClientConnection, ConnectionState, Pushed
from ottla.protocol.sasl import SaslResponse
from ottla.types import Node, Now

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 100
"""The limit of requests in flight on one connection, as in Kafka's consumer."""

RENEW_FROM, RENEW_UNTIL = 0.85, 0.95
"""The part of a login's lifetime after which it is renewed, at random between the two, as in Kafka's clients: so the connections of
many clients that were opened together do not renew together."""


class Connections:
    """All connections of one client, and its requests."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.failures = 0
        """The number of connections that broke or could not be opened. When it grows, the cluster's metadata may be out of date."""
        self.opened = self.sent = 0
        """The number of connections that became ready, and of requests that were sent."""
        self.response_incomplete = False
        """Whether the bytes received last did not complete a response, so that a poll is not needed."""
        self.brokers = NodeConnections(config, random)
        """The state of each connection, and the choice between them."""
        self._config = config
        self._random = random
        self._mechanism = config.sasl_mechanism if config.security_protocol.startswith("SASL") else None
        self._reconnect = ExponentialBackoff(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random)
        self._setup = ExponentialBackoff(
            config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, random
        )
        self._by_id: dict[int, NodeConnection] = {}
        self._worked: set[Address] = set()
        """The addresses at which a request was ever answered."""
        self._next_id = 0
        self._requests = _RequestQueue()
        self._effects: list[ConnectionEffect] = []

    def __repr__(self) -> str:
        return f"<Connections {list(self.brokers)}, {len(self._requests)} unsent>"

    # -- calls of the core ------------------------------------------------------------------------------------------------

    def enqueue(self, manager: RequestManager, send: AnySend, now: Now) -> None:
        """Add a request; the next ``poll`` that finds a connection for it sends it."""
        self._requests.add(PendingRequest(manager, send, now.mono + send.timeout))

    def answer(self, answer: Answer) -> None:
        """Answer a request of the coordinator with the next ``poll``; the answer is dropped if its channel is closed."""
        self.brokers.add_answer(answer)

    def poll(self, now: Now) -> ConnectionsPoll:
        """Do all that is due, and send the requests that can be sent.

        The order matters: a request past its deadline is not sent, and a connection that has just been found dead is not used.
        """
        self._requests.remove_if(lambda request: self._expired(request, now))
        for broker in self.brokers:
            self._expire_connection(broker, now)
            self._send_answers(broker, now)
        self._requests.remove_if(lambda request: self._dispatch(request, now))
        effects, self._effects = self._effects, []
        return ConnectionsPoll(effects, min(self._deadlines(now), default=None))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would return any."""
        return self._requests.has_completions

    def take_completions(self) -> list[Arrival]:
        """Return the completions since the last call, the coordinator's requests and the channels that were closed, in order."""
        return self._requests.take_completions()

    def set_nodes(self, nodes: Mapping[int, Node], now: Now) -> None:
        """Take over the brokers of new metadata, and close the connections to brokers that have moved."""
        for broker, node in self.brokers.set_nodes(nodes):
            self._release(broker, f"node {node.node_id} moved to {node.host}:{node.port}", now)
            broker.host, broker.port = node.host, node.port

    def learn_node(self, node: Node, now: Now) -> None:
        """Add a broker from another response (a coordinator, a new leader), since the metadata may not have it yet."""
        if self.brokers.nodes.get(node.node_id) != node:
            self.set_nodes({**self.brokers.nodes, node.node_id: node}, now)

    def disconnect(self, target: ToOneBroker, reason: str, now: Now) -> None:
        """Close the connection to a target, if there is one; requests in flight on it fail with ``DisconnectedError``.

        So do requests that wait for a channel: a Register that its member has given up would make it a member again.
        """
        broker = self.brokers.get(target)
        if broker is not None and broker.state in CONNECTED_STATES:
            self._release(broker, reason, now)
        if isinstance(target, ToChannel):
            self._requests.fail_waiting(target, DisconnectedError(f"the channel to node {target.node_id} was given up: {reason}"))
        self.brokers.pass_over(target.node_id)

    def rebootstrap(self, reason: str, now: Now) -> None:
        """Forget the cluster and start again with the bootstrap servers (KIP-899, KIP-1102)."""
        for broker in self.brokers:
            self._release(broker, reason, now)
        self.brokers.forget()

    def shut_down(self, error: OttlaError, now: Now) -> None:
        """Close all connections; all requests without a response fail with ``error``."""
        for broker in self.brokers:
            for request in broker.take_in_flight():
                self._requests.complete(request, error=error)
            self._release(broker, "the client is closed", now)
        self._requests.fail_all(error)

    # -- reports of the shell ---------------------------------------------------------------------------------------------

    def on_resolved(self, host: str, port: int, addresses: Iterable[Address], now: Now) -> None:
        """Connect to the first address of a name; the others are tried in this order if it fails."""
        unique = list(dict.fromkeys(addresses))
        for broker in self.brokers.resolving(host, port):
            if unique:
                broker.addresses = deque(unique)
                broker.move(NodeEvent.RESOLVED)
                self._connect(broker, now)
            else:
                self._round_failed(broker, "the name has no address", now)

    def on_resolve_failed(self, host: str, port: int, reason: str, now: Now) -> None:
        """Fail the connections that wait for a name that could not be resolved."""
        for broker in self.brokers.resolving(host, port):
            self._round_failed(broker, f"the name cannot be resolved: {reason}", now)

    def on_securing(self, connection_id: int, now: Now) -> None:
        """Note that TCP is connected and the TLS handshake begins."""
        broker = self._by_id.get(connection_id)
        if broker is not None:
            broker.tcp_connected(self._setup.delay(broker.setup_failures), now)
            broker.move(NodeEvent.SECURE)
            broker.last_used = now.mono

    def on_tls_failed(self, connection_id: int, error: OttlaError, now: Now) -> None:
        """Fail a connection whose TLS handshake, or TLS layer, has failed. A retry does not fix an ``AuthenticationError``."""
        broker = self._by_id.pop(connection_id, None)
        if broker is not None and broker.state in ESTABLISHED_STATES:
            self._disconnected(broker, str(error), now)
        elif broker is not None:
            self._failed_to_open(broker, error, now)

    def on_connected(self, connection_id: int, now: Now) -> None:
        """Begin the handshake of Kafka's protocol: ApiVersions, then the login, if one is needed."""
        broker = self._by_id.get(connection_id)
        if broker is not None and broker.connection is not None:
            broker.tcp_connected(self._setup.delay(broker.setup_failures), now)
            broker.move(NodeEvent.CONNECTED)
            broker.last_used = now.mono
            self._effects.append(Write(connection_id, broker.connection.start()))

    def on_sasl_response(self, connection_id: int, response: SaslResponse, now: Now) -> None:
        """Send the SASL mechanism's answer.

        At a renewal, requests go on being sent while the mechanism computes, which may take seconds if a token must be fetched.
        They stop only now, since the broker expects no requests between the steps of a login.
        """
        broker = self._by_id.get(connection_id)
        if broker is None or broker.connection is None:
            return None
        try:
            pieces = broker.connection.respond(response)
        except Exception as error:
            return self._broken(broker, _as_ottla_error(error), now)
        if broker.state is NodeState.READY:
            broker.move(NodeEvent.RENEW)
            broker.setup_deadline = now.mono + self._config.request_timeout_ms
        self._effects.append(Write(connection_id, pieces))
        return self._after_dialogue(broker, now)

    def on_sasl_failed(self, connection_id: int, error: OttlaError, now: Now) -> None:
        """Handle a mechanism without an answer: there is no token, or the broker's own proof is wrong."""
        broker = self._by_id.get(connection_id)
        if broker is None:
            return
        if broker.state is NodeState.READY:
            # The present login is still valid for some time, and the next attempt may get a token: so the connection stays in use.
            _log.warning("cannot renew the login at %s, the next attempt follows: %s", broker.name, error)
            broker.renew_at = now.mono + self._config.reconnect_backoff_max_ms
        else:
            self._broken(broker, error, now)

    def on_connect_failed(self, connection_id: int, reason: str, now: Now) -> None:
        """Try the next address, or back off."""
        broker = self._by_id.pop(connection_id, None)
        if broker is not None:
            self._address_failed(broker, reason, now)

    def on_received(self, connection_id: int, count: int, now: Now) -> bool:
        """Process ``count`` bytes in the connection's buffer. Return ``False`` if the connection is closed: stop reading."""
        broker = self._by_id.get(connection_id)
        if broker is None or broker.connection is None:
            return False
        in_use, self.response_incomplete = broker.state is NodeState.READY, False
        try:
            response, pieces = broker.connection.buffer_updated(count)
        except Exception as error:
            self._broken(broker, _decoding_error(broker, error), now)
            return False
        if pieces:
            self._effects.append(Write(connection_id, pieces))
        if isinstance(response, Pushed):
            self._requests.note_pushed(broker.channel, response)
        elif response is not None:
            self._on_response(broker, response.message, now)
        else:
            self._after_dialogue(broker, now)
        self.response_incomplete = in_use and response is None
        return True

    def receive(self, connection_id: int, data: bytes, now: Now) -> None:
        """Process received bytes that are in memory, for in-memory connections of tests."""
        rest = memoryview(data)
        while rest and (broker := self._by_id.get(connection_id)) is not None and broker.connection is not None:
            buffer = broker.connection.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            buffer.release()
            rest = rest[count:]
            self.on_received(connection_id, count, now)

    def on_closed(self, connection_id: int, reason: str, now: Now) -> None:
        """Handle the end of a connection by the peer or the network."""
        broker = self._by_id.pop(connection_id, None)
        if broker is None:
            return
        reason = broker.close_reason(reason)
        if broker.state in ESTABLISHED_STATES:
            self._disconnected(broker, reason, now)
        else:
            self._address_failed(broker, reason, now)

    # -- dispatch ---------------------------------------------------------------------------------------------------------

    def _dispatch(self, request: PendingRequest, now: Now) -> bool:
        """Send a request, or fail it at once. Return ``False`` if it must wait."""
        target = request.send.target
        broker = self.brokers.choose(target, now)
        if broker is None:
            if isinstance(target, AnyNode):
                return self._refuse(request)
            self._requests.complete(request, error=DisconnectedError(f"node {target.node_id} is not in the cluster's metadata"))
            return True
        if broker.usable(now):
            self._open(broker, now)
        if broker.state is not NodeState.READY or broker.throttled_until > now.mono or len(broker.in_flight) >= MAX_IN_FLIGHT:
            return False
        self.brokers.note_turn(target, broker)
        self._send(broker, request, now)
        return True

    def _refuse(self, request: PendingRequest) -> bool:
        """Fail a request to any broker if all of them have been tried and have refused the login. Return whether it has failed."""
        refusal = self.brokers.refused_everywhere()
        return refusal is not None and self._requests.complete(request, error=refusal)

    # -- the life of a connection -----------------------------------------------------------------------------------------

    def _open(self, broker: NodeConnection, now: Now) -> None:
        broker.move(NodeEvent.WANTED)
        broker.opened_at = now.mono
        try:
            ipaddress.ip_address(broker.host)
        except ValueError:
            # The data connection and the coordinator's connection to a broker share one resolution of its name.
            if len(self.brokers.resolving(broker.host, broker.port)) == 1:
                self._effects.append(Resolve(broker.host, broker.port))
        else:
            broker.addresses = deque([Address(broker.host, broker.port)])
            broker.move(NodeEvent.RESOLVED)
            self._connect(broker, now)

    def _connect(self, broker: NodeConnection, now: Now) -> None:
        self._next_id += 1
        broker.connection, broker.connection_id = ClientConnection(self._config.client_id, mechanism=self._mechanism), self._next_id
        broker.start_attempt(self._setup.delay(broker.setup_failures), now)
        broker.worked = broker.addresses[0] in self._worked
        self._by_id[self._next_id] = broker
        self._effects.append(Connect(self._next_id, broker.addresses[0], broker.connection, broker.host))

    def _after_dialogue(self, broker: NodeConnection, now: Now) -> None:
        """Follow the connection's own state (ApiVersions, login) after a step of its handshake."""
        connection = broker.connection
        assert connection is not None
        assert broker.connection_id is not None
        if connection.state is ConnectionState.READY and broker.state is not NodeState.READY:
            self._on_ready(broker, now)
        elif connection.state is ConnectionState.LOGIN and broker.state is NodeState.HANDSHAKE:
            broker.move(NodeEvent.LOGIN)
            broker.setup_deadline = now.mono + self._config.request_timeout_ms
        challenge = connection.take_challenge()
        if challenge is not None:
            self._effects.append(Authenticate(broker.connection_id, challenge))

    def _renew(self, broker: NodeConnection, now: Now) -> None:
        """Start the renewal of a login. Requests go on until the mechanism has answered (``on_sasl_response``)."""
        assert broker.connection is not None
        broker.renew_at = None
        broker.connection.renew()
        self._after_dialogue(broker, now)

    def _on_ready(self, broker: NodeConnection, now: Now) -> None:
        if broker.state is not NodeState.RENEWING:
            broker.last_used = now.mono
            self.opened += 1
        broker.on_ready(RENEW_FROM + (RENEW_UNTIL - RENEW_FROM) * self._random.random(), now)

    def _failed_to_open(self, broker: NodeConnection, error: OttlaError, now: Now) -> None:
        """Handle the failure of a handshake. A refusal is final for this round: other addresses of the name are the same broker."""
        if not isinstance(error, AuthenticationError):
            return self._address_failed(broker, str(error), now)
        return self._round_failed(broker, str(error), now, broker.address, _with_address(broker, error))

    def _address_failed(self, broker: NodeConnection, reason: str, now: Now) -> None:
        """Try the next address of the name, or fail the round after the last one."""
        address = broker.address
        broker.addresses.popleft()
        if not broker.addresses:
            return self._round_failed(broker, reason, now, address)
        broker.attempts[address] = reason
        broker.move(NodeEvent.NEXT)
        return self._connect(broker, now)

    def _round_failed(
        self, broker: NodeConnection, reason: str, now: Now, address: str | None = None, refusal: AuthenticationError | None = None
    ) -> None:
        """Back off, since no address of the name works, and fail the requests for this broker.

        Those requests fail at once, since their managers may choose another broker after new metadata. Requests for any broker stay
        in the queue and go to another one.
        """
        address = address or broker.name
        broker.attempts[address] = reason
        self._back_off(broker, reason, now, refusal)
        error = refusal or DisconnectedError(f"{broker.who} at {address} cannot be reached: {reason}")
        self._requests.fail_waiting(broker.key, error)

    def _disconnected(self, broker: NodeConnection, reason: str, now: Now, first: OttlaError | None = None) -> None:
        """Handle the end of an established connection: fail its requests in flight, and back off.

        ``first`` is the error of the oldest request, if that is to blame: the response to it could not be decoded, for example.
        """
        refusal = _with_address(broker, first) if isinstance(first, AuthenticationError) else None
        if not broker.answered or refusal is not None:
            broker.attempts[broker.address] = reason
        error = refusal or DisconnectedError(f"the connection to {broker.who} at {broker.address} broke: {reason}")
        for request in broker.take_in_flight():
            self._requests.complete(request, error=refusal or first or error)
            first = None
        self._back_off(broker, reason, now, refusal)

    def _back_off(self, broker: NodeConnection, reason: str, now: Now, refusal: AuthenticationError | None) -> None:
        _log.log(logging.DEBUG if broker.failures else logging.WARNING, "%s at %s: %s", broker.who, broker.name, reason)
        self._requests.note_closed(broker.channel, reason)
        broker.refusal = refusal
        broker.retry_at = now.mono + self._reconnect.delay(broker.failures)
        broker.failures += 1
        broker.addresses.clear()
        broker.move(NodeEvent.FAILED)
        self.failures += 1

    def _broken(self, broker: NodeConnection, error: OttlaError, now: Now) -> None:
        """Close a connection whose peer broke the protocol, refused the login, or did not answer in time."""
        self._close(broker, str(error))
        if broker.state not in ESTABLISHED_STATES:
            return self._failed_to_open(broker, error, now)
        return self._disconnected(broker, str(error), now, first=error)

    def _release(self, broker: NodeConnection, reason: str, now: Now) -> None:
        """Close a connection that has not failed: it may be opened again at once, without back-off."""
        error = DisconnectedError(f"the connection to {broker.who} at {broker.name} was closed: {reason}")
        for request in broker.take_in_flight():
            self._requests.complete(request, error=error)
        self._close(broker, reason)
        self._requests.note_closed(broker.channel, reason)
        broker.addresses.clear()
        broker.last_used = now.mono
        broker.move(NodeEvent.RELEASED)

    def _close(self, broker: NodeConnection, reason: str) -> None:
        if broker.connection_id is not None and self._by_id.pop(broker.connection_id, None) is not None:
            self._effects.append(Close(broker.connection_id, reason))

    # -- the life of a request --------------------------------------------------------------------------------------------

    def _send(self, broker: NodeConnection, request: PendingRequest, now: Now) -> None:
        assert broker.connection is not None
        assert broker.connection_id is not None
        try:
            send = request.send
            pieces = broker.connection.send(request, send.api, send.message, requires=send.requires, excludes=send.excludes)
        except Exception as error:
            self._requests.complete(request, error=_as_ottla_error(error))
            return
        self.sent += 1
        if send.on_sent is not None:
            send.on_sent()
        broker.on_sent(request, now)
        self._effects.append(Write(broker.connection_id, pieces))

    def _on_response(self, broker: NodeConnection, message: object, now: Now) -> None:
        if broker.failures:
            _log.info("%s at %s answers again", broker.who, broker.name)
        if not broker.worked:
            broker.worked = True
            self._worked.add(broker.addresses[0])
        request = broker.on_response(getattr(message, "throttle_time", None), now)
        if not request.done:
            self._requests.complete(request, message=message)
        if broker.connection is not None and broker.connection.has_left:
            self._release(broker, "the member has left its group", now)

    def _send_answers(self, broker: NodeConnection, now: Now) -> None:
        try:
            self._effects += broker.take_answers()
        except Exception as error:
            self._broken(broker, _as_ottla_error(error), now)

    # -- time -------------------------------------------------------------------------------------------------------------

    def _expired(self, request: PendingRequest, now: Now) -> bool:
        return request.deadline <= now.mono and self._requests.complete(request, error=self.brokers.unsent_error(request.send))

    def _expire_connection(self, broker: NodeConnection, now: Now) -> None:
        if broker.state in SETUP_STATES and broker.setup_deadline <= now.mono:
            broker.setup_failures += 1
            self._broken(broker, OttlaTimeoutError(broker.timeout_reason(now)), now)
        elif broker.state is NodeState.RENEWING and broker.setup_deadline <= now.mono:
            self._broken(broker, DisconnectedError("the broker did not complete the renewal of the login in time"), now)
        elif broker.state is NodeState.READY and broker.renew_at is not None and broker.renew_at <= now.mono:
            self._renew(broker, now)
        if broker.state in ESTABLISHED_STATES:
            self._expire_in_flight(broker, now)

    def _expire_in_flight(self, broker: NodeConnection, now: Now) -> None:
        # 1. A request times out in flight: its manager gets the error, and the request stays in line for its late response.
        # 2. The connection itself counts as dead only when its oldest request has waited for ``request_timeout_ms`` or its own
        #    timeout, if that is longer. So a short timeout of one request does not break the connection for the others.
        for request in broker.in_flight:
            if not request.done and request.deadline <= now.mono:
                within = f"within {request.send.timeout / 1000:g} s"
                text = f"{request.send.api.name} was not answered by {broker.who} at {broker.address} {within}"
                self._requests.complete(request, error=OttlaTimeoutError(text))
        if broker.in_flight and broker.channel is None and broker.dead_at(self._config.request_timeout_ms) <= now.mono:
            api = broker.in_flight[0].send.api.name
            self._broken(
                broker, DisconnectedError(f"no answer to {api} for {(now.mono - broker.in_flight[0].sent_at) / 1000:g} s"), now
            )
        elif broker.is_idle(self._config.connections_max_idle_ms, now):
            self._release(broker, "idle", now)

    def _deadlines(self, now: Now) -> Iterator[int]:
        for request in self._requests:
            yield request.deadline
        for broker in self.brokers:
            yield from broker.deadlines(self._config.request_timeout_ms, self._config.connections_max_idle_ms)
            if self._requests:
                waits = (broker.retry_at, broker.throttled_until, broker.opened_at + STAGGER)
                yield from (at for at in waits if at > now.mono)


def _with_address(broker: NodeConnection, error: AuthenticationError) -> AuthenticationError:
    """Return the error with the address of the broker in its message."""
    kind = TlsError if isinstance(error, TlsError) else AuthenticationError  # a user's own class may need other arguments
    return kind(f"{broker.who} at {broker.address}: {error.args[0]}", hint=error.hint, cause=error.cause)


def _decoding_error(broker: NodeConnection, error: Exception) -> OttlaError:
    """Return the error for received bytes that are not a valid response, with a hint."""
    decoding_error = _as_ottla_error(error)
    if type(decoding_error) is ProtocolError:
        doubt = "does anything between here and the broker change the data?"
        decoding_error.hint = doubt if broker.worked else f"is it a Kafka port, and {doubt}"
    return decoding_error


def _as_ottla_error(error: Exception) -> OttlaError:
    if isinstance(error, OttlaError):
        return error
    return ProtocolError(f"{type(error).__name__}: {error}", cause=error)


class _RequestQueue:
    """The requests that wait for a connection, and the completions of those with an outcome.

    The node connection keeps a request in flight, which comes back here to be completed. Each becomes exactly one completion.
    """

    def __init__(self) -> None:
        self._waiting: deque[PendingRequest] = deque()
        self._completions: list[Arrival] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._waiting)

    def add(self, request: PendingRequest) -> None:
        """Add a request at the end of the queue."""
        self._waiting.append(request)

    def remove_if(self, handled: Callable[[PendingRequest], bool]) -> None:
        """Remove the requests for which ``handled`` returns true; the others stay in order."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, deque()
        try:
            while waiting:
                if not handled(waiting[0]):
                    self._waiting.append(waiting[0])
                waiting.popleft()
        finally:
            # Not empty if ``handled`` has raised. Without this, the managers of these requests would wait for an outcome for ever.
            self._waiting.extend(waiting)

    def complete(self, request: PendingRequest, message: object = None, error: OttlaError | None = None) -> bool:
        """Add the outcome of a request. Return ``True``, for use in ``remove_if``."""
        request.done = True
        self._completions.append(CompletedRequest(request, message, error))
        return True

    def note_pushed(self, channel: ToChannel | None, pushed: Pushed) -> None:
        """Add a request of the coordinator, in order with the completions."""
        assert channel is not None, "a member registers on a connection of its own"
        self._completions.append(PushedRequest(channel, pushed))

    def note_closed(self, channel: ToChannel | None, reason: str) -> None:
        """Add the end of a connection, if it was a channel."""
        if channel is not None:
            self._completions.append(ChannelClosed(channel, reason))

    def fail_waiting(self, target: object, error: OttlaError) -> None:
        """Complete the waiting requests for this target with an error."""
        self.remove_if(lambda request: request.send.target == target and self.complete(request, error=error))

    def fail_all(self, error: OttlaError) -> None:
        """Complete all waiting requests with an error."""
        self.remove_if(lambda request: self.complete(request, error=error))

    @property
    def has_completions(self) -> bool:
        """Whether ``take_completions`` would return any."""
        return bool(self._completions)

    def take_completions(self) -> list[Arrival]:
        """Return the completions since the last call, in order."""
        done, self._completions = self._completions, []
        return done
