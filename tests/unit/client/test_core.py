"""One pass of the core: answers, managers, connections, and no one held up by another's error."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from ottla.client.core import ClientCore
from ottla.client.effects import AnyNode, AnySend, Poll, Send, ToNode
from ottla.client.events import ErrorNotification
from ottla.config import ClientConfig, ConsumerConfig
from ottla.errors import IllegalStateError, OttlaError, ZooKeeperError
from ottla.protocol import ErrorCode, rpcs
from ottla.protocol.apis import Api
from ottla.protocol.messages import heartbeat_request, heartbeat_response, metadata_response
from ottla.types import Now
from ottla.zookeeper.operations import Sync
from ottla.zookeeper.session import AnyAsk, Ask, Perform, Session, SessionChanged, SessionReport, SessionState
from tests.simulation.network import ClientOnNetwork, NoAnswer

REQUEST = heartbeat_request.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
ANSWER = heartbeat_response.HeartbeatResponse(throttle_time=timedelta(0), error_code=ErrorCode.none)


def cluster(*nodes: int, error: int = 0) -> Any:
    brokers = tuple(metadata_response.MetadataResponseBroker(node_id=node, host=f"10.0.0.{node}", port=9092) for node in nodes)
    return metadata_response.MetadataResponse(
        throttle_time=timedelta(0), brokers=brokers, topics=(), error_code=ErrorCode(error), controller_id=1
    )


class Manager:
    """Sends the given requests, and fails on demand."""

    def __init__(self) -> None:
        self.wanted: list[AnySend] = []
        self.answered: list[Any] = []
        self.failed: dict[Any, OttlaError] = {}
        self.breaks_in: set[str] = set()
        self.polled = 0

    def want(self, tag: str, node: int | None = None) -> None:
        target = AnyNode() if node is None else ToNode(node)
        self.wanted.append(
            Send(
                rpcs.HEARTBEAT,
                REQUEST,
                target,
                5_000,
                lambda response, now: self.on_response(tag),
                lambda error, now: self.on_failure(tag, error),
            )
        )

    def poll(self, now: Now) -> Poll:
        self.polled += 1
        self._break("poll")
        sends, self.wanted = tuple(self.wanted), []
        return Poll(sends)

    def on_response(self, tag: Any) -> None:
        self._break("on_response")
        self.answered.append(tag)

    def on_failure(self, tag: Any, error: OttlaError) -> None:
        self._break("on_failure")
        self.failed[tag] = error

    def _break(self, where: str) -> None:
        if where in self.breaks_in:
            raise ZeroDivisionError(where)


class TwoManagers(ClientOnNetwork):
    """A core with two managers, and a broker that answers them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ClientConfig.parse(bootstrap_servers="10.0.0.1:9092", **settings))
        self.peer = self.network.peer("10.0.0.1:9092", answer=self.answer)
        self.nodes = [1]
        self.silent: set[Api] = set()
        self.manager, self.other = Manager(), Manager()
        self.core.add_manager(self.manager)
        self.core.add_manager(self.other)

    def answer(self, header: Any, message: Any) -> Any:
        if header.api in self.silent:
            raise NoAnswer
        return cluster(*self.nodes) if header.api is Api.METADATA else ANSWER

    def errors(self) -> list[OttlaError]:
        return [item.error for item in self.core.take_notifications() if isinstance(item, ErrorNotification)]


def test_metadata_comes_first_and_tells_the_connections_of_the_brokers() -> None:
    world = TwoManagers()
    world.network.settle()
    assert world.core.metadata.version == 1
    assert list(world.core.metadata.nodes) == [1]
    world.manager.want("a", node=1)
    world.network.settle()
    assert world.manager.answered == ["a"]
    assert world.peer.connects == 1


def test_answers_go_to_the_manager_that_asked() -> None:
    world = TwoManagers()
    world.network.settle()
    world.manager.want("mine", node=1)
    world.other.want("theirs", node=1)
    world.network.settle()
    assert world.manager.answered == ["mine"]
    assert world.other.answered == ["theirs"]


