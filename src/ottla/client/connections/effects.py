"""What ``Connections`` asks of the shell, and what it tells the core, as values.

Owns the effects of connections and the completion of a request. Must not know why anything is asked. Invariant: a connection is
named by a number that is never used again, so that a late report of a closed one does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.client.connections.node_connections import Address, Request
from ottla.errors import OttlaError
from ottla.protocol.connection import ClientConnection
from ottla.protocol.framing import Piece
from ottla.protocol.sasl import Prove


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve a name; report ``on_resolved`` or ``on_resolve_failed`` with the same name and port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to an address of ``host``. Bytes read belong in ``connection.get_buffer()``.

    Report ``on_connected`` or ``on_connect_failed``; with TLS ``on_securing`` when TCP is connected, then ``on_connected`` or
    ``on_tls_failed``.
    """

    connection_id: int
    address: Address
    connection: ClientConnection
    host: str


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Answer what the mechanism of this client is asked; report ``on_proved`` or ``on_not_proved``. It may take a while."""

    connection_id: int
    question: Prove


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes, after all that were to be sent before."""

    connection_id: int
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection and report nothing more of it."""

    connection_id: int
    reason: str


Effect = Resolve | Connect | Authenticate | Write | Close


class ConnectionsPoll(NamedTuple):
    """What the shell is to do now, and when to poll again at the latest (monotonic ms; ``None``: on the next event)."""

    effects: list[Effect]
    wake_at: int | None


class Completion(NamedTuple):
    """What became of a ``Send``: an answer, or the error that stands for it."""

    request: Request
    message: Any
    error: OttlaError | None
