"""The effects of ``Connections``, which the shell performs, and the completion of a request, as values.

Must not know why an effect is needed. Invariant: the id of a connection is never used again, since reports may be late:

1. The core closes connection 7, and opens connection 8 to the same broker.
2. Before the shell performs the ``Close``, the peer ends connection 7, and the shell reports that.
3. There is no connection 7 any more, so the report has no effect on connection 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.client.connections.node_connections import Address, PendingRequest
from ottla.errors import OttlaError
from ottla.protocol.connection import ClientConnection
from ottla.protocol.framing import Piece
from ottla.protocol.sasl import SaslChallenge


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve a name; report ``on_resolved`` or ``on_resolve_failed`` with the same name and port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to an address of ``host``. Put received bytes into ``connection.get_buffer()``.

    Report ``on_connected`` or ``on_connect_failed``; with TLS ``on_securing`` when TCP is connected, then ``on_connected`` or
    ``on_tls_failed``.
    """

    connection_id: int
    address: Address
    connection: ClientConnection
    host: str


@dataclass(frozen=True, slots=True)
class Authenticate:
    """Have the SASL mechanism compute its answer; report ``on_sasl_response`` or ``on_sasl_failed``. This may take seconds."""

    connection_id: int
    challenge: SaslChallenge


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes, after those of earlier effects."""

    connection_id: int
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection, and report nothing more about it."""

    connection_id: int
    reason: str


ConnectionEffect = Resolve | Connect | Authenticate | Write | Close


class ConnectionsPoll(NamedTuple):
    """The effects to perform now, and the time of the next poll at the latest (monotonic ms; ``None``: on the next event)."""

    effects: list[ConnectionEffect]
    wake_at: int | None


class CompletedRequest(NamedTuple):
    """The outcome of a ``Send``: a response of the type that its ``Rpc`` names, or an error."""

    request: PendingRequest
    message: Any
    error: OttlaError | None
