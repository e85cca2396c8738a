"""Messages between a member of a central group and its coordinator.

Must not know what is tested.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.codec import RequestHeader, decode_request, encode_request, encode_response
from ottla.protocol.connection import ClientConnection
from ottla.protocol.messages import leave_request, ping_request, ping_response, register_request, register_response
from tests.unit.protocol.receiving import joined, ready, receive

ONE = VersionRange(0, 0)
TOPICS = (register_request.Subscription(topic="t", streams=1),)
LEAVE = leave_request.LeaveRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=2)
PING = ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=2)
PONG = ping_response.PingResponse(error_code=ErrorCode.none, group_id="g", member_id="m", coordinator_epoch=1, generation=2)


def register(**fields: Any) -> register_request.RegisterRequest:
    return register_request.RegisterRequest(
        group_id="g",
        member_id="m",
        incarnation="i",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        assignor="range",
        **fields,
    )


def ping(correlation_id: int) -> bytes:
    return joined(encode_request(RequestHeader(Api.PING, 0, correlation_id, None), PING))


def registered(frame: bytes, error: ErrorCode = ErrorCode.none) -> bytes:
    header, _ = decode_request(frame[4:])
    message = register_response.RegisterResponse(error_code=error, coordinator_epoch=1, generation=2, ping_interval_ms=2_000)
    return joined(encode_response(header, message))


def channel() -> ClientConnection:
    connection = ready(register=ONE, leave=ONE)
    receive(connection, registered(joined(connection.send("r", Api.REGISTER, register(topics=TOPICS)))))
    assert connection.is_channel
    return connection
