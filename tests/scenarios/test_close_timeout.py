"""``close(timeout)`` ends in time whatever the brokers do, and ``assign()`` commits the positions of replaced partitions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay, Fail
from ottla.errors import OttlaError, OttlaTimeoutError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep
from ottla.types import OffsetAndMetadata, TopicPartition
from tests.scenarios.groups import ALL, PARTITIONS, filled, goodbyes, join, new
from tests.simulation.world import World

TIMEOUTS = (0, 1, 50, 500, 1_500, 3_000, 5_000)
DEFAULT = 5_000
"""Milliseconds, as ``close()`` has it."""
FOR_EVER = Delay(600_000)
MANUAL: dict[str, Any] = {"auto_commit_interval_ms": 600_000}


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = filled(tmp_path)
    world.protocol = request.param
    return world


def a_reader(world: World, **settings: Any) -> App:
    """A member that has read all partitions and committed nothing."""
    app = new(world, "a", auto_commit_interval_ms=600_000, **settings)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while len(app.handled) < 100 * PARTITIONS:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    return app


def closing(world: World, app: App, timeout: int) -> int:
    """Close the consumer; returns the duration."""
    began = world.now.mono
    try:
        world.call(app, app.calls.close(timeout, app.now))
    except OttlaTimeoutError as error:
        app.errors.append(error)
    return world.now.mono - began


def silent_commits(world: World) -> App:
    app = a_reader(world)
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=None)
    return app


def silent_goodbye(world: World) -> App:
    app = a_reader(world)
    world.broker.set_fault(FOR_EVER, Api.LEAVE_GROUP, Api.CONSUMER_GROUP_HEARTBEAT, times=None)
    return app


def silent_asynchronous_commit(world: World) -> App:
    app = silent_commits(world)
    world.call(app, app.calls.commits.commit_async({ALL[0]: OffsetAndMetadata(1)}, None, app.now))
    return app


def nothing_goes_through(world: World) -> App:
    app = a_reader(world)
    world.network.isolate(app.name)
    return app


def killed(world: World) -> App:
    app = a_reader(world)
    world.broker.kill()
    return app


def never_there(world: World) -> App:
    world.broker.kill()
    app = new(world, "a")
    world.call(app, app.calls.subscribe(["t"], app.listeners(), app.now))
    return app


def refused_for_ever(world: World) -> App:
    app = a_reader(world)
    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.OFFSET_COMMIT, times=None)
    return app


def in_a_rebalance(world: World) -> App:
    app = silent_commits(world)
    join(world, "b", auto_commit_interval_ms=600_000)
    world.run_until(lambda: app.membership.status.rebalancing)
    world.call(app, app.calls.poll(10, app.now))
    return app


def busy_network_thread(world: World) -> App:
    app = a_reader(world)
    world.run(2_000)
    app.lag = 60_000
    return app


def by_hand(world: World) -> App:
    app = new(world, "a", **MANUAL)

    def program() -> Program:
        yield from app.calls.assign(ALL, app.now)
        while len(app.handled) < 100 * PARTITIONS:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    world.network.isolate(app.name)
    return app


@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize(
    "case",
    [
        silent_commits,
        silent_goodbye,
        silent_asynchronous_commit,
        nothing_goes_through,
        killed,
        never_there,
        refused_for_ever,
        in_a_rebalance,
        busy_network_thread,
        by_hand,
    ],
)
def test_close_ends_within_its_timeout(world: World, case: Callable[[World], App], timeout: int) -> None:
    app = case(world)
    assert closing(world, app, timeout) <= timeout
    assert bool(app.errors) is (case is silent_asynchronous_commit)


@pytest.mark.parametrize("timeout", [0, 1, 50])
def test_close_sends_all_requests_even_without_time_for_responses(world: World, timeout: int) -> None:
    app = a_reader(world)
    world.broker.set_fault(Delay(1_000), Api.OFFSET_COMMIT, times=1)
    assert closing(world, app, timeout) <= timeout
    world.run(2_000)
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)
    assert len(goodbyes(world)) == 1


def test_close_gives_a_slow_coordinator_the_whole_timeout(world: World) -> None:
    app = a_reader(world)
    world.broker.set_fault(Delay(5_500), Api.OFFSET_COMMIT, times=1)
    assert 5_500 <= closing(world, app, 10_000) < 7_000
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)


def test_a_deleted_topic_delays_neither_close_nor_the_other_partitions(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.create_topic("u", 1)
    world.produce("u", 0, 10)
    app = new(world, "a", **MANUAL)

    def program() -> Program:
        yield from app.calls.subscribe(["t", "u"], app.listeners(), app.now)
        while len(app.handled) < 100 * PARTITIONS + 10:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    world.delete_topic("u")
    with caplog.at_level(logging.WARNING):
        assert closing(world, app, DEFAULT) < 1_000
    assert "the last commit of group 'g' failed" in caplog.text
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), 100)


@pytest.mark.parametrize("timeout", [0, 100, 1_000])
def test_a_commit_waits_for_earlier_ones_no_longer_than_its_timeout(world: World, timeout: int) -> None:
    app = silent_asynchronous_commit(world)
    began = world.now.mono
    with pytest.raises(OttlaTimeoutError):
        world.call(app, app.calls.commits.commit(None, timeout, app.now))
    assert world.now.mono - began <= timeout


# -- assign() -------------------------------------------------------------------------------------------------------------

OLD, NEW = TopicPartition("t", 0), TopicPartition("t", 1)


def replacing(world: World, **settings: Any) -> App:
    """A consumer with ``assign()`` that has read a partition, before its next automatic commit."""
    app = new(world, "a", **{**MANUAL, **settings})

    def program() -> Program:
        yield from app.calls.assign([OLD], app.now)
        while len(app.handled) < 100:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert world.committed("g", "t", PARTITIONS) == {}
    return app


def test_assign_commits_the_replaced_partitions_without_waiting(world: World) -> None:
    app = replacing(world)
    world.broker.set_fault(Delay(5_000), Api.OFFSET_COMMIT, times=1)
    began = world.now.mono
    world.call(app, app.calls.assign([NEW], app.now))
    assert world.now.mono == began
    world.run(10)
    assert world.committed("g", "t", PARTITIONS) == {0: 100}


def test_assign_does_not_commit_records_that_may_be_unprocessed(world: World) -> None:
    app = replacing(world)
    for done, expected in ((False, 0), (True, 110), (False, 110)):
        world.call(app, app.calls.assign([OLD], app.now, lambda done=done: done))  # type: ignore[misc]
        world.run(100)
        assert world.committed("g", "t", PARTITIONS) == {0: expected}
        if not done:
            world.produce("t", 0, 10)
            assert len(world.call(app, app.calls.poll(5_000, app.now))) == 10


def test_assign_during_an_iteration_does_not_commit_the_current_record(world: World) -> None:
    app = new(world, "a", **MANUAL)

    def program(done: bool) -> Program:
        delivery = None
        while delivery is None:
            delivery = yield from app.calls.deliver(500, app.now)
        walk = app.calls.collector.walk(delivery)
        assert [next(walk).offset for _ in range(3)] == ([0, 1, 2] if not done else [3, 4, 5])
        yield from app.calls.assign([OLD], app.now, lambda: done)
        yield Sleep(100)

    world.call(app, app.calls.assign([OLD], app.now))
    world.call(app, program(done=False))
    assert world.committed("g", "t", PARTITIONS) == {0: 2}
    world.call(app, program(done=True))
    assert world.committed("g", "t", PARTITIONS) == {0: 6}


def test_without_auto_commit_assign_commits_nothing(world: World) -> None:
    app = replacing(world, enable_auto_commit=False)
    world.call(app, app.calls.assign([NEW], app.now))
    world.run(1_000)
    assert world.committed("g", "t", PARTITIONS) == {}


def test_the_first_assign_commits_nothing(world: World) -> None:
    app = new(world, "a", **MANUAL)
    world.call(app, app.calls.assign([OLD], app.now))
    world.run(1_000)
    assert all(api is not Api.OFFSET_COMMIT for _, api, _ in world.broker.seen)


def test_close_waits_for_the_commit_of_assign(world: World) -> None:
    app = replacing(world)
    world.broker.set_fault(Delay(2_000), Api.OFFSET_COMMIT, times=1)

    def program() -> Program:
        yield from app.calls.assign([NEW], app.now)
        yield from app.calls.close(DEFAULT, app.now)

    began = world.now.mono
    world.call(app, program())
    assert world.committed("g", "t", PARTITIONS) == {0: 100}
    assert 2_000 <= world.now.mono - began < DEFAULT


def test_the_commit_of_assign_is_tried_once_since_another_process_may_have_committed_further(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    app = replacing(world)
    other = world.app("b", group_id="g", enable_auto_commit=False)
    world.call(other, other.calls.commits.committed([OLD], 5_000, other.now))
    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.OFFSET_COMMIT, times=1)
    world.call(app, app.calls.assign([NEW], app.now))
    world.run(10)
    world.call(other, other.calls.commits.commit({OLD: OffsetAndMetadata(150)}, 5_000, other.now))
    world.run(1_000)
    world.call(app, app.calls.poll(10_000, app.now))
    assert world.committed("g", "t", PARTITIONS)[0] == 150
    assert "an asynchronous commit of group 'g' failed" in caplog.text


def test_the_commit_of_assign_waits_briefly_for_a_coordinator(world: World) -> None:
    app = replacing(world)
    world.broker.set_fault(Fail(ErrorCode.not_coordinator), Api.OFFSET_FETCH, times=1)
    world.broker.set_fault(Fail(ErrorCode.coordinator_not_available), Api.FIND_COORDINATOR, times=None)
    with pytest.raises(OttlaError):
        world.call(app, app.calls.commits.committed([OLD], 1_000, app.now))
    world.call(app, app.calls.assign([NEW], app.now))
    world.run(6_000)
    world.broker.clear_faults()
    world.run(10_000)
    assert world.committed("g", "t", PARTITIONS) == {}


def test_an_unanswered_commit_of_assign_is_not_an_error_of_close(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = replacing(world)
    world.broker.set_fault(FOR_EVER, Api.OFFSET_COMMIT, times=None)
    world.call(app, app.calls.assign([NEW], app.now))
    with caplog.at_level(logging.WARNING):
        assert closing(world, app, DEFAULT) <= DEFAULT
    assert app.errors == []
    assert "was not answered before the end" in caplog.text


def test_successive_assigns_commit_in_order(world: World) -> None:
    """Reading again after a seek does not rewind a later commit."""
    app = replacing(world)

    def program() -> Program:
        yield from app.calls.positions.seek({OLD: OffsetAndMetadata(40)}, app.now)
        yield from app.calls.assign([OLD, NEW], app.now)
        yield from app.calls.positions.seek({OLD: OffsetAndMetadata(70)}, app.now)
        yield from app.calls.assign([NEW], app.now)
        yield Sleep(100)
        yield from app.calls.close(DEFAULT, app.now)

    world.call(app, program())
    assert world.committed("g", "t", PARTITIONS)[0] == 70


def test_close_does_not_wait_after_a_deleted_topic_was_replaced(world: World) -> None:
    world.create_topic("u", 1)
    world.produce("u", 0, 10)
    app = new(world, "a", **MANUAL)

    def program() -> Program:
        yield from app.calls.assign([TopicPartition("u", 0), OLD], app.now)
        while len(app.handled) < 110:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        world.delete_topic("u")
        yield from app.calls.assign([NEW], app.now)
        yield from app.calls.close(DEFAULT, app.now)

    began = world.now.mono
    world.call(app, program())
    assert world.now.mono - began < 1_000
    assert world.committed("g", "t", PARTITIONS)[0] == 100


def test_unsubscribe_still_commits_nothing(world: World) -> None:
    app = replacing(world)
    world.call(app, app.calls.assign([], app.now))
    world.run(1_000)
    assert world.committed("g", "t", PARTITIONS) == {}
