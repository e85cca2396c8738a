"""A client on a bare socket, for requests that a correct client does not send.

Owns the socket and the framing of requests. Must not know the expected responses. Invariant: it neither retries nor corrects
anything.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import RequestHeader, decode_response, encode_request
from tests.simulation.files import content

TIMEOUT = 60.0


class RawClient:
    """One connection. Reading raises ``ConnectionError`` after the broker has closed it."""

    def __init__(self, bootstrap_servers: str, source: str = "") -> None:
        """``source`` is the local address."""
        host, port = bootstrap_servers.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), TIMEOUT, (source, 0) if source else None)
        self._last_id = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.sock.close()

    def send(self, api: Api, message: Any, version: int | None = None) -> tuple[Api, int]:
        """Send a request and return the arguments for ``receive``, without waiting."""
        self._last_id += 1
        version = SPOKEN[api].maximum if version is None else version
        pieces = encode_request(RequestHeader(api, version, self._last_id, "raw"), message)
        self.sock.sendall(b"".join(map(content, pieces)))
        return api, version

    def receive(self, api: Api, version: int) -> tuple[int, Any]:
        """Receive the next response. Returns its correlation id and message."""
        return decode_response(api, version, self.receive_frame())

    def ask(self, api: Api, message: Any, version: int | None = None) -> Any:
        """Send a request and return the response."""
        return self.receive(*self.send(api, message, version))[1]

    def send_frame(self, body: bytes) -> None:
        """Send any bytes as a frame."""
        self.sock.sendall(struct.pack(">i", len(body)) + body)

    def receive_frame(self) -> bytes:
        """Receive the next frame and return it without its length."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def is_closed(self) -> bool:
        """Whether the broker closes this connection without a response."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionError("the broker has closed the connection")
            data += more
        return bytes(data)
