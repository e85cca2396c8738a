"""Queries with ``timeout=0``: known values are returned; a value that only a broker knows is an error, never ``None``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.subscription import EARLIEST, LATEST
from ottla.errors import OttlaTimeoutError
from ottla.simulation.application import App, Program
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.simulation.world import World

T0 = TopicPartition("t", 0)

QUESTIONS: dict[str, Callable[[App], Program]] = {
    "offsets_for_times": lambda app: app.calls.positions.list_offsets({T0: 1}, 0, app.now),
    "beginning_offsets": lambda app: app.calls.positions.list_offsets({T0: EARLIEST}, 0, app.now),
    "end_offsets": lambda app: app.calls.positions.list_offsets({T0: LATEST}, 0, app.now),
    "committed": lambda app: app.calls.commits.committed([T0], 0, app.now),
    "partitions_for": lambda app: app.calls.describe_topics(("t",), 0, app.now),
    "list_topics": lambda app: app.calls.describe_topics(None, 0, app.now),
    "commit": lambda app: app.calls.commits.commit({T0: OffsetAndMetadata(1)}, 0, app.now),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", 1)
    world.produce("t", 0, 10)
    return world


def reading(app: App) -> Program:
    """Read until the consumer knows its positions and lags."""
    yield from app.calls.assign([T0], app.now)
    while len(app.handled) < 10:
        app.handled.extend((yield from app.calls.poll(500, app.now)))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("connected", [False, True])
def test_a_lookup_that_needs_a_broker_raises_at_once(world: World, question: str, connected: bool) -> None:
    app = world.app("a", group_id="g")
    if connected:
        world.call(app, reading(app))
    began = world.now.mono
    with pytest.raises(OttlaTimeoutError):
        world.call(app, QUESTIONS[question](app))
    assert world.now.mono - began <= 5
    world.call(app, app.calls.close(5_000, app.now))


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stuck_network_thread_delays_a_call_by_a_tenth_of_a_second(world: World, question: str) -> None:
    app = world.app("a", group_id="g")
    world.call(app, reading(app))
    app.pause = 60_000
    world.produce("t", 0, 1)
    world.run(1_000)
    assert app._halfway, "the network thread has passed on the record, and is stuck"
    began = world.now.mono
    with pytest.raises(OttlaTimeoutError):
        world.call(app, QUESTIONS[question](app))
    assert world.now.mono - began <= 100


@pytest.mark.parametrize(
    "question",
    [
        lambda app: app.calls.positions.list_offsets({}, 0, app.now),
        lambda app: app.calls.commits.committed([], 0, app.now),
        lambda app: app.calls.commits.commit({}, 0, app.now),
    ],
    ids=["offsets", "committed", "commit"],
)
def test_an_empty_lookup_needs_no_broker(world: World, question: Callable[[App], Any]) -> None:
    app = world.app("a", group_id="g")
    world.broker.kill()
    assert world.call(app, question(app)) == {}


def test_known_values_are_returned(world: World) -> None:
    app = world.app("a")
    world.call(app, reading(app))
    assert world.call(app, app.calls.positions.position(T0, 0, app.now)) == 10
    assert world.call(app, app.calls.positions.lag(T0, 0, app.now)) == 0


def test_unknown_values_are_not_guessed(world: World) -> None:
    app = world.app("a")
    world.call(app, app.calls.assign([T0], app.now))
    for question in (app.calls.positions.position(T0, 0, app.now), app.calls.positions.lag(T0, 0, app.now)):
        with pytest.raises(OttlaTimeoutError):
            world.call(app, question)
