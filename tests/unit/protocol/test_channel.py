"""The channel of a member, without a socket: what the coordinator sends on it, between the responses to the member's requests."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from ottla.errors import ProtocolError, UnsupportedApiError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_response
from ottla.protocol.connection import ClientConnection, Pushed, Response
from ottla.protocol.messages import (
    leave_response,
    sasl_authenticate_response,
    sasl_handshake_response,
)
from ottla.protocol.sasl import SaslResponse
from tests.unit.protocol.channels import LEAVE, ONE, PING, PONG, TOPICS, channel, ping, register, registered
from tests.unit.protocol.receiving import joined, ready, receive, versions_answer


def left(frame: bytes, error: ErrorCode = ErrorCode.none) -> bytes:
    return joined(encode_response(decode_request(frame[4:])[0], leave_response.LeaveResponse(error_code=error)))


def test_a_request_of_the_coordinator_may_follow_the_response_to_register_in_the_same_read() -> None:
    connection = ready(register=ONE)
    frame = joined(connection.send("r", Api.REGISTER, register(topics=TOPICS)))
    (response, pushed), _ = receive(connection, registered(frame) + ping(1))
    assert (response.ticket, pushed) == ("r", Pushed(Api.PING, 1, PING))


@pytest.mark.parametrize(
    ("fields", "error", "opens"),
    [
        ({"topics": TOPICS}, ErrorCode.none, True),
        ({"pattern": "t.*"}, ErrorCode.none, True),
        ({}, ErrorCode.none, False),
        ({"topics": TOPICS}, ErrorCode.not_coordinator, False),
    ],
)
def test_only_a_member_that_is_registered_has_a_channel(fields: dict[str, Any], error: ErrorCode, opens: bool) -> None:
    connection = ready(register=ONE)
    receive(connection, registered(joined(connection.send("r", Api.REGISTER, register(**fields))), error))
    assert connection.is_channel is opens
    if not opens:
        with pytest.raises(ProtocolError, match="arrived without a request"):
            receive(connection, ping(1))


def test_a_request_of_the_coordinator_on_another_connection_is_an_error() -> None:
    connection = ready(register=ONE, leave=ONE)
    connection.send("l", Api.LEAVE, LEAVE)
    with pytest.raises(ProtocolError):
        receive(connection, ping(1))


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.unknown_member_id])
def test_the_response_to_leave_comes_between_requests_of_the_coordinator(error: ErrorCode) -> None:
    connection = channel()
    frame = joined(connection.send("l", Api.LEAVE, LEAVE))
    (first, response, second), _ = receive(connection, ping(7) + left(frame, error) + ping(8))
    assert (first, second) == (Pushed(Api.PING, 7, PING), Pushed(Api.PING, 8, PING))
    assert response == Response("l", leave_response.LeaveResponse(error_code=error))
    assert connection.has_left is (error is ErrorCode.none)


def test_an_answer_has_the_header_of_the_request_and_the_name_of_the_client() -> None:
    connection = channel()
    receive(connection, ping(7))
    header, message = decode_request(joined(connection.answer(Api.PING, 7, PONG))[4:])
    assert (header, message) == (RequestHeader(Api.PING, 0, 7, "me"), PONG)


@pytest.mark.parametrize(("api", "correlation_id"), [(Api.PING, 6), (Api.STOP, 7)])
def test_what_was_not_requested_on_this_connection_is_not_answered(api: Api, correlation_id: int) -> None:
    connection = channel()
    receive(connection, ping(7))
    assert connection.answer(api, correlation_id, PONG) == []
    assert connection.answer(Api.PING, 7, PONG)
    assert connection.answer(Api.PING, 7, PONG) == []


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (ping(1)[4:-1], ProtocolError),
        (ping(1)[4:] + b"\0", ProtocolError),
        (struct.pack(">hhi", Api.PING, 9, 1), UnsupportedApiError),
        (struct.pack(">h", Api.START), ProtocolError),
        (struct.pack(">hhi", Api.LEAVE, 0, 1), ProtocolError),
        (b"", ProtocolError),
        (b"garbage", ProtocolError),
    ],
    ids=["cut", "too long", "version", "key alone", "another API", "empty", "garbage"],
)
def test_garbage_on_a_channel_is_an_error(frame: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        receive(channel(), struct.pack(">i", len(frame)) + frame)


def test_correlation_ids_never_look_like_the_key_of_an_api() -> None:
    connection = channel()
    connection._next_id = (Api.PING << 16) - 3
    frames = [joined(connection.send(number, Api.LEAVE, LEAVE)) for number in range(4)]
    ids = [decode_request(frame[4:])[0].correlation_id for frame in frames]
    assert ids == [(Api.PING << 16) - 2, (Api.PING << 16) - 1, 0, 1]
    responses, _ = receive(connection, b"".join(left(frame, ErrorCode.unknown_member_id) for frame in frames))
    assert [response.ticket for response in responses] == [0, 1, 2, 3]


def test_requests_of_the_coordinator_may_arrive_while_the_login_is_renewed() -> None:
    connection = ClientConnection("me", mechanism="PLAIN")
    offered = {"register": ONE, "sasl_handshake": VersionRange(1, 1), "sasl_authenticate": VersionRange(0, 2)}

    def log_in(frame: bytes, *between: bytes) -> list[Any]:
        """Answer the two requests of a login, with frames behind each answer."""
        hello = sasl_handshake_response.SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))
        done = sasl_authenticate_response.SaslAuthenticateResponse(
            error_code=ErrorCode.none, error_message=None, auth_bytes=b"", session_lifetime_ms=1_000
        )
        extra = b"".join(between)
        first, step = receive(connection, extra + joined(encode_response(decode_request(frame[4:])[0], hello)))
        second, rest = receive(connection, extra + joined(encode_response(decode_request(joined(step)[4:])[0], done)) + extra)
        assert connection.take_challenge() is not None
        assert (connection.respond(SaslResponse("exchange", None)), rest) == ([], [])
        return first + second

    header, _ = decode_request(joined(connection.start())[4:])
    receive(connection, versions_answer(header, **offered))
    assert connection.take_challenge() is not None
    log_in(joined(connection.respond(SaslResponse("exchange", b"secret"))))
    receive(connection, registered(joined(connection.send("r", Api.REGISTER, register(topics=TOPICS)))))
    connection.renew()
    assert connection.take_challenge() is not None
    assert receive(connection, ping(1))[0] == [Pushed(Api.PING, 1, PING)]
    frame = joined(connection.respond(SaslResponse("exchange", b"secret")))
    assert log_in(frame, ping(2)) == [Pushed(Api.PING, 2, PING)] * 3
