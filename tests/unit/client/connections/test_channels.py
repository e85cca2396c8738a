"""The channel of a member under a virtual clock: what arrives on it, what is sent on it, and how it ends."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.client.connections.node_connections import NodeState
from ottla.client.effects import Answer, AnyNode, ChannelClosed, Poll, PushedRequest, Send, ToChannel, ToNode
from ottla.config import ClientConfig
from ottla.errors import DisconnectedError, OttlaError, OttlaTimeoutError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, encode_response
from ottla.protocol.connection import Pushed
from ottla.protocol.messages import leave_response, ping_response, register_response
from ottla.protocol.rpcs import LEAVE as LEAVE_RPC, REGISTER, Rpc
from ottla.types import Node, Now
from tests.simulation.files import content
from tests.simulation.network import ClientOnNetwork, NoAnswer, Peer
from tests.unit.client.connections.harness import ConnectionsOnNetwork
from tests.unit.client.connections.logins import Gate, LoginsOnNetwork
from tests.unit.protocol.channels import LEAVE, PING, PONG, TOPICS, ping, register

CHANNEL = ToChannel(1)
NODE = Node(1, "10.0.0.1", 9092)
JOIN = register(topics=TOPICS)
REGISTERED = register_response.RegisterResponse(
    error_code=ErrorCode.none, coordinator_epoch=1, generation=2, ping_interval_ms=2_000
)


def pushed(correlation_id: int) -> PushedRequest:
    return PushedRequest(CHANNEL, Pushed(Api.PING, correlation_id, PING))


def answer(correlation_id: int, message: Any = PONG) -> Answer:
    return Answer(Api.PING, correlation_id, message, CHANNEL)


class Coordinator(Gate):
    """A broker at which members register, and whose Leave is answered with ``error``, or not at all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.error: ErrorCode | None = ErrorCode.none
        self.answers: list[tuple[RequestHeader, Any]] = []

    def __call__(self, header: RequestHeader, message: Any) -> Any:
        match header.api:
            case Api.REGISTER:
                return REGISTERED
            case Api.LEAVE if self.error is not None:
                return leave_response.LeaveResponse(error_code=self.error)
            case Api.LEAVE:
                raise NoAnswer
            case Api.PING:
                self.answers.append((header, message))
                raise NoAnswer
        return super().__call__(header, message)


class Member:
    """A member whose channel is open, on a virtual network."""

    def __init__(self, world: ConnectionsOnNetwork | None = None, coordinator: Coordinator | None = None) -> None:
        self.world = world or ConnectionsOnNetwork()
        self.network = self.world.network
        self.coordinator = coordinator or Coordinator()
        self.peer: Peer = self.network.peer("10.0.0.1:9092", answer=self.coordinator)
        self.world.know(NODE)
        self.register("registers")

    def register(self, tag: object) -> None:
        self.world.send(tag, CHANNEL, api=Api.REGISTER, request=JOIN)
        self.network.settle()
        assert self.world.manager.outcomes[tag] is None

    def leave(self, timeout: int = 30_000) -> None:
        self.world.send("leaves", CHANNEL, timeout, api=Api.LEAVE, request=LEAVE)
        self.network.settle()

    @property
    def connection_id(self) -> int:
        link = self.world.connections.brokers.get(CHANNEL)
        assert link is not None
        assert link.connection_id is not None
        return link.connection_id

    @property
    def state(self) -> NodeState:
        link = self.world.connections.brokers.get(CHANNEL)
        assert link is not None
        return link.state

    def push(self, correlation_id: int) -> None:
        self.network.reply(self.connection_id, RequestHeader(Api.PING, 0, 0, None), ping(correlation_id))
        self.network.settle()

    def answer(self, correlation_id: int, message: Any = PONG) -> None:
        self.world.connections.answer(answer(correlation_id, message))
        self.network.settle()

    @property
    def answered(self) -> list[int]:
        """The correlation ids of the answers that have arrived."""
        return [header.correlation_id for header, message in self.coordinator.answers if message == PONG]

    @property
    def channel(self) -> list[PushedRequest | ChannelClosed]:
        return self.world.channel


def test_a_request_arrives_with_its_channel_and_is_answered_on_it() -> None:
    member = Member()
    member.push(7)
    assert member.channel == [pushed(7)]
    member.answer(7)
    assert member.answered == [7]
    assert len(member.network.open) == 1


def test_a_channel_is_a_connection_of_its_own_which_no_other_request_uses() -> None:
    member = Member()
    for tag, target in (("any", AnyNode()), ("node", ToNode(1))):
        member.world.send(tag, target)
        member.network.settle()
        assert member.world.manager.outcomes[tag] is None
    assert member.peer.connects == 2


