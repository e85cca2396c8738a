"""Requests to brokers in turn: which broker gets the next one, under a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.connections.node_connections import STAGGER
from ottla.client.effects import AnyNode, ToChannel, ToCoordinator, ToNode
from ottla.errors import OttlaTimeoutError
from ottla.types import Node
from tests.simulation.network import NoAnswer, Peer
from tests.unit.client.connections.harness import ANSWER, ConnectionsOnNetwork

IN_TURN = AnyNode(in_turn=True)


class Turns:
    """Brokers 1, 2, ... of a cluster, and bootstrap servers; ``asked`` has those that got requests, in order."""

    def __init__(self, brokers: int, *bootstrap: int, **settings: Any) -> None:
        servers = ",".join(f"10.0.0.{number}:9092" for number in bootstrap or (1,))
        self.world = ConnectionsOnNetwork(servers, **settings)
        self.asked: list[int] = []
        self.mute: set[int] = set()
        self.peers = {number: self._peer(number) for number in {*range(1, brokers + 1), *bootstrap}}
        if brokers:
            self.world.know(*(Node(number, f"10.0.0.{number}", 9092) for number in range(1, brokers + 1)))
        self._tag = 0

    def _peer(self, number: int) -> Peer:
        def answer(header: Any, message: Any) -> Any:
            self.asked.append(number)
            if number in self.mute:
                raise NoAnswer
            return ANSWER

        return self.world.network.peer(f"10.0.0.{number}:9092", answer=answer)

    def ask(self, target: Any = IN_TURN, timeout: int = 30_000) -> int:
        """Send one request, wait until a broker has it, and return which."""
        self._tag += 1
        before = len(self.asked)
        self.world.send(self._tag, target, timeout)
        for _ in range(200):
            self.world.network.advance(10)
            if len(self.asked) > before:
                break
        assert len(self.asked) == before + 1
        return self.asked[-1]


def test_no_broker_is_asked_again_before_all_others() -> None:
    turns = Turns(4)
    asked = [turns.ask() for _ in range(12)]
    first, second, third = asked[:4], asked[4:8], asked[8:]
    assert sorted(first) == [1, 2, 3, 4]
    assert first == second == third
    assert [peer.connects for peer in turns.peers.values()] == [1, 1, 1, 1]


def test_the_first_one_is_chosen_at_random() -> None:
    turns = [Turns(4) for _ in range(8)]
    for number, one in enumerate(turns):
        one.world.connections._random.seed(number)  # type: ignore[attr-defined]
    assert len({one.ask() for one in turns}) > 1


def test_one_that_is_connected_goes_first() -> None:
    for number in (1, 2, 3):
        turns = Turns(3)
        turns.ask(ToNode(number))
        assert turns.ask() == number
        assert turns.ask() != number


def test_other_requests_take_no_turn_and_go_to_the_least_loaded_one() -> None:
    turns = Turns(2)
    first = turns.ask()
    assert [turns.ask(AnyNode()) for _ in range(3)] == [first] * 3, "the only connection"
    assert turns.ask() != first
    assert turns.ask() == first


def test_a_broker_that_does_not_answer_has_had_its_turn() -> None:
    turns = Turns(3)
    turns.mute.add(silent := turns.ask())
    others = {1, 2, 3} - {silent}
    assert {turns.ask(), turns.ask()} == others
    assert turns.ask(timeout=500) == silent
    turns.world.network.advance(1_000)
    (error,) = turns.world.manager.failed.values()
    assert isinstance(error, OttlaTimeoutError)
    assert turns.ask() in others


@pytest.mark.parametrize("of", [ToCoordinator, ToChannel])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_coordinator_that_was_given_up_is_not_asked_before_others(of: Any, number: int) -> None:
    turns = Turns(3)
    turns.ask(ToNode(number))
    turns.ask(of(number))
    turns.world.connections.disconnect(of(number), "it is silent", turns.world.network.now)
    assert [turns.ask() for _ in range(3)][2] == number


def test_the_only_broker_is_asked_again_though_it_was_given_up() -> None:
    turns = Turns(1)
    turns.ask(ToCoordinator(1))
    turns.world.connections.disconnect(ToCoordinator(1), "it is silent", turns.world.network.now)
    assert turns.ask() == 1


def test_the_only_broker_is_asked_again() -> None:
    turns = Turns(1)
    assert [turns.ask() for _ in range(3)] == [1, 1, 1]
    assert turns.peers[1].connects == 1


def test_brokers_that_cannot_be_reached_miss_their_turn() -> None:
    for mode in ("refuse", "silent"):
        turns = Turns(3)
        turns.peers[2].mode = turns.peers[3].mode = mode
        begin = turns.world.network.now.mono
        assert [turns.ask() for _ in range(4)] == [1, 1, 1, 1]
        assert turns.world.network.now.mono - begin < 4 * 2 * STAGGER + 1_000
        turns.peers[2].mode = "accept"
        turns.world.network.advance(60_000)
        assert 2 in {turns.ask(), turns.ask()}


def test_bootstrap_servers_have_a_turn_after_the_brokers_of_the_cluster() -> None:
    turns = Turns(2, 8, 9)
    asked = [turns.ask() for _ in range(8)]
    assert (set(asked[:2]), set(asked[2:4])) == ({1, 2}, {8, 9})
    assert asked[:4] == asked[4:]


def test_before_the_cluster_is_known_the_bootstrap_servers_are_asked_in_turn() -> None:
    turns = Turns(0, 8, 9)
    asked = [turns.ask() for _ in range(4)]
    assert set(asked[:2]) == {8, 9}
    assert asked[:2] == asked[2:]


def test_the_turn_of_a_bootstrap_server_counts_for_the_broker_that_it_is() -> None:
    turns = Turns(0, 1)
    assert turns.ask() == 1
    turns.peers[2] = turns._peer(2)
    turns.world.know(Node(1, "10.0.0.1", 9092), Node(2, "10.0.0.2", 9092))
    assert [turns.ask() for _ in range(3)] == [2, 1, 2]
    assert turns.peers[1].connects == 1, "a server at the address of a broker is that broker"
