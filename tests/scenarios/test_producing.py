"""Producers against the broker's core: each error code at each moment; what is lost, late or doubled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from ottla import Delivery, MetricName
from ottla.broker.faults.rules import Fail, LoseReply
from ottla.client.produce.calls import metadata_of
from ottla.client.produce.metrics import PRODUCER
from ottla.errors import ClosedError, OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import Compression
from ottla.records.header import read_header
from tests.simulation.producers import ProducerWorld, Program

Rewrite = Callable[[Any], Any]


@pytest.fixture
def world() -> ProducerWorld:
    return ProducerWorld()


def responses(world: ProducerWorld, of: Api, rewrite: Rewrite) -> None:
    """Change the responses of one API on their way to the client."""
    before = world.broker.cluster.rewrite

    def changed(api: Api, response: Any) -> Any:
        response = before(api, response)
        return rewrite(response) if api is of else response

    world.broker.cluster.rewrite = changed  # type: ignore[method-assign]


def first_time(rewrite: Rewrite) -> Rewrite:
    """Change the first response only."""
    left = [rewrite]
    return lambda response: left.pop()(response) if left else response


def outcome(delivery: Delivery) -> str | int:
    """The offset of a record, or the name of its error."""
    assert delivery.done(), delivery
    try:
        return metadata_of(delivery).offset
    except OttlaError as error:
        return type(error).__name__


# -- calls ----------------------------------------------------------------------------------------------------------------


def test_flush_sends_what_lingers_and_waits_for_it(world: ProducerWorld) -> None:
    app = world.producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    sent: list[Delivery] = []

    def program() -> Program:
        for number in range(10):
            sent.append((yield from app.send("t", str(number), number % 2)))
        yield from app.calls.flush(None)

    started = world.now.mono
    world.finish(app, program())
    assert [outcome(delivery) for delivery in sent] == [number // 2 for number in range(10)]
    assert world.now.mono - started < 100


def test_a_record_waits_for_its_topic_to_be_created(world: ProducerWorld) -> None:
    app = world.producer(max_block_ms=60_000)
    sent: list[Delivery] = []

    def program() -> Program:
        sent.append((yield from app.send("late", "value")))
        yield from app.calls.flush(None)

    app.start(program())
    world.run(20_000)
    assert app.running
    assert len(world.sent(Api.METADATA)) > 10
    world.create_topic("late", 1)
    world.finish(app, limit=3_000)
    assert [outcome(delivery) for delivery in sent] == [0]


def test_a_throttle_time_is_waited_for_and_counted(world: ProducerWorld) -> None:
    app = world.producer()

    def program() -> Program:
        for number in range(6):
            yield from app.send("t", str(number), 0)
            yield from app.calls.flush(None)

    def throttled(response: Any) -> Any:
        return dataclasses.replace(response, throttle_time=timedelta(milliseconds=400))

    responses(world, Api.PRODUCE, throttled)
    world.finish(app, program())
    times = [at for at, api, _ in world.broker.seen if api is Api.PRODUCE]
    assert all(later - earlier >= 400 for earlier, later in pairwise(times))
    metrics = app.assembly.view(world.now).metrics
    assert metrics[MetricName("produce-throttle-time-max", PRODUCER)] == 400
    assert metrics[MetricName("produce-throttle-time-avg", PRODUCER)] == 400


def test_the_parts_of_a_compressed_batch_are_compressed(world: ProducerWorld) -> None:
    app = world.producer(compression_type="gzip", linger_ms=20)

    def program() -> Program:
        for _ in range(10):
            yield from app.send("t", "x" * 100, 0)
        yield from app.calls.flush(None)

    world.broker.set_fault(Fail(ErrorCode.message_too_large), Api.PRODUCE)
    world.finish(app, program())
    headers = [read_header(message.topic_data[0].partition_data[0].records) for message in world.sent()]
    assert [(header.compression, header.record_count) for header in headers] == [
        (Compression.GZIP, 10),
        (Compression.GZIP, 5),
        (Compression.GZIP, 5),
    ]
    assert world.log() == ["x" * 100] * 10


# -- closing --------------------------------------------------------------------------------------------------------------


def last_epoch(response: Any) -> Any:
    return dataclasses.replace(response, producer_epoch=2**15 - 1)


@pytest.fixture
def other_ids(world: ProducerWorld) -> ProducerWorld:
    """A world in which a producer begins with the last epoch of its id."""
    responses(world, Api.INIT_PRODUCER_ID, first_time(last_epoch))
    return world


def test_close_writes_what_is_left_with_another_producer_id(other_ids: ProducerWorld) -> None:
    world = other_ids
    app = world.producer(linger_ms=1_000)
    sent: list[Delivery] = []

    def program() -> Program:
        for partition in (0, 1):
            sent.append((yield from app.send("t", "first", partition)))
        yield from app.calls.flush(None)
        world.broker.set_fault(Fail(ErrorCode.out_of_order_sequence_number), Api.PRODUCE)
        for partition in (0, 1):
            sent.append((yield from app.send("t", "last", partition)))
        yield from app.close(30_000)

    world.finish(app, program())
    assert [outcome(delivery) for delivery in sent] == [0, 0, 1, 1]
    assert [world.log(0), world.log(1)] == [["first", "last"]] * 2
    assert len(world.sent(Api.INIT_PRODUCER_ID)) == 2


def test_close_ends_within_its_timeout_without_a_producer_id(other_ids: ProducerWorld) -> None:
    world = other_ids
    app = world.producer()
    sent: list[Delivery] = []

    def program() -> Program:
        sent.append((yield from app.send("t", "first", 0)))
        yield from app.calls.flush(None)
        world.broker.set_fault(Fail(ErrorCode.out_of_order_sequence_number), Api.PRODUCE)
        world.broker.set_fault(LoseReply(), Api.INIT_PRODUCER_ID, times=None)
        sent.append((yield from app.send("t", "last", 0)))
        yield from app.close(5_000)

    started = world.now.mono
    with pytest.raises(ClosedError, match="before the record was acknowledged"):
        world.finish(app, program())
    assert 5_000 <= world.now.mono - started < 5_100
    assert [outcome(delivery) for delivery in sent] == [0, "ClosedError"]
    assert world.log() == ["first"]
