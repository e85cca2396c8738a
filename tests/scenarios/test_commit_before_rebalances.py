"""The commit before a rebalance, and wakeups during one: in both protocols, eager and cooperative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay, Fail
from ottla.errors import WakeupError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, member
from tests.scenarios.groups import ALL, PARTITIONS, filled, settle
from tests.simulation.world import QUICK_GROUPS, World

KINDS = {
    "eager": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}
JOINS = {"eager": Api.JOIN_GROUP, "cooperative": Api.JOIN_GROUP, "consumer": Api.CONSUMER_GROUP_HEARTBEAT}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return filled(tmp_path, **QUICK_GROUPS)


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def join(world: World, name: str, kind: str, **settings: Any) -> App:
    """A member with auto-commit whose interval never elapses."""
    app = world.app(name, group_id="g", **{"auto_commit_interval_ms": 600_000, **KINDS[kind], **settings})
    app.start(member(app))
    return app


def reading(world: World, kind: str) -> App:
    """A member that has read everything and committed nothing."""
    app = join(world, "a", kind)
    settle(world, app)
    world.run(3_000)
    assert len(app.handled) == 100 * PARTITIONS
    assert world.committed("g", "t", PARTITIONS) == {}
    return app


def read_by(app: App) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in app.handled)


def test_returned_records_are_committed_before_a_revocation(world: World, kind: str) -> None:
    first = reading(world, kind)
    second = join(world, "b", kind)
    settle(world, first, second)
    world.run(3_000)
    assert read_by(second) == []


@pytest.mark.parametrize("error", ["coordinator_load_in_progress", "not_coordinator"])
def test_a_commit_before_a_rebalance_is_retried_after_retriable_errors(world: World, kind: str, error: str) -> None:
    first = reading(world, kind)
    world.broker.set_fault(Fail(ErrorCode[error]), Api.OFFSET_COMMIT, times=2)
    second = join(world, "b", kind)
    settle(world, first, second)
    world.run(3_000)
    assert read_by(second) == []
    assert world.broker.struck == 2


@pytest.mark.parametrize("error", ["group_authorization_failed", "unknown_topic_or_partition"])
def test_a_commit_before_a_rebalance_that_cannot_succeed_does_not_delay_it(world: World, kind: str, error: str) -> None:
    first = reading(world, kind)
    world.broker.set_fault(Fail(ErrorCode[error]), Api.OFFSET_COMMIT, times=None)
    began = world.now.mono
    second = join(world, "b", kind)
    settle(world, first, second)
    assert world.now.mono - began < 6_000
    world.run(3_000)
    again = {(tp.partition, offset) for tp in second.calls.owned for offset in range(100)}
    assert set(read_by(second)) == again, "records may be repeated, not lost"


def test_a_commit_before_a_rebalance_is_given_up_within_the_rebalance_timeout(world: World, kind: str) -> None:
    first = join(world, "a", kind, max_poll_interval_ms=8_000)
    settle(world, first)
    world.run(3_000)
    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.OFFSET_COMMIT, times=None)
    began = world.now.mono
    second = join(world, "b", kind, max_poll_interval_ms=8_000)
    settle(world, first, second)
    assert world.now.mono - began < 20_000
    world.broker.clear_faults()
    world.run(3_000)
    assert set(read_by(first)) | set(read_by(second)) == {(tp.partition, offset) for tp in ALL for offset in range(100)}


def test_an_interval_commit_in_flight_does_not_replace_the_commit_before_a_rebalance(world: World, kind: str) -> None:
    first = join(world, "a", kind, auto_commit_interval_ms=5_000, max_poll_records=20)
    settle(world, first)
    world.broker.set_fault(Delay(1_500), Api.OFFSET_COMMIT, times=1)
    world.run_until(lambda: world.broker.struck == 1)
    for partition in range(PARTITIONS):
        world.produce("t", partition, 10)
    second = join(world, "b", kind, auto_commit_interval_ms=600_000)
    settle(world, first, second)
    world.run(10_000)
    assert sorted(read_by(first) + read_by(second)) == [(tp.partition, offset) for tp in ALL for offset in range(110)]


def test_wakeups_during_a_join_repeat_no_request(world: World, kind: str) -> None:
    first = reading(world, kind)
    second = world.app("b", group_id="g", **KINDS[kind])
    woken: list[WakeupError] = []

    def program() -> Program:
        yield from second.calls.subscribe(["t"], second.listeners(), second.now)
        while not second.stop:
            try:
                second.handled.extend((yield from second.calls.poll(500, second.now)))
            except WakeupError as error:
                woken.append(error)

    second.start(program())
    for _ in range(20):
        world.run(20)
        second.wakeup()
    settle(world, first, second)
    assert woken
    joined = [one for _, api, one in world.broker.seen if api is JOINS[kind] and (kind != "consumer" or one.member_epoch == 0)]
    mine = second.membership.metadata().member_id
    assert len([one for one in joined if one.member_id == mine]) <= (1 if kind != "cooperative" else 2)
    assert [what for what, partitions in second.listener_calls if partitions] == ["assign"]
