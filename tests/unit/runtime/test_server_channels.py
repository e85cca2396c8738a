"""Channels of members on the broker's side: the order of what is sent, members that do not read, and how the broker hangs up."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.broker.core import BrokerCore
from ottla.broker.effects import HangUp, NoReply, Push
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, decode_pushed, encode_answer
from ottla.protocol.messages import ping_request, ping_response, start_request
from ottla.runtime import server, server_connection
from ottla.runtime.server import Server
from ottla.runtime.server_connection import Connection, InFlightRequest
from ottla.types import Now
from tests.raw_client import RawClient
from tests.simulation.files import content
from tests.unit.runtime.requests import METADATA, create, fetch_message

PING = ping_request.PingRequest(group_id="g", member_id="m", coordinator_epoch=1, generation=2)
PONG = ping_response.PingResponse(error_code=ErrorCode.none, group_id="g", member_id="m", coordinator_epoch=1, generation=2)
HEADER = RequestHeader(Api.METADATA, 13, 1, "c")
START = start_request.StartRequest(
    group_id="g",
    member_id="m",
    coordinator_epoch=1,
    generation=2,
    topics=tuple(start_request.AssignedTopic(topic="t" * 30_000) for _ in range(10)),
)
"""About 300 kB."""


# One connection


class Pair:
    """The broker's connection, and the client's end of its socket."""

    def __init__(self) -> None:
        ours, self.client = socket.socketpair()
        ours.setblocking(False)
        self.client.settimeout(10)
        self.connection = Connection(1, ours, "host", 1 << 20, 0)

    def slot(self, answer: bytes | None = None) -> InFlightRequest:
        """A request in flight."""
        slot = InFlightRequest(self.connection, 1, HEADER)
        self.connection.register(slot)
        if answer is not None:
            slot.pieces = [answer] if answer else []
        return slot

    def sent(self) -> bytes:
        """What reaches the client now."""
        self.connection.send(0)
        self.client.setblocking(False)
        try:
            return self.client.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.connection.sock.close()
        self.client.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_a_request_does_not_wait_for_a_response_that_is_not_ready(pair: Pair) -> None:
    slot = pair.slot()
    assert pair.connection.push([b"push"])
    assert pair.sent() == b"push"
    slot.pieces = [b"response"]
    assert pair.sent() == b"response"


def test_a_request_comes_after_the_responses_that_were_ready_before_it(pair: Pair) -> None:
    first = pair.slot()
    pair.slot(b"second ")
    pair.slot(b"")
    last = pair.slot()
    assert pair.connection.push([b"push "])
    assert pair.connection.push([b"another "])
    assert pair.sent() == b""
    first.pieces, last.pieces = [b"first "], [b"last"]
    assert pair.sent() == b"first second push another last"


def test_the_bytes_that_wait_for_a_client_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_OUTGOING", 1_000)
    assert pair.connection.push([b"x" * 5_000]), "one large request alone is no reason to close"
    assert not pair.connection.push([b"y"])
    assert pair.sent() == b"x" * 5_000
    assert pair.connection.push([b"y"])


def test_what_waits_behind_a_response_counts_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_OUTGOING", 1_000)
    pair.slot()
    pair.slot(b"ready")
    assert pair.connection.push([b"x" * 1_000])
    assert not pair.connection.push([b"y"])


def test_nothing_comes_behind_a_response_that_is_cut(pair: Pair) -> None:
    first = pair.slot()
    pair.slot(b"half").is_last = True
    assert pair.connection.push([b"push"])
    first.pieces = []
    assert pair.sent() == b"half"
    assert pair.connection.push([b"push"])
    assert pair.sent() == b""
    assert pair.connection.is_finished


def test_hanging_up_sends_what_is_ready_and_drops_what_arrives(pair: Pair) -> None:
    pair.slot(b"ready ")
    late = pair.slot()
    pair.client.sendall(b"\0\0\0\1x" * 3)
    assert pair.connection.receive(0)
    assert pair.connection.push([b"push"])
    pair.connection.hang_up(1_000)
    assert pair.connection.push([b"too late"])
    late.pieces = [b"too late"]
    assert pair.connection.next_frame() is None
    assert pair.sent() == b"ready push"
    assert pair.client.recv(1) == b"", "the client learns at once that nothing more comes"
    pair.client.setblocking(True)
    pair.client.sendall(b"an answer that was on its way")
    assert pair.connection.receive(0)
    assert (pair.connection.next_frame(), pair.connection.in_frame) == (None, False)
    pair.client.close()
    assert not pair.connection.receive(0)


# The server


class Channels:
    """A broker, and the effects that its core might have."""

    def __init__(self, broker: Broker) -> None:
        node = broker._node
        assert node is not None
        self.server: Server = node._server

    def number(self, client: RawClient) -> int:
        """The broker's number of a connection."""
        port = client.sock.getsockname()[1]
        found: list[int] = []

        def find() -> int:
            found.extend(one.number for one in self.server._connections.values() if one.sock.getpeername()[1] == port)
            return 0

        client.ask(Api.METADATA, METADATA)
        self.server._in_loop(find).result(10)
        (number,) = found
        return number

    def perform(self, *effects: Any) -> None:
        def run() -> int:
            self.server.perform(effects)
            return 0

        self.server._in_loop(run).result(10)

    @property
    def open(self) -> int:
        return len(self.server._connections)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The connections whose end the core has learned."""
    ended: list[int] = []
    disconnect = BrokerCore.on_disconnect

    def on_disconnect(core: BrokerCore, connection: int, now: Now) -> Any:
        ended.append(connection)
        return disconnect(core, connection, now)

    monkeypatch.setattr(BrokerCore, "on_disconnect", on_disconnect)
    return ended


def test_requests_reach_their_client_while_another_request_is_parked(broker: Broker) -> None:
    channels = Channels(broker)
    with RawClient(broker.bootstrap_servers) as client:
        number = channels.number(client)
        create(client, "t")
        client.send(Api.FETCH, fetch_message("t", wait=600_000), 12)
        channels.perform(Push(number, Api.PING, 7, PING), Push(number, Api.PING, 8, PING), Push(10**9, Api.PING, 9, PING))
        for correlation_id in (7, 8):
            assert decode_pushed(client.receive_frame()) == (RequestHeader(Api.PING, 0, correlation_id, None), PING)


def test_an_answer_is_a_request_that_gets_no_response(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    channels, answers, handle = Channels(broker), list[Any](), BrokerCore.handle

    def take(core: BrokerCore, header: RequestHeader, message: Any, ticket: int, *rest: Any) -> Any:
        if header.api is not Api.PING:
            return handle(core, header, message, ticket, *rest)
        answers.append((header.correlation_id, message))
        return [NoReply(ticket)]

    monkeypatch.setattr(BrokerCore, "handle", take)
    monkeypatch.setattr(channels.server, "_served", channels.server._served | {Api.PING})
    with RawClient(broker.bootstrap_servers) as client:
        for correlation_id in (1, 2):
            pieces = encode_answer(RequestHeader(Api.PING, 0, correlation_id, "member"), PONG)
            client.sock.sendall(b"".join(map(content, pieces)))
        assert client.ask(Api.METADATA, METADATA).brokers
    assert answers == [(1, PONG), (2, PONG)]


def test_a_broker_without_a_coordinator_refuses_answers(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        client.sock.sendall(b"".join(map(content, encode_answer(RequestHeader(Api.PING, 0, 1, "member"), PONG))))
        assert client.is_closed()
    assert "PING is not served here" in caplog.text


def test_a_member_that_does_not_read_is_closed_and_the_log_says_why(
    broker: Broker, gone: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "MAX_OUTGOING", 1 << 20)
    channels = Channels(broker)
    with RawClient(broker.bootstrap_servers) as silent, RawClient(broker.bootstrap_servers) as other:
        number = channels.number(silent)
        for correlation_id in range(200):  # 60 MB: more than the kernel's buffers hold
            channels.perform(Push(number, Api.START, correlation_id, START))
        assert gone == [number]
        assert other.ask(Api.METADATA, METADATA).brokers
    assert caplog.text.count("the member does not read what the coordinator sends to it") == 1


def test_a_request_that_cannot_be_encoded_harms_nothing_else(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    channels = Channels(broker)
    with RawClient(broker.bootstrap_servers) as client:
        number = channels.number(client)
        long = ping_request.PingRequest(group_id="g" * 40_000, member_id="m", coordinator_epoch=1, generation=2)
        channels.perform(Push(number, Api.PING, 1, long), Push(number, Api.PING, 2, PING))
        assert decode_pushed(client.receive_frame())[0].correlation_id == 2
    assert "the broker failed to carry out Push" in caplog.text


def test_the_broker_hangs_up_after_what_it_has_sent(broker: Broker, gone: list[int], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.broker")
    channels = Channels(broker)
    with RawClient(broker.bootstrap_servers) as client:
        number = channels.number(client)
        create(client, "t")
        client.send(Api.FETCH, fetch_message("t", wait=600_000), 12)
        while not channels.server._tickets:
            pass
        channels.perform(Push(number, Api.START, 1, START), HangUp(number, "the member has left"), HangUp(number, "twice"))
        assert channels.server._tickets == {}
        client.send(Api.METADATA, METADATA)  # on its way when the broker hangs up
        assert decode_pushed(client.receive_frame())[1] == START
        assert client.is_closed()
    while gone != [number]:
        pass
    assert caplog.text.count("the member has left") == 1
    assert "twice" not in caplog.text


def test_a_client_that_does_not_read_or_close_is_closed_soon(
    broker: Broker, gone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANG_UP_MS", 50)
    channels, waiting = Channels(broker), threading.Event()
    with RawClient(broker.bootstrap_servers) as client:
        number = channels.number(client)
        channels.perform(*[Push(number, Api.START, 1, START)] * 20, HangUp(number, "evicted"))
        while not gone:
            waiting.wait(0.01)
        assert gone == [number]


def test_hanging_up_on_a_client_that_is_gone_does_nothing(broker: Broker, gone: list[int]) -> None:
    channels = Channels(broker)
    with RawClient(broker.bootstrap_servers) as client:
        number = channels.number(client)
    while not gone:
        pass
    channels.perform(HangUp(number, "late"), Push(number, Api.PING, 1, PING))
    assert (gone, channels.open) == ([number], 0)


def test_a_channel_is_not_closed_because_it_is_idle() -> None:
    """The pings of a member may be further apart than the broker keeps other connections."""
    with Broker(settings={"connections.max.idle.ms": 100}) as broker, RawClient(broker.bootstrap_servers) as client:
        channels = Channels(broker)
        number = channels.number(client)
        channels.perform(Push(number, Api.PING, 1, PING))
        decode_pushed(client.receive_frame())
        with RawClient(broker.bootstrap_servers) as idle:
            assert idle.is_closed()
        channels.perform(Push(number, Api.PING, 2, PING))
        assert decode_pushed(client.receive_frame())[0].correlation_id == 2
