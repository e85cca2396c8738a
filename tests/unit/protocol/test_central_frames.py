"""The frames of central groups, byte by byte: there is no second version of them in which brokers and members could differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, decode_request, encode_request, encode_response
from ottla.protocol.connection import Pushed, Response
from ottla.protocol.messages import (
    consult_request,
    consult_response,
    leave_request,
    leave_response,
    ping_request,
    ping_response,
    register_request,
    register_response,
    start_request,
    start_response,
    stop_request,
    stop_response,
)
from tests.unit.protocol.channels import ONE, channel
from tests.unit.protocol.receiving import joined, ready, receive

MEMBER: dict[str, Any] = {"group_id": "g", "member_id": "m", "coordinator_epoch": 1, "generation": 2}
MEMBER_BYTES = "0001 67  0001 6d  00000001  00000002"
"""Group, member, epoch, generation."""

REGISTER = register_request.RegisterRequest(
    group_id="g",
    member_id="m",
    incarnation="i",
    session_timeout_ms=6_000,
    rebalance_timeout_ms=7_000,
    assignor="range",
    topics=(register_request.Subscription(topic="t", streams=3),),
    pattern="p",
    streams=4,
    coordinator_epoch=1,
    generation=2,
    owned_topics=(register_request.OwnedTopic(topic="t", partitions=(register_request.OwnedPartition(partition=5, thread=1),)),),
    own_generation=8,
)
STOPPED = stop_response.StopResponse(
    error_code=ErrorCode.none,
    topics=(stop_response.TopicPositions(topic="t", partitions=(stop_response.Position(partition=5, offset=9),)),),
    **MEMBER,
)
START = start_request.StartRequest(
    topics=(start_request.AssignedTopic(topic="t", partitions=(start_request.AssignedPartition(partition=5, thread=1),)),),
    **MEMBER,
)

REQUESTS = [
    (Api.CONSULT, consult_request.ConsultRequest(), "4e23", ""),
    (
        Api.REGISTER,
        REGISTER,
        "4e24",
        "0001 67  0001 6d  0001 69  00001770  00001b58  0005 72616e6765  00000001 0001 74 00000003  0001 70  00000004"
        "00000001  00000002  00000001 0001 74 00000001 00000005 00000001  00000008",
    ),
    (Api.LEAVE, leave_request.LeaveRequest(reason="r", **MEMBER), "4e25", MEMBER_BYTES + "0001 72"),
    (Api.LEAVE, leave_request.LeaveRequest(**MEMBER), "4e25", MEMBER_BYTES + "ffff"),
    (Api.PING, ping_request.PingRequest(**MEMBER), "4e26", MEMBER_BYTES),
    (Api.STOP, stop_request.StopRequest(reason="r", **MEMBER), "4e27", MEMBER_BYTES + "0001 72"),
    (Api.START, START, "4e28", MEMBER_BYTES + "00000001 0001 74 00000001 00000005 00000001"),
]
ANSWERS = [
    (Api.PING, ping_response.PingResponse(error_code=ErrorCode.stale_member_epoch, **MEMBER), "4e26", "0071" + MEMBER_BYTES),
    (Api.STOP, STOPPED, "4e27", "0000" + MEMBER_BYTES + "00000001 0001 74 00000001 00000005 0000000000000009"),
    (Api.START, start_response.StartResponse(error_code=ErrorCode.none, **MEMBER), "4e28", "0000" + MEMBER_BYTES),
]
RESPONSES = [
    (
        Api.CONSULT,
        consult_request.ConsultRequest(),
        consult_response.ConsultResponse(
            error_code=ErrorCode.none,
            coordinator_id=3,
            coordinator_epoch=1,
            brokers=(consult_response.Broker(broker_id=3, creator_id="c", host="h", port=9092),),
        ),
        "0000  ffff  00000003  00000001  00000001  00000003 0001 63 0001 68 00002384",
    ),
    (
        Api.REGISTER,
        REGISTER,
        register_response.RegisterResponse(
            error_code=ErrorCode.none, error_message="e", coordinator_epoch=1, generation=2, ping_interval_ms=2_000
        ),
        "0000  0001 65  00000001  00000002  000007d0",
    ),
    (
        Api.LEAVE,
        leave_request.LeaveRequest(**MEMBER),
        leave_response.LeaveResponse(error_code=ErrorCode.unknown_member_id),
        "0019  ffff",
    ),
]


def frame(head: str, body: str) -> bytes:
    content = bytes.fromhex(head) + bytes.fromhex(body)
    return len(content).to_bytes(4, "big") + content


def request(key: str, body: str) -> bytes:
    """With Kafka's request header 1: the key, the version 0, the correlation id 7, and the client's name."""
    return frame(key + "0000  00000007  0002 6d65", body)


def names(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [case[0].name for case in cases]


@pytest.mark.always
@pytest.mark.parametrize(("api", "message", "key", "body"), REQUESTS, ids=names(REQUESTS))
def test_a_request_has_these_bytes(api: Api, message: Any, key: str, body: str) -> None:
    header = RequestHeader(api, 0, 7, "me")
    assert joined(encode_request(header, message)) == request(key, body)
    if api in {answer[0] for answer in ANSWERS}:  # the coordinator sends it
        (pushed,), _ = receive(channel(), request(key, body))
        assert pushed == Pushed(api, 7, message)
    else:
        assert decode_request(request(key, body)[4:]) == (header, message)


@pytest.mark.always
@pytest.mark.parametrize(("api", "message", "key", "body"), ANSWERS, ids=names(ANSWERS))
def test_an_answer_on_the_channel_has_these_bytes(api: Api, message: Any, key: str, body: str) -> None:
    connection = channel()
    asked = {case[0]: case[1] for case in REQUESTS}[api]
    receive(connection, joined(encode_request(RequestHeader(api, 0, 7, None), asked)))
    assert joined(connection.answer(api, 7, message)) == request(key, body)


@pytest.mark.always
@pytest.mark.parametrize(("api", "asked", "message", "body"), RESPONSES, ids=names(RESPONSES))
def test_a_response_has_these_bytes(api: Api, asked: Any, message: Any, body: str) -> None:
    """With Kafka's response header 0: the correlation id alone."""
    connection = ready(register=ONE, leave=ONE, consult=ONE)
    sent = joined(connection.send("r", api, asked))
    correlation_id = sent[8:12].hex()
    assert joined(encode_response(decode_request(sent[4:])[0], message)) == frame(correlation_id, body)
    (response,), _ = receive(connection, frame(correlation_id, body))
    assert response == Response("r", message)
