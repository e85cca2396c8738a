"""Leader epochs of another cluster or of a deleted topic, in commits and in seeks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Fail
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, member, offsets
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.assigned_consumer import TP0, assigned, poll
from tests.simulation.world import World

TOPIC, RECORDS = "t", 20
EPOCHS = (1, 1_000, 2**31 - 1)


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.protocol = request.param
    world.create_topic(TOPIC, 2)
    for partition in range(2):
        world.produce(TOPIC, partition, RECORDS)
    return world


def commit(world: World, offset: int, epoch: int) -> None:
    """Commit offsets of both partitions for the group, without a member."""
    somebody = world.app("somebody", group_id="g", enable_auto_commit=False)
    wanted = {TopicPartition(TOPIC, number): OffsetAndMetadata(offset, leader_epoch=epoch) for number in range(2)}
    world.call(somebody, somebody.calls.commits.commit(wanted, 5_000, world.now))


def dropped(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "does not know leader epoch" in line]


def read(app: App, count: int) -> Program:
    yield from app.calls.subscribe([TOPIC], app.listeners(), app.now)
    while len(app.handled) < count:
        app.handled.extend((yield from app.calls.poll(500, app.now)))


@pytest.mark.parametrize("epoch", EPOCHS)
def test_a_member_reads_from_a_commit_with_a_foreign_epoch(world: World, epoch: int, caplog: pytest.LogCaptureFixture) -> None:
    commit(world, 5, epoch)
    app = world.app("a", group_id="g", group_protocol=world.protocol, enable_auto_commit=False)
    began = world.now.mono
    world.call(app, read(app, 30), 10_000)
    joined = next(at for at, api, _ in world.broker.seen if api is Api.OFFSET_FETCH and at > began)
    assert world.now.mono - joined < 5_000
    assert [offsets(app.handled, partition) for partition in range(2)] == [list(range(5, RECORDS))] * 2
    assert len(dropped(caplog)) == 2, "one line for each partition"
    committed = world.call(app, app.calls.commits.commit(None, 5_000, world.now))
    assert {position.leader_epoch for position in committed.values()} <= {None, 0}


def test_a_commit_without_any_read_names_no_foreign_epoch(world: World) -> None:
    commit(world, RECORDS, 1_000)
    app = world.app("a", group_id="g", group_protocol=world.protocol, enable_auto_commit=False)
    app.start(member(app))
    world.run(10_000)
    app.stop = True
    world.run_until(lambda: not app.running)
    reader = world.app("b", group_id="g", enable_auto_commit=False)
    world.call(reader, reader.calls.assign([TP0], world.now))
    poll(world, reader, 4_000)
    committed = world.call(reader, reader.calls.commits.commit(None, 5_000, world.now))
    assert committed == {TP0: OffsetAndMetadata(RECORDS)}


def test_a_seek_with_a_foreign_epoch_takes_effect(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = assigned(world, TP0)
    assert len(poll(world, app)) == RECORDS
    for offset in (3, 7):
        world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(offset, leader_epoch=1_000)}, world.now))
        began = world.now.mono
        assert [at for _, at in poll(world, app, 5_000)] == list(range(offset, RECORDS))
    # The position waits for a fetch from the end of the log that was in flight: 500 ms.
    assert world.now.mono - began < 600, "the foreign epoch is detected only once"
    assert len(dropped(caplog)) == 1


def test_a_seek_to_the_end_after_a_foreign_epoch_finds_the_end(world: World) -> None:
    app = assigned(world, TP0)
    world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(3, leader_epoch=1_000)}, world.now))
    world.call(app, app.calls.positions.seek_to_end([TP0], world.now))
    began = world.now.mono
    assert world.call(app, app.calls.positions.position(TP0, 10_000, world.now)) == RECORDS
    assert world.now.mono - began < 5_000


def test_reading_continues_from_a_commit_of_a_recreated_topic(world: World) -> None:
    """Its epochs begin again at 0."""
    world.broker.core.catalog.logs.get(world.broker.core.catalog.topic(TOPIC), 0).leader_epochs.start_next_epoch(10)
    reader = world.app("a", group_id="g", group_protocol=world.protocol)
    world.call(reader, read(reader, 2 * RECORDS))
    assert reader.assembly.core.metadata.leader(TP0).epoch == 1
    world.call(reader, reader.calls.close(5_000, world.now))
    world.delete_topic(TOPIC)
    world.create_topic(TOPIC, 2)
    world.produce(TOPIC, 0, 8)
    world.produce(TOPIC, 1, 8)
    commit(world, 5, 1)
    app = world.app("b", group_id="g", group_protocol=world.protocol)
    world.call(app, read(app, 6), 40_000)
    assert [offsets(app.handled, partition) for partition in range(2)] == [[5, 6, 7]] * 2


@pytest.mark.parametrize("api", [Api.OFFSET_FOR_LEADER_EPOCH, Api.FETCH, Api.LIST_OFFSETS])
def test_a_leader_that_learns_its_epoch_late_is_queried_with_it(world: World, api: Api, caplog: pytest.LogCaptureFixture) -> None:
    log = world.broker.core.catalog.logs.get(world.broker.core.catalog.topic(TOPIC), 0)
    log.leader_epochs.start_next_epoch(RECORDS)
    world.produce(TOPIC, 0, 5)
    world.broker.set_fault(Fail(ErrorCode.unknown_leader_epoch), api, times=3, topic=TOPIC)
    app = assigned(world, TP0)
    if api is Api.OFFSET_FOR_LEADER_EPOCH:
        world.call(app, app.calls.positions.seek({TP0: OffsetAndMetadata(7, leader_epoch=0)}, world.now))
    records: list[Any] = []
    while len(records) < (RECORDS - 2 if api is Api.OFFSET_FOR_LEADER_EPOCH else RECORDS + 5):
        records += poll(world, app)
    assert world.broker.struck == 3
    assert dropped(caplog) == []
    asked = [
        part.current_leader_epoch
        for _, one, message in world.broker.seen
        if one is api
        for topic in message.topics
        for part in topic.partitions
    ]
    assert set(asked) == {1}
