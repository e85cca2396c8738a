"""The simulator's model of ZooKeeper against a real server: random histories have the same results, errors, stats and watches."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings, strategies as st

from ottla.errors import ZooKeeperError
from ottla.runtime.zookeeper import ZooKeeperClient
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.simulation.zookeeper import Executed, Fired, ZooKeeperModel
from ottla.types import Now
from ottla.zookeeper.operations import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Node,
    Operation,
    SetData,
    Stat,
    Sync,
)
from ottla.zookeeper.session import Ask, Session, SessionReport, SessionState, WatchFired
from tests.example_counts import examples

pytestmark = pytest.mark.long

CLIENTS = 3
LIMIT = 20.0
"""Seconds that a real server may take for one step."""
NOW = Now(0, 0)
SESSION_TIMEOUT = 30_000
NAMES = ("/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/deep")


class Step(NamedTuple):
    """One client executes an operation, or closes its session and opens another (``None``)."""

    client: int
    operation: Operation[Any] | None


class Outcome(NamedTuple):
    """The outcome of a step: the result or error of the operation, and the watches that each client saw."""

    result: object
    watches: list[list[tuple[str, str]]]


class Client:
    """A session on a real server, whose reports this thread applies."""

    def __init__(self, hosts: str) -> None:
        self._reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._shell = ZooKeeperClient(hosts, SESSION_TIMEOUT, self._reports.put)
        self._outcomes: list[object] = []
        self.session = Session(SESSION_TIMEOUT)
        self.fired: list[WatchFired] = []
        self._shell.start()
        while self.session.state is not SessionState.CONNECTED:
            self._apply_next()

    def execute(self, operation: Operation[Any]) -> object:
        """The result of an operation, or its error."""
        self._outcomes.clear()
        outcome = Ask(operation, 60_000, lambda result, now: self._outcomes.append(result), lambda e, now: self._outcomes.append(e))
        self.session.ask(self, outcome, NOW)
        for effect in self.session.poll(NOW).effects:
            self._shell.perform(effect)
        while not self._outcomes:
            self._apply_next()
        return self._outcomes.pop()

    def watches(self, count: int) -> list[tuple[str, str]]:
        """The watches that have fired, at least ``count``, sorted: kazoo's threads and a closing session have no order."""
        while len(self.fired) < count:
            self._apply_next()
        fired, self.fired = self.fired, []
        return sorted((watch.watch.name, watch.path) for watch in fired)

    def close(self) -> None:
        self._shell.close()

    def _apply_next(self) -> None:
        report = self._reports.get(timeout=LIMIT)
        assert isinstance(report, SessionReport)
        report.apply(self.session, NOW)
        self.fired += [event for event in self.session.take_events() if isinstance(event, WatchFired)]
        for _, ask, result, error in self.session.take_completions():
            if error is None:
                ask.on_result(result, NOW)
            else:
                ask.on_failure(error, NOW)


class RealServer:
    """The same clients for all histories, each of which has a node of its own."""

    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._bases = itertools.count(1)
        self.clients = [Client(hosts) for _ in range(CLIENTS)]

    def new_base(self) -> str:
        return f"/history-{next(self._bases)}"

    def run(self, step: Step, expected: Outcome) -> Outcome:
        """Run a step, and wait for as many watches as expected; more of them are seen at the next step."""
        client = self.clients[step.client]
        if step.operation is not None:
            result = client.execute(step.operation)
        else:
            client.close()
            self.clients[step.client], result = Client(self._hosts), None
        watches = [client.watches(len(fired)) for client, fired in zip(self.clients, expected.watches, strict=True)]
        return Outcome(result, watches)


class Model:
    """The model with as many sessions."""

    def __init__(self) -> None:
        self._model = ZooKeeperModel()
        self.sessions = [self._model.open(SESSION_TIMEOUT, NOW) for _ in range(CLIENTS)]

    def run(self, step: Step) -> Outcome:
        if step.operation is not None:
            executed = self._model.execute(self.sessions[step.client], step.operation, NOW)
        else:
            executed = Executed(None, None, self._model.close(self.sessions[step.client]))
            self.sessions[step.client] = self._model.open(SESSION_TIMEOUT, NOW)
        result = executed.result if executed.error is None else executed.error
        return Outcome(result, [self._watches(executed.fired, session_id) for session_id in self.sessions])

    def _watches(self, fired: tuple[Fired, ...], session_id: int) -> list[tuple[str, str]]:
        return sorted((one.watch.name, one.path) for one in fired if one.session_id == session_id)


