"""One frame's content: header and body, in both directions and on both sides of the wire.

Owns encoding and decoding of whole requests and responses through kio; must not know sockets, connections or what a message means.
Invariant: a message that is cut off is refused, and so is a response that has bytes left over; whatever kio raises leaves here as
``ProtocolError`` with the API, the version and the reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, cast

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import bounds
from ottla.protocol.apis import SPOKEN, Api, Fact, facts_of
from ottla.protocol.framing import Frame, Gather, Piece
from ottla.protocol.lifting import lift, lower, wire_class

_PREFIX = struct.Struct(">hhi")

Buffer = bytes | Frame
Message = Any
"""A neutral message: an instance of a class of ``ottla.protocol.messages``."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The head of a request: what it asks, in which version, which answer belongs to it, and what its client calls itself."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def facts(self) -> frozenset[Fact]:
        """What the version implies."""
        return facts_of(self.api, self.version)


def _reader(cls: type[Any]) -> Any:
    from kio.serial import entity_reader

    return entity_reader(cls)


def _writer(cls: type[Any]) -> Any:
    from kio.serial import entity_writer

    return entity_writer(cls)


def encode_request(header: RequestHeader, message: Message) -> list[Piece]:
    """A neutral request as the pieces of one frame, in the version that the header names."""
    body = lower(header.api, header.version, "request", message)
    head_class = type(body).__header_schema__
    head = head_class(
        request_api_key=int(header.api),
        request_api_version=header.version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )
    return _encode(head, body, f"{header.api.name} request version {header.version}")


def encode_response(header: RequestHeader, message: Message) -> list[Piece]:
    """A neutral response as the pieces of one frame, in the version of the request it answers."""
    body = lower(header.api, header.version, "response", message)
    head = type(body).__header_schema__(correlation_id=header.correlation_id)
    return _encode(head, body, f"{header.api.name} response version {header.version}")


def _encode(head: Any, body: Any, what: str) -> list[Piece]:
    target = Gather()
    try:
        _writer(type(head))(target, head)
        _writer(type(body))(target, body)
    except Exception as error:
        raise ProtocolError(f"{what} can not be encoded: {error}", cause=error) from error
    return target.frame()


def peek_request(frame: Buffer) -> tuple[int, int, int]:
    """API key, version and correlation id of a request frame; raises ``ProtocolError`` if it is too short to have them."""
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is shorter than its header")
    return cast("tuple[int, int, int]", _PREFIX.unpack_from(frame))


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """The header and the neutral message of a request frame.

    Raises ``UnsupportedApiError`` for an API or a version that is not spoken, ``ProtocolError`` for a frame that is cut off or
    whose content is no message. Bytes left over at the end are ignored, as Kafka does it: librdkafka 2.16 leaves three after a
    Metadata request for all topics.
    """
    key, version, correlation_id = peek_request(frame)
    api = spoken_api(key, version)
    cls = wire_class(api, version, "request")
    view = memoryview(frame).toreadonly()
    head, offset = _decode(cls.__header_schema__, view, 0, f"{api.name} request header")
    body, _ = _decode(cls, view, offset, f"{api.name} request version {version}")
    return RequestHeader(api, version, correlation_id, head.client_id), lift(api, "request", body)


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Message]:
    """The correlation id and the neutral message of a response frame to a request of this API and version."""
    cls = wire_class(api, version, "response")
    what = f"{api.name} response version {version}"
    view = memoryview(frame).toreadonly()
    head, offset = _decode(cls.__header_schema__, view, 0, f"{what} header")
    body, end = _decode(cls, view, offset, what)
    _check_end(view, end, what)
    return int(head.correlation_id), lift(api, "response", body)


def spoken_api(key: int, version: int) -> Api:
    """The API of a key, if this version of it is spoken; raises ``UnsupportedApiError`` otherwise."""
    if key not in Api.__members__.values():
        raise UnsupportedApiError(f"API key {key} is not known here")
    api = Api(key)
    if version not in SPOKEN[api]:
        low, high = SPOKEN[api]
        raise UnsupportedApiError(f"{api.name} version {version} is not spoken here, only {low} to {high}")
    return api


def _decode(cls: type[Any], frame: memoryview, offset: int, what: str) -> tuple[Any, int]:
    bounds.check(cls, frame, offset)
    try:
        entity, size = _reader(cls)(frame, offset)
    except Exception as error:
        raise ProtocolError(f"{what} can not be decoded: {type(error).__name__}: {error}", cause=error) from error
    return entity, offset + size


def _check_end(frame: memoryview, end: int, what: str) -> None:
    if end != len(frame):
        raise ProtocolError(f"{what} ends at byte {end} of a frame of {len(frame)} bytes")
