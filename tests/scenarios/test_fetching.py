"""The fetch path as a whole, against our broker: sessions, memory, recreated topics, pauses and where reading begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import RecordDeserializationError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, member, offsets
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.assigned_consumer import TP0, TP1, assigned, poll
from tests.simulation.world import World

MANY = 60


def requests(world: World) -> list[Any]:
    """The Fetch requests that the broker has seen."""
    return [message for _, api, message in world.broker.seen if api is Api.FETCH]


def named(message: Any) -> int:
    return sum(len(topic.partitions) for topic in message.topics)


# -- sessions ---------------------------------------------------------------------------------------------------------------


def test_idle_partitions_are_named_in_one_fetch_only(world: World) -> None:
    world.create_topic("many", MANY)
    app = assigned(world, *(TopicPartition("many", number) for number in range(MANY)))
    poll(world, app)
    for _ in range(5):
        world.produce("many", 7, 2)
        assert len(poll(world, app)) == 2
    first, *later = requests(world)
    assert (named(first), first.session_epoch) == (MANY, 0)
    assert [named(message) for message in later].count(0) >= 1
    assert max(named(message) for message in later) == 1
    assert [message.session_epoch for message in later] == list(range(1, len(later) + 1))


def test_a_lost_fetch_session_loses_no_record(world: World) -> None:
    world.produce("t", 0, 40)
    app = assigned(world, TP0, TP1, max_poll_records=10)
    seen = poll(world, app)
    world.broker.core.state.fetch_sessions.clear()
    world.produce("t", 1, 10)
    while len(seen) < 50:
        more = poll(world, app)
        assert more
        seen += more
    assert sorted(seen) == [(0, offset) for offset in range(40)] + [(1, offset) for offset in range(10)]
    assert [message.session_id for message in requests(world) if message.session_epoch == 0] == [0, 0]


def test_close_closes_the_fetch_sessions(world: World) -> None:
    app = assigned(world, TP0)
    poll(world, app)
    assert len(world.broker.core.state.fetch_sessions) == 1
    world.call(app, app.calls.close(1_000, world.now))
    world.run(1_000)
    assert len(world.broker.core.state.fetch_sessions) == 0


def test_pausing_all_for_a_while_keeps_the_session(world: World) -> None:
    world.produce("t", 0, 5)
    app = assigned(world, TP0, TP1)
    seen = poll(world, app)
    world.call(app, app.calls.positions.pause((TP0, TP1), world.now))
    assert poll(world, app, timeout=3_000) == []
    world.produce("t", 0, 5)
    world.call(app, app.calls.positions.resume((TP0, TP1), world.now))
    seen += poll(world, app)
    assert seen == [(0, offset) for offset in range(10)]
    assert [message.session_epoch for message in requests(world)].count(0) == 1


# -- memory -----------------------------------------------------------------------------------------------------------------


def watch(world: World, app: App) -> Callable[[], int]:
    """The most that was ever held and asked for, looked at after every step of the world."""
    most = 0
    memory = app.assembly.fetches.memory
    step = world.clock.step

    def watched(until: int) -> bool:
        nonlocal most
        more = step(until)
        most = max(most, memory.held + memory.reserved)
        return more

    world.clock.step = watched  # type: ignore[method-assign]
    return lambda: most


def test_a_backlog_is_read_one_record_at_a_time_within_fetch_buffer_bytes(world: World) -> None:
    for partition in (0, 1):
        for _ in range(20):
            world.produce("t", partition, 25)
    app = assigned(world, TP0, TP1, max_poll_records=1, fetch_buffer_bytes=2_000)
    most = watch(world, app)
    seen: list[tuple[int, int]] = []
    for _ in range(1_000):
        seen += poll(world, app)
    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(500)]
    assert 1_000 < most() <= 2_000


def test_a_batch_larger_than_fetch_buffer_bytes_is_read(world: World) -> None:
    world.produce("t", 0, 5)
    world.produce("t", 0, 400)
    world.produce("t", 1, 5)
    app = assigned(world, TP0, TP1, fetch_buffer_bytes=500)
    seen: list[tuple[int, int]] = []
    while len(seen) < 410:
        more = poll(world, app)
        assert more
        seen += more
    assert sorted(seen) == [(0, offset) for offset in range(405)] + [(1, offset) for offset in range(5)]


# -- where reading begins ---------------------------------------------------------------------------------------------------


def test_a_recreated_topic_is_read_from_its_first_record(world: World) -> None:
    world.produce("t", 0, 8)
    app = assigned(world, TP0, auto_offset_reset="latest", allow_auto_create_topics=False)
    assert poll(world, app) == []
    world.produce("t", 0, 2)
    assert poll(world, app) == [(0, 8), (0, 9)]
    world.delete_topic("t")
    world.run(700)
    world.create_topic("t", 1)
    world.produce("t", 0, 30)
    assert poll(world, app, timeout=10_000) == [(0, offset) for offset in range(30)]


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_a_seek_applies_to_the_recreated_topic_even_before_metadata_names_it(world: World, policy: str) -> None:
    """A consumer that rests between two jobs does not look at the cluster for minutes."""
    world.produce("t", 0, 8)
    app = assigned(world, TP0, auto_offset_reset=policy, allow_auto_create_topics=False)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(0)}, world.now))
    assert len(poll(world, app)) == 8
    world.call(app, app.calls.unsubscribe(world.now))
    world.run(2_000)
    world.delete_topic("t")
    world.create_topic("t", 1)
    world.produce("t", 0, 5)
    world.call(app, app.calls.assign([TP0], world.now))
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(3)}, world.now))
    assert poll(world, app, timeout=10_000) == [(0, 3), (0, 4)]


def test_a_reset_by_duration_begins_at_the_first_record_of_that_age(world: World) -> None:
    app = assigned(world, TP0, TP1, auto_offset_reset="by_duration:PT1H")
    stamped = world.now.wall
    produce_at(world, [stamped - 7_200_000, stamped - 1_800_000, stamped - 1_000])
    assert poll(world, app) == [(0, 1), (0, 2)]


def produce_at(world: World, timestamps: list[int]) -> None:
    """One record for each time, in partition 0."""
    from ottla.protocol import duration
    from ottla.protocol.messages import produce_request as messages
    from ottla.records import NewRecord, encode_batch

    batch = encode_batch([NewRecord(None, b"v", timestamp=timestamp) for timestamp in timestamps])
    data = messages.PartitionProduceData(index=0, records=bytes(batch))
    topic_id = world.broker.core.catalog.topic("t").topic_id
    topic = messages.TopicProduceData(name="t", topic_id=topic_id, partition_data=(data,))
    world.broker.ask(
        Api.PRODUCE, messages.ProduceRequest(transactional_id=None, acks=1, timeout=duration(1_000), topic_data=(topic,))
    )


# -- pauses and rebalances --------------------------------------------------------------------------------------------------


def test_a_pause_survives_a_rebalance_that_retains_the_partition(world: World) -> None:
    world.create_topic("p", 2)
    first = world.app("one", group_id="g")
    kept = TopicPartition("p", 0)
    polled: list[set[TopicPartition]] = []

    def program() -> Program:
        yield from first.calls.subscribe(("p",), first.listeners(), first.now)
        while len(first.calls.owned) < 2:
            yield from first.calls.poll(200, first.now)
        yield from first.calls.positions.pause((kept,), first.now)
        while not first.stop:
            records = yield from first.calls.poll(200, first.now)
            first.handled.extend(records)
            polled.append({tp for tp, view in first.calls.snapshot.partitions.items() if view.paused})
        yield from first.calls.close(5_000, first.now)

    first.start(program())
    world.run_until(lambda: bool(polled))
    second = world.app("two", group_id="g")
    second.start(member(second, ("p",)))
    world.run_until(lambda: len(first.calls.owned) == 1 and len(second.calls.owned) == 1)
    assert first.calls.owned == {kept}
    world.produce("p", 0, 5)
    world.run(3_000)
    assert (first.handled, polled[-1]) == ([], {kept})
    second.stop = True
    world.run_until(lambda: len(first.calls.owned) == 2)
    world.run(1_000)
    assert (first.handled, polled[-1]) == ([], {kept})
    first.stop = True
    world.run_until(lambda: not first.running)


# -- deserializers ----------------------------------------------------------------------------------------------------------


def picky(data: bytes | None) -> int:
    assert data is not None
    if data == b"2":
        raise ValueError("two is not liked")
    return int(data)


def test_poll_can_go_past_a_record_that_cannot_be_deserialized(world: World) -> None:
    world.produce("t", 0, 5)
    app = assigned(world, TP0, value_deserializer=picky)
    values: list[int] = []
    errors: list[RecordDeserializationError] = []
    for record in world.call(app, app.calls.poll(1_000, world.now)):
        try:
            values.append(record.value)
        except RecordDeserializationError as refused:
            errors.append(refused)
    assert values == [0, 1, 3, 4]
    (error,) = errors
    assert (error.topic, error.partition, error.offset, error.part, error.raw) == ("t", 0, 2, "value", b"2")
    assert (error.record.value, error.record.key, error.record.offset, error.record.headers) == (b"2", None, 2, ())
    assert isinstance(error.__cause__, ValueError)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(error.offset + 1)}, world.now))
    assert [record.value for record in world.call(app, app.calls.poll(1_000, world.now))] == [3, 4]


def test_an_iteration_continues_after_a_record_that_cannot_be_deserialized(world: World) -> None:
    world.produce("t", 0, 5)
    app = assigned(world, TP0, value_deserializer=picky)

    def walk() -> Program:
        yield from app.calls.poll(1_000, app.now)
        delivery = app.calls.collector.delivery
        assert delivery is not None
        for record in app.calls.collector.walk(delivery):
            app.handled.append(record)
            assert record.value >= 0

    with pytest.raises(RecordDeserializationError):
        world.call(app, walk())
    rest = world.call(app, app.calls.poll(1_000, world.now))
    assert offsets(app.handled, 0) + offsets(rest, 0) == [0, 1, 2, 3, 4]
