"""A broker's core on a virtual clock: one process that its owner drives, and a broker of processes that run by themselves.

Owns the broker's timers, jobs and connections. Must not know why it runs, nor what a client is but for two calls. Invariant: all
happens in calls or in events of the clock; the files are those of an earlier process.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from ottla.broker.catalog import Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.config import broker_config
from ottla.broker.core import BrokerCore
from ottla.broker.effects import (
    BrokerEffect,
    CancelTimer,
    CloseConnection,
    FaultStruck,
    NoReply,
    Reply,
    RunJob,
    SetTimer,
    TruncatedReply,
)
from ottla.broker.faults.messages import error_response
from ottla.broker.faults.rules import Action, AddFault, ExpireMember, Match, RemoveFaults, Rule
from ottla.broker.timers import Timers
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.framing import FrameReader
from ottla.simulation.clock import Clock, CountingIds
from ottla.simulation.cluster import ADDRESS, Cluster, name_of
from ottla.simulation.files import OpenStore
from ottla.simulation.network import Network
from ottla.simulation.registrations import Registrations
from ottla.types import Now

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


class BrokerProcess:
    """One process of a broker: its core on an open data directory, with its timers.

    ``perform`` gets each effect of the core, timers included, which are set by then.
    """

    def __init__(
        self,
        store: OpenStore,
        clock: Clock,
        ids: CountingIds,
        perform: Callable[[BrokerEffect], None],
        settings: dict[str, Any],
    ) -> None:
        self.clock = clock
        self.timers = Timers()
        self.warnings: list[str] = []
        """What the start has said."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called after the effects of each turn."""
        self._perform = perform
        self.store = store
        try:
            self.core = BrokerCore(broker_config(settings), Endpoint(*ADDRESS), self.store, ids)
        except BaseException:
            self.store.release()
            raise

    @property
    def now(self) -> Now:
        return self.clock.now

    def start(self, registered: Sequence[TopicRegistration] | None = None) -> None:
        """Start on the files of an earlier process. ``registered``: the topics in ZooKeeper, if there is one."""
        try:
            self.warnings, effects = self.core.start(self.now, registered)
        except BaseException:
            self.store.release()
            raise
        self.take(effects)

    def take(self, effects: list[BrokerEffect], *, turn_ends: bool = True) -> None:
        """Perform effects, and end the loop's turn unless more effects of the same turn follow."""
        if turn_ends:
            effects = effects + self.core.write_batches(self.now)
        for effect in effects:
            match effect:
                case SetTimer(key, at):
                    self.timers.set(key, at)
                case CancelTimer(key):
                    self.timers.cancel(key)
            self._perform(effect)
        self.on_turn()

    def handle(self, header: RequestHeader, message: Any, ticket: int, connection: int, *, turn_ends: bool = True) -> None:
        """Handle a request."""
        self.take(self.core.handle(header, message, ticket, connection, ADDRESS[0], self.now), turn_ends=turn_ends)

    def run(self, job: RunJob) -> None:
        """Run a job as the disk thread does."""
        try:
            outcome = job.job()
        except (OSError, OttlaError) as error:
            outcome = error
        self.take(self.core.on_job(job.tag, outcome, self.now))

    def fire(self, until: int) -> bool:
        """Fire a timer that is due at ``until``; returns whether there was one."""
        key = self.timers.pop_due(until)
        if key is not None:
            self.take(self.core.on_timer(key, self.now))
        return key is not None

    def kill(self) -> None:
        """End like kill -9: written files stay."""
        self.store.release()


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


class _Connection:
    """The broker's end of one connection: requests are handled one after the other, as Kafka does."""

    def __init__(self, client: ClientEnd, number: int, node_id: int) -> None:
        self.client = client
        self.number = number
        self.node_id = node_id
        self.reader = FrameReader()
        self.requests: deque[tuple[RequestHeader, Any]] = deque()
        self.busy: tuple[RequestHeader, Any] | None = None


