"""The look-up of the central coordinator: any broker is consulted, and names all brokers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.client.assembly import ConsumerAssembly
from ottla.client.calls.shared_state import SharedState
from ottla.client.cluster.consultation import Consultation
from ottla.client.cluster.coordinator import CoordinatorManager
from ottla.client.effects import AnyNode, Connect, ToCoordinator
from ottla.client.events import Commit, Completed
from ottla.errors import (
    AllKnownBrokersNotAvailableError,
    CoordinatorNotAvailableError,
    OttlaError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import consult_response
from ottla.types import Node, OffsetAndMetadata
from tests.unit.client.managers import T0, Asked, backoff, config, now


class Consulted(Asked):
    def __init__(self) -> None:
        self.learned: list[Node] = []
        self.fatal: list[OttlaError] = []

        def learn(node: Node, now: Any) -> None:
            self.learned.append(node)

        manager = CoordinatorManager(Consultation(30_000, learn), "group 'g'", backoff(), learn, lambda target, reason, now: None)
        manager.on_fatal(lambda error, now: self.fatal.append(error))
        super().__init__(manager)
        assert manager.target() is None

    def told(self, coordinator: int, *brokers: int, code: int = 0) -> Any:
        return consult_response.ConsultResponse(
            error_code=ErrorCode(code),
            coordinator_id=coordinator,
            coordinator_epoch=3,
            brokers=tuple(consult_response.Broker(broker_id=n, creator_id=f"c{n}", host=f"h{n}", port=9090 + n) for n in brokers),
        )


def test_any_broker_is_consulted_and_all_brokers_are_learned() -> None:
    asked = Consulted()
    send = asked.one(Api.CONSULT)
    assert send.target == AnyNode(in_turn=True)
    asked.answer(send, asked.told(2, 1, 2, 3))
    assert asked.manager.target() == ToCoordinator(2)
    assert {Node(n, f"h{n}", 9090 + n) for n in (1, 2, 3)} == set(asked.learned)
    assert asked.poll() == []


@pytest.mark.parametrize(("coordinator", "code"), [(-1, ErrorCode.coordinator_not_available), (-1, 0), (7, 0)])
def test_without_an_elected_broker_it_is_asked_again(coordinator: int, code: int) -> None:
    asked = Consulted()
    asked.answer(asked.one(Api.CONSULT), asked.told(coordinator, 1, 2, code=code))
    assert isinstance(asked.manager.failure, CoordinatorNotAvailableError)
    assert len(asked.learned) == 2
    assert asked.poll(99) == []
    asked.answer(asked.one(Api.CONSULT, 100), asked.told(1, 1))
    assert (asked.manager.node_id, asked.manager.failure, asked.fatal) == (1, None, [])


def test_a_broker_that_does_not_serve_it_says_what_to_do() -> None:
    asked = Consulted()
    asked.fail(asked.one(Api.CONSULT), UnsupportedApiError("the broker does not serve CONSULT"))
    (error,) = asked.fatal
    assert "start the brokers with zookeeper=" in str(error)


def test_the_error_for_unreachable_brokers_names_each_address_and_why() -> None:
    settings = config(group_protocol="central", bootstrap_servers="127.0.0.1:1,127.0.0.1:2")
    consumer = ConsumerAssembly(settings, random.Random(1), SharedState())
    consumer.subscription.subscribe(frozenset({"t"}))
    command = Commit({T0: OffsetAndMetadata(3)}, 5_000)
    consumer.subscription.assign({T0})
    consumer.core.handle_command(command, now(0))
    for mono in range(0, 5_000, 300):
        for effect in consumer.core.poll(now(mono)).effects:
            if isinstance(effect, Connect):
                consumer.core.connections.on_connect_failed(effect.connection_id, "Connection refused", now(mono))
    problem = consumer.core.connections.brokers.unreachable()
    assert isinstance(problem, AllKnownBrokersNotAvailableError)
    assert dict(problem.attempts) == {"127.0.0.1:1": "Connection refused", "127.0.0.1:2": "Connection refused"}
    consumer.core.poll(now(5_000))
    (done,) = [item for item in consumer.core.take_notifications() if isinstance(item, Completed)]
    assert done.error is not None
    assert isinstance(done.error.cause, AllKnownBrokersNotAvailableError), done.error
