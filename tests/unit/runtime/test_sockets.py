"""The sockets of a client, one pass at a time: how much is read in a pass, and how sockets are closed."""

from __future__ import annotations

import contextlib
import errno
import random
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.connections.connections import Connections
from ottla.client.effects import AnyNode, AnySend, Close, Connect, Poll, Send, Write
from ottla.config import ClientConfig
from ottla.protocol import rpcs
from ottla.protocol.messages import heartbeat_request
from ottla.runtime import clock, sockets
from ottla.runtime.sockets import Sockets
from ottla.types import Now


class CountingConnections(Connections):
    """Records the number of bytes of each report."""

    counts: list[int]

    def on_received(self, connection_id: int, count: int, now: Now) -> bool:
        self.counts.append(count)
        return super().on_received(connection_id, count, now)


class IdleManager:
    """A request manager without requests of its own."""

    def poll(self, now: Now) -> Poll:
        return Poll()


def heartbeat() -> AnySend:
    """A request that gets no response."""

    def on_outcome(outcome: object, now: Now) -> None:
        raise AssertionError("neither a response nor a failure is expected")

    message = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return Send(rpcs.HEARTBEAT, message, AnyNode(), 10_000, on_outcome, on_outcome)


class Line:
    """A ``Sockets`` with one connection to a socket of the test, ``peer``."""

    def __init__(self, **settings: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            config = ClientConfig.parse(bootstrap_servers=address, **settings)
            self.connections = CountingConnections(config, random.Random(1))
            self.connections.counts = []
            self.sockets = Sockets(config, self.connections, clock.now)
            self.connections.enqueue(IdleManager(), heartbeat(), clock.now())
            self.step()
            self.peer, _ = server.accept()
        self.peer.settimeout(60)
        self.step()
        self.step()
        assert self.peer.recv(10_000), "the client's ApiVersions request"

    def step(self) -> None:
        """Perform the effects of the core, then read and write once."""
        for effect in self.connections.poll(clock.now()).effects:
            match effect:
                case Connect(connection_id, address, connection, host):
                    self.sockets.connect(connection_id, address, connection, host)
                case Write(connection_id, pieces):
                    self.sockets.write(connection_id, pieces)
                case Close(connection_id, _):
                    self.sockets.close(connection_id)
        self.news = self.sockets.wait(0.2)

    def close(self) -> None:
        self.peer.close()
        self.sockets.close_all()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


def test_one_pass_reads_no_more_than_its_budget(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "READ_BUDGET", 10_000)
    line.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    line.peer.sendall(struct.pack(">i", 1 << 20) + bytes(300_000))
    line.step()
    assert 10_000 <= sum(line.connections.counts) <= 10_000 + (1 << 16)
    while sum(line.connections.counts) < 300_004:
        before = sum(line.connections.counts)
        line.step()
        assert sum(line.connections.counts) > before, "the next pass reads the rest"


def test_a_long_response_is_read_in_few_calls(line: Line) -> None:
    size = 2_000_000
    line.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    line.peer.sendall(struct.pack(">i", size) + bytes(size))
    while sum(line.connections.counts) < size + 4:
        before = sum(line.connections.counts)
        line.step()
        assert sum(line.connections.counts) > before
    assert len(line.connections.counts) < 20, "the buffer grows in three steps, and all bytes have already arrived"


def test_a_long_read_ends_after_its_timeout(line: Line) -> None:
    line.peer.sendall(struct.pack(">i", 2_000_000) + bytes(100_000))
    while sum(line.connections.counts) < 100_004:
        line.step()
    began = time.monotonic()
    line.peer.sendall(bytes(30_000))
    while sum(line.connections.counts) < 130_004:
        line.step()
    assert time.monotonic() - began < 30, "the blocking call has a timeout"


def test_a_pass_stops_when_the_socket_is_empty(line: Line) -> None:
    line.peer.sendall(struct.pack(">i", 1 << 20) + bytes(100))
    line.step()
    assert line.connections.counts == [4, 100]


def test_a_connection_that_violates_the_protocol_is_closed(line: Line) -> None:
    line.peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 100)
    line.step()
    assert line.connections.counts == [4]
    line.step()
    with contextlib.suppress(ConnectionResetError):
        assert line.peer.recv(1) == b"", "it is closed"


def test_the_end_of_the_stream_is_reported_once(line: Line) -> None:
    line.peer.close()
    line.step()
    (reason,) = line.connections.brokers.failures().values()
    assert reason.startswith("the peer closed the connection before it answered ApiVersions")
    assert line.connections.failures == 1
    line.sockets.wait(0)
    assert line.connections.failures == 1


def test_a_write_that_fails_ends_the_next_wait(line: Line) -> None:
    line.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.peer.close()
    (connection_id,) = line.sockets._transports
    line.sockets.write(connection_id, [b"after a reset"])
    assert line.connections.failures == 1
    began = time.monotonic()
    assert line.sockets.wait(30), "the core has to look at the failure"
    assert time.monotonic() - began < 10


def test_socket_buffers_have_the_system_default_unless_set() -> None:
    def receive_buffer(line: Line) -> int:
        (opened,) = (key.fileobj for key in line.sockets._selector.get_map().values() if key.data is not None)
        assert isinstance(opened, socket.socket)
        return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    usual, small = Line(), Line(receive_buffer_bytes=16_384)
    assert receive_buffer(small) < receive_buffer(usual)
    usual.close()
    small.close()


def test_a_socket_that_the_selector_does_not_accept_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with socket.create_server(("127.0.0.1", 0)) as server:
        config = ClientConfig.parse(bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}")
        connections = Connections(config, random.Random(1))
        mine = Sockets(config, connections, clock.now)
        connections.enqueue(IdleManager(), heartbeat(), clock.now())
        (effect,) = connections.poll(clock.now()).effects
        assert isinstance(effect, Connect)
        monkeypatch.setattr(selectors.DefaultSelector, "register", register)
        mine.connect(effect.connection_id, effect.address, effect.connection, effect.host)
        mine.close_all()
        assert "No space left on device" in str(connections.brokers.unreachable())
        server.settimeout(30)
        peer, _ = server.accept()
        with peer:
            assert peer.recv(1) == b""
