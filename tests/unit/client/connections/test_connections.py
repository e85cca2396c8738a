"""Connections under a virtual clock: the choice of the broker, the times of retries, the errors of requests."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ottla.client.connections import connections
from ottla.client.connections.connections import MAX_IN_FLIGHT
from ottla.client.connections.node_connections import STAGGER, TRANSITIONS, NodeEvent, NodeState
from ottla.client.effects import AnyNode, ToCoordinator, ToNode
from ottla.errors import (
    ConnectionFailedError,
    DisconnectedError,
    IllegalStateError,
    OttlaTimeoutError,
    ProtocolError,
    UnsupportedApiError,
)
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRange
from ottla.protocol.messages import heartbeat_request, heartbeat_response
from ottla.types import Node
from tests.example_counts import examples
from tests.simulation.network import NoAnswer, Peer
from tests.unit.client.connections.harness import ANSWER, ConnectionsOnNetwork


def answers(header: Any, message: Any) -> Any:
    return ANSWER


NODE = Node(1, "10.0.0.1", 9092)


def test_a_request_opens_a_connection_and_is_answered() -> None:
    world = ConnectionsOnNetwork("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.1"]
    world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a")
    world.network.settle()
    assert world.manager.answered == ["a"]
    assert world.network.log == ["1000 resolve kafka", "1000 connect 10.0.0.1:9092"]


def test_every_request_has_an_outcome_when_a_connection_cannot_be_created(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ConnectionsOnNetwork()
    nodes = [Node(number, f"10.0.0.{number}", 9092) for number in (1, 2, 3)]
    world.know(*nodes)
    for node in nodes:
        world.network.peer(f"{node.host}:9092", answer=answers)
        world.send(node.node_id, ToNode(node.node_id))

    def out_of_memory(*args: Any, **keywords: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(connections, "ClientConnection", out_of_memory)
        with pytest.raises(MemoryError):
            world.network.settle()
    world.network.advance(1_000)
    assert set(world.manager.outcomes) == {1, 2, 3}
    assert world.manager.answered == [2, 3]


def test_no_connection_is_opened_before_it_is_needed() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    assert world.network.settle() is None
    assert world.network.log == []


def test_every_address_of_a_name_is_tried_in_order() -> None:
    world = ConnectionsOnNetwork("kafka:9092")
    world.network.names["kafka"] = ["::1", "10.0.0.7", "10.0.0.8"]
    world.network.peer("10.0.0.8:9092", answer=answers)
    world.send("a")
    world.network.settle()
    assert world.manager.answered == ["a"]
    assert [line.split()[-1] for line in world.connects] == ["[::1]:9092", "10.0.0.7:9092", "10.0.0.8:9092"]
    assert world.connections.brokers.failures() == {}


def test_a_failed_bootstrap_lists_every_address_and_why() -> None:
    world = ConnectionsOnNetwork(
        "nowhere:9092,two:9092,10.0.0.3:1,10.0.0.4:1,10.0.0.5:80,10.0.0.6:1", socket_connection_setup_timeout=1
    )
    world.network.names["two"] = ["10.1.0.1", "10.1.0.2"]
    world.network.peer("10.0.0.3:1", mode="silent")
    world.network.peer("10.0.0.4:1", mode="mute")
    world.network.peer("10.0.0.5:80", mode="garbage")
    world.network.peer("10.0.0.6:1", mode="hang up")
    world.send("a", timeout=8_000)
    world.network.advance(8_000)
    error = world.manager.failed["a"]
    assert isinstance(error, ConnectionFailedError)
    assert set(error.attempts) == {
        "nowhere:9092",
        "two:9092 (10.1.0.1:9092)",
        "two:9092 (10.1.0.2:9092)",
        "10.0.0.3:1",
        "10.0.0.4:1",
        "10.0.0.5:80",
        "10.0.0.6:1",
    }
    assert "cannot be resolved: Name or service not known" in error.attempts["nowhere:9092"]
    assert error.attempts["two:9092 (10.1.0.2:9092)"] == "Connection refused"
    assert "no TCP connection" in error.attempts["10.0.0.3:1"]
    assert "no answer to ApiVersions" in error.attempts["10.0.0.4:1"]
    assert "frame announces 1213486160 bytes" in error.attempts["10.0.0.5:80"]
    assert "before it answered ApiVersions" in error.attempts["10.0.0.6:1"]
    assert all(address in str(error) for address in error.attempts)


def test_errors_list_a_silent_address_even_before_its_setup_timeout() -> None:
    world = ConnectionsOnNetwork("10.0.0.4:1")
    world.network.peer("10.0.0.4:1", mode="mute")
    world.send("a", timeout=1_000)
    world.network.advance(1_000)
    error = world.manager.failed["a"]
    assert isinstance(error, ConnectionFailedError)
    assert error.attempts == {"10.0.0.4:1": "connected, but no answer to ApiVersions: is it a Kafka port?"}


@pytest.mark.parametrize(
    ("mode", "doubts", "says"),
    [
        ("mute", " s: is it a Kafka port?", "connected, but no answer to ApiVersions after "),
        ("hang up", "before it answered ApiVersions: is it a Kafka port, and is security.protocol right?", "answered ApiVersions"),
    ],
)
def test_errors_question_the_settings_only_if_the_address_has_never_worked(
    mode: str, doubts: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = ConnectionsOnNetwork(socket_connection_setup_timeout=1)
    peer = world.network.peer("10.0.0.1:9092", mode=mode)
    world.send("a", timeout=1_200)
    world.network.advance(1_300)
    assert doubts in caplog.text
    peer.mode, peer.answer = "accept", answers
    world.network.advance(2_000)
    world.send("b")
    world.network.advance(2_000)
    assert world.manager.answered == ["b"]
    caplog.clear()
    peer.mode = mode
    world.network.hang_up(world.network.open[0])
    world.send("c", timeout=10_000)
    world.network.advance(3_000)
    assert "?" not in caplog.text
    assert says in str(world.connections.brokers.connection_failure())
    assert "?" not in str(world.connections.brokers.connection_failure())


def test_a_closed_connection_to_an_address_that_had_worked_does_not_suggest_a_login(caplog: pytest.LogCaptureFixture) -> None:
    world = ConnectionsOnNetwork()
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a")
    world.network.settle()
    world.network.hang_up(world.network.open[0])
    peer.answer = None
    caplog.set_level("DEBUG")
    world.send("b")
    world.network.advance(1_000)
    world.network.hang_up(world.network.open[0])
    assert "the peer closed the connection at the first request" in caplog.text
    assert "login" not in caplog.text


def test_a_request_that_cannot_be_encoded_does_not_question_the_port() -> None:
    world = ConnectionsOnNetwork()
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    peer.versions[Api.HEARTBEAT] = VersionRange(0, 3)
    world.send("a", request=heartbeat_request.HeartbeatRequest(group_id="g" * 40_000, generation_id=1, member_id="m"))
    world.network.settle()
    error = world.manager.failed["a"]
    assert isinstance(error, ProtocolError)
    assert error.hint == "a value in it does not fit this version's field"


def test_malformed_responses_question_the_port_only_if_it_has_never_worked() -> None:
    garbage = b"\0\0\0\5hello"
    for answered, hint in ((False, "is it a Kafka port, and does anything"), (True, "does anything between here and the broker")):
        world = ConnectionsOnNetwork()
        peer = world.network.peer("10.0.0.1:9092", answer=answers)
        if answered:
            world.send("first")
            world.network.settle()
        peer.answer = None
        world.send("a")
        world.network.settle()
        world.connections.receive(world.network.open[0], garbage, world.network.now)
        world.network.settle()
        assert isinstance(world.manager.failed["a"], ProtocolError)
        assert (world.manager.failed["a"].hint or "").startswith(hint)


def test_a_silent_server_does_not_delay_requests() -> None:
    world = ConnectionsOnNetwork("10.0.0.1:1,10.0.0.2:1")
    world.network.peer("10.0.0.1:1", mode="silent")
    world.network.peer("10.0.0.2:1", answer=answers)
    world.send("a")
    world.network.advance(STAGGER)
    assert world.manager.answered == ["a"]


def test_reconnect_backs_off_exponentially_up_to_the_maximum() -> None:
    world = ConnectionsOnNetwork(reconnect_backoff_ms=50, reconnect_backoff_max_ms=1_000)
    world.send("a", timeout=20_000)
    world.network.advance(20_000)
    times = [int(line.split()[0]) for line in world.connects]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 40 <= gaps[0] <= 60
    assert all(gap <= 1_200 for gap in gaps)
    assert all(gap >= 800 for gap in gaps[5:])
    assert 20 <= len(gaps) <= 30


def test_the_back_off_is_reset_after_a_working_connection() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.send("a", ToNode(1), timeout=20_000)
    world.network.advance(5_000)
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("b", ToNode(1))
    world.network.advance(2_000)
    assert world.manager.answered == ["b"]
    world.network.hang_up(world.network.open[0])
    world.send("c", ToNode(1))
    world.network.advance(60)
    assert world.manager.answered == ["b", "c"]
    assert peer.connects == 2


def test_a_broken_connection_fails_its_requests_with_the_address() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    world.send("a", ToNode(1))
    world.send("b", ToNode(1))
    world.network.settle()
    world.network.hang_up(world.network.open[0], "Connection reset by peer")
    world.network.settle()
    assert set(world.manager.failed) == {"a", "b"}
    error = world.manager.failed["a"]
    assert isinstance(error, DisconnectedError)
    assert error.retriable
    assert "node 1 at 10.0.0.1:9092" in str(error)
    assert "Connection reset by peer" in str(error)
    assert world.connections.failures == 1


def test_requests_for_an_unreachable_broker_fail_at_once() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.send("a", ToNode(1))
    world.network.settle()
    assert isinstance(world.manager.failed["a"], DisconnectedError)
    assert "Connection refused" in str(world.manager.failed["a"])


def test_a_request_during_back_off_waits_for_it() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.send("a", ToNode(1))
    world.network.settle()
    world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("b", ToNode(1))
    world.network.settle()
    assert world.manager.answered == []
    world.network.advance(60)
    assert world.manager.answered == ["b"]


def test_a_request_to_an_unknown_node_fails() -> None:
    world = ConnectionsOnNetwork()
    world.send("a", ToNode(9))
    world.network.settle()
    assert isinstance(world.manager.failed["a"], DisconnectedError)
    assert "node 9" in str(world.manager.failed["a"])


def test_the_coordinator_has_a_connection_of_its_own() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a", ToNode(1))
    world.send("b", ToCoordinator(1))
    world.network.settle()
    assert sorted(world.manager.answered) == ["a", "b"]
    assert peer.connects == 2


def test_the_bootstrap_connection_becomes_the_broker_s_own() -> None:
    world = ConnectionsOnNetwork("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.1"]
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a")
    world.network.settle()
    world.know(NODE)
    world.send("b", ToNode(1))
    world.network.settle()
    assert world.manager.answered == ["a", "b"]
    assert peer.connects == 1


def test_a_broker_that_moved_is_connected_at_its_new_address() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    moved = world.network.peer("10.0.0.2:9092", answer=answers)
    world.send("a", ToNode(1))
    world.network.settle()
    world.know(Node(1, "10.0.0.2", 9092))
    world.send("b", ToNode(1))
    world.network.settle()
    assert isinstance(world.manager.failed["a"], DisconnectedError)
    assert world.manager.answered == ["b"]
    assert moved.connects == 1


def test_any_node_is_the_least_loaded_one() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE, Node(2, "10.0.0.2", 9092))
    busy, free = world.network.peer("10.0.0.1:9092"), world.network.peer("10.0.0.2:9092", answer=answers)
    world.send("warm", ToNode(2))
    for tag in range(3):
        world.send(tag, ToNode(1))
    world.network.settle()
    world.send("any")
    world.network.settle()
    assert world.manager.answered == ["warm", "any"]
    assert len(busy.requests) == 3
    assert len(free.requests) == 2


def test_a_request_times_out_in_the_queue() -> None:
    world = ConnectionsOnNetwork(socket_connection_setup_timeout=10)
    world.know(NODE)
    world.network.peer("10.0.0.1:9092", mode="silent")
    world.send("a", ToNode(1), timeout=500)
    world.network.advance(499)
    assert world.manager.failed == {}
    world.network.advance(1)
    assert isinstance(world.manager.failed["a"], OttlaTimeoutError)


def test_a_request_times_out_on_the_wire_and_its_late_answer_is_dropped() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    held: list[Any] = []

    def hold(header: Any, message: Any) -> Any:
        held.append(header)
        raise NoAnswer

    peer = world.network.peer("10.0.0.1:9092", answer=hold)
    world.send("a", ToNode(1), timeout=500)
    world.network.advance(500)
    assert isinstance(world.manager.failed["a"], OttlaTimeoutError)
    assert "HEARTBEAT was not answered by node 1" in str(world.manager.failed["a"])
    world.network.reply(world.network.open[0], held[0], ANSWER)
    peer.answer = answers
    world.send("b", ToNode(1))
    world.network.settle()
    assert world.manager.answered == ["b"]
    assert peer.connects == 1


def test_a_connection_without_an_answer_for_request_timeout_is_broken() -> None:
    world = ConnectionsOnNetwork(request_timeout=5)
    world.know(NODE)
    peer = world.network.peer("10.0.0.1:9092")
    world.send("a", ToNode(1), timeout=500)
    world.send("b", ToNode(1), timeout=8_000)
    world.network.advance(5_000)
    assert isinstance(world.manager.failed["b"], DisconnectedError)
    peer.answer = answers
    world.send("c", ToNode(1))
    world.network.advance(100)
    assert world.manager.answered == ["c"]
    assert peer.connects == 2


def test_a_long_request_keeps_its_connection_for_its_timeout() -> None:
    world = ConnectionsOnNetwork(request_timeout=5)
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    world.send("join", ToNode(1), timeout=60_000)
    world.network.advance(59_000)
    assert world.manager.failed == {}
    world.network.advance(1_000)
    assert list(world.manager.failed) == ["join"]


def test_the_number_of_requests_in_flight_is_limited() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    peer = world.network.peer("10.0.0.1:9092")
    for tag in range(MAX_IN_FLIGHT + 5):
        world.send(tag, ToNode(1))
    world.network.settle()
    assert len(peer.requests) == MAX_IN_FLIGHT


def test_an_idle_connection_is_closed_and_opened_again_on_demand() -> None:
    world = ConnectionsOnNetwork(connections_max_idle=10)
    world.know(NODE)
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a", ToNode(1))
    world.network.advance(9_999)
    assert len(world.network.open) == 1
    world.network.advance(1)
    assert world.network.open == []
    assert world.connections.failures == 0
    world.send("b", ToNode(1))
    world.network.settle()
    assert world.manager.answered == ["a", "b"]
    assert peer.connects == 2


def test_an_api_that_the_broker_does_not_offer_is_an_error() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    peer = world.network.peer("10.0.0.1:9092", answer=answers)
    del peer.versions[Api.HEARTBEAT]
    world.send("a", ToNode(1))
    world.network.settle()
    assert isinstance(world.manager.failed["a"], UnsupportedApiError)
    assert len(world.network.open) == 1


def test_a_malformed_response_breaks_the_connection() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    world.send("a", ToNode(1))
    world.send("b", ToNode(1))
    world.network.settle()
    world.connections.receive(world.network.open[0], b"\0\0\0\5hello", world.network.now)
    world.network.settle()
    assert isinstance(world.manager.failed["a"], ProtocolError)
    assert isinstance(world.manager.failed["b"], DisconnectedError)
    assert world.network.open == []


def test_requests_wait_for_the_throttle_time() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    throttled = heartbeat_response.HeartbeatResponse(throttle_time=timedelta(milliseconds=700), error_code=ErrorCode.none)
    peer = world.network.peer("10.0.0.1:9092", answer=lambda header, message: throttled)
    world.send("a", ToNode(1))
    world.network.settle()
    peer.answer = answers
    world.send("b", ToNode(1))
    world.network.advance(699)
    assert world.manager.answered == ["a"]
    world.network.advance(1)
    assert world.manager.answered == ["a", "b"]


def test_bootstrap_servers_are_used_when_no_known_broker_is_reachable() -> None:
    world = ConnectionsOnNetwork("10.0.0.9:9092")
    world.know(Node(1, "10.0.0.1", 9092), Node(2, "10.0.0.2", 9092))
    world.network.peer("10.0.0.9:9092", answer=answers)
    world.send("a")
    world.network.advance(2_000)
    assert world.manager.answered == ["a"]
    assert {line.split()[-1] for line in world.connects[:2]} == {"10.0.0.1:9092", "10.0.0.2:9092"}


def test_without_rebootstrap_only_known_brokers_are_tried() -> None:
    world = ConnectionsOnNetwork("10.0.0.9:9092", metadata_recovery_strategy="none")
    world.know(NODE)
    world.network.peer("10.0.0.9:9092", answer=answers)
    world.send("a", timeout=5_000)
    world.network.advance(5_000)
    assert isinstance(world.manager.failed["a"], ConnectionFailedError)
    assert {line.split()[-1] for line in world.connects} == {"10.0.0.1:9092"}


def test_rebootstrap_forgets_the_cluster() -> None:
    world = ConnectionsOnNetwork("10.0.0.9:9092")
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    world.network.peer("10.0.0.9:9092", answer=answers)
    world.send("a", ToNode(1))
    world.network.settle()
    world.connections.rebootstrap("told to", world.network.now)
    world.send("b")
    world.network.settle()
    assert isinstance(world.manager.failed["a"], DisconnectedError)
    assert world.manager.answered == ["b"]


def test_shut_down_fails_all_requests() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.network.peer("10.0.0.1:9092")
    world.send("sent", ToNode(1))
    world.network.settle()
    world.send("queued", ToNode(1))
    world.connections.shut_down(IllegalStateError("closed"), world.network.now)
    world.network.settle()
    assert set(world.manager.failed) == {"sent", "queued"}
    assert all(isinstance(error, IllegalStateError) for error in world.manager.failed.values())
    assert world.network.open == []


def test_a_late_report_of_a_closed_connection_has_no_effect() -> None:
    world = ConnectionsOnNetwork()
    world.know(NODE)
    world.network.peer("10.0.0.1:9092", answer=answers)
    world.send("a", ToNode(1))
    world.network.settle()
    (connection_id,) = world.network.open
    world.connections.disconnect(ToNode(1), "not wanted", world.network.now)
    world.network.settle()
    world.connections.on_closed(connection_id, "late", world.network.now)
    world.connections.on_connected(connection_id, world.network.now)
    assert not world.connections.on_received(connection_id, 4, world.network.now)
    world.send("b", ToNode(1))
    world.network.settle()
    assert world.manager.answered == ["a", "b"]


def test_every_state_can_be_left_and_reached() -> None:
    reached = {state for events in TRANSITIONS.values() for state in events.values()}
    assert reached == set(NodeState) == set(TRANSITIONS)
    assert all(NodeEvent.RELEASED in events for events in TRANSITIONS.values())


TARGETS = [AnyNode(), AnyNode(in_turn=True), ToNode(1), ToNode(2), ToNode(3), ToCoordinator(1)]
MODES = ["accept", "refuse", "silent", "mute", "garbage", "hang up"]
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(TARGETS), st.integers(1, 5_000)),
        st.tuples(st.just("advance"), st.integers(0, 3_000)),
        st.tuples(st.just("mode"), st.sampled_from([1, 2, 9]), st.sampled_from(MODES)),
        st.tuples(st.just("hang up"), st.integers(0, 5)),
        st.tuples(st.just("nodes"), st.sets(st.sampled_from([1, 2, 3]))),
        st.tuples(st.just("rebootstrap")),
    ),
    max_size=40,
)


@settings(max_examples=examples(200))
@given(ACTIONS)
def test_every_request_has_exactly_one_outcome(actions: list[tuple[Any, ...]]) -> None:
    world = ConnectionsOnNetwork("10.0.0.9:9092", socket_connection_setup_timeout=1, connections_max_idle=2)
    peers: dict[int, Peer] = {node: world.network.peer(f"10.0.0.{node}:9092", answer=answers) for node in (1, 2, 9)}
    sent = 0
    for action in actions:
        match action:
            case ("send", target, timeout):
                world.send(sent, target, timeout)
                sent += 1
            case ("advance", duration):
                world.network.advance(duration)
            case ("mode", node, mode):
                peers[node].mode = mode
            case ("hang up", index) if index < len(world.network.open):
                world.network.hang_up(world.network.open[index])
            case ("nodes", ids):
                world.know(*(Node(node, f"10.0.0.{node}", 9092) for node in ids))
            case ("rebootstrap",):
                world.connections.rebootstrap("told to", world.network.now)
    world.network.advance(5_000)
    assert sorted([*world.manager.answered, *world.manager.failed]) == list(range(sent))
