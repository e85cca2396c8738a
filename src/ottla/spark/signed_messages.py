"""The signed messages between Spark tasks and the planner process.

Owns the framing of requests and responses on a TCP connection. Must not know their content. Invariants: a message is decoded only
if it is signed with the key that Spark sends from the driver to its tasks, and a response only if it has the nonce of its request;
messages are JSON, so decoding runs no code. They are not encrypted: they contain offsets and topic names. Options, which may have
passwords, are sent by the driver over the loopback interface only.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import struct
from io import BufferedIOBase
from typing import Any, Self

KEY_SIZE = SIGNATURE = 32
"""Bytes of a key, and of a signature (HMAC with SHA-256)."""

MAX_REQUEST, MAX_RESPONSE = 16 * 2**20, 256 * 2**20
"""Bytes of the largest messages. The limit of requests is low, as they are read before their signature is checked."""

REQUEST, RESPONSE = b"request", b"response"
"""The first bytes of the signed data. They differ, so a request cannot be replayed as a response."""


class WrongSignatureError(Exception):
    """The sender of the message does not have the key."""

    def __init__(self) -> None:
        super().__init__("the message is not signed with the key")


def send(stream: BufferedIOBase, key: bytes, purpose: bytes, message: bytes) -> None:
    """Write one message: length, signature, content."""
    signature = hmac.digest(key, purpose + message, "sha256")
    stream.write(struct.pack(">I", len(message)) + signature + message)
    stream.flush()


def receive(stream: BufferedIOBase, key: bytes, purpose: bytes, *, most: int) -> bytes:
    """Read one message of at most ``most`` bytes.

    Raises ``EOFError`` at the end of the connection, and ``WrongSignatureError`` for a wrong signature or a longer message.
    """
    head = _read(stream, 4 + SIGNATURE)
    (length,) = struct.unpack(">I", head[:4])
    if length > most:
        raise WrongSignatureError
    message = _read(stream, length)
    if not hmac.compare_digest(head[4:], hmac.digest(key, purpose + message, "sha256")):
        raise WrongSignatureError
    return message


def _read(stream: BufferedIOBase, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the connection ended inside a message")
    return data


class SignedConnection:
    """A client's end of a connection. A context manager."""

    def __init__(self, address: tuple[str, int], key: bytes, *, timeout: float) -> None:
        self._key = key
        self._socket = socket.create_connection(address, timeout=timeout)
        self._stream = self._socket.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._socket, contextlib.suppress(OSError):
            self._stream.close()  # may raise: it flushes data that an earlier error has left in the buffer

    def request(self, request: dict[str, Any], *, timeout: float) -> Any:
        """Send ``request`` and return the response. Raises ``OSError``, ``EOFError``, and ``WrongSignatureError`` if the peer does
        not have the key."""
        self._socket.settimeout(timeout)
        nonce = secrets.token_hex(16)
        send(self._stream, self._key, REQUEST, json.dumps({**request, "nonce": nonce}).encode())
        return json.loads(receive(self._stream, self._key, RESPONSE + nonce.encode(), most=MAX_RESPONSE))
