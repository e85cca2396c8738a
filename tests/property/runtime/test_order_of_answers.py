"""Responses on one connection leave in the order of the requests, in whatever order they are ready, and as early as possible."""

from __future__ import annotations

import contextlib
import socket

import pytest
from hypothesis import given, strategies as st

from ottla.protocol.apis import Api
from ottla.protocol.codec import RequestHeader
from ottla.runtime.server_connection import Connection, InFlightRequest

ANSWERS = st.sampled_from(["whole", "whole", "whole", "none", "last"])
"""An answer, a request that gets none (acks=0), and one after which the connection ends."""


def bytes_of(number: int, kind: str) -> bytes:
    return b"" if kind == "none" else b"<%d>" % number


def check_order(connection_class: type[Connection], kinds: list[str], order: list[int]) -> None:
    """Answer requests in some order; after each response exactly those that can leave have left."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = connection_class(1, ours, "here", 1 << 20, 0)
        slots = [
            InFlightRequest(connection, number, RequestHeader(Api.METADATA, 12, number, "client")) for number in range(len(kinds))
        ]
        for slot in slots:
            connection.register(slot)
        received = b""
        for answered in range(1, len(order) + 1):
            number = order[answered - 1]
            data = bytes_of(number, kinds[number])
            slots[number].pieces, slots[number].is_last = [data] if data else [], kinds[number] == "last"
            connection.send(0)
            with contextlib.suppress(BlockingIOError):
                received += theirs.recv(1 << 16)
            assert received == expected(kinds, set(order[:answered]))


def expected(kinds: list[str], answered: set[int]) -> bytes:
    sent = b""
    for number, kind in enumerate(kinds):
        if number not in answered:
            break
        sent += bytes_of(number, kind)
        if kind == "last":
            break
    return sent


@given(st.data(), st.lists(ANSWERS, min_size=1, max_size=12))
def test_answers_keep_the_order_of_requests(data: st.DataObject, kinds: list[str]) -> None:
    check_order(Connection, kinds, data.draw(st.permutations(range(len(kinds)))))


class Hasty(Connection):
    """A wrong implementation that sends responses as they are ready."""

    def send(self, mono: int) -> None:
        self._in_flight.rotate(-next((place for place, slot in enumerate(self._in_flight) if slot.pieces is not None), 0))
        super().send(mono)


def test_a_reordered_answer_is_detected() -> None:
    with pytest.raises(AssertionError):
        check_order(Hasty, ["whole", "whole"], [1, 0])
