"""A broker on a virtual clock that runs by itself, process after process.

Owns when its timers fire and its jobs run, and its connections. Must not know why it runs, nor what a client is but for three
calls. Invariant: all happens in events of the clock; the files are those of an earlier process.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ottla.broker.catalog import Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.core import BrokerCore
from ottla.broker.effects import (
    BrokerEffect,
    CancelTimer,
    CloseConnection,
    FaultStruck,
    HangUp,
    MuteConnection,
    NoReply,
    Push,
    Reply,
    RunJob,
    SetTimer,
    TruncatedReply,
    UnmuteConnection,
)
from ottla.broker.faults.messages import error_response
from ottla.broker.faults.rules import Action, AddFault, ExpireMember, Match, RemoveFaults, Rule
from ottla.coordinator.state import Group, Offsets
from ottla.protocol import ErrorCode
from ottla.protocol.apis import PUSHED, SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_request, encode_response
from ottla.protocol.framing import FrameReader, Piece
from ottla.simulation.clock import Clock, CountingIds
from ottla.simulation.cluster import Cluster, name_of
from ottla.simulation.files import OpenStore
from ottla.simulation.network import Network
from ottla.simulation.process import FIRST, BrokerProcess
from ottla.simulation.registrations import Registrations
from ottla.types import TopicPartition

_COORDINATED = frozenset(
    {
        Api.JOIN_GROUP,
        Api.SYNC_GROUP,
        Api.HEARTBEAT,
        Api.LEAVE_GROUP,
        Api.CONSUMER_GROUP_HEARTBEAT,
        Api.OFFSET_COMMIT,
        Api.OFFSET_FETCH,
    }
)
"""Requests that only the coordinator executes."""


class Exchange(NamedTuple):
    """A request of a client, and the response to it."""

    client: str
    node_id: int
    api: Api
    request: Any
    response: Any


class Sender(NamedTuple):
    """The client of the request that is being executed."""

    name: str
    has_given_up: bool
    """Whether it has closed its end of the connection by now."""


class ClientEnd(Protocol):
    """The client's end of a connection."""

    @property
    def name(self) -> str:
        """The name of its host."""

    def deliver(self, number: int, data: bytes) -> None:
        """Receive bytes from the broker."""

    def lose(self, number: int, reason: str) -> None:
        """Handle the loss of a connection."""

    def has_open(self, number: int) -> bool:
        """Whether it has not closed its end of a connection."""


class Asked(NamedTuple):
    """A request that is about to be executed."""

    sender: ClientEnd
    connection: int
    api: Api
    request: Any

    @property
    def is_given_up(self) -> bool:
        """Whether the client has closed its end of the connection by now."""
        return not self.sender.has_open(self.connection)


class Brokers(Protocol):
    """One broker or several of them, whose cores run by themselves."""

    cluster: Cluster
    settings: dict[str, Any]
    seen: list[tuple[int, Api, Any]]
    observers: list[Callable[[Exchange], None]]
    turn_observers: list[Callable[[Sender | None], None]]
    connection_numbers: Iterator[int]

    @property
    def core(self) -> BrokerCore: ...
    @property
    def up(self) -> bool: ...
    @property
    def answers(self) -> bool: ...
    @property
    def struck(self) -> int: ...

    def start(self, node_id: int | None = None) -> None: ...
    def kill(self, node_id: int | None = None) -> None: ...
    def set_fault(
        self, action: Action, *apis: Api, times: int | None = 1, after: int = 0, lasts: int | None = None, **match: str
    ) -> None: ...
    def expire(self, command: ExpireMember) -> int: ...
    def clear_faults(self) -> None: ...
    def ask(self, api: Api, message: Any) -> Any: ...
    def topic_id(self, name: str) -> uuid.UUID: ...
    def topic_name(self, topic_id: uuid.UUID) -> str | None: ...
    def partition_count(self, name: str) -> int: ...
    def can_produce(self, tp: TopicPartition) -> bool: ...
    @property
    def can_change_topics(self) -> bool: ...
    def state_of(self, group: str) -> tuple[Group | None, Offsets] | None: ...
    def accept(self, client: ClientEnd, number: int, node_id: int) -> None: ...
    def node_of(self, number: int) -> int | None: ...
    def hang_up(self, number: int) -> None: ...
    def receive(self, number: int, data: bytes) -> None: ...
    def break_connection(self, number: int) -> None: ...


