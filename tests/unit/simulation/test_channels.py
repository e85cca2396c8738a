"""Channels in the simulator: a broker's requests and hang-ups arrive in the order in which they were sent."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.broker.core import BrokerCore
from ottla.broker.effects import HangUp, NoReply, Push, Reply
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, decode_pushed, decode_response, encode_answer, encode_request
from ottla.protocol.framing import FrameReader
from ottla.protocol.messages import leave_request, leave_response, ping_request, ping_response
from ottla.simulation.broker import Brokers
from ottla.simulation.world import World

PING = ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=2)
PONG = ping_response.PingResponse(error_code=ErrorCode.none, group_id="g", member_id="m", coordinator_epoch=1, generation=2)
LEAVE = leave_request.LeaveRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=2)


class Client:
    """The client's end of connection 1."""

    name = "member"

    def __init__(self, broker: Brokers) -> None:
        self.arrived: list[Any] = []
        self.is_open = True
        self._reader = FrameReader()
        broker.accept(self, 1, broker.cluster.host)

    def deliver(self, number: int, data: bytes) -> None:
        self.arrived += self._reader.feed(data)

    def lose(self, number: int, reason: str) -> None:
        self.arrived.append(reason)
        self.is_open = False

    def has_open(self, number: int) -> bool:
        return self.is_open


def frame(pieces: Any) -> bytes:
    return b"".join(pieces)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose broker answers a Leave, hangs up, and notes answers."""

    def handle(core: BrokerCore, header: RequestHeader, message: Any, ticket: int, connection: int, *rest: Any) -> Any:
        if header.api is Api.PING:
            return [NoReply(ticket), Push(connection, Api.PING, header.correlation_id + 1, PING)]
        return [
            Push(connection, Api.PING, 9, PING),
            Reply(ticket, leave_response.LeaveResponse(error_code=ErrorCode.none)),
            HangUp(connection, "the member has left"),
            Push(connection, Api.PING, 10, PING),
        ]

    made = World(3)
    monkeypatch.setattr(BrokerCore, "handle", handle)
    return made


def test_answers_get_no_response_and_requests_go_on(world: World) -> None:
    client = Client(world.broker)
    for correlation_id in (1, 2):
        world.broker.receive(1, frame(encode_answer(RequestHeader(Api.PING, 0, correlation_id, "c"), PONG)))
    world.clock.run(100)
    assert [decode_pushed(bytes(one)) for one in client.arrived] == [
        (RequestHeader(Api.PING, 0, correlation_id, None), PING) for correlation_id in (2, 3)
    ]


def test_what_was_sent_before_a_hang_up_arrives_before_it(world: World) -> None:
    client = Client(world.broker)
    leave = frame(encode_request(RequestHeader(Api.LEAVE, 0, 5, "c"), LEAVE))
    world.broker.receive(1, leave + leave)
    world.clock.run(100)
    pushed, response, reason = client.arrived
    assert decode_pushed(bytes(pushed))[0].correlation_id == 9
    assert decode_response(Api.LEAVE, 0, bytes(response)) == (5, leave_response.LeaveResponse(error_code=ErrorCode.none))
    assert reason == "the member has left"
    assert world.broker.node_of(1) is None
    assert [api for _, api, _ in world.broker.seen] == [Api.LEAVE]