class SimBroker:
    """A broker, or a cluster of them, that runs by itself, and can be killed and restarted: one process after the other on the
    same files."""

    def __init__(
        self, network: Network, clock: Clock, open_store: Callable[[], OpenStore], settings: dict[str, Any], nodes: int = 1
    ) -> None:
        """``open_store`` opens the data directory for the next process."""
        self.cluster = Cluster(nodes, int(settings.get("node.id", 1)))
        self.registrations: Registrations | None = None
        """What is in ZooKeeper, if there is one."""
        self.seen: list[tuple[int, Api, Any]] = []
        """Every request, with the time at which it was handled."""
        self.observers: list[Callable[[Exchange], None]] = []
        """Called with every request that is answered, and its response."""
        self.turn_observers: list[Callable[[Sender | None], None]] = []
        """Called at the end of each turn of the core, with the sender of the request that was executed in it, if there was one."""
        self._sender: Sender | None = None
        self._is_dying = False
        """Whether the process has been killed, and its connections are being broken."""
        self.connection_numbers = itertools.count(1)
        self.struck = 0
        self._network = network
        self._clock = clock
        self._open_store = open_store
        self._settings = settings
        self._ids = CountingIds()
        self._faults = itertools.count(1)
        self._last_tickets = itertools.count(1)
        self._registered: object = None
        for node_id in self.cluster.nodes:
            network.add_host(name_of(node_id), partial(self._on_heal, node_id))
        for node_id in self.cluster.nodes:
            self.start(node_id)

    @property
    def core(self) -> BrokerCore:
        return self._process.core

    @property
    def up(self) -> bool:
        """Whether a node runs."""
        return bool(self.cluster.up)

    @property
    def answers(self) -> bool:
        """Whether a request is answered at once."""
        return self.up and not self.core.catalog.faults.frozen

    def start(self, node_id: int | None = None) -> None:
        """Start a node, the host by default; the first one starts on the files of an earlier process."""
        first, node_id = not self.up, self.cluster.host if node_id is None else node_id
        self.cluster.up.add(node_id)
        if self.registrations is not None:
            self.registrations.register(self.cluster.nodes[node_id])
        if first:
            self.cluster.host = node_id
            self._start_process()
        self._register_topics()

    def kill(self, node_id: int | None = None) -> None:
        """End a node like kill -9, the host by default: files stay, connections break."""
        node_id = self.cluster.host if node_id is None else node_id
        self.cluster.up.remove(node_id)
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
            self._start_process()
        self._register_topics()

    def register(self, registrations: Registrations) -> None:
        """Write the nodes and the topics into ZooKeeper from now on."""
        self.registrations = registrations
        for node_id in sorted(self.cluster.up):
            registrations.register(self.cluster.nodes[node_id])
        self._register_topics()

    def _start_process(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._tickets: dict[int, _Connection | None] = {}
        self._answers: dict[int, Any] = {}
        self._acts()
        self._process = BrokerProcess(self._open_store(), self._clock, self._ids, self._perform, self._settings)
        self._process.on_turn = self._on_turn
        self._process.start()

    def _acts(self, node_id: int | None = None) -> None:
        """Note that what happens now happens on a node, the host by default."""
        self._clock.acting = name_of(self.cluster.host if node_id is None else node_id)

    def _on_turn(self) -> None:
        for observe in self.turn_observers:
            observe(self._sender)
        if self.registrations is not None and self._registered != self.core.catalog.topics.version:
            self._register_topics()

    def _register_topics(self) -> None:
        if self.registrations is not None:
            topics = self.core.catalog.topics
            self._registered = topics.version
            leaders = {topic.name: [self.cluster.leader(topic.name, number) for number in topic.partitions] for topic in topics}
            self.registrations.write_topics(leaders)

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

    def ask(self, api: Api, message: Any) -> Any:
        """Send a request of the test itself; returns the response."""
        self._acts()
        ticket = self._ticket(None)
        self._process.handle(RequestHeader(api, SPOKEN[api].maximum, ticket, "test"), message, ticket, -1)
        return self._answers.pop(ticket)

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
        connection = self._connections.get(number)
        if connection is None:
            return
        for frame in connection.reader.feed(data):
            connection.requests.append(decode_request(frame))
        self._next_request(connection)

    def _next_request(self, connection: _Connection) -> None:
        if connection.busy is not None or not connection.requests:
            return
        self._acts(connection.node_id)
        header, message = connection.requests.popleft()
        connection.busy = header, message
        self.seen.append((self._clock.now.mono, header.api, message))
        self._sender = Sender(connection.client.name, not connection.client.has_open(connection.number))
        try:
            if header.api in _COORDINATED and connection.node_id != self.cluster.host:
                self._reply(self._ticket(connection), error_response(header.api, message, ErrorCode.not_coordinator))
            elif header.api is Api.PRODUCE and self._is_led_elsewhere(connection.node_id, message):
                self._reply(self._ticket(connection), error_response(header.api, message, ErrorCode.not_leader_or_follower))
            else:
                self._process.handle(header, message, self._ticket(connection), connection.number)
        finally:
            self._sender = None

    def _is_led_elsewhere(self, node_id: int, message: Any) -> bool:
        """Whether another node leads one of the partitions in a Produce request. Then none of its batches is written."""
        topics = self.core.catalog.topics
        return len(self.cluster.nodes) > 1 and any(
            self.cluster.leader(topic.name or topics.name_of(topic.topic_id) or "", part.index) != node_id
            for topic in message.topic_data
            for part in topic.partition_data
        )

    def _ticket(self, connection: _Connection | None) -> int:
        ticket = next(self._last_tickets)
        self._tickets[ticket] = connection
        return ticket

    def _perform(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply(ticket, response):
                self._reply(ticket, response)
            case NoReply(ticket):
                self._tickets.pop(ticket)
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
            case CancelTimer():
                pass
            case _:
                raise AssertionError(effect)

    def _soon(self, delay: int, action: Callable[[], None]) -> None:
        process = self._process

        def unless_dead() -> None:
            if self.up and process is self._process:
                self._acts()
                action()

        self._clock.after(delay, unless_dead)

    def _fire(self) -> None:
        while self._process.fire(self._clock.now.mono):
            pass

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

    def _reply(self, ticket: int, response: Any) -> None:
        connection = self._tickets.pop(ticket)
        if connection is None:
            self._answers[ticket] = response
            return
        assert connection.busy is not None
        (header, message), connection.busy = connection.busy, None
        response = self.cluster.rewrite(header.api, response)
        for observe in self.observers:
            observe(Exchange(connection.client.name, connection.node_id, header.api, message, response))
        data = b"".join(self._process.store.content(piece) for piece in encode_response(header, response))
        client, number = connection.client, connection.number
        channel = (number, "to the client")
        self._network.send(name_of(connection.node_id), client.name, channel, lambda: client.deliver(number, data))
        self._soon(0, lambda: self._next_request(connection))
