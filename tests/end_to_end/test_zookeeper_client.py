"""A manager's operations on a real ZooKeeper, through the network thread and kazoo: results, errors, watches, lost sessions."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.client.core import ClientCore
from ottla.client.effects import Poll
from ottla.config import ClientConfig
from ottla.errors import ConfigError, KeeperCode, OttlaError, ZooKeeperError
from ottla.runtime.network_thread import NetworkThread
from ottla.runtime.zookeeper import ZooKeeperClient
from ottla.runtime.zookeeper_server import ZooKeeperServer
from ottla.types import Now
from ottla.zookeeper import session
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
    Sync,
)
from ottla.zookeeper.session import AnyAsk, Ask, Session, SessionChanged, SessionReport, SessionState, WatchFired, WatchType

pytestmark = pytest.mark.long

LIMIT = 30.0
SESSION_TIMEOUT = 4_000


@dataclass(frozen=True)
class Perform:
    """A command: the member asks for this."""

    operation: Operation[Any]


class Member:
    """A client whose one manager asks for what its commands say. ``seen`` has the outcomes and events, in order."""

    def __init__(self, hosts: str) -> None:
        self.seen: list[Any] = []
        self._wanted: list[AnyAsk] = []
        core = ClientCore(ClientConfig.parse(bootstrap_servers="127.0.0.1:1"), random.Random(1))
        core.add_manager(self)
        core.register(Perform, self._on_perform)
        core.use_zookeeper(Session(SESSION_TIMEOUT))
        core.on_session_event(lambda event, now: self.seen.append(event))
        self.thread = NetworkThread(core, zookeeper=lambda post: ZooKeeperClient(hosts, SESSION_TIMEOUT, post))
        self.thread.start()

    def poll(self, now: Now) -> Poll:
        sends, self._wanted = tuple(self._wanted), []
        return Poll(sends)

    def _on_perform(self, command: Perform, now: Now) -> None:
        self._wanted.append(Ask(command.operation, 10_000, lambda result, now: self.seen.append((result,)), self._on_failure))

    def _on_failure(self, error: OttlaError, now: Now) -> None:
        self.seen.append(error)

    def until(self, condition: Callable[[list[Any]], bool]) -> list[Any]:
        deadline = time.monotonic() + LIMIT
        while not condition(self.seen):
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.005)
        return self.seen

    def ask(self, operation: Operation[Any]) -> Any:
        """The result of an operation, or its error."""
        before = sum(isinstance(one, tuple | OttlaError) and not _is_event(one) for one in self.seen)
        self.thread.submit(Perform(operation))
        seen = self.until(lambda seen: len([one for one in seen if not _is_event(one)]) > before)
        outcome = [one for one in seen if not _is_event(one)][before]
        return outcome if isinstance(outcome, OttlaError) else outcome[0]

    def close(self) -> None:
        assert self.thread.close(LIMIT)


def _is_event(one: object) -> bool:
    return isinstance(one, WatchFired | SessionChanged)


@pytest.fixture
def member(zookeeper_server: ZooKeeperServer) -> Iterator[Member]:
    member = Member(zookeeper_server.connect_string)
    yield member
    member.close()


@pytest.fixture
def other(zookeeper_server: ZooKeeperServer) -> Iterator[Member]:
    other = Member(zookeeper_server.connect_string)
    yield other
    other.close()


def code(outcome: object) -> KeeperCode:
    assert isinstance(outcome, ZooKeeperError), outcome
    return outcome.code


def test_every_operation_and_its_errors(member: Member) -> None:
    assert member.ask(Create("/every")) == "/every"
    assert code(member.ask(Create("/every"))) is KeeperCode.NODEEXISTS
    assert code(member.ask(Create("/no/parent"))) is KeeperCode.NONODE
    assert member.ask(Create("/every/child", b"1", ephemeral=True)) == "/every/child"
    assert code(member.ask(Create("/every/child/below"))) is KeeperCode.NOCHILDRENFOREPHEMERALS
    assert member.ask(SetData("/every/child", b"2", 0)).version == 1
    assert code(member.ask(SetData("/every/child", b"3", 0))) is KeeperCode.BADVERSION
    node = member.ask(GetData("/every/child"))
    assert isinstance(node, Node)
    assert node.data == b"2"
    assert node.stat.ephemeral_owner != 0
    children = member.ask(GetChildren("/every"))
    assert isinstance(children, Children)
    assert (children.names, children.stat.cversion) == (("child",), 1)
    assert member.ask(Exists("/nothing")) is None
    assert code(member.ask(Delete("/every"))) is KeeperCode.NOTEMPTY
    assert member.ask(Sync("/every")) is None
    assert member.ask(Delete("/every/child")) is None
    assert member.ask(Delete("/every")) is None
    assert code(member.ask(Create("/bad\x00"))) is KeeperCode.BADARGUMENTS
    assert code(member.ask(GetData("/.."))) is KeeperCode.BADARGUMENTS


def test_a_multi_executes_all_or_none_and_names_the_operation_that_failed(member: Member) -> None:
    parent, first, second = Create("/multi"), Create("/multi/1"), Create("/multi/2")
    assert member.ask(Multi((parent, Check("/multi"), first))) == ("/multi", None, "/multi/1")
    refused = member.ask(Multi((second, first, Create("/multi/3"))))
    assert code(refused) is KeeperCode.NODEEXISTS
    assert (refused.index, refused.path) == (1, "/multi/1")
    assert member.ask(GetChildren("/multi")).names == ("1",)
    gone = member.ask(Multi((Check("/multi/none"), second)))
    assert (code(gone), gone.index) == (KeeperCode.NONODE, 0)
    assert member.ask(Multi((Delete("/multi/1"), Delete("/multi")))) == (None, None)


def test_watches_of_another_clients_changes(member: Member, other: Member) -> None:
    member.ask(Create("/watched"))
    member.ask(GetChildren("/watched", watch=True))
    member.ask(GetData("/watched", watch=True))
    member.ask(Exists("/watched/child", watch=True))
    other.ask(Create("/watched/child"))
    other.ask(SetData("/watched", b"x"))
    expected = {
        WatchFired(WatchType.CHILDREN, "/watched"),
        WatchFired(WatchType.DATA, "/watched"),
        WatchFired(WatchType.EXIST, "/watched/child"),
    }
    member.until(lambda seen: {one for one in seen if isinstance(one, WatchFired)} == expected)
    for path in ("/watched/child", "/watched"):
        other.ask(Delete(path))
    assert len([one for one in member.seen if isinstance(one, WatchFired)]) == 3


def test_a_closed_client_takes_its_ephemeral_nodes_with_it(member: Member, zookeeper_server: ZooKeeperServer) -> None:
    leaving = Member(zookeeper_server.connect_string)
    leaving.ask(Create("/leaving", ephemeral=True))
    member.ask(Exists("/leaving", watch=True))
    began = time.monotonic()
    leaving.close()
    member.until(lambda seen: WatchFired(WatchType.EXIST, "/leaving") in seen)
    assert time.monotonic() - began < SESSION_TIMEOUT / 1000


def test_a_restarted_server_continues_the_session(member: Member, zookeeper_server: ZooKeeperServer) -> None:
    member.ask(Create("/kept", ephemeral=True))
    zookeeper_server.restart()
    member.until(lambda seen: SessionChanged(SessionState.CONNECTED) in seen)
    events = [one for one in member.seen if isinstance(one, SessionChanged)]
    assert events == [
        SessionChanged(SessionState.CONNECTED, is_new=True),
        SessionChanged(SessionState.SUSPENDED),
        SessionChanged(SessionState.CONNECTED),
    ]
    assert member.ask(Exists("/kept")) is not None


def test_a_server_that_hangs_is_left_and_the_session_goes_on(member: Member, zookeeper_server: ZooKeeperServer) -> None:
    """Kazoo waits for a server that gets operations and answers none."""
    member.until(lambda seen: SessionChanged(SessionState.CONNECTED, True) in seen)
    os.kill(zookeeper_server.pid(), signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        member.until(lambda seen: SessionChanged(SessionState.SUSPENDED) in seen)
        assert time.monotonic() - stopped < SESSION_TIMEOUT / 1000
    finally:
        os.kill(zookeeper_server.pid(), signal.SIGCONT)
    member.until(lambda seen: SessionChanged(SessionState.CONNECTED) in seen)


class Reports:
    """What a client reports, without a session: the numbers of operations, in order."""

    def __init__(self) -> None:
        self.is_connected = False
        self.answered: list[int] = []
        self.failed: list[int] = []

    def post(self, report: SessionReport) -> None:
        report.apply(self, Now(0, 0))  # type: ignore[arg-type]

    def on_connected(self, session_id: int, now: Now) -> None:
        self.is_connected = True

    def on_disconnected(self) -> None:
        self.is_connected = False

    def on_answered(self, number: int, value: object, now: Now) -> None:
        self.answered.append(number)

    def on_failed(self, number: int, error: ZooKeeperError, now: Now) -> None:
        assert error.code is KeeperCode.CONNECTIONLOSS
        self.failed.append(number)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_thousands_of_operations_are_answered_in_order_and_block_nobody_without_a_server() -> None:
    """Kazoo's own queue blocks with some hundred operations while it connects, and with it the thread of a broker."""
    reports = Reports()
    with ZooKeeperServer() as server:
        client = ZooKeeperClient(server.connect_string, SESSION_TIMEOUT, reports.post)
        client.start()
        wait_for(lambda: reports.is_connected)
        for number in range(3_000):
            client.perform(session.Perform(number, Exists("/none")))
        wait_for(lambda: reports.answered == [*range(3_000)])
        server.kill()
        wait_for(lambda: not reports.is_connected)
    sender = threading.Thread(
        target=lambda: [client.perform(session.Perform(number, Exists("/none"))) for number in range(3_000)], daemon=True
    )
    sender.start()
    wait_for(lambda: reports.failed == [*range(3_000)])
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(LIMIT)
    assert not closing.is_alive()


