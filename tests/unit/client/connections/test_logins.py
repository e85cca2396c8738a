"""Logins under a virtual clock: the handshake, refusals that fail requests at once, and renewals during which requests wait."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.connections.connections import RENEW_FROM, RENEW_UNTIL
from ottla.client.connections.node_connections import NodeState
from ottla.client.effects import ToNode
from ottla.errors import AuthenticationError, ConnectionFailedError, DisconnectedError, TlsError
from ottla.protocol.apis import Api
from ottla.protocol.sasl import SaslChallenge
from ottla.types import Node
from tests.simulation.network import NoAnswer
from tests.unit.client.connections.harness import ANSWER
from tests.unit.client.connections.logins import Gate, LoginsOnNetwork


def test_a_login_comes_before_the_first_request() -> None:
    world = LoginsOnNetwork()
    peer = world.network.peer("10.0.0.1:9092", answer=Gate())
    world.send("a")
    world.network.settle()
    assert world.manager.outcomes == {"a": None}
    assert world.apis(peer) == [Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.HEARTBEAT]
    assert world.asked == [SaslChallenge(None, b""), SaslChallenge("exchange", b"welcome")]


def test_a_refused_login_fails_requests_at_once_and_the_next_request_retries() -> None:
    world = LoginsOnNetwork(password=b"wrong")
    peer = world.network.peer("10.0.0.1:9092", answer=Gate())
    world.send("a")
    world.network.settle()
    error = world.manager.outcomes["a"]
    assert isinstance(error, AuthenticationError)
    assert "who are you?" in str(error)
    assert "10.0.0.1:9092" in str(error)
    assert error.hint
    assert getattr(error.cause, "name", None) == "SASL_AUTHENTICATION_FAILED"
    assert world.network.mono == 1_000
    world.password = b"right"
    world.network.advance(2_000)
    world.send("b")
    world.network.settle()
    assert world.manager.outcomes["b"] is None
    assert peer.connects == 2
    assert world.connections.brokers.refusal() is None


def test_the_error_of_an_unsupported_mechanism_lists_the_supported_ones() -> None:
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=Gate(mechanisms=("SCRAM-SHA-512", "GSSAPI")))
    world.send("a")
    world.network.settle()
    assert "offers: GSSAPI, SCRAM-SHA-512" in str(world.manager.outcomes["a"])


def test_one_broker_that_accepts_the_login_suffices() -> None:
    world = LoginsOnNetwork("10.0.0.1:9092,10.0.0.2:9092,10.0.0.3:9092")
    for number in (1, 2):
        gate = Gate()
        gate.password = b"another"
        world.network.peer(f"10.0.0.{number}:9092", answer=gate)
    world.network.peer("10.0.0.3:9092", answer=Gate())
    world.send("a")
    world.network.advance(1_000)
    assert world.manager.outcomes == {"a": None}


def test_a_refused_login_takes_precedence_over_unreachable_brokers() -> None:
    world = LoginsOnNetwork("10.0.0.1:9092,10.0.0.2:9092", password=b"wrong")
    world.network.peer("10.0.0.1:9092", answer=Gate())
    world.send("a")
    world.network.advance(1_000)
    assert isinstance(world.manager.outcomes["a"], AuthenticationError)


def test_a_refused_login_fails_only_requests_for_that_broker() -> None:
    world = LoginsOnNetwork("10.0.0.1:9092")
    world.network.peer("10.0.0.1:9092", answer=Gate())
    refusing = Gate()
    refusing.password = b"another"
    world.network.peer("10.0.0.2:9092", answer=refusing)
    world.connections.set_nodes({1: Node(1, "10.0.0.1", 9092), 2: Node(2, "10.0.0.2", 9092)}, world.network.now)
    world.send("one", ToNode(1))
    world.send("two", ToNode(2))
    world.network.settle()
    assert world.manager.outcomes["one"] is None
    assert isinstance(world.manager.outcomes["two"], AuthenticationError)
    assert "node 2" in str(world.manager.outcomes["two"])
    assert world.connections.brokers.connection_failure() is None
    assert isinstance(world.connections.brokers.refusal(), AuthenticationError)


def test_a_missing_token_counts_as_a_refused_login() -> None:
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=Gate())
    world.no_token = AuthenticationError("the vault is sealed")
    world.send("a")
    world.network.settle()
    assert "the vault is sealed" in str(world.manager.outcomes["a"])


def test_a_login_that_never_ends_times_out() -> None:
    gate = Gate()
    gate.renewing = True
    world = LoginsOnNetwork(request_timeout=2)
    world.network.peer("10.0.0.1:9092", answer=gate)
    world.send("a", timeout=5_000)
    world.network.advance(6_000)
    error = world.manager.outcomes["a"]
    assert isinstance(error, ConnectionFailedError)
    assert "the login has not finished" in str(error)


def test_a_login_is_renewed_on_its_connection_and_requests_wait() -> None:
    gate = Gate(lifetime=10_000)
    world = LoginsOnNetwork()
    peer = world.network.peer("10.0.0.1:9092", answer=gate)
    world.send("a")
    world.network.settle()
    began = world.network.mono
    gate.renewing = True
    while world.states == [NodeState.READY]:
        world.network.advance(10)
    assert RENEW_FROM * 10_000 <= world.network.mono - began <= RENEW_UNTIL * 10_000 + 10
    assert world.states == [NodeState.RENEWING]
    world.send("b")
    world.network.advance(100)
    assert "b" not in world.manager.outcomes
    (connection_id,) = world.network.open
    gate.renewing = False
    for header, message in gate.held:
        world.network.reply(connection_id, header, gate(header, message))
    world.network.settle()
    assert world.manager.outcomes["b"] is None
    assert (len(world.connects), peer.connects) == (1, 1)
    assert world.apis(peer)[3:] == [Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.HEARTBEAT]


@pytest.mark.parametrize("lifetime", [0, -1, -(2**63), 2**63 - 1])
def test_a_login_whose_lifetime_is_not_positive_or_has_no_end_is_not_renewed(lifetime: int) -> None:
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=Gate(lifetime=lifetime))
    world.send("a")
    for _ in range(60):
        world.network.advance(1_000)
    assert (world.states, world.manager.outcomes["a"]) == ([NodeState.READY], None)
    assert len(world.asked) == 2


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_setting_the_wall_clock_does_not_move_a_renewal(ahead: int) -> None:
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=Gate(lifetime=10_000))
    world.send("a")
    world.network.settle()
    for second in range(60):
        if second:
            world.network.clock.set_wall(ahead if second % 2 else -ahead)
        world.network.advance(1_000)
        world.send(second)
    world.network.settle()
    assert set(world.manager.outcomes.values()) == {None}
    assert len(world.connects) == 1
    assert 60 / 9.5 <= len(world.asked) / 2 <= 1 + 60 / 8.5


def test_a_renewal_waits_for_earlier_responses() -> None:
    class Slow(Gate):
        """Responds in order, as brokers do: later requests wait for the heartbeat."""

        def __call__(self, header: Any, message: Any) -> Any:
            if self.held or header.api is Api.HEARTBEAT:
                self.held.append((header, message))
                raise NoAnswer
            return super().__call__(header, message)

    gate = Slow(lifetime=10_000)
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=gate)
    world.send("slow", timeout=60_000)
    world.network.settle()
    while world.states == [NodeState.READY]:
        world.network.advance(10)
    assert [header.api for header, _ in gate.held] == [Api.HEARTBEAT, Api.SASL_HANDSHAKE]
    (connection_id,) = world.network.open
    (beat, _), (hello, message) = gate.held
    gate.held.clear()
    world.network.reply(connection_id, beat, ANSWER)
    world.network.reply(connection_id, hello, gate(hello, message))
    world.network.settle()
    assert world.manager.outcomes == {"slow": None}
    assert (world.states, len(world.connects)) == ([NodeState.READY], 1)


def test_a_renewal_without_a_token_keeps_the_connection_and_is_retried() -> None:
    gate = Gate(lifetime=10_000)
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=gate)
    world.send("a")
    world.network.settle()
    world.no_token = AuthenticationError("the vault is sealed")
    world.network.advance(9_600)
    assert world.states == [NodeState.READY]
    world.send("b")
    world.network.settle()
    assert world.manager.outcomes["b"] is None
    world.no_token = None
    asked = len(world.asked)
    world.network.advance(2_000)
    assert len(world.asked) > asked
    assert (len(world.connects), world.states) == (1, [NodeState.READY])


def test_a_refused_renewal_fails_the_requests_in_flight() -> None:
    gate = Gate(lifetime=10_000)
    world = LoginsOnNetwork()
    world.network.peer("10.0.0.1:9092", answer=gate)
    world.send("a")
    world.network.settle()
    gate.password = b"changed"
    world.network.advance(9_700)
    assert isinstance(world.connections.brokers.refusal(), AuthenticationError)
    world.send("b")
    world.network.settle()
    assert isinstance(world.manager.outcomes["b"], AuthenticationError)


@pytest.mark.parametrize("error", [TlsError("the broker's certificate has expired"), AuthenticationError("no")])
def test_a_tls_failure_is_not_retried_at_other_addresses(error: AuthenticationError) -> None:
    world = LoginsOnNetwork("kafka:9092")
    world.network.names["kafka"] = ["10.0.0.1", "10.0.0.2"]
    for number in (1, 2):
        world.network.peer(f"10.0.0.{number}:9092", tls_error=error)
    world.send("a")
    world.network.settle()
    assert type(world.manager.outcomes["a"]) is type(error)
    assert len(world.connects) == 1


def test_the_error_of_a_closed_connection_at_the_first_request_suggests_a_login() -> None:
    world = LoginsOnNetwork(security_protocol="PLAINTEXT", sasl_mechanism=None, sasl_username=None, sasl_password=None)

    def hang_up(header: Any, message: Any) -> Any:
        world.network.hang_up(world.network.open[0])
        raise NoAnswer

    world.network.peer("10.0.0.1:9092", answer=hang_up)
    world.send("a", timeout=3_000)
    world.network.settle()
    assert isinstance(world.manager.outcomes["a"], DisconnectedError)
    failure = world.connections.brokers.connection_failure()
    assert failure is not None
    assert "does this port ask for a login?" in str(failure)
