"""Errors when no broker can be reached, on real sockets: they give the reason for each address."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ottla import Admin, Broker, Consumer
from ottla.errors import AuthenticationError, ConnectionFailedError
from ottla.types import TopicPartition
from tests.closed_ports import closed_port, closed_ports

TIMEOUT = 1.0
"""The timeout of each call, in seconds."""
SLACK = 20.0
"""Seconds beyond the timeout that a busy machine may take. Calls without a timeout take a minute."""


@contextmanager
def listening(backlog: int = 8) -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        yield server


def failure(servers: str, timeout: float = TIMEOUT) -> ConnectionFailedError:
    """Return the error of a call to ``servers``, and check that it respects its timeout."""
    began = time.monotonic()
    with Admin(bootstrap_servers=servers) as admin, pytest.raises(ConnectionFailedError) as raised:
        admin.list_topics(timeout=timeout)
    assert time.monotonic() - began < timeout + SLACK
    assert raised.value.retriable
    assert raised.value.hint
    return raised.value


def test_connection_refused() -> None:
    with closed_port() as port:
        address = f"127.0.0.1:{port}"
        assert failure(address).attempts == {address: "Connection refused"}


def test_an_unknown_host() -> None:
    attempts = failure("no-such-host.invalid:9092").attempts
    assert list(attempts) == ["no-such-host.invalid:9092"]
    assert "cannot be resolved" in attempts["no-such-host.invalid:9092"] or "not resolved yet" in str(attempts)


CALLS: dict[str, Callable[[Consumer], object]] = {
    "list_topics": lambda consumer: consumer.list_topics(timeout=TIMEOUT),
    "end_offsets": lambda consumer: consumer.end_offsets([TopicPartition("t", 0)], timeout=TIMEOUT),
    "poll": lambda consumer: (consumer.subscribe(["t"]), consumer.poll(timeout=TIMEOUT)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_consumer_raises_the_same_error(call: str) -> None:
    began = time.monotonic()
    with closed_port() as port:
        addresses = [f"127.0.0.1:{port}", "no-such-host.invalid:9092"]
        with Consumer(bootstrap_servers=addresses, group_id="g") as consumer, pytest.raises(ConnectionFailedError) as raised:
            CALLS[call](consumer)
    assert set(raised.value.attempts) == set(addresses)
    assert raised.value.attempts[addresses[0]] == "Connection refused"
    assert time.monotonic() - began < TIMEOUT + SLACK


def test_a_port_that_speaks_http() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        reason = failure(address).attempts[address]
        server.shutdown()
    assert "ApiVersions" in reason or "frame announces" in reason


def test_a_port_that_never_responds() -> None:
    with listening() as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert failure(address).attempts == {address: "connected, but no answer to ApiVersions: is it a Kafka port?"}


def test_a_port_that_closes_the_connection() -> None:
    def hang_up() -> None:
        while True:
            try:
                server.accept()[0].close()
            except OSError:
                return

    with listening() as server:
        threading.Thread(target=hang_up, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        reason = failure(address).attempts[address]
    assert "before it answered ApiVersions" in reason


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_on_our_broker(mechanism: str) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, "sasl_username": "a", "sasl_password": "b"}
    with Broker() as broker, Admin({"bootstrap_servers": broker.bootstrap_servers, **login}) as admin:
        with pytest.raises(AuthenticationError, match="the port does not ask for a login"):
            admin.list_topics(timeout=30)
        consumer = Consumer({"bootstrap_servers": broker.bootstrap_servers, **login})
        with consumer, pytest.raises(AuthenticationError, match="the port does not ask for a login"):
            consumer.partitions_for("orders")


def test_every_address_is_listed_with_its_reason() -> None:
    with listening() as silent, closed_ports(2) as ports:
        refused = [f"127.0.0.1:{port}" for port in ports]
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        error = failure(",".join([*refused, mute]))
    assert set(error.attempts) == {*refused, mute}
    assert all(f"{address}: {reason}" in str(error) for address, reason in error.attempts.items())


def test_one_reachable_address_suffices() -> None:
    with listening() as silent, closed_port() as port, Broker() as broker:
        servers = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{port},{broker.bootstrap_servers}"
        with Admin(bootstrap_servers=servers) as admin:
            assert admin.list_topics(timeout=60) == {}


def test_localhost_is_tried_at_all_its_addresses() -> None:
    with Broker() as broker:
        port = broker.bootstrap_servers.rsplit(":", 1)[1]
        with Admin(bootstrap_servers=f"localhost:{port}") as admin:
            assert admin.list_topics(timeout=60) == {}


def test_a_broker_that_was_restarted(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("broker")
    broker = Broker(folder)
    port = int(broker.bootstrap_servers.rsplit(":", 1)[1])
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics({"kept": 2})
        broker.close()
        with pytest.raises(ConnectionFailedError, match="Connection refused"):
            admin.list_topics(timeout=1)
        with Broker(folder, port):
            assert list(admin.list_topics(timeout=60)) == ["kept"]
