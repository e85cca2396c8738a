"""Signed messages: how tasks talk to the planner process.

Owns the form of a question and its answer on a TCP connection. Must not know what is asked. Invariants: a message is decoded only
if it was signed with the key that Spark sends from the driver to its tasks, and an answer only if it belongs to its question;
messages are JSON, so that decoding one runs no code. They are not encrypted: they hold offsets and names of topics, and the
driver sends options, with passwords in them, over the loopback interface alone.
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
"""Bytes of the largest messages. A question is read before it is known who sent it."""

REQUEST, RESPONSE = b"question", b"answer"


class WrongSignatureError(Exception):
    """The message is not from someone who has the key."""

    def __init__(self) -> None:
        super().__init__("the message is not signed with the key")


def send(stream: BufferedIOBase, key: bytes, purpose: bytes, message: bytes) -> None:
    """Write one message: its length, its signature, itself."""
    signature = hmac.digest(key, purpose + message, "sha256")
    stream.write(struct.pack(">I", len(message)) + signature + message)
    stream.flush()


def receive(stream: BufferedIOBase, key: bytes, purpose: bytes, *, most: int) -> bytes:
    """Read one message of at most ``most`` bytes.

    Raises ``EOFError`` where the connection ends, ``WrongSignatureError`` for what the key did not sign.
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
    found = stream.read(count)
    if len(found) < count:
        raise EOFError("the connection ended inside a message")
    return found


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
            self._stream.close()  # sends what an earlier error has left unsent

    def ask(self, question: dict[str, Any], *, timeout: float) -> Any:
        """The answer to ``question``. Raises ``OSError`` and ``EOFError``, ``WrongSignatureError`` where the peer lacks the key."""
        self._socket.settimeout(timeout)
        nonce = secrets.token_hex(16)
        send(self._stream, self._key, REQUEST, json.dumps({**question, "nonce": nonce}).encode())
        return json.loads(receive(self._stream, self._key, RESPONSE + nonce.encode(), most=MAX_RESPONSE))
