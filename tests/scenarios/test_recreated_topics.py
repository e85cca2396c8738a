"""A topic is deleted and recreated while the application holds records of the first: nothing that it commits for
those reaches the second, unless it commits them by offset after it has polled again.
"""

from __future__ import annotations

from typing import Any

import pytest

from ottla import Record
from ottla.errors import UnknownTopicIdError
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata
from tests.scenarios.assigned_consumer import TP0, assigned, poll
from tests.simulation.world import World

OLD, NEW = 10, 20
"""Records of the first topic and of the second."""


@pytest.fixture
def app(world: World) -> App:
    world.produce("t", 0, OLD)
    return assigned(world, TP0, group_id="g", enable_auto_commit=False, metadata_max_age_ms=1_000)


def recreate(world: World) -> None:
    world.delete_topic("t")
    world.create_topic("t", 2)
    world.produce("t", 0, NEW)


def committed(world: World) -> int:
    return world.committed("g", "t", 1).get(0, 0)


@pytest.mark.parametrize("offset", [1, OLD])
def test_offsets_of_the_last_poll_s_records_are_not_committed(world: World, app: App, offset: int) -> None:
    assert len(poll(world, app)) == OLD
    recreate(world)
    world.run(10_000)
    with pytest.raises(UnknownTopicIdError, match="which was deleted and recreated"):
        world.call(app, app.calls.commits.commit({TP0: OffsetAndMetadata(offset)}, 5_000, app.now))
    assert committed(world) == 0


def test_the_offset_of_an_unconsumed_record_is_not_committed_in_an_iteration(world: World, app: App) -> None:
    def program() -> Program:
        delivery = None
        while delivery is None:
            delivery = yield from app.calls.deliver(1_000, app.now)
        walk = app.calls.collector.walk(delivery)
        app.handled.append(next(walk))
        recreate(world)
        for _ in range(20):
            yield from app.calls.service(app.now)
            yield Sleep(500)
        app.handled.extend(walk)
        yield from app.calls.commits.commit({TP0: OffsetAndMetadata(OLD)}, 5_000, app.now)

    with pytest.raises(UnknownTopicIdError, match="which was deleted and recreated"):
        world.call(app, program())
    assert [record.offset for record in app.handled] == list(range(OLD))
    assert committed(world) == 0


def test_an_offset_committed_after_the_next_poll_is_of_the_new_topic(world: World, app: App) -> None:
    """The application may intend it (docs/consumer.md)."""
    assert len(poll(world, app)) == OLD
    recreate(world)
    assert [offset for _, offset in poll(world, app, 30_000)] == list(range(NEW))
    world.call(app, app.calls.commits.commit({TP0: OffsetAndMetadata(OLD)}, 5_000, app.now))
    assert committed(world) == OLD


# -- a signal's handler has interrupted a call ----------------------------------------------------------------------------------


def interrupted(app: App) -> App:
    """An application that continues after Ctrl-C has ended a call."""
    app.calls.interrupted = True
    return app


def test_after_an_interruption_a_recreated_topic_is_read_from_its_beginning(world: World, app: App) -> None:
    assert len(poll(world, app)) == OLD
    recreate(world)
    found: list[tuple[int, int]] = []
    interrupted(app)
    while len(found) < NEW:
        found += poll(world, app, 30_000)
    assert [offset for _, offset in found] == list(range(NEW))


def commit(app: App) -> Program:
    yield from app.calls.commits.commit(None, 5_000, app.now)


def close(app: App) -> Program:
    yield from app.calls.close(5_000, app.now)


@pytest.mark.parametrize("end", [commit, close])
def test_after_an_interruption_nothing_is_committed_to_a_topic_of_the_same_name(world: World, end: Any) -> None:
    world.produce("t", 0, OLD)
    app = assigned(world, TP0, group_id="g", auto_commit_interval_ms=3_600_000, metadata_max_age_ms=1_000)
    assert len(poll(world, app)) == OLD
    interrupted(app)
    assert poll(world, app, 0) == []
    recreate(world)
    app.start(end(app))
    world.run_until(lambda: not app.running)
    assert committed(world) == 0


def test_after_an_interruption_no_record_is_repeated_or_skipped(world: World, app: App) -> None:
    seen: list[Record] = []
    for count in range(1, 40):
        if count % 2:
            interrupted(app)
        if count % 7 == 0:
            world.produce("t", 0, 3)
        if count % 5 == 0:
            world.call(app, app.calls.positions.pause([TP0], app.now))
        if count % 5 == 1:
            world.call(app, app.calls.positions.resume([TP0], app.now))
        seen += world.call(app, app.calls.poll(200, app.now))
    assert [record.offset for record in seen] == list(range(world.produced[TP0]))
