"""A broker with a core of its own and a session with ZooKeeper, as one of several in a cluster.

Owns its processes and their sessions, and what waits while a process is stopped. Must not know the other brokers. Invariants: a
process starts on the files of the last one, with the topics that ZooKeeper has then; nothing happens in a process that is stopped.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ottla.broker.catalog import Endpoint
from ottla.broker.cluster import TopicRegistration
from ottla.broker.effects import BrokerEffect, Registered
from ottla.broker.zookeeper.assembly import ZooKeeperAssembly
from ottla.broker.zookeeper.start import join, read_topics
from ottla.simulation.broker import BrokerShell
from ottla.simulation.clock import CountingIds
from ottla.simulation.cluster import name_of
from ottla.simulation.files import OpenStore
from ottla.simulation.zookeeper_server import HOST, SimZooKeeper, SimZooKeeperClient
from ottla.zookeeper.calls import Call, ResultT
from ottla.zookeeper.operations import Operation
from ottla.zookeeper.session import Disconnect, Perform, SessionReport

SESSION_TIMEOUT = 6_000
"""Milliseconds for which a broker that was killed stays in ZooKeeper, unless a setting says otherwise."""

RESTART = 500
"""Milliseconds between two attempts to start without ZooKeeper."""


class Thread(enum.Enum):
    """The threads of a broker."""

    LOOP = "runs the core"
    ZOOKEEPER = "has the connection with ZooKeeper"


class ZooKeeperBroker(BrokerShell):
    """See the module."""

    def __init__(
        self,
        zookeeper: SimZooKeeper,
        node_id: int,
        endpoint: Endpoint,
        store: OpenStore,
        settings: dict[str, Any],
        *,
        host: str | None = None,
        note_up: Callable[[bool], None] = lambda up: None,
    ) -> None:
        """``host``: its name in the network. ``note_up`` is called when it has started, and when it is killed."""
        own = {"node.id": node_id, "zookeeper.connect": "zookeeper:2181"}
        settings = {"zookeeper.session.timeout.ms": SESSION_TIMEOUT, **settings, **own}
        super().__init__(zookeeper.network, zookeeper.clock, settings, CountingIds((endpoint.port << 64) + 1))
        self.node_id = node_id
        self.host = host or name_of(node_id)
        self.store = store
        self.client: SimZooKeeperClient
        self.is_stopped = False
        self.registered: list[Registered] = []
        """What the present process has reported of its registration."""
        self.asked: list[Operation[Any]] = []
        """What the present process has asked of ZooKeeper."""
        self._zookeeper, self._session_timeout = zookeeper, settings["zookeeper.session.timeout.ms"]
        self._endpoint = endpoint
        self._cluster_id: str | None = None
        """The cluster that the files belong to; ``None``: they are new."""
        self._note_up = note_up
        self._held: list[tuple[Thread, Callable[[], None]]] = []
        """What happens when the process continues."""
        self._wanted = 0
        """The number of starts and ends: each takes back a start that still waits for ZooKeeper."""
        zookeeper.network.add_host(self.host, self._on_peer_heal)

    @property
    def zookeeper(self) -> ZooKeeperAssembly:
        """The part of the core that concerns ZooKeeper."""
        assert self.core.zookeeper is not None
        return self.core.zookeeper

    @property
    def session_id(self) -> int | None:
        """Its session, as far as the core knows."""
        return self.zookeeper.session.session_id

    @property
    def serves(self) -> bool:
        """Whether requests are executed at once."""
        return self.up and not self.is_stopped and not self.core.catalog.faults.frozen

    # -- the process ------------------------------------------------------------------------------------------------------

    def start_when_possible(self) -> None:
        """Start a process as soon as ZooKeeper can be reached."""
        if not self.up:
            self._wanted += 1
            self._try_start(self._wanted)

    def _try_start(self, wanted: int) -> None:
        if self.up or wanted != self._wanted:
            return
        if self._zookeeper.up and self._network.reaches(self.host, HOST):
            self.start()
        else:
            self._clock.after(RESTART, lambda: self._try_start(wanted))

    def start(self, registered: Sequence[TopicRegistration] | None = None) -> None:
        """Start a process. ``registered``: the topics that it has read before; by default those in ZooKeeper now."""
        self.up, self.registered, self.asked = True, [], []
        joined = self._joined() if registered is None else (registered, None)
        self.client = self._zookeeper.client(
            self.host, self._session_timeout, self._post_of_next_process(), partial(self._when_runs, Thread.ZOOKEEPER)
        )
        self._start_process(self.store, self._endpoint, joined)
        self.client.start()
        self._note_up(True)

    def kill(self) -> None:
        """End like kill -9: files stay, connections break, the session expires."""
        self._wanted += 1
        if not self.up:
            return
        self.up = self.is_stopped = False
        self._held.clear()
        self._process.kill()
        self.client.kill()
        self._note_up(False)
        for connection in list(self._connections.values()):
            self._break(connection, "the broker died")

    def sigstop(self) -> None:
        """Stop all threads, as SIGSTOP does. What arrives waits in buffers."""
        self.is_stopped = True

    def sigcont(self, first: Thread) -> None:
        """Let the threads continue. ``first``: the one that runs before the other."""
        self.is_stopped = False
        held, self._held = self._held, []
        for _, action in sorted(held, key=lambda one: one[0] is not first):
            self._clock.after(0, action)

    def expire_session(self) -> None:
        """End the session with ZooKeeper, as an operator can."""
        if self.client.session_id is not None:
            self._zookeeper.expire(self.client.session_id)

    def _joined(self) -> tuple[Sequence[TopicRegistration], int]:
        """Read the topics, and take producer ids, as a start does before it opens the files."""
        session_id = self._zookeeper.model.open(self._session_timeout, self._clock.now)
        joined = _at_once(self._zookeeper, session_id, join(self.node_id, self._cluster_id, self.store.cluster_id))
        found, self._cluster_id = _at_once(self._zookeeper, session_id, read_topics(joined)), joined.cluster_id
        self._zookeeper.closed(session_id)
        return found.topics_with(self.store.read_catalog().topics), joined.first_producer_id

    def _post_of_next_process(self) -> Callable[[SessionReport], None]:
        """Return what takes the reports of the client of the process that is about to start."""
        wanted = self._wanted

        def post(report: SessionReport) -> None:
            if self.up and wanted == self._wanted:
                self._process.take(self.core.on_session_report(report, self._clock.now))

        return post

    # -- what waits while it is stopped -----------------------------------------------------------------------------------

    def _when_runs(self, thread: Thread, action: Callable[[], None]) -> None:
        if self.is_stopped:
            self._held.append((thread, partial(self._when_runs, thread, action)))
        elif self.up:
            self._acts()
            action()

    def _when_running(self, action: Callable[[], None]) -> None:
        self._when_runs(Thread.LOOP, action)

    def hang_up(self, number: int) -> None:
        """Handle the end of a connection that the client has closed or lost."""
        if self.up:
            self._when_running(partial(super().hang_up, number))
        else:
            self._connections.pop(number, None)

    def receive(self, number: int, data: bytes) -> None:
        """Receive bytes from a client."""
        self._when_running(partial(super().receive, number, data))

    # -- the rest ---------------------------------------------------------------------------------------------------------

    def _acts(self, node_id: int | None = None) -> None:
        self._clock.acting = self.host

    def _on_peer_heal(self, peer: str) -> None:
        if not self.up:
            return
        if peer == HOST:
            self.client.on_heal()
        else:
            self._on_heal(self.node_id, peer)

    def _perform(self, effect: BrokerEffect) -> None:
        match effect:
            case Perform(number, operation):
                self.asked.append(operation)
                self.client.perform(number, operation)
            case Disconnect():
                self.client.disconnect()
            case Registered():
                self.registered.append(effect)
            case _:
                super()._perform(effect)


def _at_once(zookeeper: SimZooKeeper, session_id: int, call: Call[ResultT]) -> ResultT:
    """Execute a call in no time."""

    def outcome(operation: Operation[Any]) -> Any:
        executed = zookeeper.execute(session_id, operation)
        assert executed is not None, "a new session is connected with the leader"
        return executed.result if executed.error is None else executed.error

    steps = call()
    try:
        operations = next(steps)
        while True:
            operations = steps.send([outcome(operation) for operation in operations])
    except StopIteration as done:
        result: ResultT = done.value
        return result
