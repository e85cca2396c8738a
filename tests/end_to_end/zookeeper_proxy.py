"""A proxy in front of a ZooKeeper server that loses connections at a chosen moment.

Owns the moments: before the server gets a multi, or when the client should get the answer. Must not know what the multi does.
Invariant: apart from the lost connections, both sides get each other's frames as they are.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MULTI = 14
"""The type of the request, which its second number says."""


class Lose(enum.Enum):
    """When the connection is lost."""

    BEFORE = "the server does not get the multi"
    AFTER = "the server executes it, and the client does not get the answer"


class LossyProxy:
    """See the module. ``losses`` are taken from the left, one for each multi."""

    def __init__(self, listener: socket.socket, server: tuple[str, int]) -> None:
        self.losses: list[Lose | None] = []
        self.multis = 0
        """The number of multis that clients have sent."""
        self.connect_string = "{}:{}".format(*listener.getsockname())
        self._listener, self._server = listener, server
        self._open: list[socket.socket] = []
        self._cut = False

    def serve(self) -> None:
        """Accept connections, each with one of its own to the server."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if self._cut:
                        raise ConnectionRefusedError
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                lost: set[int] = set()
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, lost), daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and each new one, until ``restore``."""
        self._cut = True
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def restore(self) -> None:
        """Accept connections again."""
        self._cut = False

    def _requests(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        for frame in _frames(client, server):
            number, kind = struct.unpack_from(">ii", frame)
            if kind == MULTI:
                self.multis += 1
                loss = self.losses.pop(0) if self.losses else None
                if loss is Lose.BEFORE:
                    return
                if loss is Lose.AFTER:
                    lost.add(number)
            _send(server, frame)

    def _answers(self, client: socket.socket, server: socket.socket, lost: set[int]) -> None:
        for frame in _frames(server, client):
            if struct.unpack_from(">i", frame)[0] in lost:
                return
            _send(client, frame)


@contextmanager
def lossy_proxy(connect_string: str) -> Iterator[LossyProxy]:
    """A proxy in front of a server."""
    host, _, port = connect_string.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = LossyProxy(listener, (host, int(port)))
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)


def _send(target: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # it was closed meanwhile; the other direction ends, and this one with it
        target.sendall(struct.pack(">i", len(frame)) + frame)


def _frames(source: socket.socket, other: socket.socket) -> Iterator[bytes]:
    """The frames that arrive, until either side closes or the caller ends; then both are closed."""
    try:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while len(length := stream.read(4)) == 4:
                yield stream.read(struct.unpack(">i", length)[0])
    finally:
        for one in (source, other):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
