"""A proxy in front of a broker that changes the broker's answers.

Owns the connections, and which request each answer is for. Must not know how an answer is changed. Invariant: requests, and answers
of versions that Ottla does not speak, are passed on as they are.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Self

from ottla.protocol.apis import SPOKEN, Api


class AnswerProxy:
    """See the module. Subclasses change the answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())

    @contextlib.contextmanager
    def in_front_of(self, broker: str) -> Iterator[Self]:
        """Pass on what arrives within the block, and no connections after it."""
        with self._listener:
            threading.Thread(target=self._serve, args=(broker,), daemon=True).start()
            yield self
            self._listener.shutdown(socket.SHUT_RDWR)

    def changed(self, api: Api, version: int, answer: bytes) -> bytes:
        """Return what the client gets instead of an answer, without its length. Until then the connection waits."""
        raise NotImplementedError

    def _serve(self, broker: str) -> None:
        """Accept connections, each with one of its own to the broker."""
        host, port = broker.rsplit(":", 1)
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection((host, int(port)))
                asked: dict[int, tuple[Api, int]] = {}
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, asked), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, asked: dict[int, tuple[Api, int]]) -> None:
        with contextlib.suppress(OSError):  # the receiver may close first
            for frame in _frames(client, server):
                key, version, number = struct.unpack_from(">hhi", frame)
                if version in SPOKEN[Api(key)]:
                    asked[number] = Api(key), version
                server.sendall(struct.pack(">i", len(frame)) + frame)

    def _answers(self, client: socket.socket, server: socket.socket, asked: dict[int, tuple[Api, int]]) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(server, client):
                (number,) = struct.unpack_from(">i", frame)
                answer = self.changed(*asked.pop(number), frame) if number in asked else frame
                client.sendall(struct.pack(">i", len(answer)) + answer)


def _frames(source: socket.socket, other: socket.socket) -> Iterator[bytes]:
    """The frames that arrive, until either side closes; then both are closed."""
    with contextlib.suppress(OSError), source, other, source.makefile("rb") as stream:
        while len(length := stream.read(4)) == 4:
            yield stream.read(struct.unpack(">i", length)[0])
        for one in (source, other):
            one.shutdown(socket.SHUT_RDWR)
