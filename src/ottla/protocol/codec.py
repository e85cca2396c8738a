"""Encodes and decodes the content of frames, header and body, for clients and brokers.

Owns the encoding and decoding of whole requests and responses through kio. Must not know sockets, connections or the meaning of a
message. Invariant: a truncated message is refused, and so is a response with bytes left over; any exception of kio becomes a
``ProtocolError`` with the API, the version and the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import reading
from ottla.protocol.apis import PUSHED, SPOKEN, Api, VersionRule, version_rules_of
from ottla.protocol.conversion import Convert, downgrader, upgrader, wire_class
from ottla.protocol.framing import Frame, Piece, frame_of, frame_with_ranges
from ottla.protocol.schema import cache, has_records
from ottla.protocol.writing import writer

_PREFIX = struct.Struct(">hhi")

Buffer = bytes | Frame
Message = Any
"""A neutral message: an instance of a class of ``ottla.protocol.messages``."""


class RequestHeader(NamedTuple):
    """The header of a request."""

    api: Api
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def version_rules(self) -> frozenset[VersionRule]:
        """The rules that hold for the request's version."""
        return version_rules_of(self.api, self.version)


def encode_request(header: RequestHeader, message: Message) -> list[Piece]:
    """Encode a neutral request in the header's version, as the pieces of one frame."""
    encoder = _encoder(header.api, header.version, "request", type(message))
    return encoder.encode(_request_head(encoder, header), message)


def encode_response(header: RequestHeader, message: Message) -> list[Piece]:
    """Encode a neutral response in the version of its request, as the pieces of one frame."""
    encoder = _encoder(header.api, header.version, "response", type(message))
    return encoder.encode(encoder.head(correlation_id=header.correlation_id), message)


def encode_answer(header: RequestHeader, message: Message) -> list[Piece]:
    """Encode a member's answer to a request of the coordinator, as the pieces of one frame: it has the header of a request."""
    encoder = _encoder(header.api, header.version, "response", type(message))
    return encoder.encode(_request_head(encoder, header), message)


def _request_head(encoder: _Encoder, header: RequestHeader) -> Any:
    return encoder.head(
        request_api_key=int(header.api),
        request_api_version=header.version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )


class _Encoder:
    """Writes the messages of one class in one version. ``head`` is kio's class of the header."""

    def __init__(self, api: Api, version: int, side: str, source: type[Any]) -> None:
        wire = wire_class(api, version, side)
        self.head: Any = wire.__header_schema__
        self._what = f"{api.name} {side} version {version}"
        self._reshape = downgrader(api, version, side)
        self._write_head = writer(self.head, self.head)
        self._write = writer(source if self._reshape is None else wire, wire)
        self._frame: Callable[[list[Any]], list[Piece]] = frame_with_ranges if has_records(wire) else frame_of

    def encode(self, head: Any, message: Message) -> list[Piece]:
        """The pieces of a frame."""
        pieces: list[Any] = []
        try:
            self._write_head(pieces.append, head)
            self._write(pieces.append, message if self._reshape is None else self._reshape(message))
            return self._frame(pieces)
        except Exception as error:
            # Before the flexible versions (KIP-482) the length of a string has 16 bits.
            hint = "a value in it does not fit this version's field" if isinstance(error, struct.error) else None
            raise ProtocolError(f"{self._what} cannot be encoded: {error}", hint=hint, cause=error) from error


@cache
def _encoder(api: Api, version: int, side: str, source: type[Any]) -> _Encoder:
    return _Encoder(api, version, side, source)


