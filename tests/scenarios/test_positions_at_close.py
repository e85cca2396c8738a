"""The position that ``close()`` and ``commit()`` use after a cancelled seek, and after the log has lost records that
the application still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla import Record
from ottla.errors import OttlaTimeoutError
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata
from tests.scenarios.assigned_consumer import TP0, TP1
from tests.simulation.world import World

BUSY = 20
"""Milliseconds before the network thread executes what it is asked for."""


def reader(world: World, **settings: Any) -> App:
    """An application with both partitions assigned and a group, whose auto-commit interval never elapses."""
    app = world.app("a", group_id="g", **settings)
    world.call(app, app.calls.assign((TP0, TP1), world.now))
    return app


def cancelled(call: Program) -> None:
    """Begin a call that sends a command to the network thread, and cancel it while it waits."""
    next(call)
    call.close()


def ten_polled_then(app: App, step: Callable[[], Program]) -> Program:
    """Poll ten records, then another step."""
    records = yield from app.calls.poll(5_000, app.now)
    assert len(records) == 10
    app.lag = BUSY
    return (yield from step())


@pytest.fixture
def app(world: World) -> App:
    world.produce("t", 0, 100)
    return reader(world, max_poll_records=10)


# -- a seek that is cancelled -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [3, 50])
@pytest.mark.parametrize("done", [True, False])
def test_close_commits_the_position_of_a_cancelled_seek(world: World, app: App, target: int, done: bool) -> None:
    def step() -> Program:
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(target)}, app.now))
        yield from app.calls.close(5_000, app.now, last_processed=done)

    world.call(app, ten_polled_then(app, step))
    assert world.committed("g", "t", 1) == {0: target}


def test_a_commit_after_a_cancelled_seek_commits_the_sought_position(world: World, app: App) -> None:
    def step() -> Program:
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        return (yield from app.calls.commits.commit(None, 5_000, app.now))

    assert world.call(app, ten_polled_then(app, step)) == {TP0: OffsetAndMetadata(50), TP1: OffsetAndMetadata(0)}


def test_an_asynchronous_commit_after_a_cancelled_seek_commits_the_sought_position(world: World, app: App) -> None:
    def step() -> Program:
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        yield from app.calls.commits.commit_async(None, None, app.now)
        yield Sleep(1_000)

    world.call(app, ten_polled_then(app, step))
    assert world.committed("g", "t", 1) == {0: 50}


def test_the_position_after_a_cancelled_seek_is_the_sought_one(world: World, app: App) -> None:
    def step() -> Program:
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        return (yield from app.calls.positions.position(TP0, 5_000, app.now))

    assert world.call(app, ten_polled_then(app, step)) == 50


def test_assign_after_a_cancelled_seek_commits_the_sought_position(world: World, app: App) -> None:
    def step() -> Program:
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        yield from app.calls.assign((TP1,), app.now)
        yield Sleep(1_000)

    world.call(app, ten_polled_then(app, step))
    assert world.committed("g", "t", 1) == {0: 50}


def test_a_close_with_timeout_zero_never_commits_the_position_before_a_cancelled_seek(world: World, app: App) -> None:
    def step() -> Program:
        app.lag = 10_000
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        began = app.now.mono
        yield from app.calls.close(0, app.now)
        return app.now.mono - began

    assert world.call(app, ten_polled_then(app, step)) <= 100
    world.run(20_000)
    assert world.committed("g", "t", 1) in ({}, {0: 50})


def test_a_commit_with_timeout_zero_fails_after_an_unsettled_seek(world: World, app: App) -> None:
    def step() -> Program:
        app.lag = 10_000
        cancelled(app.calls.positions.seek({TP0: OffsetAndMetadata(50)}, app.now))
        yield from app.calls.commits.commit(None, 0, app.now)

    with pytest.raises(OttlaTimeoutError):
        world.call(app, ten_polled_then(app, step))
    world.run(20_000)
    assert world.committed("g", "t", 1) == {}


def test_a_cancelled_unsubscribe_commits_nothing_at_close(world: World) -> None:
    """Like an unsubscribe that was not cancelled (docs/consumer.md)."""
    world.produce("t", 0, 10)
    app = world.app("a", group_id="g")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not (yield from app.calls.poll(500, app.now)):
            pass
        app.lag = BUSY
        cancelled(app.calls.unsubscribe(app.now))
        yield from app.calls.close(5_000, app.now)

    world.call(app, program())
    assert world.committed("g", "t", 1) == {}


# -- a log that loses what the application holds ------------------------------------------------------------------------------


def lose(world: World, path: Path) -> None:
    """Restart the broker without the second half of the log and with a new leader epoch."""
    world.broker.kill()
    (log,) = path.glob("**/t-0/*.log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data) // 2 + 20])
    world.broker.start()
    world.produced[TP0] = 5


def walking(app: App, after: Callable[[], None], seen: list[Record]) -> Program:
    """Iterate over two of ten records, run a step, and continue the iteration slowly."""
    delivery = None
    while delivery is None:
        delivery = yield from app.calls.deliver(1_000, app.now)
    walk = app.calls.collector.walk(delivery)
    seen += [next(walk), next(walk)]
    after()
    for _ in range(30):
        yield from app.calls.service(app.now)
        yield Sleep(200)
    return walk


@pytest.fixture
def two_batches(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", 2)
    world.produce("t", 0, 5)
    world.produce("t", 0, 5)
    return world


def test_close_does_not_commit_unconsumed_records_after_a_truncation(two_batches: World, tmp_path: Path) -> None:
    world, app, seen = two_batches, reader(two_batches), list[Record]()

    def program() -> Program:
        yield from walking(app, lambda: lose(world, tmp_path), seen)
        yield from app.calls.close(5_000, app.now, last_processed=False)

    world.call(app, program())
    assert [record.offset for record in seen] == [0, 1]
    assert world.committed("g", "t", 1) == {0: 2}


def test_an_iteration_continues_after_a_truncation_and_skips_nothing(two_batches: World, tmp_path: Path) -> None:
    world, app, seen = two_batches, reader(two_batches), list[Record]()

    def program() -> Program:
        walk = yield from walking(app, lambda: lose(world, tmp_path), seen)
        seen.extend(walk)
        world.produce("t", 0, 3)
        while len(seen) < 13:
            seen.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert [record.offset for record in seen] == [*range(10), 5, 6, 7]


def test_records_left_over_by_an_iteration_are_not_committed_after_a_truncation(two_batches: World, tmp_path: Path) -> None:
    """The next poll returns the rest of an iteration. Records of it that were not processed are not committed."""
    world, app, seen = two_batches, reader(two_batches), list[Record]()

    def program() -> Program:
        yield from walking(app, lambda: None, seen)
        records = yield from app.calls.poll(500, app.now)
        assert [record.offset for record in records] == list(range(2, 10))
        lose(world, tmp_path)
        yield Sleep(5_000)
        yield from app.calls.close(5_000, app.now, last_processed=False)

    world.call(app, program())
    assert world.committed("g", "t", 1) == {0: 2}
