"""Scripted faults and the coordinator's requests: one connection keeps its order, and a frozen broker sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import CloseConnection, HangUp, Push, RequestContext
from ottla.broker.faults import rules
from ottla.broker.faults.messages import error_response
from ottla.broker.faults.rules import Match, Moment, Rule
from ottla.broker.faults.table import FaultTable
from ottla.protocol import ErrorCode
from ottla.protocol.apis import PUSHED, Api
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.messages import metadata_request
from ottla.types import Now
from tests.malformed_frames import some_request
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.unit.broker.group_requests import started
from tests.unit.broker.injected import add, remove

METADATA = metadata_request.MetadataRequest(topics=None, include_topic_authorized_operations=False)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CoreUnderTest]:
    core = started(tmp_path)
    yield core
    core.kill()


def push(correlation_id: int, connection: int = 1) -> Push:
    return Push(connection, Api.PING, correlation_id, "ping")


def decide(broker: CoreUnderTest, *effects: Any) -> None:
    """Have the core decide these."""
    broker.core.catalog.outbox.put(*effects)
    broker.take([])


def sent(broker: CoreUnderTest) -> list[Any]:
    """What the shell sends on channels, in order."""
    return [effect for effect in broker.others if isinstance(effect, Push | HangUp)]


def test_a_frozen_broker_sends_requests_and_hangs_up_when_it_goes_on(broker: CoreUnderTest) -> None:
    add(broker, rules.Freeze(), times=None)
    effects = [push(1), HangUp(1, "evicted"), push(2, connection=2)]
    decide(broker, *effects)
    assert sent(broker) == []
    remove(broker, 1)
    assert sent(broker) == effects


def test_a_request_waits_for_a_delayed_response_on_its_connection(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(500), apis=[Api.METADATA])
    ticket = broker.send(Api.METADATA, METADATA, connection=1)
    decide(broker, push(1), push(2, connection=2), HangUp(1, "replaced"))
    assert sent(broker) == [push(2, connection=2)]
    broker.pass_time(500)
    assert ticket in broker.replies
    assert sent(broker) == [push(2, connection=2), push(1), HangUp(1, "replaced")]


def test_the_end_of_a_delay_sends_what_waits_behind_it(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(500_000), apis=[Api.METADATA])
    ticket = broker.send(Api.METADATA, METADATA, connection=1)
    decide(broker, push(1))
    remove(broker)
    assert ticket in broker.replies
    assert sent(broker) == [push(1)]


def test_nothing_comes_behind_a_lost_response_but_the_end_of_the_connection(broker: CoreUnderTest) -> None:
    add(broker, rules.LoseReply(), apis=[Api.METADATA])
    broker.send(Api.METADATA, METADATA, connection=1)
    decide(broker, push(1), push(2, connection=2), HangUp(1, "evicted"))
    assert sent(broker) == [push(2, connection=2), HangUp(1, "evicted")]


def test_what_waits_for_a_closed_connection_is_dropped(broker: CoreUnderTest) -> None:
    add(broker, rules.Delay(500), apis=[Api.METADATA])
    broker.send(Api.METADATA, METADATA, connection=1)
    decide(broker, push(1))
    broker.take(broker.core.on_disconnect(1, broker.now))
    broker.pass_time(1_000)
    assert sent(broker) == []


@pytest.mark.parametrize("action", [rules.Fail(ErrorCode.unknown_server_error), rules.Drop(Moment.REQUEST)])
@pytest.mark.parametrize("api", sorted(PUSHED))
def test_a_fault_at_an_answer_closes_the_channel(api: Api, action: rules.Action) -> None:
    """An answer gets no response that could have an error."""
    table, now = FaultTable(lambda topic_id: None), Now(0, 0)
    table.add(Rule(1, action, Match(frozenset({api}), group="g")), now)
    header, answer = decode_request(some_request(api, 0)[4:])
    context = RequestContext(5, api, 1, "member", "/host", header.version_rules)
    request, effects = table.apply(context, answer)
    assert request is None
    assert [type(effect) for effect in effects][1:] == [CloseConnection]


@pytest.mark.parametrize("api", [Api.CONSULT, Api.REGISTER, Api.LEAVE])
def test_a_request_of_a_member_can_be_answered_with_an_error(api: Api) -> None:
    header, request = decode_request(some_request(api, 0)[4:])
    response = error_response(api, request, ErrorCode.not_coordinator)
    frame = b"".join(map(content, encode_response(header, response)))[4:]
    assert decode_response(api, 0, frame)[1].error_code is ErrorCode.not_coordinator
