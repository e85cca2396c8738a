"""Proxies pass bytes on as they are, after they were counted, and close what has lost its other side."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ottla.comparison.proxies import HOST, Proxy, serving
from ottla.comparison.wire import Meter, Tally

PATIENCE = 60
MANY = bytes(range(256)) * 256


class Recorder(Meter):
    """Keeps what passes by."""

    def __init__(self) -> None:
        super().__init__(Tally())
        self.sent = self.received = b""

    def to_server(self, data: bytes) -> None:
        self.sent += data

    def to_client(self, data: bytes) -> None:
        self.received += data

    def _on_request(self, frame: bytes) -> None: ...

    def _on_response(self, frame: bytes) -> None: ...


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@contextmanager
def proxied(recorder: Recorder) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and a server, with a proxy between them."""
    with socket.create_server((HOST, 0)) as listener:
        proxy = Proxy(listener.getsockname()[1], lambda: recorder)
        with serving(proxy), connect(proxy) as client:
            server = listener.accept()[0]
            server.settimeout(PATIENCE)
            with server:
                yield client, server


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE)


def test_bytes_arrive_as_they_are_and_were_counted_before(recorder: Recorder) -> None:
    with proxied(recorder) as (client, server):
        client.sendall(b"abc")
        assert server.recv(100) == recorder.sent == b"abc"
        server.sendall(b"\0\1")
        assert client.recv(100) == recorder.received == b"\0\1"


def test_all_bytes_arrive_before_the_end(recorder: Recorder) -> None:
    with proxied(recorder) as (client, server):
        client.sendall(MANY)
        client.shutdown(socket.SHUT_WR)
        assert read_all(server) == MANY
        assert read_all(client) == b""


def test_the_end_of_the_server_is_the_end_of_the_client(recorder: Recorder) -> None:
    with proxied(recorder) as (client, server):
        server.sendall(b"last words")
        server.close()
        assert read_all(client) == b"last words"


def test_a_reset_ends_both(recorder: Recorder) -> None:
    with proxied(recorder) as (client, server):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert read_all(server) == b""


def test_without_a_server_a_client_is_closed_and_served_when_there_is_one(recorder: Recorder) -> None:
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]
    proxy = Proxy(port, lambda: recorder)
    with serving(proxy):
        with connect(proxy) as client:
            assert read_all(client) == b""
        with socket.create_server((HOST, port)) as listener, connect(proxy) as client:
            server = listener.accept()[0]
            with server:
                client.sendall(b"abc")
                assert server.recv(100) == b"abc"


def test_the_end_of_the_proxies_closes_connections_and_frees_the_address(recorder: Recorder) -> None:
    with socket.create_server((HOST, 0)) as listener:
        proxy = Proxy(listener.getsockname()[1], lambda: recorder)
        with serving(proxy):
            client = connect(proxy)
            server = listener.accept()[0]
        with client, server:
            assert read_all(client) == read_all(server) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)


def read_all(source: socket.socket) -> bytes:
    """What arrives until the end."""
    source.settimeout(PATIENCE)
    return b"".join(iter(lambda: source.recv(1 << 16), b""))
