"""Each look-up of a host is reported, even if its thread fails."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any

import pytest

from ottla.errors import DisconnectedError
from ottla.protocol.sasl import SaslChallenge
from ottla.runtime.login import Logins, Plain, SaslFailed
from ottla.runtime.sockets import Resolved, ResolveFailed, resolve_in_background


def outcome(host: str) -> Resolved | ResolveFailed:
    reports: queue.SimpleQueue[Resolved | ResolveFailed] = queue.SimpleQueue()
    resolve_in_background(host, 9092, reports.put)
    return reports.get(timeout=30)


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_host_is_resolved() -> None:
    found = outcome("127.0.0.1")
    assert isinstance(found, Resolved)
    assert [address.port for address in found.addresses] == [9092]


def test_a_look_up_fails_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert outcome("127.0.0.1") == ResolveFailed("127.0.0.1", 9092, "can't start new thread")


def test_a_look_up_that_raises_anything_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **keywords: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert outcome("127.0.0.1") == ResolveFailed("127.0.0.1", 9092, "MemoryError()")


def test_a_login_is_retriable_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    reports: list[Any] = []
    Logins(lambda: Plain("u", "p")).respond_in_background(7, SaslChallenge(None, b""), reports.append)
    (found,) = reports
    assert isinstance(found, SaslFailed)
    assert isinstance(found.error, DisconnectedError)
    assert found.error.retriable
    assert "can't start new thread" in str(found.error)
