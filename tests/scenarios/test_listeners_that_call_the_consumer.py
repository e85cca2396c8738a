"""Listeners that call their consumer: each partition is assigned and revoked once, and no member stalls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.listeners import Listeners
from ottla.errors import IllegalStateError, OttlaError, WakeupError
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, filled, goodbyes, join, owned_by_listeners
from tests.simulation.world import QUICK_GROUPS, World

KINDS: dict[str, dict[str, Any]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
Act = Callable[[App, list[TopicPartition]], Program | None]
HARMLESS: dict[str, Act] = {
    "poll": lambda app, _: app.calls.poll(100, app.now),
    "commit": lambda app, _: app.calls.commits.commit(None, 2_000, app.now),
    "seek": lambda app, held: app.calls.positions.seek({tp: OffsetAndMetadata(5) for tp in held}, app.now),
    "pause and resume": lambda app, held: pause_and_resume(app, held),
    "committed": lambda app, held: app.calls.commits.committed(held, 2_000, app.now),
    "subscribe": lambda app, _: app.calls.subscribe(["t", "u"], acting(app), app.now),
    "wakeup": lambda app, _: app.wakeup(),
}
OUT: dict[str, Act] = {
    "unsubscribe": lambda app, _: app.calls.unsubscribe(app.now),
    "close": lambda app, _: app.calls.close(5_000, app.now),
}


def pause_and_resume(app: App, held: list[TopicPartition]) -> Program:
    yield from app.calls.positions.pause(held, app.now)
    yield from app.calls.positions.resume(held, app.now)


acts: dict[str, tuple[str, Act]] = {}
"""What the listeners of an application do, and in which of them, by its name."""


def acting(app: App) -> Listeners:
    """Listeners that record their calls, and then act."""

    def listener(name: str) -> Callable[[list[TopicPartition]], None]:
        def listen(partitions: list[TopicPartition]) -> None:
            app.listener_calls.append((name, partitions))
            when, act = acts[app.name]
            if name == when and (call := act(app, [tp for tp in partitions if tp in app.calls.snapshot.partitions])) is not None:
                app.inside(call)

        return listen

    return Listeners(listener("assign"), listener("revoke"), listener("lost"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = filled(tmp_path, **QUICK_GROUPS)
    world.create_topic("u", 2)
    return world


def reader(app: App) -> Program:
    """Read until ``app.stop`` is set, or the member is out of its group."""
    yield from app.calls.subscribe(["t"], acting(app), app.now)
    while not app.stop:
        try:
            app.handled.extend((yield from app.calls.poll(300, app.now)))
        except OttlaError as error:
            app.errors.append(error)
            if isinstance(error, IllegalStateError):
                return
        yield Sleep(20)


def meet(world: World, kind: str, when: str, act: Act) -> tuple[App, App]:
    """A member whose listener acts, and another that joins after it and leaves."""
    world.protocol = "consumer" if kind == "consumer" else "classic"
    acts["acts"] = when, act
    app = world.app("acts", group_id="g", **KINDS[kind])
    app.start(reader(app))
    world.run(3_000)
    other = join(world, "other", **KINDS[kind])
    world.run(6_000)
    return app, other


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.parametrize("when", ["assign", "revoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_listener_do_not_block_the_rebalance(world: World, kind: str, when: str, what: str) -> None:
    app, other = meet(world, kind, when, HARMLESS[what])
    assert app.calls.owned
    assert other.calls.owned
    other.stop = True
    world.run(6_000)
    assert owned_by_listeners(app) == app.calls.owned >= set(ALL)
    assert [error for error in app.errors if not isinstance(error, WakeupError)] == []
    first = 5 if what == "seek" and when == "assign" else 0
    handled = {(record.partition, record.offset) for record in app.handled + other.handled if record.topic == "t"}
    assert handled >= {(partition, offset) for partition in range(PARTITIONS) for offset in range(first, 100)}


@pytest.mark.parametrize("what", OUT)
@pytest.mark.parametrize("when", ["assign", "revoke"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_listener_that_unsubscribes_gets_each_revocation_once(world: World, kind: str, when: str, what: str) -> None:
    app, other = meet(world, kind, when, OUT[what])
    world.run_until(lambda: not app.running and other.calls.owned == set(ALL))
    assert app.error is None
    assert owned_by_listeners(app) == app.calls.owned == set()
    assert [goodbye.member_id for goodbye in goodbyes(world)] != []
    assert app.calls.snapshot.partitions == {}


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_an_asynchronous_commit_of_a_listener_is_sent_before_the_revocation_ends(world: World, kind: str, lag: int) -> None:
    outcomes: list[Exception | None] = []

    def commit(app: App, held: list[TopicPartition]) -> Program:
        offsets = {tp: OffsetAndMetadata(33) for tp in held}
        return app.calls.commits.commit_async(offsets, lambda _, error: outcomes.append(error), app.now)

    world.protocol = "consumer" if kind == "consumer" else "classic"
    acts["acts"] = "revoke", commit
    app = world.app("acts", group_id="g", enable_auto_commit=False, **KINDS[kind])
    app.lag = lag
    app.start(reader(app))
    world.run(3_000)
    other = join(world, "other", enable_auto_commit=False, **KINDS[kind])
    world.run_until(lambda: bool(other.calls.owned and app.calls.owned))
    world.run(1_000)
    assert outcomes == [None]
    (gone,) = [partitions for what, partitions in app.listener_calls if what == "revoke"]
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys([tp.partition for tp in gone], 33)


@pytest.mark.parametrize("kind", KINDS)
def test_an_asynchronous_commit_of_a_listener_is_sent_before_the_member_leaves(world: World, kind: str) -> None:
    def commit(app: App, held: list[TopicPartition]) -> Program:
        return app.calls.commits.commit_async({tp: OffsetAndMetadata(33) for tp in held}, None, app.now)

    world.protocol = "consumer" if kind == "consumer" else "classic"
    acts["acts"] = "revoke", commit
    app = world.app("acts", group_id="g", enable_auto_commit=False, **KINDS[kind])
    app.lag = 1
    app.start(reader(app))
    world.run(3_000)
    app.stop = True
    world.run(1_000)
    world.call(app, app.calls.unsubscribe(app.now))
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 33)