class Member:
    """Asks for a node once, and fails on demand."""

    def __init__(self, *, breaks: bool = False) -> None:
        self.wanted: list[AnyAsk] = [Ask(Sync("/a"), 1_000, self.on_result, self.on_failure)]
        self.outcomes: list[object] = []
        self.events: list[object] = []
        self.breaks = breaks

    def poll(self, now: Now) -> Poll:
        sends, self.wanted = tuple(self.wanted), []
        return Poll(sends)

    def on_result(self, result: object, now: Now) -> None:
        self._note(self.outcomes, result)

    def on_failure(self, error: OttlaError, now: Now) -> None:
        self._note(self.outcomes, error)

    def on_event(self, event: object, now: Now) -> None:
        self._note(self.events, event)

    def _note(self, seen: list[object], what: object) -> None:
        seen.append(what)
        if self.breaks:
            raise ValueError("it breaks")


def core_with_session(member: Member) -> tuple[ClientCore, Session]:
    core = ClientCore(ClientConfig.parse(bootstrap_servers="10.0.0.1:9092"), random.Random(1))
    core.add_manager(member)
    session = Session(6_000)
    core.use_zookeeper(session)
    core.on_session_event(member.on_event)
    return core, session


def test_an_ask_goes_to_the_session_and_its_outcome_to_the_manager() -> None:
    member = Member()
    core, session = core_with_session(member)
    core.handle_command(SessionReport(lambda session, now: session.on_connected(7, now)), Now(1, 1))
    performs = [effect for effect in core.poll(Now(1, 1)).effects if isinstance(effect, Perform)]
    asked = next(effect for effect in performs if effect.operation == Sync("/a"))
    core.handle_command(SessionReport(lambda session, now: session.on_answered(asked.number, None, now)), Now(2, 2))
    core.poll(Now(2, 2))
    assert member.outcomes == [None]
    assert member.events == [SessionChanged(SessionState.CONNECTED, is_new=True)]
    assert session.has_lease(Now(3, 3))


def test_an_ask_that_waits_for_a_connection_ends_at_its_timeout_or_with_the_core() -> None:
    late, closed = Member(), Member()
    core, _ = core_with_session(late)
    wake_at = core.poll(Now(1, 1)).wake_at
    assert wake_at is not None
    assert wake_at <= 1_001
    core.poll(Now(1_001, 1_001))
    core.poll(Now(1_001, 1_001))
    core, _ = core_with_session(closed)
    core.poll(Now(1, 1))
    core.shut_down(IllegalStateError("closed"), Now(2, 2))
    for member in (late, closed):
        (error,) = member.outcomes
        assert isinstance(error, ZooKeeperError)
        assert not error.outcome_unknown


def test_an_exception_in_a_handler_of_zookeeper_is_reported_and_loses_nothing_else() -> None:
    member = Member(breaks=True)
    core, session = core_with_session(member)
    session.on_connected(7, Now(1, 1))
    session.on_disconnected()
    core.poll(Now(1, 1))
    core.poll(Now(1_001, 1_001))
    core.poll(Now(1_001, 1_001))
    assert member.events == [SessionChanged(SessionState.CONNECTED, is_new=True), SessionChanged(SessionState.SUSPENDED)]
    assert len(member.outcomes) == 1
    errors = [one for one in core.take_notifications() if isinstance(one, ErrorNotification)]
    assert sum("it breaks" in str(one.error) for one in errors) == 3


@pytest.mark.parametrize("where", ["poll", "on_response", "on_failure"])
def test_a_failing_manager_does_not_delay_the_others(where: str, caplog: pytest.LogCaptureFixture) -> None:
    world = TwoManagers()
    world.network.settle()
    world.manager.breaks_in = {where}
    if where != "poll":
        world.manager.want("a", node=1 if where == "on_response" else 9)
    world.other.want("b", node=1)
    world.network.settle()
    assert world.other.answered == ["b"]
    (error,) = world.errors()
    assert isinstance(error.cause, ZeroDivisionError)
    assert "Manager" in str(error)
    assert "Manager failed" in caplog.text


def test_a_manager_that_goes_on_failing_is_not_asked_without_pause() -> None:
    world = TwoManagers()
    world.network.settle()
    world.manager.breaks_in = {"poll"}
    world.network.settle()
    before = world.manager.polled
    world.network.advance(10_000)
    assert world.manager.polled - before <= 30


@dataclass(frozen=True)
class Command:
    text: str


