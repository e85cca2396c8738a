"""Commits that race with rebalances: each is correct or refused, no committed offset goes back, and no member stalls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Fail
from ottla.client.calls.listeners import Listeners
from ottla.errors import CommitFailedError, OttlaError, RebalanceInProgressError, WakeupError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.simulation.world import World

PARTITIONS, RECORDS = 3, 60
REFUSALS = (CommitFailedError, RebalanceInProgressError)
KINDS: dict[str, dict[str, Any]] = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic with records."""
    world = World(tmp_path)
    world.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        world.produce("t", partition, RECORDS)
    return world


@pytest.fixture(params=KINDS)
def apps(world: World, request: pytest.FixtureRequest) -> Iterator[App]:
    """The members of a group, made one after the other."""
    settings = {"enable_auto_commit": False, "max_poll_records": 3, **KINDS[request.param]}
    return (world.app(name, group_id="g", **settings) for name in "abcdefgh")


def eager_committer(app: App, refused: list[OttlaError]) -> Program:
    """Commits all positions after each poll, in each listener, and just after an assignment."""

    def commit(partitions: list[TopicPartition]) -> None:
        try:
            app.inside(app.calls.commits.commit(None, 5_000, app.now))
        except REFUSALS as error:
            refused.append(error)

    yield from app.calls.subscribe(["t"], Listeners(commit, commit, commit), app.now)
    while not app.stop:
        records = yield from app.calls.poll(200, app.now)
        app.handled.extend(records)
        yield Sleep(20)
        try:
            yield from app.calls.commits.commit(None, 5_000, app.now)
        except REFUSALS as error:
            refused.append(error)
    yield from app.calls.close(10_000, app.now)


def test_no_committed_offset_goes_back_while_members_join_and_leave(world: World, apps: Iterator[App]) -> None:
    refused: list[OttlaError] = []
    members = [next(apps)]
    members[0].start(eager_committer(members[0], refused))
    history: list[dict[int, int]] = []

    def live(duration: int) -> None:
        for _ in range(duration // 50):
            world.run(50)
            history.append(world.committed("g", "t", PARTITIONS))

    live(400)
    for step in range(5):
        if step % 2:
            leaver = members.pop(0)
            leaver.stop = True
        else:
            members.append(next(apps))
            members[-1].start(eager_committer(members[-1], refused))
        live(700)
    for _ in range(40):
        if history[-1] == dict.fromkeys(range(PARTITIONS), RECORDS):
            break
        live(1_000)
    assert history[-1] == dict.fromkeys(range(PARTITIONS), RECORDS)
    for earlier, later in itertools.pairwise(history):
        assert all(later.get(partition, -1) >= offset for partition, offset in earlier.items())
    for app in world.apps.values():
        assert app.error is None
    handled = {(record.partition, record.offset) for app in world.apps.values() for record in app.handled}
    assert len(handled) == PARTITIONS * RECORDS


def test_an_abandoned_commit_does_not_rewind_another_member(world: World, apps: Iterator[App]) -> None:
    first, other = next(apps), next(apps)

    def work(app: App, committing: int, held: int) -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while len(app.calls.owned) not in (held, held + 1):
            yield from app.calls.poll(100, app.now)
        try:
            offsets = dict.fromkeys(app.calls.owned, OffsetAndMetadata(committing))
            yield from app.calls.commits.commit(offsets, 60_000, app.now)
        except WakeupError as error:
            app.errors.append(error)
        while not app.stop:
            yield from app.calls.poll(100, app.now)

    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.OFFSET_COMMIT, times=None, client_id=first.name)
    first.start(work(first, 10, PARTITIONS))
    world.run_until(lambda: world.broker.struck > 0)
    first.wakeup()
    other.start(work(other, 50, 1))
    world.run_until(lambda: 50 in world.committed("g", "t", PARTITIONS).values())
    assert len(first.errors) == 1
    others = {tp.partition: 50 for tp in other.calls.owned}
    world.broker.clear_faults()
    world.run(5_000)
    assert world.committed("g", "t", PARTITIONS).items() >= others.items()
    assert 0 < len(others) < PARTITIONS


def test_a_commit_just_after_the_assignment_does_not_rewind(world: World, apps: Iterator[App]) -> None:
    """A member does not commit a partition whose committed offset it has not looked up yet."""
    app = next(apps)
    world.call(app, app.calls.assign([TopicPartition("t", p) for p in range(PARTITIONS)], app.now))
    world.call(
        app, app.calls.commits.commit({TopicPartition("t", p): OffsetAndMetadata(40) for p in range(PARTITIONS)}, 5_000, app.now)
    )
    world.call(app, app.calls.close(5_000, app.now))
    refused: list[OttlaError] = []
    other = next(apps)
    other.start(eager_committer(other, refused))
    seen = []
    for _ in range(60):
        world.run(50)
        seen.append(world.committed("g", "t", PARTITIONS))
    assert all(offset >= 40 for found in seen for offset in found.values())
    assert refused == []
    assert min(record.offset for record in other.handled) == 40
