"""When nothing comes for want of a broker: who is waited for before that is said, and for how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ottla.client.connections.node_connections import NEXT_ADDRESS
from ottla.client.problems import PATIENCE, Problems
from ottla.client.subscription import SubscriptionState
from ottla.config import ConsumerConfig
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import metadata_response
from tests.simulation.network import ClientOnNetwork, NoAnswer

STEP = 50


class Observed(ClientOnNetwork):
    """A consumer that requests metadata, and the problems that it reports."""

    def __init__(self, servers: str) -> None:
        super().__init__(ConsumerConfig.parse(bootstrap_servers=servers))
        self.problems = Problems(self.core, SubscriptionState(None))
        self.core.metadata_manager.set_topics(frozenset({"t"}))
        self.began = self.network.mono

    @property
    def reported(self) -> bool:
        return self.problems.present(self.network.now) is not None

    def until_reported(self, limit: int = 30_000) -> int:
        """Milliseconds from the beginning until a problem is reported."""
        while not self.reported:
            assert self.network.mono < self.began + limit
            self.network.advance(STEP)
        return self.network.mono - self.began


def answers(header: Any, message: Any) -> Any:
    del message
    if header.api is not Api.METADATA:
        raise NoAnswer
    one = metadata_response.MetadataResponseBroker(node_id=1, host="10.0.0.1", port=9092)
    return metadata_response.MetadataResponse(
        throttle_time=timedelta(0), brokers=(one,), topics=(), error_code=ErrorCode.none, controller_id=1
    )


def test_what_was_answered_is_the_reason_for_as_long_as_nothing_better_is() -> None:
    """Between two attempts no one is connected: that is what came of the trouble, and not the trouble."""
    world = Observed("10.0.0.1:9092")
    peer = world.network.peer("10.0.0.1:9092", answer=lambda header, message: (200_000_000).to_bytes(4, "big"))
    world.until_reported()
    for _ in range(200):
        problem = world.problems.present(world.network.now)
        assert isinstance(problem, ProtocolError)
        assert "200000000" in str(problem)
        world.network.advance(STEP)
    peer.answer = answers
    world.network.advance(2_000)
    assert not world.reported


@pytest.mark.parametrize("dead", ["refuse", "silent"])
@pytest.mark.parametrize("servers", ["10.0.0.3:9092,10.0.0.2:9092,10.0.0.1:9092", "kafka:9092"])
def test_nothing_is_reported_while_addresses_are_tried_one_after_the_other(servers: str, dead: str) -> None:
    world = Observed(servers)
    world.network.names["kafka"] = ["10.0.0.3", "10.0.0.2", "10.0.0.1"]
    for host in ("10.0.0.3", "10.0.0.2"):
        world.network.peer(f"{host}:9092", mode=dead)
    world.network.peer("10.0.0.1:9092", answer=answers)
    while not world.core.metadata.nodes:
        assert not world.reported
        assert world.network.mono < world.began + 2 * NEXT_ADDRESS + STEP
        world.network.advance(STEP)
    world.network.advance(10_000)
    assert not world.reported


def test_a_problem_is_reported_at_once_if_all_addresses_refuse() -> None:
    world = Observed("10.0.0.3:9092,10.0.0.2:9092")
    assert world.until_reported() <= STEP


@pytest.mark.parametrize("mode", ["silent", "mute"])
def test_a_problem_is_reported_after_a_while_if_one_address_refuses_and_one_does_not_answer(mode: str) -> None:
    world = Observed("10.0.0.3:9092,10.0.0.2:9092")
    world.network.peer("10.0.0.3:9092", mode=mode)
    assert PATIENCE <= world.until_reported() <= PATIENCE + 500


def test_of_a_name_whose_addresses_swallow_all_each_is_tried_and_named() -> None:
    world = Observed("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.3", "10.0.0.2"]
    for host in world.network.names["kafka"]:
        world.network.peer(f"{host}:9092", mode="silent")
    assert world.until_reported() <= NEXT_ADDRESS + PATIENCE + STEP
    assert "10.0.0.3" in str(world.problems.present(world.network.now))
    assert "10.0.0.2" in str(world.problems.present(world.network.now))


def test_a_way_that_is_slow_is_given_more_time_in_each_round() -> None:
    world = Observed("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.3", "10.0.0.2"]
    for host in world.network.names["kafka"]:
        world.network.peer(f"{host}:9092", mode="silent")
    world.network.advance(120_000)
    connects = [(int(line.split()[0]), line.split()[-1]) for line in world.network.log if " connect " in line]
    first = [
        next(at for at, _ in connects[number + 1 :]) - began for number, (began, ip) in enumerate(connects[:-1]) if "0.3" in ip
    ]
    assert first[:3] == [NEXT_ADDRESS, 2 * NEXT_ADDRESS, 4 * NEXT_ADDRESS]
    assert first == sorted(first)


def test_who_has_connected_is_heard_out() -> None:
    """The short time is for those of whom nothing is heard: the one who talks slowly is no such."""
    world = Observed("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.3", "10.0.0.1"]
    world.network.peer("10.0.0.3:9092", mode="mute")
    world.network.advance(5 * NEXT_ADDRESS)
    assert [line.split()[-1] for line in world.network.log if " connect " in line] == ["10.0.0.3:9092"]
