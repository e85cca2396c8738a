"""The connections to brokers: the state of each, the choice of one for a target, and the errors that explain why none is usable.

Owns the brokers of the cluster, the state of each connection and its transitions, and the choice between connections. Must not
know sockets, and does not open, close or send. Invariants: a ``NodeConnection`` has a connection exactly in the states from
CONNECTING to RENEWING, and requests in flight only in READY and RENEWING; bootstrap servers are used only while no broker of the
cluster can be reached, and for requests to brokers in turn.

::

    IDLE -> RESOLVING -> CONNECTING (-> SECURING) -> HANDSHAKE (-> LOGIN) -> READY <-> RENEWING
      ^         |            |  ^          |             |           |         |          |
      |         v            v  | next     v             v           v         v          v
      +------ BACKOFF <------+--+ address -+-------------+-----------+---------+----------+
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ottla.client.backoff import RandomPort
from ottla.client.effects import (
    Address,
    Answer,
    AnyNode,
    AnySend,
    PendingRequest,
    Target,
    ToChannel,
    ToCoordinator,
    ToNode,
    ToOneBroker,
    Write,
)
from ottla.config import ClientConfig, HostPort
from ottla.errors import AuthenticationError, ConnectionFailedError, DisconnectedError, OttlaError, OttlaTimeoutError
from ottla.protocol import milliseconds
from ottla.protocol.apis import Api
from ottla.protocol.connection import ClientConnection
from ottla.types import Node, Now


class NodeState(enum.Enum):
    """The state of a node connection."""

    IDLE = "not needed yet"
    RESOLVING = "the name is being resolved"
    CONNECTING = "waiting for the TCP connection"
    SECURING = "waiting for the TLS handshake"
    HANDSHAKE = "connected, no answer to ApiVersions yet"
    LOGIN = "waiting for the SASL login"
    READY = "requests can be sent"
    RENEWING = "the login is being renewed: requests wait (KIP-368)"
    BACKOFF = "failed, waiting to try again"


class NodeEvent(enum.Enum):
    """The events of a node connection."""

    WANTED = "a request needs it"
    RESOLVED = "the resolver returned addresses"
    SECURE = "TCP is connected, TLS begins"
    CONNECTED = "bytes of Kafka's protocol can be sent"
    LOGIN = "the broker sent its versions and needs a login"
    READY = "the broker sent its versions, and the login has succeeded or is not needed"
    RENEW = "the login is about to expire"
    NEXT = "this address failed, another one is left"
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
"""The connection is being opened, within ``setup_deadline``."""
ESTABLISHED_STATES = frozenset({NodeState.READY, NodeState.RENEWING})
CONNECTED_STATES = SETUP_STATES | ESTABLISHED_STATES
OPENING_STATES = SETUP_STATES | {NodeState.RESOLVING}

NEXT_ADDRESS = 1_000
"""Milliseconds after which the next address of a name is tried if one does not respond. The time doubles with each failed round, up
to the setup timeout, since the network may just be slow. (Java's client spends the whole timeout on each address.)"""

_AWAITED: Mapping[NodeState, str] = {
    NodeState.RESOLVING: "the name is not resolved yet",
    NodeState.CONNECTING: "no TCP connection",
    NodeState.SECURING: "connected, but no answer to the TLS handshake",
    NodeState.HANDSHAKE: "connected, but no answer to ApiVersions",
    NodeState.LOGIN: "connected, but the login has not finished",
}
"""State -> the missing event, for error messages about a connection that is being opened."""

_DOUBTS: Mapping[NodeState, str] = {
    NodeState.SECURING: ": does this port speak TLS?",
    NodeState.HANDSHAKE: ": is it a Kafka port?",
}
"""State -> a possible reason for the silence of an address that has never answered a request."""

_HUNG_UP: Mapping[NodeState, tuple[str, str]] = {
    NodeState.SECURING: (" during the TLS handshake", ": does this port speak TLS?"),
    NodeState.HANDSHAKE: (" before it answered ApiVersions", ": is it a Kafka port, and is security.protocol right?"),
    NodeState.LOGIN: (" during the login", ""),
    NodeState.READY: (" at the first request", ": does this port ask for a login? See security.protocol"),
}
"""State -> when the peer closed the connection, and a possible reason if the address has never answered a request."""

_AWAITING_TOKEN = "connected, but the login waits for a token: neither its provider nor an identity provider has given one yet"


@dataclass(eq=False, slots=True)
class NodeConnection:
    """A broker to connect to: its name, its addresses, at most one connection, and the requests in flight on it.

    Only ``move`` writes ``state``.
    """

    key: HostPort | ToOneBroker
    host: str
    port: int
    state: NodeState = NodeState.IDLE
    connection: ClientConnection | None = None
    connection_id: int | None = None
    addresses: deque[Address] = field(default_factory=deque)
    """The addresses left in this round; the first is the one being tried or used."""
    attempts: dict[str, str] = field(default_factory=dict)
    """Address -> the reason of its last failure since a request was last answered."""
    failures: int = 0
    """Failed rounds since a request was last answered. A mere connection does not reset this: a peer that accepts connections and
    closes them at once would be tried again and again without back-off."""
    refusal: AuthenticationError | None = None
    """The failed login or TLS handshake, if that was how the last round failed."""
    answered: bool = False
    """Whether the present connection has answered a request: only then is it known to work."""
    worked: bool = False
    """Whether any connection to the present address has ever answered a request: then a failure is not due to the settings."""
    renew_at: int | None = None
    """When the login must be renewed (monotonic ms)."""
    retry_at: int = 0
    setup_deadline: int = 0
    setup_failures: int = 0
    opened_at: int = 0
    """When the resolution of the name, or the connection to one of its addresses, was last started."""
    last_used: int = 0
    turn: int = 0
    """The number of the latest request to brokers in turn that went to this one; 0: none did."""
    throttled_until: int = 0
    """The end of the throttle time of the last response (KIP-219)."""
    in_flight: deque[PendingRequest] = field(default_factory=deque)
    answers: deque[Answer] = field(default_factory=deque)
    """Answers to requests of the coordinator that were not sent yet."""

    def __repr__(self) -> str:
        return f"<NodeConnection {self.name} {self.state.name}, {len(self.in_flight)} in flight>"

    @property
    def name(self) -> str:
        """HOST:PORT as in the settings or the cluster's metadata."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """The name, with the numeric address that is being tried or used if it differs."""
        if not self.addresses or self.addresses[0].ip == self.host:
            return self.name
        return f"{self.name} ({self.addresses[0]})"

    def move(self, event: NodeEvent) -> None:
        """Apply an event to the state. Raises ``KeyError`` for an event that the state does not allow, which is a bug."""
        self.state = TRANSITIONS[self.state][event]
        if self.state not in CONNECTED_STATES:
            self.connection = self.connection_id = self.renew_at = None
            self.answered = False
            self.answers.clear()

    @property
    def channel(self) -> ToChannel | None:
        """The target, if the connection is the channel of a member."""
        is_open = self.connection is not None and self.connection.is_channel
        return self.key if is_open and isinstance(self.key, ToChannel) else None

    @property
    def order(self) -> tuple[int, bool]:
        """The place among the brokers that get requests in turn: the lowest is next."""
        return self.turn, isinstance(self.key, HostPort)

    def usable(self, now: Now) -> bool:
        """Whether it may be opened now: it is not connected, and the back-off is over."""
        return self.state is NodeState.IDLE or (self.state is NodeState.BACKOFF and now.mono >= self.retry_at)

    def dead_at(self, patience: int) -> int:
        """Return when the connection counts as broken because its oldest request has no response (monotonic ms); not for a channel,
        whose member notices by itself that the coordinator is silent.

        Responses come in order, so no later request can be answered before that one. A request with a long timeout extends this:
        a JoinGroup, for example, may be parked at the broker for the rebalance timeout.
        """
        oldest = self.in_flight[0]
        return oldest.sent_at + max(patience, oldest.send.timeout)

    def is_idle(self, patience: int, now: Now) -> bool:
        """Whether the connection was unused for ``patience`` milliseconds; negative: never. A channel never counts as idle."""
        idles = self.state is NodeState.READY and not self.in_flight and self.channel is None
        return idles and 0 <= patience <= now.mono - self.last_used

    def deadlines(self, patience: int, idle_after: int) -> Iterator[int]:
        """Yield the times at which something here is due; both settings in milliseconds, as for ``dead_at`` and ``is_idle``."""
        if self.state in SETUP_STATES or self.state is NodeState.RENEWING:
            yield self.setup_deadline
        elif self.renew_at is not None:
            yield self.renew_at
        yield from (request.deadline for request in self.in_flight if not request.done)
        if self.channel is not None:
            return
        if self.in_flight:
            yield self.dead_at(patience)
        elif self.state is NodeState.READY and idle_after >= 0:
            yield self.last_used + idle_after

    @property
    def awaited(self) -> str:
        """The missing event while it is being opened, for error messages."""
        proves = self.state is NodeState.LOGIN and self.connection is not None and self.connection.awaits_sasl_response
        return _AWAITING_TOKEN if proves else _AWAITED[self.state] + self._doubt

    def timeout_reason(self, now: Now) -> str:
        """Return the reason of the failure of a connection that was not opened in time."""
        return f"{_AWAITED[self.state]} after {(now.mono - self.opened_at) / 1000:g} s{self._doubt}"

    def close_reason(self, reason: str) -> str:
        """Return why and in which state the peer or the network ended the connection."""
        if self.answered or self.state not in _HUNG_UP:
            return reason
        moment, doubt = _HUNG_UP[self.state]
        return f"{reason}{moment}{'' if self.worked else doubt}"

    @property
    def _doubt(self) -> str:
        return "" if self.worked else _DOUBTS.get(self.state, "")

    @property
    def who(self) -> str:
        """The kind of peer, for error messages."""
        node_id = getattr(self.key, "node_id", None)
        return "the bootstrap server" if node_id is None else f"node {node_id}"

    def start_attempt(self, patience: int, now: Now) -> None:
        """Set the deadline for connecting to the first of ``addresses``: at most ``patience`` milliseconds from now."""
        self.opened_at = now.mono
        if len(self.addresses) > 1:
            patience = min(patience, NEXT_ADDRESS << min(self.failures, 16))
        self.setup_deadline = now.mono + patience

    def tcp_connected(self, patience: int, now: Now) -> None:
        """Extend the deadline to the full setup timeout, since the address has responded."""
        if self.state is NodeState.CONNECTING and len(self.addresses) > 1:
            self.setup_deadline = now.mono + patience

    def on_ready(self, part: float, now: Now) -> None:
        """Allow requests; a login with a limited lifetime is renewed after this ``part`` of it."""
        self.move(NodeEvent.READY)
        self.setup_failures = 0
        lifetime = self.connection.lifetime if self.connection is not None else 0
        self.renew_at = now.mono + round(lifetime * part) if lifetime > 0 else None

    def on_sent(self, request: PendingRequest, now: Now) -> None:
        """Note that a request was sent."""
        request.sent_at = self.last_used = now.mono
        self.in_flight.append(request)

    def on_response(self, throttle: timedelta | None, now: Now) -> PendingRequest:
        """Return the oldest request, which was answered, and reset the failures. ``throttle``: the throttle time in the
        response.
        """
        self.last_used = now.mono
        if not self.answered:
            self.answered, self.refusal, self.failures = True, None, 0
            self.attempts.clear()
        if throttle:
            self.throttled_until = now.mono + milliseconds(throttle)
        return self.in_flight.popleft()

    def take_answers(self) -> list[Write]:
        """Return the effects that send the answers. During the renewal of a login they wait, as requests do."""
        if not self.answers or self.state is not NodeState.READY or self.connection is None or self.connection_id is None:
            return []
        answers, self.answers = self.answers, deque()
        frames = [self.connection.answer(answer.api, answer.correlation_id, answer.message) for answer in answers]
        return [Write(self.connection_id, frame) for frame in frames if frame]

    def lacks(self, api: Api, feature: str) -> str | None:
        """Return why an API cannot be used that needs a feature of the cluster; ``None`` if it can.

        Raises ``DisconnectedError`` if there is no connection, so that the answer is unknown.
        """
        if self.connection is None or self.state is not NodeState.READY:
            raise DisconnectedError(f"{self.name} is not connected")
        if api not in self.connection.versions:
            return f"the broker does not serve {api.name}"
        return None if self.connection.features.get(feature, 0) else f"{feature} of the cluster is 0"

    def take_in_flight(self) -> list[PendingRequest]:
        """Return the requests in flight that have no outcome yet, and forget all in flight: they will not be answered."""
        lost, self.in_flight = [request for request in self.in_flight if not request.done], deque()
        return lost


STAGGER = 250
"""Milliseconds after which, for a request to any broker, another connection is opened beside one that is not ready yet (as in
RFC 8305, "Happy Eyeballs"). A broker that does not respond so delays the request by this time and not by the setup timeout."""

_ELSEWHERE = "clients connect to the addresses that the cluster advertises: check advertised.listeners and the network"


class NodeConnections:
    """All node connections of a client, and the choice of one for a target."""

    def __init__(self, config: ClientConfig, random: RandomPort) -> None:
        self.nodes: dict[int, Node] = {}
        self.bootstrap_servers: tuple[HostPort, ...] = config.bootstrap_servers
        """The brokers to connect to while none of the cluster is known; ZooKeeper may name more."""
        self.failure_class = ConnectionFailedError
        """The error if none of them can be reached."""
        self._config = config
        self._random = random
        self._brokers: dict[HostPort | ToOneBroker, NodeConnection] = {}
        self._turns = 0

    def __iter__(self) -> Iterator[NodeConnection]:
        return iter(list(self._brokers.values()))

    def get(self, key: HostPort | ToOneBroker) -> NodeConnection | None:
        """Return the node connection of a target, if there is one."""
        return self._brokers.get(key)

    def set_nodes(self, nodes: Mapping[int, Node]) -> list[tuple[NodeConnection, Node]]:
        """Take over the brokers of new metadata. Return the node connections whose brokers have moved, with their new nodes."""
        self.nodes = dict(nodes)
        moved: list[tuple[NodeConnection, Node]] = []
        for node in nodes.values():
            self._adopt(ToNode(node.node_id), node)
            for key in (ToNode(node.node_id), ToCoordinator(node.node_id), ToChannel(node.node_id)):
                broker = self._brokers.get(key)
                if broker is not None and (broker.host, broker.port) != (node.host, node.port):
                    moved.append((broker, node))
        return moved

    def add_answer(self, answer: Answer) -> None:
        """Add an answer of a member, unless its channel is closed."""
        broker = self._brokers.get(answer.target)
        if broker is not None and broker.channel is not None:
            broker.answers.append(answer)

    def forget(self) -> None:
        """Forget all brokers and node connections."""
        self._brokers.clear()
        self.nodes = {}

    def to(self, target: ToOneBroker) -> NodeConnection | None:
        """Return the node connection to one broker; ``None`` if the cluster has no such broker.

        A broker that is missing in the newest metadata is still used while its connection works: the metadata may come from a
        broker that has just lost sight of it.
        """
        broker = self._brokers.get(target)
        node = self.nodes.get(target.node_id)
        if broker is None and node is not None:
            broker = self._brokers[target] = NodeConnection(target, node.host, node.port)
        return broker if node is not None or (broker is not None and broker.state in ESTABLISHED_STATES) else None

    def any(self, now: Now) -> NodeConnection | None:
        """Return the least loaded connection that is ready and no channel; else one to open, chosen at random among those that
        failed least.

        ``None`` while another one is being opened for less than ``STAGGER`` milliseconds, or all are in back-off.
        """
        ready = [
            broker
            for broker in self._brokers.values()
            if broker.state is NodeState.READY and broker.throttled_until <= now.mono and not isinstance(broker.key, ToChannel)
        ]
        if ready:
            return min(ready, key=lambda broker: len(broker.in_flight))
        return self._to_open(self._candidates(), now)

    def choose(self, target: Target, now: Now) -> NodeConnection | None:
        """Return the connection for a target, as ``to`` or ``any``, or that to the broker whose turn it is.

        It is the turn of the brokers to which no such request went, at random, those of the cluster before the bootstrap servers;
        then of the one to which the latest went longest ago. Those that cannot be reached now miss their turn.
        """
        if not isinstance(target, AnyNode):
            return self.to(target)
        return self._in_turn(now) if target.in_turn else self.any(now)

    def _in_turn(self, now: Now) -> NodeConnection | None:
        known = {(node.host, node.port) for node in self.nodes.values()}
        candidates = [
            broker
            for broker in self._all()
            if self._can_take_turn(broker, now) and not (broker.key in known and isinstance(broker.key, HostPort))
        ]
        order = min((broker.order for broker in candidates), default=None)
        turn = [broker for broker in candidates if broker.order == order]
        ready = [broker for broker in turn if broker.state is NodeState.READY]
        return self._random_of(ready) if ready else self._to_open(turn, now)

    def note_turn(self, target: Target, broker: NodeConnection) -> None:
        """Note that a request goes to this broker: if it is to brokers in turn, the next goes to another one, if there is any."""
        if isinstance(target, AnyNode) and target.in_turn:
            self._turns += 1
            broker.turn = self._turns

    def pass_over(self, node_id: int) -> None:
        """Let all other brokers have their turn before this one, which a manager has given up:

        1. The process of the coordinator is stopped, and its connections remain. 2. It is given up, since it is silent. 3. It must
        not be asked who the coordinator is before others are: its answer would be awaited in vain.
        """
        broker = self.to(ToNode(node_id))
        if broker is not None:
            self.note_turn(AnyNode(in_turn=True), broker)

    def _can_take_turn(self, broker: NodeConnection, now: Now) -> bool:
        if broker.state is NodeState.READY:
            return broker.throttled_until <= now.mono
        return broker.usable(now) or (broker.state in OPENING_STATES and now.mono < broker.opened_at + STAGGER)

    def _to_open(self, candidates: list[NodeConnection], now: Now) -> NodeConnection | None:
        """Return a connection to open, at random; ``None`` while another one is being opened, or all are in back-off."""
        if any(broker.state in OPENING_STATES and now.mono < broker.opened_at + STAGGER for broker in candidates):
            return None
        usable = [broker for broker in candidates if broker.usable(now)]
        fewest = min((broker.failures for broker in usable), default=0)
        return self._random_of([broker for broker in usable if broker.failures == fewest])

    def _random_of(self, brokers: list[NodeConnection]) -> NodeConnection | None:
        return brokers[int(self._random.random() * len(brokers))] if brokers else None

    def resolving(self, host: str, port: int) -> list[NodeConnection]:
        """Return the node connections that wait for the addresses of a name."""
        return [
            broker
            for broker in self._brokers.values()
            if broker.state is NodeState.RESOLVING and (broker.host, broker.port) == (host, port)
        ]

    def _candidates(self) -> list[NodeConnection]:
        """Return the connections to the cluster's brokers; while none is known or reachable, also those to bootstrap servers."""
        brokers = [broker for node_id in self.nodes if (broker := self.to(ToNode(node_id))) is not None]
        rebootstrap = self._config.metadata_recovery_strategy == "rebootstrap" and all(broker.failures for broker in brokers)
        return brokers if brokers and not rebootstrap else self._all()

    def _all(self) -> list[NodeConnection]:
        """Return the connections to all brokers of the cluster, and to all bootstrap servers at other addresses."""
        brokers = [broker for node_id in self.nodes if (broker := self.to(ToNode(node_id))) is not None]
        return brokers + [self._brokers.setdefault(server, NodeConnection(server, *server)) for server in self.bootstrap_servers]

    def _adopt(self, key: ToNode, node: Node) -> None:
        """Use the connection to a bootstrap server for a broker of the cluster with the same address.

        The first metadata names the broker that sent it. Without this, the client would open a second connection to it and leave
        the first one idle.
        """
        if key in self._brokers:
            return
        address = (node.host, node.port)
        for server, broker in self._brokers.items():
            if isinstance(server, HostPort) and broker.state is NodeState.READY and address in (server, broker.addresses[0]):
                del self._brokers[server]
                broker.key, broker.host, broker.port = key, node.host, node.port
                self._brokers[key] = broker
                return

    # -- errors -----------------------------------------------------------------------------------------------------------

    def failures(self) -> dict[str, str]:
        """Return each address that has failed since it last answered, with the reason, or with the event that is missing so far."""
        failures: dict[str, str] = {}
        for broker in self._brokers.values():
            failures.update(broker.attempts)
            if broker.state in OPENING_STATES:
                failures.setdefault(broker.address, broker.awaited)  # the reason of the last failure is more precise
        return failures

    @property
    def first_try_since(self) -> int | None:
        """When the latest attempt at an address without a failure so far was started; ``None`` if there is no such attempt."""
        tries = [broker.opened_at for broker in self._brokers.values() if broker.state in OPENING_STATES and not broker.failures]
        return max(tries, default=None)

    def failures_of(self, target: ToOneBroker) -> Mapping[str, str]:
        """Return the reason of failure of each address of a broker; empty if it answers or was not tried."""
        broker = self._brokers.get(target)
        return {} if broker is None or broker.answered else broker.attempts

    def unreachable(self, who: str = "", targets: Iterable[ToOneBroker] = (), /) -> OttlaError | None:
        """Return the error for ``effects.Unreachable``."""
        failures: dict[str, str] = {}
        for target in targets:
            failures.update(self.failures_of(target))
        unreachable = ConnectionFailedError(f"{who} could not be reached", failures, hint=_ELSEWHERE) if failures else None
        return self.connection_failure() or unreachable

    def refusal(self) -> AuthenticationError | None:
        """Return the last failed login or TLS handshake of a broker, if any."""
        return next((broker.refusal for broker in self._brokers.values() if broker.refusal is not None), None)

    def refused_everywhere(self) -> AuthenticationError | None:
        """Return a failed login or TLS handshake if all brokers have been tried and none is usable: waiting would not help."""
        refusal = self.refusal()
        if refusal is None or not all(broker.failures and broker.state not in OPENING_STATES for broker in self._candidates()):
            return None
        return refusal

    def connection_failure(self) -> ConnectionFailedError | AuthenticationError | None:
        """Return an error with all failed addresses; ``None`` while any broker answers or nothing has failed yet."""
        if any(broker.answered for broker in self._brokers.values()):
            return None
        failures = self.failures()
        if not failures:
            return None
        refusal = self.refusal()
        if refusal is not None and all(broker.failures for broker in self._candidates()):
            return refusal
        return self.failure_class(
            "no broker could be reached", failures, hint="check bootstrap_servers and that the brokers are up"
        )

    def unsent_error(self, send: AnySend) -> OttlaError:
        """Return the error of a request that was not sent before its deadline."""
        within = f"within {send.timeout / 1000:g} s"
        if isinstance(send.target, AnyNode):
            failure = self.connection_failure()
            return failure or OttlaTimeoutError(f"{send.api.name} could not be sent {within}: no broker was ready for it")
        broker = self._brokers.get(send.target)
        if broker is not None and broker.refusal is not None:
            return broker.refusal
        reasons = "; ".join(f"{address}: {reason}" for address, reason in broker.attempts.items()) if broker is not None else ""
        state = reasons or (broker.state.value if broker is not None else "unknown")
        return OttlaTimeoutError(f"{send.api.name} could not be sent to node {send.target.node_id} {within}: {state}")