def test_what_arrives_keeps_its_order_among_the_completions() -> None:
    member = Member()
    member.coordinator.error = None
    member.world.send("leaves", CHANNEL, api=Api.LEAVE, request=LEAVE)
    member.network.settle()
    arrived: list[object] = []
    connection = member.world.connections.brokers.get(CHANNEL)
    assert connection is not None
    assert connection.connection is not None
    (header,) = [one.header for one in connection.connection._in_flight]
    refused = leave_response.LeaveResponse(error_code=ErrorCode.unknown_member_id)
    data = ping(1) + b"".join(map(content, encode_response(header, refused))) + ping(2)
    member.world.connections.receive(member.connection_id, data, member.network.now)
    arrived += member.world.connections.take_completions()
    assert [arrived[0], arrived[2]] == [pushed(1), pushed(2)]
    assert len(arrived) == 3


def test_silence_does_not_close_a_channel() -> None:
    """Neither as an idle connection nor because of a Leave without a response: the member itself knows how long it may wait."""
    member = Member(ConnectionsOnNetwork(connections_max_idle_ms=1_000, request_timeout_ms=2_000))
    member.network.advance(60_000)
    assert (member.state, member.channel) == (NodeState.READY, [])
    member.coordinator.error = None
    member.leave(timeout=3_000)
    member.network.advance(60_000)
    assert isinstance(member.world.manager.outcomes["leaves"], OttlaTimeoutError)
    assert (member.state, member.channel) == (NodeState.READY, [])


def test_a_connection_that_is_no_channel_yet_may_idle_or_die_as_any_other() -> None:
    world = ConnectionsOnNetwork(connections_max_idle_ms=5_000, request_timeout_ms=1_000)
    world.network.peer("10.0.0.1:9092", answer=None)
    world.know(NODE)
    world.send("registers", CHANNEL, 2_000, api=Api.REGISTER, request=JOIN)
    world.network.advance(10_000)
    assert isinstance(world.manager.outcomes["registers"], OttlaError)
    assert (world.network.open, world.channel) == ([], [])


def test_an_answer_to_a_channel_that_is_closed_is_dropped() -> None:
    member = Member()
    member.push(7)
    member.network.hang_up(member.connection_id)
    member.answer(7)
    assert member.channel == [pushed(7), ChannelClosed(CHANNEL, "the peer closed the connection")]
    member.network.advance(2_000)
    member.register("again")
    member.answer(7)
    assert member.answered == []
    member.push(8)
    member.answer(8)
    assert member.answered == [8]


@pytest.mark.parametrize("how", ["disconnect", "moved", "rebootstrap", "shut down", "garbage", "hang up"])
def test_the_end_of_a_channel_is_reported_however_it_comes(how: str) -> None:
    member = Member()
    world, now = member.world, member.network.now
    match how:
        case "disconnect":
            world.connections.disconnect(CHANNEL, "the coordinator is silent", now)
        case "moved":
            world.know(Node(1, "10.0.0.2", 9092))
        case "rebootstrap":
            world.connections.rebootstrap("lost", now)
        case "shut down":
            world.connections.shut_down(DisconnectedError("closed"), now)
        case "garbage":
            world.connections.receive(member.connection_id, b"\0\0\0\2\x4e\x26", now)
        case _:
            member.network.hang_up(member.connection_id)
    member.network.settle()
    (closed,) = member.channel
    assert isinstance(closed, ChannelClosed)
    assert (closed.target, bool(closed.reason)) == (CHANNEL, True)


@pytest.mark.parametrize("waited", [0, 100], ids=["before the first poll", "during the connection"])
def test_a_register_that_waits_for_a_channel_that_is_given_up_is_not_sent(waited: int) -> None:
    world = ConnectionsOnNetwork()
    peer = world.network.peer("10.0.0.1:9092", answer=Coordinator())
    peer.mode = "silent"
    world.know(NODE)
    world.send("registers", CHANNEL, api=Api.REGISTER, request=JOIN)
    if waited:
        world.network.advance(waited)
        assert peer.connects == 1
    world.connections.disconnect(CHANNEL, "the member leaves", world.network.now)
    peer.mode = "accept"
    connects = peer.connects
    world.network.advance(30_000)
    assert isinstance(world.manager.failed["registers"], DisconnectedError)
    assert (peer.connects, world.network.open, world.channel) == (connects, [], [])