def test_a_command_goes_to_the_handler_of_its_class() -> None:
    world = TwoManagers()
    heard: list[tuple[str, int]] = []
    world.core.register(Command, lambda command, now: heard.append((command.text, now.mono)))
    world.core.handle_command(Command("hello"), world.network.now)
    assert heard == [("hello", 1_000)]
    with pytest.raises(ValueError, match="has a handler already"):
        world.core.register(Command, lambda command, now: None)


def test_a_command_that_fails_or_is_unknown_is_reported() -> None:
    world = TwoManagers()
    world.core.handle_command(Command("has no handler"), world.network.now)
    world.core.register(Command, lambda command, now: 1 / 0)  # type: ignore[arg-type]
    world.core.handle_command(Command("breaks"), world.network.now)
    first, second = world.errors()
    assert isinstance(first.cause, KeyError)
    assert isinstance(second.cause, ZeroDivisionError)
    assert "Command" in str(first)


def test_a_lost_connection_has_the_metadata_looked_up_again() -> None:
    world = TwoManagers()
    world.network.settle()
    version = world.core.metadata.version
    world.network.hang_up(world.network.open[0])
    world.network.advance(1_000)
    assert world.core.metadata.version > version


def test_a_manager_that_wishes_for_metadata_while_it_is_asked_gets_it() -> None:
    world = TwoManagers()
    world.network.settle()
    version = world.core.metadata.version

    class Wisher(Manager):
        def poll(self, now: Now) -> Poll:
            if world.core.metadata.version == version:
                world.core.metadata_manager.request_update()
            return Poll()

    world.core.add_manager(Wisher())
    world.network.advance(1_000)
    assert world.core.metadata.version == version + 1


def test_notifications_come_out_once_and_in_order() -> None:
    world = TwoManagers()
    world.core.notify("one")
    world.core.notify("two")
    assert world.core.take_notifications() == ["one", "two"]
    assert world.core.take_notifications() == []


def test_shut_down_tells_every_manager() -> None:
    world = TwoManagers()
    world.network.settle()
    world.silent = {Api.HEARTBEAT}
    world.manager.want("a", node=1)
    world.network.settle()
    effects = world.core.shut_down(IllegalStateError("closed"), world.network.now)
    assert isinstance(world.manager.failed["a"], IllegalStateError)
    assert [type(effect).__name__ for effect in effects] == ["Close"]


def test_a_cluster_that_forgot_its_client_is_found_again_by_the_bootstrap_servers() -> None:
    world = TwoManagers()
    moved = world.network.peer("10.0.0.7:9092", answer=lambda header, message: cluster(1, error=ErrorCode.rebootstrap_required))
    world.nodes = [7]
    world.network.settle()
    assert list(world.core.metadata.nodes) == [7]
    world.nodes = [1]
    world.network.hang_up(world.network.open[0])
    world.network.advance(5_000)
    assert moved.connects >= 1
    assert list(world.core.metadata.nodes) == [1]


def test_only_some_clients_ask_for_topics_to_be_created() -> None:
    config = ConsumerConfig.parse(bootstrap_servers="10.0.0.1:9092")
    consumer = ClientCore(config, random.Random(1), allow_auto_create=True)
    consumer.metadata_manager.set_topics(frozenset({"a"}))
    other = TwoManagers().core
    other.metadata_manager.set_topics(frozenset({"a"}))
    now = Now(0, 0)
    for core, creates in ((consumer, True), (other, False)):
        (send,) = core.metadata_manager.poll(now).sends
        assert isinstance(send, Send)
        assert send.message.allow_auto_topic_creation is creates


def test_the_earliest_wake_up_decides_when_all_managers_are_polled_again() -> None:
    world = TwoManagers()

    class Patient:
        def __init__(self, wake_at: int | None) -> None:
            self.wake_at = wake_at

        def poll(self, now: Now) -> Poll:
            return Poll(wake_at=self.wake_at)

    def next_pass(*wishes: int | None) -> int | None:
        core = ClientCore(ClientConfig.parse(bootstrap_servers="10.0.0.1:9092"), random.Random(3))
        for wish in wishes:
            core.add_manager(Patient(wish))
        return core.poll(world.network.now).wake_at

    now = world.network.now.mono
    alone = next_pass()
    assert next_pass(None, now + 50, now + 20) == now + 20
    assert next_pass(None, None) == alone