class Comparable:
    """Makes the results of one side comparable: sessions by the number of their client, transactions by their order."""

    def __init__(self) -> None:
        self.transactions: list[int] = []

    def form(self, result: object, sessions: list[int | None]) -> object:
        match result:
            case ZooKeeperError(code=code, path=path, index=index):
                return code, path, index
            case Stat():
                owner = sessions.index(result.ephemeral_owner) if result.ephemeral_owner else None
                self.transactions += [result.czxid, result.mzxid]
                return result.version, result.cversion, owner
            case Node(data, stat):
                return data, self.form(stat, sessions)
            case Children(names, stat):
                return sorted(names), self.form(stat, sessions)
            case tuple():
                return [self.form(one, sessions) for one in result]
        return result

    def order(self) -> list[int]:
        ranks = {zxid: rank for rank, zxid in enumerate(sorted(set(self.transactions)))}
        return [ranks[zxid] for zxid in self.transactions]


@pytest.fixture(scope="module")
def server(zookeeper_server: ZooKeeperServer) -> Iterator[RealServer]:
    server = RealServer(zookeeper_server.connect_string)
    yield server
    for client in server.clients:
        client.close()


paths = st.sampled_from(NAMES)
versions = st.sampled_from([-1, -1, 0, 1, 2])
data = st.sampled_from([b"", b"1", b"{}"])
watch = st.booleans()
writes = st.one_of(
    st.builds(Create, paths, data, st.booleans()),
    st.builds(Create, paths, data),
    st.builds(Delete, paths, versions),
    st.builds(SetData, paths, data, versions),
)
parts = st.one_of(writes, st.builds(Check, paths, versions))
reads = st.one_of(st.builds(GetData, paths, watch), st.builds(Exists, paths, watch), st.builds(GetChildren, paths, watch))
operations = st.one_of(
    writes, reads, reads, st.builds(Sync, paths), st.lists(parts, min_size=1, max_size=4).map(tuple).map(Multi), parts
)
clients = st.integers(0, CLIENTS - 1)
steps = st.one_of(*[st.builds(Step, clients, operations)] * 12, st.builds(Step, clients, st.none()))

WATCHES_OF_EACH_TYPE = [
    Step(0, Exists("/a", watch=True)),
    Step(1, GetData("/a", watch=True)),  # fails and sets no watch
    Step(2, Multi((Create("/a"), Create("/a/x", ephemeral=True), Delete("/a/x")))),
    Step(0, GetData("/a", watch=True)),
    Step(0, Exists("/a", watch=True)),
    Step(0, GetChildren("/a", watch=True)),
    Step(1, GetChildren("/a", watch=True)),
    Step(0, SetData("/a", b"1")),
    Step(1, Create("/a/y", ephemeral=True)),
    Step(0, GetChildren("/a", watch=True)),
    Step(2, GetChildren("/a", watch=True)),
    Step(1, None),
    Step(0, Exists("/a", watch=True)),
    Step(0, GetChildren("/a", watch=True)),
    Step(2, Delete("/a")),
]

REFUSED = [
    Step(0, Create("/a", ephemeral=True)),
    Step(0, Multi((Create("/b"), SetData("/b", b"1"), Create("/a/x")))),
    Step(0, Multi((Create("/b"), Create("/b/x"), Delete("/b/x"), SetData("/a", b"1", 0), Check("/a", 0), Delete("/nothing")))),
    Step(1, GetData("/a")),
    Step(0, Create("/a/x/deep")),
    Step(0, Create("/b")),
    Step(0, Create("/b/x")),
    Step(0, Delete("/b", 1)),
    Step(0, Delete("/b", 0)),
    Step(0, Multi((Delete("/b/x"), Delete("/b"), Create("/b/x")))),
    Step(0, GetChildren("/b")),
]


@settings(max_examples=examples(120))
@given(st.lists(steps, min_size=10, max_size=40))
@example(WATCHES_OF_EACH_TYPE)
@example(REFUSED)
def test_the_model_and_a_real_server_agree(server: RealServer, history: list[Step]) -> None:
    model, base = Model(), server.new_base()
    ours, real = Comparable(), Comparable()
    # The last watch is seen after all earlier ones: so one that fired without need is found, too.
    sentinels = [Step(client, Exists("/end", watch=True)) for client in range(CLIENTS)]
    beginning = Step(0, Create(""))
    for step in [beginning, *history, *sentinels, Step(0, Create("/end"))]:
        placed = Step(step.client, place(step.operation, base))
        expected = model.run(placed)
        outcome = server.run(placed, expected)
        sessions = [client.session.session_id for client in server.clients]
        assert real.form(outcome.result, sessions) == ours.form(expected.result, list(model.sessions)), step
        assert outcome.watches == expected.watches, step
    assert real.order() == ours.order()


def place(operation: Operation[Any] | None, base: str) -> Operation[Any] | None:
    """The operation at a node of this history."""
    match operation:
        case None:
            return None
        case Multi(parts):
            return Multi(tuple(replace(part, path=base + part.path) for part in parts))
    return replace(operation, path=base + operation.path)  # type: ignore[type-var]
