"""Any bytes as a request: the broker responds, or raises ``ProtocolError``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ottla.broker.effects import CloseConnection, NoReply
from ottla.errors import ProtocolError
from ottla.protocol.apis import SPOKEN, Api
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.conversion import wire_class
from tests.edge_case_requests import CENTRAL, LOGIN
from tests.example_counts import examples
from tests.malformed_frames import some_request
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unknown_tagged_fields import tagged_request

VERSIONS = [(api, version) for api, (low, high) in SPOKEN.items() if api not in LOGIN | CENTRAL for version in range(low, high + 1)]
_tickets = iter(range(10**6, 10**9))


@pytest.fixture(scope="module")
def broker() -> Iterator[CoreUnderTest]:
    with tempfile.TemporaryDirectory() as folder:
        core = CoreUnderTest(Path(folder))
        yield core
        core.kill()


def feed(broker: CoreUnderTest, frame: bytes) -> list[bytes]:
    """The response to a frame after all disk jobs; ``None`` for a parked request."""
    header, message = decode_request(frame)
    ticket = next(_tickets)
    broker.take(broker.core.handle(header, message, ticket, 1, "127.0.0.1", broker.now))
    broker.run_jobs()
    responses = [broker.replies.pop(ticket)] if ticket in broker.replies else []
    ends = [effect for effect in broker.others if isinstance(effect, NoReply | CloseConnection) and effect.ticket == ticket]
    assert len(responses) + len(ends) <= 1
    return [
        b"".join(piece if isinstance(piece, bytes) else content(piece) for piece in encode_response(header, response))
        for response in responses
    ]


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_every_version_of_every_api_is_answered_in_that_version(broker: CoreUnderTest, api: Api, version: int) -> None:
    answers = feed(broker, some_request(api, version)[4:])
    for answer in answers:
        assert decode_response(api, version, answer[4:])[0] == 1
    assert answers or api in (Api.JOIN_GROUP, Api.SYNC_GROUP)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda value: getattr(value, "name", str(value)))
def test_unknown_tagged_fields_of_a_request_do_not_matter(broker: CoreUnderTest, api: Api, version: int) -> None:
    frame = some_request(api, version)[4:]
    tagged = tagged_request(frame)
    assert (tagged == frame) is not wire_class(api, version, "request").__flexible__
    assert decode_request(tagged) == decode_request(frame)
    for answer in feed(broker, tagged):
        assert decode_response(api, version, answer[4:])[0] == 1


@settings(max_examples=examples(300))
@given(st.sampled_from(VERSIONS), st.data())
def test_a_changed_byte_is_at_most_refused(broker: CoreUnderTest, which: tuple[Api, int], data: st.DataObject) -> None:
    frame = bytearray(some_request(*which)[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        answers = feed(broker, bytes(frame))
    except ProtocolError:
        return
    for answer in answers:
        decode_response(*which, answer[4:])


@settings(max_examples=examples(300))
@given(st.sampled_from(VERSIONS), st.binary(max_size=200))
def test_garbage_after_any_header_is_at_most_refused(broker: CoreUnderTest, which: tuple[Api, int], garbage: bytes) -> None:
    api, version = which
    head = int(api).to_bytes(2) + version.to_bytes(2) + (1).to_bytes(4) + (-1).to_bytes(2, signed=True)
    try:
        answers = feed(broker, head + garbage)
    except ProtocolError:
        return
    for answer in answers:
        decode_response(*which, answer[4:])
