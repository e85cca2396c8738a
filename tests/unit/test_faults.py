"""``broker.faults`` over real sockets: what a client sees, from which thread, and that ``clear`` ends them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Broker
from ottla.broker import slices
from ottla.errors import ConfigError, IllegalStateError, NotCoordinatorError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader, encode_request
from ottla.protocol.messages import find_coordinator_request
from ottla.simulation.requests import creating
from tests.raw_client import RawClient
from tests.simulation.files import content
from tests.unit.runtime.requests import METADATA, batch, create, fetch_message, produce

FIND = find_coordinator_request.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as raw:
        yield raw


def metadata(client: RawClient) -> Any:
    return client.ask(Api.METADATA, METADATA)


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", 16, NotCoordinatorError])
def test_an_error_by_name_number_or_class(broker: Broker, client: RawClient, error: Any) -> None:
    with broker.faults.fail("FindCoordinator", error, times=None, group="g") as fault:
        assert client.ask(Api.FIND_COORDINATOR, FIND).coordinators[0].error_code is ErrorCode.not_coordinator
        assert fault.struck == 1
    assert client.ask(Api.FIND_COORDINATOR, FIND).coordinators[0].error_code is ErrorCode.none
    assert list(broker.faults) == []


def test_a_dropped_connection(broker: Broker, client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    with broker.faults.drop("Metadata", client_id="raw"):
        client.send(Api.METADATA, METADATA)
        assert client.is_closed()
    assert "closing the connection from 127.0.0.1: broker.faults is set to drop it at a request" in caplog.text


@pytest.mark.parametrize("size", [100, 400_000])
def test_half_an_answer(broker: Broker, client: RawClient, size: int) -> None:
    with RawClient(broker.bootstrap_servers) as other:
        create(other, "t")
        produce(other, "t", batch(size))
        other.send(Api.FETCH, fetch_message("t"), 12)
        whole = len(other.receive_frame()) + 4
    broker.faults.drop("Fetch", at="halfway", topic="t")
    client.send(Api.FETCH, fetch_message("t"), 12)
    got = bytearray()
    while data := client.sock.recv(1 << 20):
        got += data
    assert len(got) == whole // 2


def test_a_lost_reply_leaves_the_connection_silent_until_the_fault_is_cleared(broker: Broker, client: RawClient) -> None:
    fault = broker.faults.lose_reply("FindCoordinator")
    client.send(Api.FIND_COORDINATOR, FIND)
    client.send(Api.METADATA, METADATA)
    fault.wait()
    client.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.receive_frame()
    fault.clear()
    assert client.is_closed()


def test_a_delay_holds_up_one_connection_and_no_other(broker: Broker, client: RawClient) -> None:
    broker.faults.delay("Metadata", 0.3, client_id="raw")
    sent = client.send(Api.METADATA, METADATA)
    with RawClient(broker.bootstrap_servers) as other:
        begin = time.monotonic()
        client.receive(*sent)
        assert time.monotonic() - begin >= 0.25
        assert metadata(other).error_code is ErrorCode.none


def test_a_frozen_broker_accepts_connections_and_answers_when_it_thaws(broker: Broker, client: RawClient) -> None:
    with broker.faults.freeze() as ice, RawClient(broker.bootstrap_servers) as other:
        sent = [client.send(Api.METADATA, METADATA), other.send(Api.METADATA, METADATA)]
        ice.wait(2)
        client.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.receive_frame()
        client.sock.settimeout(60)
        ice.clear()
        assert [one.receive(*what)[0] for one, what in zip((client, other), sent, strict=True)] == [1, 1]


def test_a_frozen_broker_serves_what_one_connection_has_sent_in_its_order(broker: Broker, client: RawClient) -> None:
    """Also where a request is served in slices, and the next ones have already been read."""
    names = [f"n{number}" for number in range(3 * slices.SIZE)]
    with broker.faults.freeze() as ice:
        sent = [client.send(Api.CREATE_TOPICS, creating(*names)), client.send(Api.METADATA, METADATA)]
        ice.wait(2)
    created, described = (client.receive(*one)[1] for one in sent)
    assert [row.error_code for row in created.topics] == [ErrorCode.none] * len(names)
    assert {row.name for row in described.topics} == set(names)


def test_connections_are_closed_by_client_id(broker: Broker, client: RawClient) -> None:
    metadata(client)
    header = RequestHeader(Api.METADATA, 12, 1, "another client")
    with RawClient(broker.bootstrap_servers) as other:
        other.send_frame(b"".join(map(content, encode_request(header, METADATA)))[4:])
        other.receive_frame()
        assert broker.faults.disconnect(client_id="raw") == 1
        assert client.is_closed()
        assert broker.faults.disconnect() == 1
        assert other.is_closed()


def test_all_faults_are_cleared_at_once(broker: Broker, client: RawClient) -> None:
    broker.faults.fail("Metadata", "LEADER_NOT_AVAILABLE", times=None)
    broker.faults.move_coordinator()
    broker.faults.freeze()
    assert len(list(broker.faults)) == 3
    broker.faults.clear()
    assert list(broker.faults) == []
    create(client, "t")
    assert [topic.error_code for topic in metadata(client).topics if topic.name == "t"] == [ErrorCode.none]
    assert client.ask(Api.FIND_COORDINATOR, FIND).coordinators[0].error_code is ErrorCode.none


def test_a_full_disk(broker: Broker, client: RawClient) -> None:
    create(client, "t")
    with broker.faults.fill_disk("t") as full:
        assert produce(client, "t", batch()).error_code is ErrorCode.kafka_storage_error
        assert full.struck == 1
    assert produce(client, "t", batch()).error_code is ErrorCode.none


def test_faults_from_many_threads(broker: Broker) -> None:
    def work() -> None:
        with RawClient(broker.bootstrap_servers) as client:
            for _ in range(20):
                with broker.faults.fail("FindCoordinator", "UNKNOWN_SERVER_ERROR", times=None):
                    answers.append(client.ask(Api.FIND_COORDINATOR, FIND).coordinators[0].error_code)

    answers: list[ErrorCode] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [ErrorCode.unknown_server_error] * 80, "the thread's own fault, or an older one, strikes"
    assert list(broker.faults) == []


def test_a_fault_that_does_not_strike_is_waited_for_in_vain(broker: Broker) -> None:
    fault = broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=None)
    with pytest.raises(OttlaTimeoutError, match=r"fail Fetch with NOT_LEADER_OR_FOLLOWER has struck 0 times within 0.05 s, not 1"):
        fault.wait(timeout=0.05)


@pytest.mark.parametrize(
    ("set_it", "why"),
    [
        (lambda faults: faults.fail("Fetsch", "NOT_COORDINATOR"), "there is no API 'Fetsch' (did you mean 'Fetch'?)"),
        (
            lambda faults: faults.fail("Fetch", "NOT_CORDINATOR"),
            "there is no error 'NOT_CORDINATOR' (did you mean 'NOT_COORDINATOR'?)",
        ),
        (lambda faults: faults.fail("Fetch", 0), "there is no error 0"),
        (lambda faults: faults.fail("Fetch", 1, times=0), "times must be a whole number of at least 1, not 0"),
        (lambda faults: faults.delay("Fetch", -1), "seconds is negative: -1"),
        (lambda faults: faults.move_coordinator("g", to="nowhere"), "to='nowhere' must be HOST:PORT"),
    ],
)
def test_what_cannot_be_meant_is_refused(broker: Broker, set_it: Any, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        set_it(broker.faults)
    assert why in str(raised.value)
    assert list(broker.faults) == []


def test_a_member_that_is_not_there_cannot_expire(broker: Broker) -> None:
    with pytest.raises(IllegalStateError, match="group 'g' has no member with client_id='me'"):
        broker.faults.expire_member("g", client_id="me")


def test_faults_end_with_the_broker(broker: Broker) -> None:
    fault = broker.faults.freeze()
    broker.close()
    fault.clear()
    broker.faults.clear()
    with pytest.raises(IllegalStateError):
        broker.faults.freeze()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert metadata(client).error_code is ErrorCode.none
