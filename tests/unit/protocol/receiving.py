"""The client's side of a connection that has been opened, and what it receives.

Must not know what is tested.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol import NO_THROTTLE, ErrorCode
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.connection import ClientConnection, ConnectionState, Pushed, Response
from ottla.protocol.framing import Piece
from ottla.protocol.messages import api_versions_response


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


def receive(connection: ClientConnection, data: bytes) -> tuple[list[Any], list[Piece]]:
    """Receive bytes; return the responses and the requests of the coordinator, and the bytes to send at once."""
    responses: list[Response | Pushed] = []
    out: list[Piece] = []
    while data:
        buffer = connection.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        buffer.release()
        response, pieces = connection.buffer_updated(count)
        responses += [] if response is None else [response]
        out += pieces
        data = data[count:]
    return responses, out


def versions_answer(header: RequestHeader, **offered: VersionRange) -> bytes:
    keys = tuple(
        api_versions_response.ApiVersion(api_key=Api[name.upper()], min_version=low, max_version=high)
        for name, (low, high) in offered.items()
    )
    message = api_versions_response.ApiVersionsResponse(error_code=ErrorCode.none, api_keys=keys, throttle_time=NO_THROTTLE)
    return joined(encode_response(header, message))


def ready(**offered: VersionRange) -> ClientConnection:
    connection = ClientConnection("me")
    header, _ = decode_request(joined(connection.start())[4:])
    responses, out = receive(connection, versions_answer(header, **offered))
    assert (responses, out) == ([], [])
    assert connection.state is ConnectionState.READY
    return connection
