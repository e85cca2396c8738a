"""If some addresses are dead, a consumer uses the others: no poll raises, and the log reports each dead address once.

On real sockets: a dead address refuses connections, or never responds.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pytest

from ottla import Consumer
from ottla.client import problems
from ottla.config import ConsumerConfig

DEAD = ("127.0.0.2", "127.0.0.3")
"""Addresses of this machine at which the broker does not listen."""
ALIVE = "127.0.0.1"
NAME = "kafka.test"
SET_UP = ConsumerConfig.parse(bootstrap_servers=f"{ALIVE}:9092").socket_connection_setup_timeout_ms / 1000
"""Seconds until an address counts as dead."""


@contextmanager
def swallowing(host: str, port: int) -> Iterator[None]:
    """An address that never responds: its queue of connections is full, and nothing accepts them."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind((host, port))
        server.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """``getaddrinfo`` with one more host name, of which the first addresses are dead."""
    ask = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        hosts = (*DEAD, ALIVE) if host == NAME else (host,)
        return [found for one in hosts for found in ask(one, port, *args, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("dead", ["refusing", "swallowing"])
@pytest.mark.parametrize("how", ["servers", "name"])
@pytest.mark.usefixtures("resolver")
def test_the_live_address_is_found(
    how: str,
    dead: str,
    served: str,
    topic: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(problems, "PATIENCE", 60_000)  # the machine may be busy; tests under a virtual clock check the real value
    name, port = topic(1, "k:v"), int(served.split(":")[1])
    servers = f"{NAME}:{port}" if how == "name" else ",".join(f"{host}:{port}" for host in (*DEAD, ALIVE))
    caplog.set_level(logging.INFO, logger="ottla")
    with ExitStack() as stack:
        for host in DEAD:
            stack.enter_context(swallowing(host, port) if dead == "swallowing" else nullcontext())
        consumer = stack.enter_context(Consumer(bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest"))
        began = time.monotonic()
        consumer.subscribe([name])
        while not (records := consumer.poll(0.3)):
            assert time.monotonic() - began < SET_UP * len(DEAD)
    assert [record.value for record in records] == [b"v"]
    said = [record.getMessage() for record in caplog.records if "bootstrap" in record.getMessage()]
    assert len(said) == len(set(said)) <= len(DEAD)
