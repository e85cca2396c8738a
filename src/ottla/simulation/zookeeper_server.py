"""ZooKeeper on the network: a server that can be stopped, and clients that behave as kazoo does.

Owns connections, time-outs of sessions, and the reports of each client. Must not know what nodes mean; ``zookeeper`` has the nodes.
Invariants: each operation is reported exactly once; the reports of one of kazoo's threads keep their order, and those of different
threads do not.

A client here does what ``ottla.runtime.zookeeper`` says of kazoo: it drops all watches when the connection breaks, fails what is in
flight, queues what it gets while it reconnects, and may send that in its next session. It leaves a server that does not answer its
own pings, which it sends only while there are no operations.
"""

from __future__ import annotations

import copy
import enum
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeGuard

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.simulation.clock import Clock
from ottla.simulation.network import Network
from ottla.simulation.zookeeper import Executed, Fired, ZooKeeperModel
from ottla.types import Now
from ottla.zookeeper.operations import Multi, Operation, Read
from ottla.zookeeper.session import Session, SessionReport, WatchType

HOST = "zookeeper"
RETRY = 100
"""Milliseconds between attempts to connect."""

Post = Callable[[SessionReport], None]
"""Puts a report into the inbox of the client's core."""

WhenRunning = Callable[[Callable[[], None]], None]
"""Runs an action at once, or when the process continues, if it is stopped."""


class Break(enum.Enum):
    """Where a connection breaks that breaks in a multi."""

    BEFORE = "before it is executed"
    AFTER = "after it is executed, and before the answer"


class _Outdated:
    """A server that is cut off from its leader: it answers reads by itself, until one has to wait for an earlier operation."""

    def __init__(self, model: ZooKeeperModel) -> None:
        self._model = model
        self._waits = False

    def execute(self, session_id: int, operation: Operation[Any], now: Now) -> Executed | None:
        """Execute a read; ``None``: it will not be answered."""
        self._waits = self._waits or not isinstance(operation, Read)
        return None if self._waits else self._model.execute(session_id, operation, now)


