"""A broker's core on a virtual clock: one process that its owner drives, and a broker of processes that run by themselves.

Owns the broker's timers, jobs and connections. Must not know why it runs, nor what a client is but for two calls. Invariant: all
happens in calls or in events of the clock; the files are those of an earlier process.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ottla.broker.catalog import Endpoint
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
from ottla.broker.faults.rules import Action, AddFault, ExpireMember, Match, RemoveFaults, Rule
from ottla.broker.timers import Timers
from ottla.errors import OttlaError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.framing import FrameReader
from ottla.simulation.clock import Clock, CountingIds
from ottla.simulation.files import OpenStore
from ottla.types import Now

ADDRESS = ("127.0.0.1", 9092)
LATENCY = 1
"""Milliseconds from one end of the link to the other."""

QUICK_GROUPS: dict[str, Any] = {
    "group.consumer.heartbeat.interval.ms": 1_000,
    "group.consumer.min.heartbeat.interval.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.assignment.interval.ms": 0,
}
"""Settings of a broker whose consumer groups beat as quickly as the classic ones here."""


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

    def start(self) -> None:
        """Start on the files of an earlier process."""
        try:
            self.warnings, effects = self.core.start(self.now)
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


class ClientEnd(Protocol):
    """The client's end of a connection."""

    def deliver(self, number: int, data: bytes) -> None:
        """Receive bytes from the broker."""

    def lose(self, number: int, reason: str) -> None:
        """Handle the loss of a connection."""


class _Connection:
    """The broker's end of one connection: requests are handled one after the other, as Kafka does."""

    def __init__(self, client: ClientEnd, number: int) -> None:
        self.client = client
        self.number = number
        self.reader = FrameReader()
        self.requests: deque[tuple[RequestHeader, Any]] = deque()
        self.busy: RequestHeader | None = None


class SimBroker:
    """A broker that runs by itself, and can be killed and restarted: one process after the other on the same files."""

    def __init__(self, clock: Clock, open_store: Callable[[], OpenStore], settings: dict[str, Any]) -> None:
        """``open_store`` opens the data directory for the next process."""
        self.up = False
        self.seen: list[tuple[int, Api, Any]] = []
        """Every request, with the time at which it was handled."""
        self.connection_numbers = itertools.count(1)
        self.struck = 0
        self._clock = clock
        self._open_store = open_store
        self._settings = settings
        self._ids = CountingIds()
        self._faults = itertools.count(1)
        self._last_tickets = itertools.count(1)
        self.start()

    @property
    def core(self) -> BrokerCore:
        return self._process.core

    def start(self) -> None:
        """Start on the files of an earlier process."""
        self._connections: dict[int, _Connection] = {}
        self._tickets: dict[int, _Connection | None] = {}
        self._answers: dict[int, Any] = {}
        self._process = BrokerProcess(self._open_store(), self._clock, self._ids, self._perform, self._settings)
        self.up = True
        self._process.start()

    def kill(self) -> None:
        """End like kill -9: files stay, connections break."""
        self.up = False
        self._process.kill()
        for connection in list(self._connections.values()):
            connection.client.lose(connection.number, "the broker died")
        self._connections.clear()

    def set_fault(self, action: Action, *apis: Api, times: int | None = 1, after: int = 0, **match: str) -> None:
        """Inject a fault; ``struck`` counts its occurrences."""
        rule = Rule(next(self._faults), action, Match(frozenset(apis), **match), times, after)
        self._process.take(self.core.on_command(AddFault(rule), self._clock.now)[1])

    def expire(self, command: ExpireMember) -> int:
        """Expire members' sessions; returns their number."""
        count, effects = self.core.on_command(command, self._clock.now)
        self._process.take(effects)
        return count

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._process.take(self.core.on_command(RemoveFaults(), self._clock.now)[1])

    def ask(self, api: Api, message: Any) -> Any:
        """Send a request of the test itself; returns the response."""
        ticket = self._ticket(None)
        self._process.handle(RequestHeader(api, SPOKEN[api].maximum, ticket, "test"), message, ticket, -1)
        return self._answers.pop(ticket)

    def accept(self, client: ClientEnd, number: int) -> None:
        self._connections[number] = _Connection(client, number)

    def hang_up(self, number: int) -> None:
        if self._connections.pop(number, None) is not None:
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
        header, message = connection.requests.popleft()
        connection.busy = header
        self.seen.append((self._clock.now.mono, header.api, message))
        self._process.handle(header, message, self._ticket(connection), connection.number)

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
                action()

        self._clock.after(delay, unless_dead)

    def _fire(self) -> None:
        while self._process.fire(self._clock.now.mono):
            pass

    def _drop(self, connection: _Connection | None, reason: str) -> None:
        if connection is not None:
            self.hang_up(connection.number)
            connection.client.lose(connection.number, reason)

    def _reply(self, ticket: int, response: Any) -> None:
        connection = self._tickets.pop(ticket)
        if connection is None:
            self._answers[ticket] = response
            return
        header, connection.busy = connection.busy, None
        assert header is not None
        data = b"".join(self._process.store.content(piece) for piece in encode_response(header, response))
        self._clock.after(LATENCY, lambda: connection.client.deliver(connection.number, data))
        self._soon(0, lambda: self._next_request(connection))
