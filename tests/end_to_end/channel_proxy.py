"""A proxy in front of a broker that says what the other side of a channel would never say.

Owns the connections, and the place between two frames where something is put in. Must not know what a frame means, apart from the
Register that opens a channel. Invariant: apart from what is put in, both sides get each other's frames as they are.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.protocol.apis import Api


class Link:
    """A connection of a client, and that of the proxy to the broker for it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client, self.broker = client, broker
        self.is_channel = self.is_closed = False
        self._register = b""
        """The correlation id of the Register."""
        self._locks = {client: threading.Lock(), broker: threading.Lock()}

    def send(self, target: socket.socket, data: bytes) -> None:
        """Send bytes to a side, between two frames."""
        with contextlib.suppress(OSError), self._locks[target]:
            target.sendall(data)

    def forward(self, source: socket.socket, target: socket.socket) -> None:
        """Pass the frames of a side on, until either side closes."""
        try:
            with contextlib.suppress(OSError), source.makefile("rb") as stream:
                while len(length := stream.read(4)) == 4:
                    frame = stream.read(struct.unpack(">i", length)[0])
                    if source is self.client and struct.unpack_from(">h", frame)[0] == Api.REGISTER:
                        self._register = frame[4:8]
                    self.send(target, length + frame)
                    # Not before its response: what is put in earlier would be taken for it, and be an error of the member's. A
                    # response to an earlier request may pass between the Register and this line.
                    self.is_channel |= source is self.broker and frame[:4] == self._register
        finally:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        for one in (self.client, self.broker):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class ChannelProxy:
    """See the module. ``address`` is that of the proxy, ``target`` that of the broker."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self.address = "{}:{}".format(*listener.getsockname())
        self._listener, self._target = listener, target
        self._links: list[Link] = []

    def serve(self) -> None:
        """Accept connections."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    link = Link(client, socket.create_connection(self._target))
                except OSError:
                    client.close()
                    continue
                self._links.append(link)
                for ends in ((link.client, link.broker), (link.broker, link.client)):
                    threading.Thread(target=link.forward, args=ends, daemon=True).start()

    def channels(self) -> list[Link]:
        """The channels that are open."""
        return [link for link in self._links if link.is_channel and not link.is_closed]

    def close(self) -> None:
        for link in self._links:
            link.close()


@contextmanager
def channel_proxy(host: str, port: int) -> Iterator[ChannelProxy]:
    """A proxy in front of a broker, which need not run yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ChannelProxy(listener, (host, port))
        threading.Thread(target=proxy.serve, daemon=True).start()
        try:
            yield proxy
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            proxy.close()