class SimZooKeeper:
    """A server, or an ensemble that behaves as one. Stopped, it keeps nodes and sessions."""

    def __init__(self, clock: Clock, network: Network, chance: random.Random | None = None) -> None:
        self.model = ZooKeeperModel()
        self.up = True
        self.ended_early: set[int] = set()
        """Sessions that were ended before their time."""
        self.observers: list[Callable[[int, Operation[Any], Executed], None]] = []
        """Called with every operation that was executed, its session and its outcome."""
        self.fired_observers: list[Callable[[Fired], None]] = []
        """Called with every watch that fires, also because a session ends."""
        self.clock = clock
        self.network = network
        self.chance = chance
        self._clients: dict[int, SimZooKeeperClient] = {}
        """Session -> the client that is connected with it."""
        self._behind: dict[int, _Outdated] = {}
        """Session whose client is connected with a server that is cut off from its leader -> that server."""
        self._breaks: dict[int, Break] = {}
        """Session whose connection breaks in its next multi -> where."""
        self._check_due: int | None = None
        network.add_host(HOST, lambda peer: None)

    def client(self, host: str, timeout: int, post: Post, when_running: WhenRunning) -> SimZooKeeperClient:
        """A client in a process on ``host``, with a session time-out in milliseconds."""
        return SimZooKeeperClient(self, host, timeout, post, when_running)

    def stop(self) -> None:
        """Break all connections, and accept no others."""
        self.up = False
        self._behind.clear()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.send_end()

    def start(self) -> None:
        """Accept connections again. No session has expired meanwhile: their time begins again."""
        self.up = True
        for session_id in self.model.sessions:
            self.model.touch(session_id, self.clock.now)
        self._check_soon()

    def expire(self, session_id: int) -> None:
        """End a session before its time, as an operator can."""
        self.ended_early.add(session_id)
        self._end(session_id)

    def break_in_multi(self, session_id: int, where: Break | None) -> None:
        """Have the connection of a session break in its next multi; ``None``: not any more."""
        if where is None:
            self._breaks.pop(session_id, None)
        else:
            self._breaks[session_id] = where

    def take_break(self, session_id: int, operation: Operation[Any]) -> Break | None:
        """Return where the connection breaks in this operation, if it does."""
        return self._breaks.pop(session_id, None) if isinstance(operation, Multi) else None

    def is_connected(self, session_id: int) -> bool:
        """Whether the client of a session that exists is connected, with a server that reaches its leader."""
        return session_id in self.model.sessions and session_id in self._clients and session_id not in self._behind

    def fall_behind(self, session_id: int) -> None:
        """Cut the server of a client off from its leader: it goes on answering pings and reads, with nodes that may be outdated.

        What it heard last, it has not passed on to the leader.
        """
        self.model.forget_last(session_id)
        self._behind[session_id] = _Outdated(copy.deepcopy(self.model))
        self._check_soon()

    def catch_up(self, session_id: int) -> None:
        """End what ``fall_behind`` began: the server breaks the connections of its clients."""
        client = self._clients.get(session_id)
        if self._behind.pop(session_id, None) is not None and client is not None:
            client.send_end()

    def _end(self, session_id: int) -> None:
        self.fire(self.model.close(session_id))
        if session_id not in self._behind and (client := self._clients.pop(session_id, None)) is not None:
            client.send_end()

    # -- for clients ------------------------------------------------------------------------------------------------------

    def connect(self, client: SimZooKeeperClient, session_id: int | None) -> int | None:
        """Continue a session or open one; returns its id, ``None`` if it has expired."""
        if session_id is None:
            session_id = self.model.open(client.timeout, self.clock.now)
        elif not self.model.touch(session_id, self.clock.now):
            return None
        self._clients[session_id] = client
        self._check_soon()
        return session_id

    def has_session(self, session_id: int | None) -> TypeGuard[int]:
        """Whether a session exists here, and the server runs."""
        return self.up and (session_id in self.model.sessions or session_id in self._behind)

    def execute(self, session_id: int, operation: Operation[Any]) -> Executed | None:
        """Execute an operation, and pass on the watches that it fires. ``None``: it needs the leader, which cannot be reached."""
        if session_id in self._behind:
            return self._behind[session_id].execute(session_id, operation, self.clock.now)
        executed = self.model.execute(session_id, operation, self.clock.now)
        for observe in self.observers:
            observe(session_id, operation, executed)
        self.fire(executed.fired)
        return executed

    def heard(self, session_id: int) -> None:
        """Take a ping."""
        if session_id not in self._behind:
            self.model.touch(session_id, self.clock.now)

    def disconnected(self, session_id: int, client: SimZooKeeperClient) -> None:
        """Note that a client has lost its connection, and its watches."""
        if self._clients.get(session_id) is client:
            del self._clients[session_id]
            self._behind.pop(session_id, None)
        self.model.drop_watches(session_id)

    def closed(self, session_id: int) -> None:
        """End a session that its client closes."""
        if session_id in self._behind:
            return
        self._clients.pop(session_id, None)
        self.fire(self.model.close(session_id))

    def fire(self, watches: tuple[Fired, ...]) -> None:
        """Send watches to the clients that have set them."""
        for fired in watches:
            for observe in self.fired_observers:
                observe(fired)
            client = self._clients.get(fired.session_id)
            if client is not None and fired.session_id not in self._behind:
                client.send_watch(fired.watch, fired.path)

    # -- sessions ---------------------------------------------------------------------------------------------------------

    def _check_soon(self) -> None:
        at = self.model.expires_at
        if at is not None and (self._check_due is None or at < self._check_due):
            self._check_due = at
            self.clock.at(at, lambda: self._check(at))

    def _check(self, due: int) -> None:
        """End the sessions whose time is over. Most have been heard since the check was planned."""
        if due != self._check_due:
            return
        self._check_due = None
        if self.up:
            for session_id in self.model.overdue(self.clock.now):
                self._end(session_id)
            self._check_soon()