def serve_and_leave(listening: socket.socket, connections: int) -> None:
    """Open a session on each of these connections, and close it at once; then take no more."""
    with listening:
        for _ in range(connections):
            connection, _ = listening.accept()
            with connection:
                (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(length, socket.MSG_WAITALL)
                opened = struct.pack(">iiqi", 0, SESSION_TIMEOUT, 77, 16) + bytes(17)
                connection.sendall(struct.pack(">i", len(opened)) + opened)
                connection.shutdown(socket.SHUT_RDWR)


def test_operations_that_were_dropped_on_short_connections_block_nobody() -> None:
    """Kazoo drops the operations, and keeps the wake-up of each, until it has a connection for longer."""

    class Asking(Reports):
        """It asks a hundred questions as soon as there is a connection, before kazoo can notice its end."""

        def on_connected(self, session_id: int, now: Now) -> None:
            super().on_connected(session_id, now)
            for _ in range(100):
                client.perform(session.Perform(0, Exists("/none")))

    reports = Asking()
    listening = socket.create_server(("127.0.0.1", 0))
    client = ZooKeeperClient(f"127.0.0.1:{listening.getsockname()[1]}", SESSION_TIMEOUT, reports.post)
    threading.Thread(target=serve_and_leave, args=(listening, 8), daemon=True).start()
    client.start()
    wait_for(lambda: len(reports.failed) == 800)
    client.close()


def test_a_list_of_servers_that_is_none_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        ZooKeeperClient("127.0.0.1:port", SESSION_TIMEOUT, lambda report: None)
