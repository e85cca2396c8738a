"""The pauses in which no connection is accepted, without descriptors for more."""

from __future__ import annotations

import errno
import selectors
import socket

import pytest

from ottla.runtime import server_connection
from ottla.runtime.server_connection import Acceptor


def test_accepting_goes_on_when_the_socket_can_be_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may lack memory for that at first: then it is tried again, and the broker goes on with the connections it has."""
    monkeypatch.setattr(server_connection, "is_reserve_reached", lambda fd: True)
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as selector:
        one = Acceptor(listener, selector, lambda: None)
        one.watch(lambda events: None)
        assert not list(one.accept(0, 7))
        assert not selector.get_map()

        def register(*arguments: object) -> None:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        with monkeypatch.context() as patch:
            patch.setattr(selector, "register", register)
            one.resume_if_due(1_000)
        assert not selector.get_map()
        one.resume_if_due(1_999)
        assert not selector.get_map(), "not yet"
        one.resume_if_due(2_000)
        assert selector.get_key(listener).events == selectors.EVENT_READ
