"""Messages between a member of a central group and its coordinator.

Must not know what is tested.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, encode_request
from ottla.protocol.messages import leave_request, ping_request, ping_response, register_request
from tests.unit.protocol.receiving import joined

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