class _Connection:
    """The broker's end of one connection: requests are handled one after the other, as Kafka does."""

    def __init__(self, client: ClientEnd, number: int, node_id: int) -> None:
        self.client = client
        self.number = number
        self.node_id = node_id
        self.reader = FrameReader()
        self.requests: deque[tuple[RequestHeader, Any]] = deque()
        self.busy: tuple[RequestHeader, Any] | None = None


class BrokerShell:
    """What is around the core of a broker: one process after the other, with its jobs, timers and connections."""

    def __init__(self, network: Network, clock: Clock, settings: dict[str, Any], ids: CountingIds) -> None:
        self.up = False
        """Whether a process runs."""
        self.seen: list[tuple[int, Api, Any]] = []
        """Every request, with the time at which it was handled."""
        self.observers: list[Callable[[Exchange], None]] = []
        """Called with every request that is answered, and its response."""
        self.turn_observers: list[Callable[[Sender | None], None]] = []
        """Called at the end of each turn of the core, with the sender of the request that was executed in it, if there was one."""
        self.request_observers: list[Callable[[Asked], None]] = []
        """Called with every request before it is executed."""
        self.push_observers: list[Callable[[Api, Any], None]] = []
        """Called with every request that the core sends to a member."""
        self.struck = 0
        """How often a fault has struck."""
        self._network = network
        self._clock = clock
        self.settings = settings
        self._ids = ids
        self._sender: Sender | None = None
        self._is_dying = False
        """Whether the process has been killed, and its connections are being broken."""
        self._faults = itertools.count(1)
        self._last_tickets = itertools.count(1)
        self._process: BrokerProcess

    @property
    def core(self) -> BrokerCore:
        """That of the present process, or of the last one."""
        return self._process.core

    # -- processes --------------------------------------------------------------------------------------------------------

    def _start_process(
        self, store: OpenStore, endpoint: Endpoint = FIRST, joined: tuple[Sequence[TopicRegistration], int | None] | None = None
    ) -> None:
        self._connections: dict[int, _Connection] = {}
        self._tickets: dict[int, _Connection | None] = {}
        self._answers: dict[int, Any] = {}
        self._acts()
        self._process = BrokerProcess(store, self._clock, self._ids, self._perform, self.settings, endpoint)
        self._process.on_turn = self._on_turn
        self._process.start(*(joined or ()))

    def _acts(self, node_id: int | None = None) -> None:
        """Note that what happens now happens on a node; ``None``: on that of the core."""
        raise NotImplementedError

    def _on_turn(self) -> None:
        for observe in self.turn_observers:
            observe(self._sender)

    # -- from outside of the network --------------------------------------------------------------------------------------

    def set_fault(
        self, action: Action, *apis: Api, times: int | None = 1, after: int = 0, lasts: int | None = None, **match: str
    ) -> None:
        """Inject a fault, which ends by itself after ``lasts`` milliseconds; ``struck`` counts its occurrences."""
        self._acts()
        rule = Rule(next(self._faults), action, Match(frozenset(apis), **match), times, after, lasts)
        self._process.take(self.core.on_command(AddFault(rule), self._clock.now)[1])

    def expire(self, command: ExpireMember) -> int:
        """Expire members' sessions; returns their number."""
        self._acts()
        count, effects = self.core.on_command(command, self._clock.now)
        self._process.take(effects)
        return count

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._acts()
        self._process.take(self.core.on_command(RemoveFaults(), self._clock.now)[1])

    def send(self, api: Api, message: Any) -> int:
        """Send a request of the test itself; returns its ticket."""
        self._acts()
        ticket = self._ticket(None)
        self._process.handle(RequestHeader(api, SPOKEN[api].maximum, ticket, "test"), message, ticket, -1)
        return ticket

    def take_answer(self, ticket: int) -> Any:
        """Return the response to such a request; ``None``: there is none yet."""
        return self._answers.pop(ticket, None)

    # -- connections ------------------------------------------------------------------------------------------------------

    def accept(self, client: ClientEnd, number: int, node_id: int) -> None:
        """Accept a connection to a node."""
        self._connections[number] = _Connection(client, number, node_id)

    def node_of(self, number: int) -> int | None:
        """The node of a connection that is open."""
        connection = self._connections.get(number)
        return None if connection is None else connection.node_id

    def hang_up(self, number: int) -> None:
        """Handle the end of a connection that the client has closed or lost."""
        if self._connections.pop(number, None) is not None and self.up and not self._is_dying:
            self._acts()
            self._process.take(self.core.on_disconnect(number, self._clock.now))

    def receive(self, number: int, data: bytes) -> None:
        """Receive bytes from a client."""
        connection = self._connections.get(number)
        if connection is None:
            return
        for frame in connection.reader.feed(data):
            header, message = decode_request(frame)
            if header.api in PUSHED:  # a member's answer, which does not wait for the response to another request
                self._handle(connection, header, message, self._ticket(None))
            else:
                connection.requests.append((header, message))
        self._next_request(connection)

    def _next_request(self, connection: _Connection) -> None:
        if connection.busy is None and connection.requests:
            connection.busy = connection.requests.popleft()
            self._handle(connection, *connection.busy, self._ticket(connection))

    def _handle(self, connection: _Connection, header: RequestHeader, message: Any, ticket: int) -> None:
        self._acts(connection.node_id)
        self.seen.append((self._clock.now.mono, header.api, message))
        for observe in self.request_observers:
            observe(Asked(connection.client, connection.number, header.api, message))
        self._sender = Sender(connection.client.name, not connection.client.has_open(connection.number))
        try:
            instead = self._answer_instead(connection, header, message)
            if instead is not None:
                self._reply(ticket, instead)
            else:
                self._process.handle(header, message, ticket, connection.number)
        finally:
            self._sender = None

    def _answer_instead(self, connection: _Connection, header: RequestHeader, message: Any) -> Any:
        """Return the response to a request that is not for the core; ``None``: the core answers it."""
        return None

    def _rewritten(self, api: Api, response: Any) -> Any:
        """Return a response of the core as the client gets it."""
        return response

    def _ticket(self, connection: _Connection | None) -> int:
        ticket = next(self._last_tickets)
        self._tickets[ticket] = connection
        return ticket

    def break_connection(self, number: int) -> None:
        """Break a connection, if it is open."""
        self._drop(self._connections.get(number), "the connection was reset")

    def _drop(self, connection: _Connection | None, reason: str) -> None:
        if connection is not None:
            self._break(connection, reason)

    def _on_heal(self, node_id: int, peer: str) -> None:
        for connection in list(self._connections.values()):
            if connection.node_id == node_id and connection.client.name == peer:
                self._break(connection, "the network was away")

    def _break(self, connection: _Connection, reason: str) -> None:
        """Close a connection. A client that cannot be reached notices only that nothing is answered."""
        self.hang_up(connection.number)
        if self._network.reaches(name_of(connection.node_id), connection.client.name):
            connection.client.lose(connection.number, reason)

    # -- effects ----------------------------------------------------------------------------------------------------------

    def _perform(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply(ticket, response):
                self._reply(ticket, response)
            case NoReply(ticket):
                self._no_reply(ticket)
            case Push(number, api, correlation_id, message):
                for observe in self.push_observers:
                    observe(api, message)
                self._push(number, encode_request(RequestHeader(api, SPOKEN[api].maximum, correlation_id, None), message))
            case HangUp(number, reason):
                self._end(number, reason)
            case CloseConnection(ticket, reason):
                assert "broker.faults" in reason, f"the broker closed a connection: {reason}"
                self._drop(self._tickets.pop(ticket), reason)
            case TruncatedReply(ticket, _):
                # An incomplete response is not a message.
                self._drop(self._tickets.pop(ticket), "broker.faults cut an answer")
            case FaultStruck():
                self.struck += 1
            case RunJob():
                self._soon(0, lambda: self._process.run(effect))
            case SetTimer(_, at):
                self._soon(max(0, at - self._clock.now.mono), self._fire)
            case CancelTimer() | MuteConnection() | UnmuteConnection():
                pass  # here a connection handles one request at a time in any case
            case _:
                raise AssertionError(effect)

    def _soon(self, delay: int, action: Callable[[], None]) -> None:
        process = self._process

        def unless_dead() -> None:
            if self.up and process is self._process:
                self._acts()
                action()

        self._clock.after(delay, lambda: self._when_running(unless_dead))

    def _when_running(self, action: Callable[[], None]) -> None:
        """Run an action of the process now, or when it continues."""
        action()

    def _fire(self) -> None:
        while self._process.fire(self._clock.now.mono):
            pass

    def _reply(self, ticket: int, response: Any) -> None:
        connection = self._tickets.pop(ticket)
        if connection is None:
            self._answers[ticket] = response
            return
        assert connection.busy is not None
        (header, message), connection.busy = connection.busy, None
        response = self._rewritten(header.api, response)
        for observe in self.observers:
            observe(Exchange(connection.client.name, connection.node_id, header.api, message, response))
        self._send(connection, encode_response(header, response))
        self._soon(0, lambda: self._next_request(connection))

    def _no_reply(self, ticket: int) -> None:
        connection = self._tickets.pop(ticket)
        if connection is not None:
            connection.busy = None
            self._soon(0, lambda: self._next_request(connection))

    def _push(self, number: int, pieces: list[Piece]) -> None:
        """Send a request of the coordinator, if the connection is open."""
        connection = self._connections.get(number)
        if connection is not None:
            self._send(connection, pieces)

    def _send(self, connection: _Connection, pieces: list[Piece]) -> None:
        data = b"".join(self._process.store.content(piece) for piece in pieces)
        self._arrive(connection, lambda: connection.client.deliver(connection.number, data))

    def _end(self, number: int, reason: str) -> None:
        """Close a connection after what was sent before; no more requests are handled."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.requests.clear()
            self._arrive(connection, lambda: connection.client.lose(number, reason))
            self.hang_up(number)

    def _arrive(self, connection: _Connection, action: Callable[[], None]) -> None:
        """Have something arrive at the client, after all that was sent on the connection before."""
        channel = (connection.number, "to the client")
        self._network.send(name_of(connection.node_id), connection.client.name, channel, action)


class SimBroker(BrokerShell):
    """A broker, or a cluster of them with one core, that runs by itself, and can be killed and restarted: one process after the
    other on the same files."""

    def __init__(
        self, network: Network, clock: Clock, open_store: Callable[[], OpenStore], settings: dict[str, Any], nodes: int = 1
    ) -> None:
        """``open_store`` opens the data directory for the next process."""
        super().__init__(network, clock, settings, CountingIds())
        self.cluster = Cluster(nodes, int(settings.get("node.id", 1)))
        self.registrations: Registrations | None = None
        """What is in ZooKeeper, if there is one."""
        self.connection_numbers: Iterator[int] = itertools.count(1)
        self._open_store = open_store
        self._registered: object = None
        for node_id in self.cluster.nodes:
            network.add_host(name_of(node_id), partial(self._on_heal, node_id))
        for node_id in self.cluster.nodes:
            self.start(node_id)

    @property
    def answers(self) -> bool:
        """Whether a request is answered at once."""
        return self.up and not self.core.catalog.faults.frozen

    def ask(self, api: Api, message: Any) -> Any:
        """Send a request of the test itself; returns the response."""
        answer = self.take_answer(self.send(api, message))
        assert answer is not None, f"{api.name} was not answered at once"
        return answer

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic, which exists."""
        return self.core.catalog.topic(name).topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The topic with an id, if it exists."""
        return self.core.catalog.topics.name_of(topic_id)

    def partition_count(self, name: str) -> int:
        """The number of partitions of a topic, 0 if it does not exist."""
        return self.core.catalog.topics.partition_count(name) or 0

    def can_produce(self, tp: TopicPartition) -> bool:
        """Whether the leader of a partition would write records at once."""
        return self.answers

    @property
    def can_change_topics(self) -> bool:
        """Whether topics can be changed at once."""
        return self.answers

    def state_of(self, group: str) -> tuple[Group | None, Offsets] | None:
        """A group and its committed offsets as its coordinator has them; ``None``: no process has loaded them."""
        return self.core.state.groups.state_of(group)

    def start(self, node_id: int | None = None) -> None:
        """Start a node, the host by default; the first one starts on the files of an earlier process."""
        first, node_id = not self.up, self.cluster.host if node_id is None else node_id
        self.cluster.up.add(node_id)
        self.up = True
        if self.registrations is not None:
            self.registrations.register(self.cluster.nodes[node_id])
        if first:
            self.cluster.host = node_id
            self._start_process(self._open_store())
        self._register_topics()

    def kill(self, node_id: int | None = None) -> None:
        """End a node like kill -9, the host by default: files stay, connections break."""
        node_id = self.cluster.host if node_id is None else node_id
        self.cluster.up.remove(node_id)
        self.up = bool(self.cluster.up)
        if self.registrations is not None:
            self.registrations.killed(node_id)
        if node_id == self.cluster.host:
            self._process.kill()
            self._is_dying = True
        for connection in list(self._connections.values()):
            if node_id in (connection.node_id, self.cluster.host):
                self._break(connection, "the broker died")
        self._is_dying = False
        if node_id == self.cluster.host and self.up:
            self.cluster.host = min(self.cluster.up)
            self._start_process(self._open_store())
        self._register_topics()

    def register(self, registrations: Registrations) -> None:
        """Write the nodes and the topics into ZooKeeper from now on."""
        self.registrations = registrations
        for node_id in sorted(self.cluster.up):
            registrations.register(self.cluster.nodes[node_id])
        self._register_topics()

    def _acts(self, node_id: int | None = None) -> None:
        self._clock.acting = name_of(self.cluster.host if node_id is None else node_id)

    def _on_turn(self) -> None:
        super()._on_turn()
        if self.registrations is not None and self._registered != self.core.catalog.topics.version:
            self._register_topics()

    def _register_topics(self) -> None:
        if self.registrations is not None:
            topics = self.core.catalog.topics
            self._registered = topics.version
            leaders = {topic.name: [self.cluster.leader(topic.name, number) for number in topic.partitions] for topic in topics}
            self.registrations.write_topics(leaders)

    def _answer_instead(self, connection: _Connection, header: RequestHeader, message: Any) -> Any:
        if header.api in _COORDINATED and connection.node_id != self.cluster.host:
            return error_response(header.api, message, ErrorCode.not_coordinator)
        if header.api is Api.PRODUCE and self._is_led_elsewhere(connection.node_id, message):
            return error_response(header.api, message, ErrorCode.not_leader_or_follower)
        return None

    def _is_led_elsewhere(self, node_id: int, message: Any) -> bool:
        """Whether another node leads one of the partitions in a Produce request. Then none of its batches is written."""
        topics = self.core.catalog.topics
        return len(self.cluster.nodes) > 1 and any(
            self.cluster.leader(topic.name or topics.name_of(topic.topic_id) or "", part.index) != node_id
            for topic in message.topic_data
            for part in topic.partition_data
        )

    def _rewritten(self, api: Api, response: Any) -> Any:
        return self.cluster.rewrite(api, response)