def test_garbage_on_a_channel_closes_it_with_one_line_and_the_member_may_register_again(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    with caplog.at_level(logging.WARNING):
        member.world.connections.receive(member.connection_id, b"\0\0\0\2\x4e\x26", member.network.now)
        member.network.settle()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    member.network.advance(2_000)
    member.register("again")
    member.push(1)
    assert member.channel[-1] == pushed(1)


def test_a_request_of_the_coordinator_on_another_connection_breaks_it() -> None:
    world = ConnectionsOnNetwork()
    world.network.peer("10.0.0.1:9092")
    world.send("a")
    world.network.settle()
    (connection_id,) = world.network.open
    assert world.manager.outcomes == {}
    world.connections.receive(connection_id, ping(1), world.network.now)
    world.network.settle()
    assert isinstance(world.manager.outcomes["a"], ProtocolError)
    assert world.channel == []


def test_a_member_that_has_left_closes_its_channel_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    member = Member()
    with caplog.at_level(logging.INFO):
        member.leave()
    assert member.world.manager.outcomes["leaves"] is None
    assert member.channel == [ChannelClosed(CHANNEL, "the member has left its group")]
    assert (member.network.open, caplog.records) == ([], [])
    member.register("again")
    assert member.state is NodeState.READY


def test_a_leave_that_is_refused_leaves_the_channel_open() -> None:
    member = Member()
    member.coordinator.error = ErrorCode.unknown_member_id
    member.leave()
    assert (member.state, member.channel) == (NodeState.READY, [])


def test_an_answer_that_cannot_be_encoded_closes_the_channel() -> None:
    member = Member()
    member.push(7)
    member.answer(
        7,
        ping_response.PingResponse(
            error_code=ErrorCode.none, group_id="g" * 40_000, member_id="m", coordinator_epoch=1, generation=2
        ),
    )
    assert member.state is NodeState.BACKOFF
    assert isinstance(member.channel[-1], ChannelClosed)
    assert "cannot be encoded" in member.channel[-1].reason


def test_requests_arrive_during_the_renewal_of_a_login_and_their_answers_wait_for_its_end() -> None:
    world, coordinator = LoginsOnNetwork(), Coordinator(lifetime=10_000)
    member = Member(world, coordinator)
    coordinator.renewing = True
    while member.state is NodeState.READY:
        member.network.advance(10)
    assert member.state is NodeState.RENEWING
    member.push(3)
    assert member.channel == [pushed(3)]
    member.answer(3)
    member.network.advance(100)
    assert member.answered == []
    coordinator.renewing = False
    for header, message in coordinator.held:
        member.network.reply(member.connection_id, header, coordinator(header, message))
    member.network.settle()
    assert (member.answered, member.state) == ([3], NodeState.READY)
    assert member.peer.connects == 1


class Membership:
    """A manager that registers, notes what arrives, answers each request, and fails on demand."""

    def __init__(self) -> None:
        self.sends: list[Any] = []
        self.seen: list[object] = []
        self.breaks = False

    def send(self, rpc: Rpc[Any, Any], message: Any) -> None:
        self.sends.append(Send(rpc, message, CHANNEL, 1_000, self.on_response, self.on_failure))

    def poll(self, now: Now) -> Poll:
        sends, self.sends = tuple(self.sends), []
        return Poll(sends)

    def on_response(self, response: Any, now: Now) -> None:
        self.seen.append(type(response).__name__)

    def on_failure(self, error: OttlaError, now: Now) -> None:
        self.seen.append(error)

    def on_pushed(self, target: ToChannel, request: Pushed, now: Now) -> None:
        self.seen.append((target, request))
        self.sends.append(answer(request.correlation_id))
        if self.breaks:
            raise ValueError("it breaks")

    def on_channel_closed(self, target: ToChannel, reason: str, now: Now) -> None:
        self.seen.append((target, reason))


class MemberOnNetwork(ClientOnNetwork):
    """A client's core with a membership."""

    def __init__(self) -> None:
        super().__init__(ClientConfig.parse(bootstrap_servers="10.0.0.1:9092"))
        self.membership = Membership()
        self.core.add_manager(self.membership)
        self.core.on_pushed(self.membership.on_pushed)
        self.core.on_channel_closed(self.membership.on_channel_closed)
        self.coordinator = Coordinator()
        self.network.peer("10.0.0.1:9092", answer=self._answer)
        self.network.settle()
        self.core.learn_node(NODE, self.network.now)
        self.membership.send(REGISTER, JOIN)
        self.network.settle()

    def _answer(self, header: RequestHeader, message: Any) -> Any:
        if header.api is Api.METADATA:
            raise NoAnswer
        return self.coordinator(header, message)

    def push(self, correlation_id: int) -> None:
        link = self.core.connections.brokers.get(CHANNEL)
        assert link is not None
        assert link.connection_id is not None
        self.network.reply(link.connection_id, RequestHeader(Api.PING, 0, 0, None), ping(correlation_id))
        self.network.settle()


def test_the_core_passes_requests_to_their_handler_and_sends_the_answers_of_managers() -> None:
    client = MemberOnNetwork()
    client.push(4)
    client.membership.send(LEAVE_RPC, LEAVE)
    client.network.settle()
    assert client.membership.seen == [
        "RegisterResponse",
        (CHANNEL, Pushed(Api.PING, 4, PING)),
        "LeaveResponse",
        (CHANNEL, "the member has left its group"),
    ]
    assert [header.correlation_id for header, _ in client.coordinator.answers] == [4]


def test_a_handler_that_fails_loses_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    client = MemberOnNetwork()
    client.membership.breaks = True
    client.push(4)
    client.push(5)
    assert [header.correlation_id for header, _ in client.coordinator.answers] == [4, 5]
    assert "it breaks" in caplog.text
    assert len(client.core.take_notifications()) == 2
