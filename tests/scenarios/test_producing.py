"""Producers against the broker's core: each error code at each moment; what is lost, late or doubled."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from ottla import Delivery, MetricName
from ottla.broker.faults.rules import Action, Delay, Drop, Fail, FailAppends, LoseReply, Moment
from ottla.client.produce.calls import metadata_of
from ottla.client.produce.metrics import PRODUCER
from ottla.client.produce.sender import NOT_WRITTEN, REACTIONS, ProduceReaction
from ottla.errors import ClosedError, OttlaError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import Compression
from ottla.records.header import read_header
from ottla.simulation.application import Sleep
from ottla.simulation.broker import Exchange
from tests.simulation.producers import ProducerApp, ProducerWorld, Program, without_topic_ids

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
    assert all(later - earlier >= 400 for earlier, later in itertools.pairwise(times))
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


# -- error codes ----------------------------------------------------------------------------------------------------------

COUNT = 6
MOMENTS = {"first": 0, "middle": 3, "last": COUNT - 1}
CODES = sorted(code for code in ErrorCode if code)
AGAIN = (ProduceReaction.RETRY, ProduceReaction.NEW_LEADER, ProduceReaction.SEQUENCE)


def names(code: int) -> str:
    return ErrorCode(code).name


def all_at_once(app: ProducerApp, sent: list[Delivery], values: Iterable[int] = range(COUNT), partition: int = 0) -> Program:
    """Send records, each in a batch and a request of its own, and wait for their outcomes."""
    for number in values:
        sent.append((yield from app.send("t", str(number), partition)))
    with suppress(OttlaError):
        yield from app.calls.flush(None)


def answered_with(code: int) -> Rewrite:
    """What was carried out is answered with an error."""

    def rewrite(response: Any) -> Any:
        (topic,) = response.responses
        (part,) = topic.partition_responses
        part = dataclasses.replace(part, error_code=ErrorCode(code), base_offset=-1)
        return dataclasses.replace(response, responses=(dataclasses.replace(topic, partition_responses=(part,)),))

    return rewrite


def after(count: int, rewrite: Rewrite) -> Rewrite:
    """Change one response, after so many others."""
    numbers = itertools.count()
    return lambda response: rewrite(response) if next(numbers) == count else response


@pytest.mark.parametrize("code", CODES, ids=names)
def test_a_batch_that_is_refused_at_any_moment(code: int) -> None:
    """What a retry can fix doubles, loses and reorders nothing. Any other code fails this batch alone, which is not in the log."""
    for place in MOMENTS.values():
        world = ProducerWorld()
        app, sent = world.producer(batch_size=0), list[Delivery]()
        if code == ErrorCode.duplicate_sequence_number:
            responses(world, Api.PRODUCE, after(place, answered_with(code)))  # only a batch that was written is a duplicate
        else:
            world.broker.set_fault(Fail(ErrorCode(code)), Api.PRODUCE, after=place)
        world.finish(app, all_at_once(app, sent))
        outcomes = [outcome(delivery) for delivery in sent]
        expected: list[int | str] = [*range(COUNT)]
        written = [*map(str, range(COUNT))]
        if code == ErrorCode.duplicate_sequence_number:
            expected[place] = -1
        elif REACTIONS.get(code) not in AGAIN:
            expected[place:] = [error_class(code).__name__, *range(place, COUNT - 1)]
            del written[place]
        assert (outcomes, world.log()) == (expected, written), place


@pytest.mark.parametrize("code", sorted(set(CODES) - NOT_WRITTEN), ids=names)
def test_a_batch_that_is_written_and_answered_with_an_error(code: int) -> None:
    """As by a leader that loses the leadership before all replicas have the batch."""
    for place in MOMENTS.values():
        world = ProducerWorld()
        app, sent = world.producer(batch_size=0), list[Delivery]()
        responses(world, Api.PRODUCE, after(place, answered_with(code)))
        world.finish(app, all_at_once(app, sent))
        outcomes = [outcome(delivery) for delivery in sent]
        expected: list[int | str] = [*range(COUNT)]
        if code == ErrorCode.duplicate_sequence_number:
            expected[place] = -1
        elif REACTIONS.get(code) not in AGAIN:
            expected[place] = error_class(code).__name__
        assert (outcomes, world.log()) == (expected, [*map(str, range(COUNT))]), place


@pytest.mark.parametrize("code", CODES, ids=names)
def test_a_producer_id_that_is_refused_at_any_moment(code: int) -> None:
    """At the start, when the epochs are used up, and when the producer closes."""
    is_retried = error_class(code).retriable
    for moment in ("start", "epochs", "close"):
        world = ProducerWorld()
        responses(world, Api.INIT_PRODUCER_ID, first_time(last_epoch))
        app, sent = world.producer(batch_size=0), list[Delivery]()
        world.broker.set_fault(Fail(ErrorCode(code)), Api.INIT_PRODUCER_ID, after=0 if moment == "start" else 1)
        world.finish(app, all_at_once(app, sent, range(3)))
        if moment != "start":
            world.broker.set_fault(Fail(ErrorCode.invalid_record), Api.PRODUCE)
            world.finish(app, all_at_once(app, sent, range(3, 6)) if moment == "epochs" else closing(app, sent, range(3, 6)))
        if moment != "close":
            world.finish(app, all_at_once(app, sent, range(len(sent), 9)))
        assert world.broker.struck == (1 if moment == "start" else 2)
        refused = [] if is_retried else [0, 1, 2] if moment == "start" else [4, 5]
        failed = [*refused, *([] if moment == "start" else [3])]
        assert [number for number, delivery in enumerate(sent) if isinstance(outcome(delivery), str)] == sorted(failed)
        assert {outcome(sent[number]) for number in refused} <= {error_class(code).__name__}
        assert world.log() == [str(number) for number in range(len(sent)) if number not in failed]


def closing(app: ProducerApp, sent: list[Delivery], values: Iterable[int]) -> Program:
    for number in values:
        sent.append((yield from app.send("t", str(number), 0)))
    with suppress(OttlaError):
        yield from app.close(10_000)


# -- requests and responses that do not arrive, or late -------------------------------------------------------------------

NO_ANSWER: dict[str, Action] = {
    "lost": LoseReply(),
    "dropped-request": Drop(Moment.REQUEST),
    "dropped-reply": Drop(Moment.REPLY),
    "half-reply": Drop(Moment.HALFWAY),
    "late": Delay(1_500),
    "too-late": Delay(5_000),
}
VALUES = 30


def paced(app: ProducerApp, sent: list[Delivery], count: int = VALUES, pause: int = 2) -> Program:
    """Send records in turn to two partitions, one every ``pause`` milliseconds, and wait for their outcomes."""
    for number in range(len(sent), len(sent) + count):
        sent.append((yield from app.send("t", str(number), number % 2)))
        yield Sleep(pause)
    with suppress(OttlaError):
        yield from app.calls.flush(None)


def run_until_sent(world: ProducerWorld, sent: list[Delivery], count: int) -> None:
    world.run_until(lambda: len(sent) == count)


def check_all_written(world: ProducerWorld, sent: list[Delivery]) -> None:
    """Each record was acknowledged, and is in the log once and in order."""
    assert [outcome(delivery) for delivery in sent] == [number // 2 for number in range(len(sent))]
    for partition in (0, 1):
        assert world.log(partition) == [str(number) for number in range(partition, len(sent), 2)]


@cache
def undisturbed() -> int:
    """The number of Produce requests without faults."""
    world = ProducerWorld()
    app = world.producer()
    world.finish(app, paced(app, []))
    return len(world.sent())


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("api", [Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.METADATA], ids=lambda api: api.name)
@pytest.mark.parametrize("action", NO_ANSWER.values(), ids=NO_ANSWER)
def test_responses_that_do_not_arrive(action: Action, api: Api, times: int) -> None:
    for place in (0, undisturbed() // 2, undisturbed() - 1) if api is Api.PRODUCE else (0,):
        world = ProducerWorld()
        app, sent = world.producer(), list[Delivery]()
        world.broker.set_fault(action, api, times=times, after=place)
        world.finish(app, paced(app, sent))
        assert world.broker.struck in range(1, times + 1)
        check_all_written(world, sent)


@pytest.mark.parametrize("duration", [1_000, 3_500, 7_000, 12_000])
@pytest.mark.parametrize("sent_before", [1, 12, VALUES])
def test_requests_that_arrive_late_and_after_they_were_sent_again(sent_before: int, duration: int) -> None:
    """The broker reads a connection only after the producer has given up the requests on it."""
    world = ProducerWorld()
    app, sent = world.producer(), list[Delivery]()
    app.start(paced(app, sent))
    run_until_sent(world, sent, sent_before)
    for number in app.numbers.values():
        world.network.hold((number, "to the broker"), duration)
    world.finish(app)
    world.run(duration)
    check_all_written(world, sent)
    batches = [part.records for message in world.sent() for topic in message.topic_data for part in topic.partition_data]
    assert (len(set(map(bytes, batches))) < len(batches)) is (duration > 3_000 and sent_before > 1)


@pytest.mark.parametrize("place", [0, 7, VALUES - 1])
def test_connections_that_break(world: ProducerWorld, place: int) -> None:
    app, sent = world.producer(), list[Delivery]()
    app.start(paced(app, sent))
    world.run_until(lambda: len(sent) > place)
    for _ in range(3):
        for number in list(app.numbers.values()):
            world.broker.break_connection(number)
        world.run(20)
    world.finish(app)
    check_all_written(world, sent)


def test_a_disk_that_is_full_for_a_while(world: ProducerWorld) -> None:
    app, sent = world.producer(), list[Delivery]()
    app.start(paced(app, sent))
    run_until_sent(world, sent, 10)
    world.broker.set_fault(FailAppends("t"), times=None, lasts=5_000)
    world.finish(app)
    assert world.broker.struck > 0
    check_all_written(world, sent)


def test_a_disk_that_is_full_for_longer_than_the_delivery_timeout(world: ProducerWorld) -> None:
    app, sent = world.producer(), list[Delivery]()
    world.finish(app, paced(app, sent, 10))
    world.broker.set_fault(FailAppends("t", 0), times=None, lasts=65_000)
    world.finish(app, paced(app, sent, 10))
    world.finish(app, paced(app, sent, 10))
    world.run(10_000)
    world.finish(app, paced(app, sent, 10))
    late = [f"{number}" for number, delivery in enumerate(sent) if outcome(delivery) == "OttlaTimeoutError"]
    assert late == [str(number) for number in range(10, 30, 2)]
    assert world.log(0) == [*map(str, range(0, 10, 2)), *map(str, range(30, 40, 2))]
    assert world.log(1) == [*map(str, range(1, 40, 2))]


def test_a_topic_that_is_deleted_and_created_again(world: ProducerWorld) -> None:
    """What was acknowledged before is gone with the topic; what comes after is written once and in order."""
    app, sent = world.producer(), list[Delivery]()
    for pause in (0, 3_000):
        app.start(paced(app, sent))
        run_until_sent(world, sent, len(sent) + VALUES // 2)
        former = [world.log(partition) for partition in (0, 1)]
        world.delete_topic("t")
        world.run(pause)
        world.create_topic("t", 2)
        world.finish(app)
        for partition in (0, 1):
            acknowledged = [str(number) for number in range(partition, len(sent), 2) if isinstance(outcome(sent[number]), int)]
            log = world.log(partition)
            assert len(acknowledged) == len(sent) // 2
            assert former[partition] + log == acknowledged[-len(former[partition]) - len(log) :]
            assert len(log) >= VALUES // 4 - 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_topic_that_is_created_again_between_two_requests(world: ProducerWorld, is_lost: bool) -> None:
    """A broker without topic ids writes the second batch first. Neither is lost or doubled, even if that response is lost."""
    responses(world, Api.API_VERSIONS, without_topic_ids)
    app, sent = world.producer(batch_size=0), list[Delivery]()
    world.finish(app, all_at_once(app, sent, range(3)))
    world.delete_topic("t")

    def created(exchange: Exchange) -> None:
        if exchange.api is Api.PRODUCE and world.broker.core.catalog.topics.get("t") is None:
            world.create_topic("t", 2)
            if is_lost:
                world.broker.set_fault(Drop(Moment.REPLY), Api.PRODUCE)

    world.broker.observers.append(created)
    world.finish(app, all_at_once(app, sent, range(3, 6)))
    assert sorted(world.log()) == ["3", "4", "5"]
    assert world.log()[0] == "4"
    assert [isinstance(outcome(delivery), int) for delivery in sent] == [True] * 6


def test_a_batch_that_is_sent_again_is_alone_in_flight(world: ProducerWorld) -> None:
    """A broker without topic ids would write a later one first, since it does not know the producer in a recreated topic."""
    responses(world, Api.API_VERSIONS, without_topic_ids)
    app, sent = world.producer(batch_size=0), list[Delivery]()

    def program() -> Program:
        yield from all_at_once(app, sent, range(3))
        world.delete_topic("t")
        world.create_topic("t", 2)
        world.broker.set_fault(Fail(ErrorCode.request_timed_out), Api.PRODUCE, times=2)
        sent.append((yield from app.send("t", "3", 0)))
        yield Sleep(50)
        yield from all_at_once(app, sent, range(4, 7))

    world.finish(app, program())
    assert world.broker.struck == 2
    assert world.log() == [*map(str, range(3, 7))]


def test_a_batch_in_doubt_keeps_its_producer_id_when_another_partition_gets_another_one(other_ids: ProducerWorld) -> None:
    world = other_ids
    app, sent = world.producer(), list[Delivery]()

    def lose_next(exchange: Exchange) -> None:
        if exchange.api is Api.PRODUCE and world.broker.struck == 1:
            world.broker.set_fault(Drop(Moment.REPLY), Api.PRODUCE)

    def program() -> Program:
        for value in range(2):
            for partition in (0, 1):
                sent.append((yield from app.send("t", str(value), partition)))
            yield from app.calls.flush(None)
        world.broker.observers.append(lose_next)
        world.broker.set_fault(Fail(ErrorCode.invalid_record), Api.PRODUCE)
        yield from app.send("t", "refused", 0)
        yield Sleep(1)
        sent.append((yield from app.send("t", "2", 1)))
        with suppress(OttlaError):
            yield from app.calls.flush(None)

    world.finish(app, program())
    assert (world.broker.struck, len(world.sent(Api.INIT_PRODUCER_ID))) == (2, 2)
    assert [outcome(delivery) for delivery in sent] == [0, 0, 1, 1, 2]
    assert [world.log(0), world.log(1)] == [["0", "1"], ["0", "1", "2"]]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_batch_that_expires_with_and_without_having_been_written(is_written: bool) -> None:
    """What comes after it is written once, whether or not it was: the later batch shows that."""
    world = ProducerWorld()
    app, sent = world.producer(batch_size=0, delivery_timeout_ms=4_000), list[Delivery]()

    def program() -> Program:
        sent.append((yield from app.send("t", "0", 0)))
        yield from app.calls.flush(None)
        world.broker.set_fault(Drop(Moment.REPLY if is_written else Moment.REQUEST), Api.PRODUCE)
        world.broker.set_fault(Fail(ErrorCode.request_timed_out), Api.PRODUCE, times=None, lasts=4_000)
        sent.append((yield from app.send("t", "1", 0)))
        yield Sleep(1_000)
        for value in range(2, 6):
            sent.append((yield from app.send("t", str(value), 0)))
        with suppress(OttlaError):
            yield from app.calls.flush(None)

    world.finish(app, program())
    assert [outcome(delivery) for delivery in sent] == [0, "OttlaTimeoutError", *(range(2, 6) if is_written else range(1, 5))]
    assert world.log() == [str(number) for number in range(6) if is_written or number != 1]


# -- leaders that move ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [1, 2, 3], ids=lambda node_id: "host" if node_id == 1 else str(node_id))
def test_leaders_that_die_and_return(victim: int) -> None:
    world = ProducerWorld(brokers=3)
    app, sent = world.producer(), list[Delivery]()
    app.start(paced(app, sent, 200, pause=20))
    for count in (30, 80, 130):
        run_until_sent(world, sent, count)
        world.broker.kill(victim)
        world.run(400)
        world.broker.start(victim)
    world.finish(app)
    assert len({world.broker.cluster.leader("t", partition) for partition in (0, 1)}) == 2
    check_all_written(world, sent)


def test_with_one_request_in_flight_a_leader_that_moves_reorders_nothing() -> None:
    """Not even without idempotence: the next record waits for the response of the former leader, which is late, and a refusal."""
    world = ProducerWorld(brokers=3)
    world.grow("t", 3)
    leaders = {world.broker.cluster.leader("t", number): number for number in range(3)}
    app = world.producer(batch_size=0, enable_idempotence=False, max_in_flight_requests_per_connection=1, metadata_max_age_ms=50)
    sent: list[Delivery] = []
    world.broker.kill(3)  # then the first node leads its partition, and the second one answers requests for metadata
    for leader in (2, 3):
        world.finish(app, all_at_once(app, sent, range(1), leaders[leader]))
    for number in app.numbers.values():
        if world.broker.node_of(number) == 1:
            world.network.hold((number, "to the broker"), 1_000)
    app.start(all_at_once(app, sent, range(1, 4), leaders[3]))
    world.run(10)
    world.broker.start(3)
    world.finish(app)
    assert [outcome(delivery) for delivery in sent] == [0, *range(4)]
    assert world.log(leaders[3]) == [*map(str, range(4))]


def test_the_only_broker_restarts(world: ProducerWorld) -> None:
    app, sent = world.producer(), list[Delivery]()
    app.start(paced(app, sent, pause=300))
    for count in (2, 9, 20):
        run_until_sent(world, sent, count)
        world.broker.kill()
        world.run(1_000)
        world.broker.start()
    world.finish(app)
    check_all_written(world, sent)
