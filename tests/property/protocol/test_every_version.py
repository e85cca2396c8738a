"""Every version of every message is encoded, decoded, upgraded and downgraded without loss; no bytes crash the decoder."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import struct
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kio.serial import entity_writer

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import ErrorCode, reading
from ottla.protocol.apis import PUSHED, Api
from ottla.protocol.codec import (
    RequestHeader,
    decode_pushed,
    decode_request,
    decode_response,
    encode_answer,
    encode_request,
    encode_response,
)
from ottla.protocol.conversion import downgrader, wire_class
from ottla.protocol.writing import Writer, writer
from tests.example_counts import examples
from tests.message_conversion import downgrade, upgrade
from tests.property.protocol.versions import EVERY, NAMES


def flatten(pieces: list[Any]) -> bytes:
    return b"".join(pieces)[4:]


@pytest.mark.always
@pytest.mark.parametrize(("api", "version"), EVERY, ids=NAMES)
@settings(max_examples=examples(3))
@given(data=st.data())
def test_a_message_survives_conversion_and_encoding(api: Api, version: int, data: st.DataObject) -> None:
    header = RequestHeader(api, version, 12345, "client")
    for side in ("request", "response"):
        wire = data.draw(st.from_type(wire_class(api, version, side)), label=side)
        if not _expressible(api, version, side, wire):
            continue
        neutral = upgrade(api, side, wire)
        assert _same(downgrade(api, version, side, neutral), wire)
        if api in PUSHED:
            write, read = (encode_request, decode_pushed) if side == "request" else (encode_answer, decode_request)
            decoded_header, decoded = read(flatten(write(header, neutral)))
            assert decoded_header == header
        elif side == "request":
            decoded_header, decoded = decode_request(flatten(encode_request(header, neutral)))
            assert decoded_header == header
        else:
            correlation_id, decoded = decode_response(api, version, flatten(encode_response(header, neutral)))
            assert correlation_id == 12345
        assert downgrade(api, version, side, decoded) == downgrade(api, version, side, neutral)


@pytest.mark.parametrize(("api", "version"), EVERY, ids=NAMES)
@settings(max_examples=examples(2))
@given(data=st.data())
def test_the_bytes_equal_those_of_kio(api: Api, version: int, data: st.DataObject) -> None:
    for side in ("request", "response"):
        wire = data.draw(st.from_type(wire_class(api, version, side)), label=side)
        cls = type(wire)
        assert _written(writer(cls, cls), wire) == _by_kio(wire)
        neutral = upgrade(api, side, copy.deepcopy(wire))  # the upgrade may change the message
        if downgrader(api, version, side) is None:
            assert _written(writer(type(neutral), cls), neutral) == _by_kio(downgrade(api, version, side, neutral))


def _written(write: Writer, message: Any) -> bytes:
    pieces: list[bytes] = []
    write(pieces.append, message)
    return b"".join(pieces)


def _by_kio(message: Any) -> bytes:
    target = io.BytesIO()
    entity_writer(type(message))(target, message)
    return target.getvalue()


def _expressible(api: Api, version: int, side: str, wire: Any) -> bool:
    """Whether the neutral message can express this one."""
    if api is Api.METADATA and version == 0 and side == "request":
        return bool(wire.topics)  # an empty list means all topics, which is null in the neutral message
    return True


def _same(ours: Any, theirs: Any) -> bool:
    """Whether the messages are equal, apart from fields that no core reads (``_NOT_CARRIED``)."""
    if dataclasses.is_dataclass(theirs) and not isinstance(theirs, type):
        return all(
            field.name in _NOT_CARRIED or _same(getattr(ours, field.name), getattr(theirs, field.name))
            for field in dataclasses.fields(theirs)
        )
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return bool(ours == theirs or (theirs is None and not ours))


_NOT_CARRIED = {"replica_id"}
"""Fields of fetches between brokers in old versions, which the newest version lacks."""


@settings(max_examples=examples(100))
@given(data=st.data(), which=st.sampled_from(EVERY))
def test_error_codes_of_a_newer_broker_are_unknown_server_errors(data: st.DataObject, which: tuple[Api, int]) -> None:
    api, version = which
    wire = data.draw(st.from_type(wire_class(api, version, "response")))
    header = RequestHeader(api, version, 1, None)
    encode = encode_answer if api in PUSHED else encode_response
    newer = flatten(encode(header, upgrade(api, "response", _with_codes(wire, 0x4D4D))))
    known = flatten(encode(header, upgrade(api, "response", _with_codes(wire, ErrorCode.unknown_server_error))))
    if api in PUSHED:
        assert decode_request(newer) == decode_request(known)
    else:
        assert decode_response(api, version, newer) == decode_response(api, version, known)


def _with_codes(message: Any, code: object) -> Any:
    """The message with every error code in it replaced."""
    if isinstance(message, tuple):
        return tuple(_with_codes(item, code) for item in message)
    if not dataclasses.is_dataclass(message) or isinstance(message, type):
        return code if isinstance(message, ErrorCode) else message
    return dataclasses.replace(
        message, **{field.name: _with_codes(getattr(message, field.name), code) for field in dataclasses.fields(message)}
    )


@settings(max_examples=examples(400))
@given(which=st.sampled_from(EVERY), body=st.binary(max_size=120))
def test_no_bytes_crash_the_decoder(which: tuple[Api, int], body: bytes) -> None:
    api, version = which
    # Any other exception than this one, or an abort of the process, fails the test.
    with contextlib.suppress(ProtocolError):
        decode_request(struct.pack(">hhi", api, version, 1) + body)
    with contextlib.suppress(ProtocolError):
        decode_response(api, version, body)
    with contextlib.suppress(ProtocolError, UnsupportedApiError):
        decode_pushed(struct.pack(">hhi", api, version, 1) + body)


@pytest.mark.always
@pytest.mark.parametrize("api", sorted(PUSHED))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_every_cut_of_a_frame_on_a_channel_is_refused(api: Api, data: st.DataObject) -> None:
    for side, write, read in (("request", encode_request, decode_pushed), ("response", encode_answer, decode_request)):
        message = upgrade(api, side, data.draw(st.from_type(wire_class(api, 0, side)), label=side))
        frame = flatten(write(RequestHeader(api, 0, 5, "c"), message))
        with pytest.raises(ProtocolError):
            read(frame[: data.draw(st.integers(0, len(frame) - 1))])
    with pytest.raises(ProtocolError, match="ends at byte"):
        decode_pushed(flatten(encode_request(RequestHeader(api, 0, 5, "c"), _any_request(api, data))) + b"\0")


def _any_request(api: Api, data: st.DataObject) -> Any:
    return upgrade(api, "request", data.draw(st.from_type(wire_class(api, 0, "request"))))


@settings(max_examples=examples(60))
@given(data=st.data(), which=st.sampled_from(EVERY))
def test_a_flipped_byte_is_decoded_or_refused(data: st.DataObject, which: tuple[Api, int]) -> None:
    api, version = which
    message = upgrade(api, "request", data.draw(st.from_type(wire_class(api, version, "request"))))
    frame = bytearray(flatten(encode_request(RequestHeader(api, version, 1, "c"), message)))
    position = data.draw(st.integers(4, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        decode_request(bytes(frame))


@pytest.mark.parametrize("version", [version for api, version in EVERY if api is Api.FETCH])
@settings(max_examples=examples(20))
@given(data=st.data())
def test_records_left_in_the_frame_equal_those_that_kio_copies(version: int, data: st.DataObject) -> None:
    message = data.draw(st.from_type(wire_class(Api.FETCH, version, "response")))
    frame = flatten(encode_response(RequestHeader(Api.FETCH, version, 1, "client"), upgrade(Api.FETCH, "response", message)))
    copied = decode_response(Api.FETCH, version, frame)
    shorter = frame[: data.draw(st.integers(0, len(frame) - 1))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MIN_FRAME_SIZE", 0)
        assert decode_response(Api.FETCH, version, frame) == copied
        with pytest.raises(ProtocolError):
            decode_response(Api.FETCH, version, shorter)
