"""Requests as bytes and responses as messages, with kio alone and no code of Ottla: the same load for every broker."""

from __future__ import annotations

import importlib
import io
import socket
import struct
from typing import Any

from kio.serial import entity_reader, entity_writer

_LENGTH = struct.Struct(">i")


class Api:
    """One version of one API: ``request(...)`` returns a frame, ``response(frame)`` the message in it."""

    def __init__(self, name: str, version: int) -> None:
        self.requests: Any = importlib.import_module(f"kio.schema.{name}.v{version}.request")
        self.responses: Any = importlib.import_module(f"kio.schema.{name}.v{version}.response")
        title = "".join(word.capitalize() for word in name.split("_"))
        self._request: Any = getattr(self.requests, title + "Request")
        self._response: Any = getattr(self.responses, title + "Response")

    def request(self, correlation_id: int, **fields: Any) -> bytes:
        """Return a frame with its length."""
        cls, target = self._request, io.BytesIO()
        head = cls.__header_schema__(
            request_api_key=cls.__api_key__, request_api_version=cls.__version__, correlation_id=correlation_id, client_id="load"
        )
        entity_writer(type(head))(target, head)
        entity_writer(cls)(target, cls(**fields))
        return _LENGTH.pack(target.tell()) + target.getvalue()

    def response(self, frame: bytes) -> Any:
        """Return the message in a frame."""
        _, size = entity_reader(self._response.__header_schema__)(frame, 0)
        return entity_reader(self._response)(frame, size)[0]


class Lane:
    """One connection."""

    def __init__(self, servers: str) -> None:
        host, port = servers.rsplit(":", 1)
        self.sock = socket.create_connection((host, int(port)), timeout=300)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def frame(self) -> bytes:
        """Receive the next frame and return it without its length."""
        while True:
            if len(self._rest) >= 4:
                end = 4 + _LENGTH.unpack_from(self._rest)[0]
                if len(self._rest) >= end:
                    frame, self._rest = self._rest[4:end], self._rest[end:]
                    return frame
            self._rest += received(self.sock)

    def ask(self, api: Api, **fields: Any) -> Any:
        """Send a request and return the response."""
        self.sock.sendall(api.request(1, **fields))
        return api.response(self.frame())


def received(sock: socket.socket) -> bytes:
    """Receive bytes. Raises ``ConnectionError`` if the broker has closed the connection."""
    data = sock.recv(1 << 18)
    if not data:
        raise ConnectionError("the broker has closed a connection of the load generator")
    return data
