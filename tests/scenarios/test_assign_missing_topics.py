"""``assign()`` with partitions that never existed, were deleted, or were deleted and recreated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.mailbox import PROBLEM_GRACE
from ottla.client.health.verdicts import WaitsFor
from ottla.errors import OttlaError, UnknownTopicOrPartitionError
from ottla.simulation.application import App, Program
from ottla.types import TopicPartition
from tests.scenarios.assigned_consumer import TP0, TP1, assigned, poll
from tests.scenarios.health_probe import Probe
from tests.simulation.world import World

ELSEWHERE = TopicPartition("u", 0)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", 2)
    return world


@pytest.fixture(params=[{}, {"group_id": "g"}], ids=["alone", "in a group"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"allow_auto_create_topics": False, **request.param}


def reading(app: App) -> Program:
    while not app.stop:
        try:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        except OttlaError as error:
            app.errors.append(error)
    yield from app.calls.close(5_000, app.now)


def reader(world: World, settings: dict[str, Any], *partitions: TopicPartition) -> App:
    """An application that has read all records of these partitions and keeps polling."""
    app = assigned(world, *partitions, **settings)
    app.start(reading(app))
    world.run(2_000)
    assert app.errors == []
    return app


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= 30]


def test_a_deleted_topic_raises_after_a_grace_period_and_is_logged_once(
    world: World, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    world.produce("t", 0, 5)
    app = reader(world, settings, TP0, TP1)
    probe = Probe(app)
    assert probe.look().healthy
    deleted = world.now.mono
    world.delete_topic("t")
    world.run_until(lambda: bool(app.errors), 10_000)
    assert PROBLEM_GRACE <= world.now.mono - deleted < PROBLEM_GRACE + 2_000
    assert str(app.errors[0]).startswith("t-0: the topic does not exist [UNKNOWN_TOPIC_OR_PARTITION]")
    world.run(60_000)
    assert {type(error) for error in app.errors} == {UnknownTopicOrPartitionError}
    assert len(app.errors) > 100, "each empty poll raises"
    health = probe.look()
    assert (health.live, health.healthy) == (True, False)
    assert {part.waits_for for part in health.partitions.values()} == {WaitsFor.PROBLEM}
    lines = warnings(caplog)
    assert len(lines) == len(set(lines)) <= 3, "nothing is logged twice"
    assert lines[0] == "assigned partitions do not exist: t-0, t-1"


@pytest.mark.parametrize("absent", [ELSEWHERE, TopicPartition("t", 7)])
def test_a_topic_that_never_existed_raises_after_a_grace_period(
    world: World, settings: dict[str, Any], absent: TopicPartition, caplog: pytest.LogCaptureFixture
) -> None:
    app = assigned(world, absent, **settings)
    began = world.now.mono
    app.start(reading(app))
    world.run_until(lambda: bool(app.errors), 10_000)
    assert PROBLEM_GRACE <= world.now.mono - began < PROBLEM_GRACE + 2_000
    assert type(app.errors[0]) is UnknownTopicOrPartitionError
    assert str(app.errors[0]).startswith(f"{absent}: the topic ")
    world.run(30_000)
    assert len(warnings(caplog)) == 1
    assert not Probe(app).look().healthy


def test_existing_partitions_are_read_beside_a_missing_topic(world: World, settings: dict[str, Any]) -> None:
    world.create_topic("u", 1)
    world.produce("u", 0, 3)
    app = reader(world, settings, TP0, ELSEWHERE)
    world.delete_topic("u")
    world.run_until(lambda: bool(app.errors), 10_000)
    world.produce("t", 0, 5)
    world.run_until(lambda: len(app.handled) == 8, 5_000)
    health = Probe(app).look()
    assert not health.healthy
    assert {tp: part.waits_for is WaitsFor.PROBLEM for tp, part in health.partitions.items()} == {TP0: False, ELSEWHERE: True}


def test_a_recreated_topic_is_read_from_its_beginning(world: World, settings: dict[str, Any]) -> None:
    world.produce("t", 0, 5)
    app = reader(world, settings, TP0, TP1)
    world.delete_topic("t")
    world.run_until(lambda: bool(app.errors), 10_000)
    world.create_topic("t", 2)
    world.produce("t", 0, 3)
    world.run_until(lambda: len(app.handled) == 8, 10_000)
    assert [record.offset for record in app.handled] == [0, 1, 2, 3, 4, 0, 1, 2]
    count = len(app.errors)
    world.run(20_000)
    assert len(app.errors) == count
    assert Probe(app).look().healthy


def test_assign_commits_nothing_of_a_topic_that_was_recreated_since_the_last_call(world: World) -> None:
    """The consumer resets the position before the next call of the application, whose positions are older."""
    world.produce("t", 0, 5)
    app = assigned(world, TP0, group_id="g")
    assert len(poll(world, app)) == 5
    assert poll(world, app) == []
    world.delete_topic("t")
    world.create_topic("t", 2)
    world.produce("t", 0, 5)
    world.run(10_000)
    world.call(app, app.calls.assign([TP1], app.now))
    world.run(5_000)
    assert world.committed("g", "t", 2).get(0, 0) == 0
    world.call(app, app.calls.assign([TP0], app.now))
    assert poll(world, app) == [(0, offset) for offset in range(5)]


@pytest.mark.parametrize("paused", [False, True])
def test_a_topic_created_after_assign_is_read(world: World, settings: dict[str, Any], paused: bool) -> None:
    app = assigned(world, ELSEWHERE, **settings)
    if paused:
        world.call(app, app.calls.positions.pause([ELSEWHERE], world.now))
    app.start(reading(app))
    world.run_until(lambda: bool(app.errors), 10_000)
    world.create_topic("u", 1)
    world.produce("u", 0, 3)
    world.run(5_000)
    assert len(app.handled) == (0 if paused else 3)
    count = len(app.errors)
    world.run(10_000)
    assert len(app.errors) == count
    assert Probe(app).look().healthy
