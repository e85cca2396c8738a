"""Concurrent calls of one consumer, as the tasks of an ``AsyncConsumer`` make them, in any order and cancelled at any wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.client.calls.mailbox import Await, Wait
from ottla.errors import CommitFailedError, IllegalStateError, OttlaTimeoutError, RebalanceInProgressError, WakeupError
from ottla.simulation.application import App, Program, Sleep, member
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.example_counts import examples
from tests.simulation.world import World

PARTITIONS, RECORDS = 4, 60
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]
PASSING = (WakeupError, CommitFailedError, RebalanceInProgressError, OttlaTimeoutError)
"""What a call may end with while a group rebalances and others wake the consumer."""


def together(app: App, chance: random.Random, *programs: Program) -> Program:
    """Run programs as tasks of one event loop: a notification wakes all waiting tasks, and they run in random order.

    The first one is the main program: when it has ended, the others are cancelled.
    """
    waiting: dict[Program, tuple[Wait | Await | Sleep, int]] = {}

    def step(program: Program, run: Callable[[], Wait | Await | Sleep]) -> None:
        try:
            asked = run()
        except StopIteration:
            waiting.pop(program, None)
            return
        assert not isinstance(asked, Await)
        until = app.now.mono + asked.duration if isinstance(asked, Sleep) else asked.until
        waiting[program] = asked, app.now.mono + 600_000 if until is None else until

    for program in programs:
        step(program, partial(next, program))
    while programs[0] in waiting:
        earliest = min(until for _, until in waiting.values())
        if all(isinstance(asked, Sleep) for asked, _ in waiting.values()):
            now = yield Sleep(max(0, earliest - app.now.mono))
        else:
            now = yield Wait("any of them", earliest)
        for program in chance.sample(list(waiting), len(waiting)):
            asked, until = waiting[program]
            if not isinstance(asked, Sleep) or now.mono >= until:
                step(program, partial(program.send, now))
    for program in waiting:
        program.close()


def cancelled_sometimes(call: Program, chance: random.Random) -> Program:
    """A call that is cancelled at one of its waits, or not at all."""
    left = chance.choice((1, 2, 3, 1_000))
    try:
        asked = next(call)
        while True:
            left -= 1
            if not left:
                call.close()
                return None
            asked = call.send((yield asked))
    except StopIteration as done:
        return done.value


def reader(app: App, chance: random.Random, done: Callable[[], bool]) -> Program:
    while not done():
        try:
            records = yield from cancelled_sometimes(app.calls.poll(chance.choice((0, 10, 1_000)), app.now), chance)
            app.handled.extend(records or ())
        except PASSING as error:
            app.errors.append(error)
        yield Sleep(chance.choice((0, 1, 20)))


def asker(app: App, chance: random.Random, wakes: bool) -> Program:
    """Loops over lookups, commits, pauses and wakeups."""
    while True:
        mine = sorted(app.calls.owned) or ALL[:0]
        some = [chance.choice(mine)] if mine else []
        calls: list[Callable[[], Program]] = [
            lambda: app.calls.commits.commit(None, 1_000, app.now),
            lambda: app.calls.commits.commit_async(None, None, app.now),
            lambda: app.calls.commits.committed(ALL, 1_000, app.now),
            lambda: app.calls.positions.list_offsets({ALL[0]: -1}, 1_000, app.now),
            lambda: app.calls.describe_topics(("t",), 1_000, app.now),
            lambda some=some: app.calls.positions.pause(some, app.now),  # type: ignore[misc]
            lambda: app.calls.positions.resume([tp for tp, view in app.calls.snapshot.partitions.items() if view.paused], app.now),
            *[lambda tp=tp: app.calls.positions.position(tp, 1_000, app.now) for tp in some],
            *[lambda tp=tp: app.calls.positions.lag(tp, 1_000, app.now) for tp in some],
        ]
        try:
            yield from cancelled_sometimes(chance.choice(calls)(), chance)
        except PASSING as error:
            app.errors.append(error)
        except IllegalStateError as error:  # a rebalance has taken the partition meanwhile
            if "not assigned" not in str(error):
                raise
        if wakes and chance.random() < 0.1:
            app.wakeup()
        yield Sleep(chance.choice((0, 1, 5, 50)))


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(tmp_path)
    world.protocol = request.param
    world.create_topic("t", PARTITIONS)
    for number in range(PARTITIONS):
        world.produce("t", number, RECORDS)
    return world


def by_partition(app: App) -> dict[int, list[int]]:
    return {tp.partition: [record.offset for record in app.handled if record.partition == tp.partition] for tp in ALL}


@pytest.mark.parametrize("seed", range(examples(5)))
def test_one_task_reads_while_others_look_up_commit_pause_cancel_and_wake(world: World, seed: int) -> None:
    chance = random.Random(seed)
    app = world.app("a", group_id="g", group_protocol=world.protocol, max_poll_records=7)
    world.call(app, app.calls.subscribe(["t"], app.listeners(), app.now))
    app.lag = chance.choice((0, 0, 5))
    main = reader(app, chance, lambda: len(app.handled) >= PARTITIONS * RECORDS)
    app.start(together(app, chance, main, *(asker(app, chance, wakes=True) for _ in range(3))))
    world.run_until(lambda: not app.running, 600_000)
    if app.error is not None:
        raise app.error
    assert by_partition(app) == {number: [*range(RECORDS)] for number in range(PARTITIONS)}
    world.call(app, app.calls.close(10_000, app.now))
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), RECORDS)


@pytest.mark.parametrize("seed", range(examples(5)))
def test_tasks_look_up_and_commit_while_the_group_rebalances(world: World, seed: int) -> None:
    chance = random.Random(seed)
    app = world.app("a", group_id="g", group_protocol=world.protocol, max_poll_records=7)
    other = world.app("b", group_id="g", group_protocol=world.protocol)
    world.call(app, app.calls.subscribe(["t"], app.listeners(), app.now))

    def everything() -> bool:
        handled = {(record.partition, record.offset) for each in (app, other) for record in each.handled}
        return len(handled) == PARTITIONS * RECORDS and not other.running

    app.start(together(app, chance, reader(app, chance, everything), *(asker(app, chance, wakes=False) for _ in range(3))))
    world.run_until(lambda: len(app.handled) > 20, 600_000)
    other.start(member(other))
    world.run_until(lambda: bool(other.calls.owned) and bool(app.calls.owned), 600_000)
    world.run(chance.randrange(3_000))
    other.stop = True
    world.run_until(lambda: not app.running, 600_000)
    if app.error is not None:
        raise app.error
    for calls in (app.listener_calls, other.listener_calls):
        owned: set[TopicPartition] = set()
        for what, partitions in calls:
            assert owned.isdisjoint(partitions) if what == "assign" else owned.issuperset(partitions)
            owned = owned.union(partitions) if what == "assign" else owned.difference(partitions)
    world.call(app, app.calls.close(10_000, app.now))
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), RECORDS)


@pytest.mark.parametrize("seed", range(examples(5)))
def test_a_wakeup_ends_one_call_and_a_poll_before_any_other(world: World, seed: int) -> None:
    chance = random.Random(seed)
    app = world.app("a", group_id="g", group_protocol=world.protocol)
    world.call(app, app.calls.assign(ALL, app.now))
    woken: list[str] = []

    def noting(what: str, call: Callable[[], Program]) -> Program:
        while True:
            try:
                yield from call()
            except WakeupError:
                woken.append(what)

    def main() -> Program:
        for number in range(1, 21):
            yield Sleep(chance.randrange(30))
            app.wakeup()
            yield Sleep(30)
            assert len(woken) == number

    questions: list[Callable[[], Any]] = [
        lambda: app.calls.commits.committed(ALL, 1_000, app.now),
        lambda: app.calls.positions.list_offsets({ALL[0]: -1}, 1_000, app.now),
        lambda: app.calls.commits.commit(None, 1_000, app.now),
    ]
    polling = noting("poll", lambda: app.calls.poll(60_000, app.now))
    world.call(app, app.calls.poll(5_000, app.now))
    world.call(app, together(app, chance, main(), polling, *(noting("question", each) for each in questions)))
    assert set(woken) == {"poll"}


def test_a_pause_beside_a_seek_does_not_undo_it(world: World) -> None:
    app = world.app("a", group_id="g")
    first = ALL[0]
    world.call(app, app.calls.assign([first], app.now))
    assert len(world.call(app, app.calls.poll(5_000, app.now))) == RECORDS
    seek, pause = app.calls.positions.seek({first: OffsetAndMetadata(5)}, app.now), app.calls.positions.pause([first], app.now)
    world.call(app, together(app, random.Random(0), seek, pause))
    assert app.calls.snapshot.partitions[first].paused
    assert world.call(app, app.calls.positions.position(first, 1_000, app.now)) == 5
    world.call(app, app.calls.positions.resume([first], app.now))
    assert [record.offset for record in world.call(app, app.calls.poll(5_000, app.now))] == [*range(5, RECORDS)]
