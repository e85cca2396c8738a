"""Applications that do not poll in time: each time they are expelled once, with one log line, whatever else happens (KIP-62)."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.listeners import Listeners, Partitions
from ottla.simulation.application import App, Program, Sleep, member
from tests.example_counts import examples
from tests.simulation.world import World

INTERVAL = 10_000
"""The poll interval of all members here (ms)."""

SLACK = 100
"""By how many milliseconds the last command of the application may precede its last call."""

KINDS = {
    "range": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}

SEEDS = range(examples(6))


class Expulsions(logging.Handler):
    """The times of the log lines that say that a member has left its group."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.at: list[int] = []
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if "left the group" in record.getMessage():
            self.at.append(self._world.now.mono)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", 4)
    for partition in range(4):
        world.produce("t", partition, 2_000)
    return world


@pytest.fixture
def expulsions(world: World) -> Iterator[Expulsions]:
    handler, log = Expulsions(world), logging.getLogger("ottla.client.poll_timer")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def app_of(world: World, name: str, kind: str, **settings: Any) -> App:
    return world.app(name, group_id="g", **{"max_poll_interval_ms": INTERVAL, "max_poll_records": 5, **KINDS[kind], **settings})


class Busy:
    """An application that is slow at random, between its polls and in its listeners. ``signs``: the times of its polls."""

    def __init__(self, app: App, seed: int) -> None:
        self.app = app
        self.signs: list[int] = []
        self._random = random.Random(seed)

    def sign(self) -> None:
        self.signs.append(self.app.now.mono)

    def duration(self) -> int:
        least, most = self._random.choice([(0, 20), (0, 20), (500, 4_000), (5_000, 9_000), (INTERVAL + 2_000, 3 * INTERVAL)])
        return self._random.randint(least, most)

    def listen(self, what: str, partitions: Partitions) -> None:
        self.app.listener_calls.append((what, partitions))
        if partitions and self._random.random() < 0.5:
            self.app.busy(self.duration())
        self.sign()

    def program(self) -> Program:
        app = self.app
        listeners = Listeners(*(lambda gone, what=what: self.listen(what, gone) for what in ("assign", "revoke", "lost")))
        yield from app.calls.subscribe(["t"], listeners, app.now)
        while not app.stop:
            self.sign()
            yield from app.calls.poll(self._random.choice([0, 200, 1_500]), app.now)
            self.sign()
            yield Sleep(self.duration())
        yield from app.calls.close(10_000, app.now)


def come_and_go(app: App, seed: int) -> Program:
    """A member that polls in time, and joins and leaves, so that the others rebalance."""
    chance = random.Random(seed)
    while not app.stop:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        until = app.now.mono + chance.randint(1_000, 40_000)
        while app.now.mono < until:
            yield from app.calls.poll(500, app.now)
        yield from app.calls.unsubscribe(app.now)
        yield Sleep(chance.randint(1_000, 20_000))


def slow_handler(app: App, work: int) -> Program:
    yield from app.calls.subscribe(["t"], app.listeners(), app.now)
    yield from app.calls.poll(5_000, app.now)
    yield Sleep(work)
    while not app.stop:
        yield from app.calls.poll(500, app.now)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_rejoins_after_an_expulsion_is_not_expelled_again(world: World, expulsions: Expulsions, kind: str) -> None:
    """The application first acknowledges the lost partitions; the command of its poll follows."""
    app = app_of(world, "a", kind)
    app.eager = True
    app.start(slow_handler(app, 25_000))
    world.run(60_000)
    assert len(expulsions.at) == 1
    assert [what for what, _ in app.listener_calls] == ["assign", "lost", "assign"]
    assert len(app.calls.owned) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_has_the_whole_interval(world: World, expulsions: Expulsions, kind: str) -> None:
    """The time before the poll does not count against the listener."""
    first, second = app_of(world, "a", kind), app_of(world, "b", kind)
    first.eager = True

    def slow_revoke(partitions: Partitions) -> None:
        first.listener_calls.append(("revoke", partitions))
        if len(first.listener_calls) == 2:
            first.busy(7_000)

    def program() -> Program:
        listeners = Listeners(first.listeners().on_assign, slow_revoke, first.listeners().on_lost)
        yield from first.calls.subscribe(["t"], listeners, first.now)
        while len(first.calls.owned) < 4:
            yield from first.calls.poll(500, first.now)
        second.start(member(second))
        yield Sleep(7_000)
        while not first.stop:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    world.run(60_000)
    assert expulsions.at == []
    assert [what for what, _ in first.listener_calls][:2] == ["assign", "revoke"]
    assert len(first.calls.owned) == len(second.calls.owned) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eager", [True, False])
def test_a_listener_that_exceeds_the_interval_is_expelled_once(
    world: World, expulsions: Expulsions, kind: str, eager: bool
) -> None:
    app = app_of(world, "a", kind)
    app.eager = eager

    def slow_assign(partitions: Partitions) -> None:
        app.listener_calls.append(("assign", partitions))
        if len(app.listener_calls) == 1:
            app.busy(25_000)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], Listeners(slow_assign, None, app.listeners().on_lost), app.now)
        while not app.stop:
            yield from app.calls.poll(500, app.now)

    app.start(program())
    world.run(60_000)
    assert len(expulsions.at) == 1
    assert [what for what, _ in app.listener_calls] == ["assign", "lost", "assign"]
    assert len(app.calls.owned) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_of_a_commit_does_not_add_to_the_time_before_the_poll(world: World, expulsions: Expulsions, kind: str) -> None:
    app = app_of(world, "a", kind, enable_auto_commit=False)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        yield from app.calls.poll(5_000, app.now)
        yield from app.calls.commits.commit_async(None, lambda offsets, error: app.busy(7_000), app.now)
        yield Sleep(7_000)
        while not app.stop:
            yield from app.calls.poll(500, app.now)

    app.start(program())
    world.run(40_000)
    assert expulsions.at == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_exceeded_interval_is_one_expulsion_and_one_log_line(
    world: World, expulsions: Expulsions, kind: str, seed: int
) -> None:
    """In any interleaving of the application's commands and the network thread's passes."""
    chance = random.Random(seed)
    slow = Busy(app_of(world, "slow", kind, enable_auto_commit=chance.random() < 0.5), seed)
    slow.app.eager = chance.random() < 0.7
    slow.app.lag, slow.app.pause = (0, 0) if slow.app.eager else (chance.choice([0, 3]), chance.choice([0, 3]))
    other = app_of(world, "other", kind)
    slow.app.start(slow.program())
    if chance.random() < 0.7:
        other.start(come_and_go(other, seed))
    world.run(200_000)
    assert slow.app.running, slow.app.error
    slow.sign()
    gaps = [(one, two) for one, two in itertools.pairwise(slow.signs) if two - one > INTERVAL - SLACK]
    for at in expulsions.at:
        assert any(one < at <= two for one, two in gaps), f"expelled at {at}, though it did not exceed its interval"
    for one, two in gaps:
        expelled = [at for at in expulsions.at if one < at <= two]
        assert len(expelled) <= 1, f"silent from {one} to {two}, expelled at {expelled}"
    assert expulsions.at