class SimZooKeeperClient:
    """One client: a session after the other, and the operations in it."""

    def __init__(self, server: SimZooKeeper, host: str, timeout: int, post: Post, when_running: WhenRunning) -> None:
        self.timeout = timeout
        self.connection = 0
        """The number of the connection; an even number: there is none."""
        self.session_id: int | None = None
        self._server = server
        self._host = host
        self._post = post
        self._when_running = when_running
        self._in_flight: deque[tuple[int, Operation[Any]]] = deque()
        self._queue: deque[tuple[int, Operation[Any]]] = deque()
        self._sent_at = 0
        self._ping_is_due = False
        """Whether a ping was not answered yet."""
        self._broken = 0
        """The number of the connection that the server has broken in a multi: it reads nothing from it any more."""
        self._posted: dict[str, int] = {}
        self._started = self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection, as far as it knows."""
        return self.connection % 2 == 1

    def start(self) -> None:
        """Connect. Does nothing the second time."""
        if not self._started:
            self._started = True
            self._connect()

    def close(self) -> None:
        """End the session, if the server can be reached; otherwise it expires."""
        if self.is_connected and self.session_id is not None:
            session_id, server = self.session_id, self._server
            self._send(lambda: server.closed(session_id))
        self._closed = True

    def perform(self, number: int, operation: Operation[Any]) -> None:
        """Send one operation, and report its outcome."""
        if not self.is_connected:
            self._queue.append((number, operation))
            return
        self._in_flight.append((number, operation))
        connection = self.connection

        def arrive() -> None:
            # A server does not answer in a session that has expired: it closes the connection.
            if connection == self.connection != self._broken and self._server.has_session(self.session_id):
                where = self._server.take_break(self.session_id, operation)
                executed = None if where is Break.BEFORE else self._server.execute(self.session_id, operation)
                if where is not None:
                    self._broken = connection
                    self.send_end()
                if where is not None or executed is None:
                    return
                self._receive(lambda: self._on_answer(number, executed))

        self._send(arrive)

    def disconnect(self) -> None:
        """Break the connection, and connect again."""
        self.on_broken(self.connection)

    def kill(self) -> None:
        """End with the process: the session expires."""
        self._closed = True
        if self.is_connected and self.session_id is not None:
            self._server.disconnected(self.session_id, self)

    # -- the server's end -------------------------------------------------------------------------------------------------

    def send_watch(self, watch: WatchType, path: str) -> None:
        """Send a watch that has fired."""
        report = SessionReport(lambda session, now: session.on_watch_fired(watch, path))
        self._receive(lambda: self._report("watches", report))

    def send_end(self) -> None:
        """Close the connection."""
        connection = self.connection
        self._receive(lambda: self.on_broken(connection))

    # -- connections ------------------------------------------------------------------------------------------------------

    def on_broken(self, connection: int) -> None:
        """Handle the end of a connection: what is in flight fails, and the watches are dropped."""
        self._when_running(lambda: self._disconnect(connection))

    def on_heal(self) -> None:
        """Handle the return of the network: messages were lost, so the connection breaks."""
        self.on_broken(self.connection)

    def _connect(self) -> None:
        server = self._server
        if self._closed or self.is_connected:
            return
        if not server.up or not server.network.reaches(self._host, HOST):
            server.clock.after(RETRY, lambda: self._when_running(self._connect))
            return

        def arrive() -> None:
            if not server.up or self._closed:
                server.clock.after(RETRY, lambda: self._when_running(self._connect))
                return
            found = server.connect(self, self.session_id)
            if found is None:
                self._after(self._on_expired)
            else:
                self.connection += 1
                self._ping_is_due = False
                self.session_id = found
                self._after(lambda: self._on_connected(found))

        self._after(arrive)

    def _after(self, action: Callable[[], None]) -> None:
        """Run a step of connecting after a while, which the network cannot prevent any more."""
        self._server.clock.after(1, lambda: self._when_running(action))

    def _on_connected(self, session_id: int) -> None:
        if self._closed or not self.is_connected:
            return
        self._report("states", SessionReport(lambda session, now: session.on_connected(session_id, now)))
        self._ping(self.connection)
        queue, self._queue = self._queue, deque()
        for number, operation in queue:
            self.perform(number, operation)

    def _on_expired(self) -> None:
        self.session_id = None
        self._report("states", SessionReport(lambda session, now: session.on_expired()))
        self._fail(KeeperCode.SESSIONEXPIRED)
        self._server.clock.after(RETRY, lambda: self._when_running(self._connect))

    def _disconnect(self, connection: int) -> None:
        if connection != self.connection or not self.is_connected or self._closed:
            return
        self.connection += 1
        if self.session_id is not None:
            self._server.disconnected(self.session_id, self)
        self._report("states", SessionReport(lambda session, now: session.on_disconnected()))
        self._fail(KeeperCode.CONNECTIONLOSS)
        self._server.clock.after(RETRY, lambda: self._when_running(self._connect))

    def _ping(self, connection: int) -> None:
        """Ping the server if nothing was sent for a third of the session time-out, and leave it if that is not answered either."""
        if connection != self.connection or self._closed:
            return
        if self._ping_is_due:
            self._disconnect(connection)
            return
        session_id = self.session_id
        assert session_id is not None

        def arrive() -> None:
            if self._server.up and connection == self.connection:
                self._server.heard(session_id)
                self._receive(lambda: None)

        if self._server.clock.now.mono - self._sent_at >= self.timeout // 3:
            self._send(arrive)
            self._ping_is_due = True
        self._server.clock.after(self.timeout // 3, lambda: self._when_running(lambda: self._ping(connection)))

    def _send(self, arrive: Callable[[], None]) -> None:
        self._sent_at = self._server.clock.now.mono
        self._server.network.send(self._host, HOST, (self._host, HOST, self.connection), arrive)

    def _receive(self, action: Callable[[], None]) -> None:
        """Have something arrive at the client over the present connection."""
        connection = self.connection

        def arrive() -> None:
            if connection == self.connection and not self._closed:
                self._ping_is_due = False
                action()

        channel = (HOST, self._host, connection)
        self._server.network.send(HOST, self._host, channel, lambda: self._when_running(arrive))

    # -- reports ----------------------------------------------------------------------------------------------------------

    def _on_answer(self, number: int, executed: Executed) -> None:
        answered, _ = self._in_flight.popleft()
        assert answered == number, "operations are answered in their order"
        error, result = executed.error, executed.result
        if error is not None:
            self._report("answers", _failed(number, error))
        else:
            self._report("answers", SessionReport(lambda session, now: session.on_answered(number, result, now)))

    def _fail(self, code: KeeperCode) -> None:
        pending = [*self._in_flight, *self._queue]
        self._in_flight.clear()
        self._queue.clear()
        for number, operation in pending:
            self._report("answers", _failed(number, ZooKeeperError(code, operation.path)))

    def _report(self, thread: str, report: SessionReport) -> None:
        """Post a report from one of kazoo's threads, each of which may be a little late."""
        chance, clock = self._server.chance, self._server.clock
        late = 0 if chance is None else chance.choice((0, 0, 0, 1, 2))
        at = max(clock.now.mono + late, self._posted.get(thread, 0))
        self._posted[thread] = at
        clock.at(at, lambda: self._when_running(lambda: self._post(report)))


def _failed(number: int, error: ZooKeeperError) -> SessionReport:
    def apply(session: Session, now: Now) -> None:
        session.on_failed(number, error, now)

    return SessionReport(apply)