def peek_request(frame: Buffer) -> tuple[int, int, int]:
    """The API key, version and correlation id of a request frame. Raises ``ProtocolError`` if it is too short."""
    if len(frame) < _PREFIX.size:
        raise ProtocolError(f"a request of {len(frame)} bytes is shorter than its header")
    return cast("tuple[int, int, int]", _PREFIX.unpack_from(frame))


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message]:
    """Decode a request frame to its header and the neutral message.

    Raises ``UnsupportedApiError`` for an API or a version that is not supported, ``ProtocolError`` for a truncated or invalid
    message. Like Kafka, this ignores bytes left over at the end: librdkafka 2.16 leaves three after a Metadata request for all
    topics.

    A frame of one of the ``PUSHED`` APIs is a member's answer: a broker gets no requests of these.
    """
    key, version, correlation_id = peek_request(frame)
    decoder = _request_decoder(key, version, "response" if key in PUSHED else "request")
    head, message, _ = decoder.decode(memoryview(frame).toreadonly())
    return RequestHeader(decoder.api, version, correlation_id, head.client_id), message


def decode_pushed(frame: Buffer) -> tuple[RequestHeader, Message]:
    """Decode a request of the coordinator to its header and the neutral message.

    Raises ``UnsupportedApiError`` if it is of no ``PUSHED`` API, ``ProtocolError`` for a truncated or invalid message.
    """
    key, version, correlation_id = peek_request(frame)
    if key not in PUSHED:
        raise UnsupportedApiError(f"a coordinator sends no requests with API key {key}")
    decoder = _request_decoder(key, version, "request")
    head, message, end = decoder.decode(memoryview(frame).toreadonly())
    if end != len(frame):
        raise ProtocolError(f"{decoder.api.name} request version {version} ends at byte {end} of a frame of {len(frame)} bytes")
    return RequestHeader(decoder.api, version, correlation_id, head.client_id), message


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Message]:
    """Decode the frame of a response to a request of this API and version: the correlation id and the neutral message.

    Records of a long response are views of ``frame``, which must not change while they are used. An error code that kio does not
    know is UNKNOWN_SERVER_ERROR in the message.
    """
    head, message, end = _response_decoder(api, version).decode(memoryview(frame).toreadonly())
    if end != len(frame):
        raise ProtocolError(f"{api.name} response version {version} ends at byte {end} of a frame of {len(frame)} bytes")
    return int(head.correlation_id), message


class _Decoder:
    """Reads the messages of one API in one version."""

    def __init__(self, api: Api, version: int, side: str) -> None:
        self.api = api
        self._what = f"{api.name} {side} version {version}"
        cls = wire_class(api, version, side)
        self._read_head = reading.reader(cls.__header_schema__)
        self._read_body = reading.reader(cls)
        self._upgrade: Convert | None = upgrader(api, side, cls)
        self._insert_records = reading.records_inserter(cls) if side == "response" and has_records(cls) else None

    def decode(self, frame: memoryview) -> tuple[Any, Message, int]:
        """The header, the neutral message, and the position after it."""
        try:
            head, start = self._read_head(frame, 0)
            if self._insert_records is not None and len(frame) >= reading.MIN_FRAME_SIZE:
                body, size = self._read_body.with_record_views(frame, start, self._insert_records)
            else:
                body, size = self._read_body(frame, start)
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError(f"{self._what} cannot be decoded: {type(error).__name__}: {error}", cause=error) from error
        return head, body if self._upgrade is None else self._upgrade(body), start + size


@cache
def _request_decoder(key: int, version: int, side: str) -> _Decoder:
    return _Decoder(spoken_api(key, version), version, side)


@cache
def _response_decoder(api: Api, version: int) -> _Decoder:
    return _Decoder(api, version, "response")


def spoken_api(key: int, version: int) -> Api:
    """The API of a key. Raises ``UnsupportedApiError`` if the key or this version is not supported."""
    if key not in Api.__members__.values():
        raise UnsupportedApiError(f"API key {key} is unknown")
    api = Api(key)
    if version not in SPOKEN[api]:
        low, high = SPOKEN[api]
        raise UnsupportedApiError(f"{api.name} version {version} is not supported, only {low} to {high}")
    return api
