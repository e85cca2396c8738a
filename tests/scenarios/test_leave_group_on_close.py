"""The end of a consumer: whether its member leaves the group, and which state brokers keep for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Delay
from ottla.client.calls.listeners import Listeners
from ottla.errors import IllegalStateError
from ottla.protocol.apis import Api
from ottla.simulation.application import App, Program, Sleep
from ottla.types import GroupMembershipOperation
from tests.scenarios.groups import ALL, filled, join, new, settle
from tests.simulation.world import World

SESSION = 6_000
"""Milliseconds that a member may be silent, as ``World`` has it."""
DEFAULT, LEAVE, REMAIN = GroupMembershipOperation


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = filled(tmp_path)
    world.protocol = request.param
    return world


def closing(app: App, operation: GroupMembershipOperation, timeout: int = 30_000) -> Program:
    yield from app.calls.close(timeout, app.now, operation)


def a_reader(world: World, name: str, **settings: Any) -> App:
    """A member that has all partitions, fetches them, and does nothing for the moment."""
    app = new(world, name, **settings)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while len(app.handled) < 400:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield from app.calls.poll(100, app.now)

    world.call(app, program())
    return app


@pytest.mark.parametrize(
    ("operation", "instance", "leaves"),
    [
        (DEFAULT, None, True),
        (LEAVE, None, True),
        (REMAIN, None, False),
        (DEFAULT, "one", False),
        (LEAVE, "one", True),
        (REMAIN, "one", False),
    ],
)
def test_a_leaving_member_is_replaced_at_once_and_a_remaining_one_after_its_session(
    world: World, operation: GroupMembershipOperation, instance: str | None, leaves: bool
) -> None:
    app = a_reader(world, "a", group_instance_id=instance)
    world.call(app, closing(app, operation))
    assert app.listener_calls[-1] == ("revoke", ALL)  # in any case
    assert app.calls.owned == frozenset()
    ended = world.now.mono
    other = join(world, "b")
    settle(world, other)
    assert (world.now.mono - ended < SESSION - 1_000) is leaves


def test_a_static_member_that_left_the_group_joins_as_a_new_one(world: World) -> None:
    app = a_reader(world, "a", group_instance_id="one")
    world.call(app, closing(app, LEAVE))
    again = join(world, "a2", group_instance_id="one")
    settle(world, again)
    assert again.errors == []


def test_a_member_that_remains_in_the_group_commits_at_close(world: World) -> None:
    app = a_reader(world, "a")
    world.call(app, closing(app, REMAIN))
    assert world.committed("g", "t", 4) == dict.fromkeys(range(4), 100)


def test_brokers_keep_no_fetch_session_of_a_closed_consumer(world: World) -> None:
    app = a_reader(world, "a")
    sessions = world.broker.core.state.fetch_sessions
    assert len(sessions) == 1
    before = world.now.mono
    world.call(app, closing(app, DEFAULT))
    assert len(sessions) == 0
    assert world.now.mono - before < 1_000


def test_a_consumer_without_a_group_closes_its_fetch_session(world: World) -> None:
    app = world.app("a")

    def program() -> Program:
        yield from app.calls.assign(ALL, app.now)
        while len(app.handled) < 400:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield from app.calls.close(30_000, app.now)

    world.call(app, program())
    assert len(world.broker.core.state.fetch_sessions) == 0


def test_close_with_timeout_zero_sends_its_requests_and_does_not_wait(world: World) -> None:
    app = a_reader(world, "a", enable_auto_commit=False)
    world.run(200)
    before = world.now.mono
    world.call(app, closing(app, REMAIN, timeout=0))
    assert world.now.mono == before
    world.run(1_000)
    assert len(world.broker.core.state.fetch_sessions) == 0


def test_close_waits_for_a_lost_broker_no_longer_than_a_fetch(world: World) -> None:
    app = a_reader(world, "a", enable_auto_commit=False)
    world.network.isolate(app.name)
    before = world.now.mono
    world.call(app, closing(app, REMAIN))
    assert world.now.mono - before <= 500 + 1_000


def test_an_error_of_a_listener_does_not_keep_the_fetch_session(world: World) -> None:
    app = new(world, "a")

    def refuse(_: object) -> None:
        raise ValueError("no use")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], Listeners(None, refuse), app.now)
        while len(app.handled) < 400:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        yield Sleep(100)
        with pytest.raises(ValueError, match="no use"):
            yield from app.calls.close(30_000, app.now)

    world.call(app, program())
    assert len(world.broker.core.state.fetch_sessions) == 0


def test_a_member_closes_its_fetch_session_while_others_read(world: World) -> None:
    one, two = join(world, "a"), join(world, "b")
    settle(world, one, two)
    world.run(1_000)
    assert len(world.broker.core.state.fetch_sessions) == 2
    one.stop = True
    world.run_until(lambda: not one.running)
    assert len(world.broker.core.state.fetch_sessions) == 1


# -- unsubscribe() --------------------------------------------------------------------------------------------------------


def test_unsubscribe_waits_for_a_silent_coordinator_no_longer_than_close(world: World) -> None:
    app = a_reader(world, "a")
    world.broker.set_fault(Delay(600_000), Api.LEAVE_GROUP, Api.CONSUMER_GROUP_HEARTBEAT, times=None)
    before = world.now.mono
    world.call(app, app.calls.unsubscribe(app.now))
    assert world.now.mono - before == 5_000
    world.broker.clear_faults()
    world.call(app, app.calls.subscribe(["t"], app.listeners(), app.now))
    again = app.calls.poll(60_000, app.now)
    world.produce("t", 0, 1)
    assert len(world.call(app, again)) > 0
    assert [what for what, _ in app.listener_calls] == ["assign", "revoke", "assign"]


def test_after_a_cancelled_unsubscribe_poll_returns_nothing(world: World) -> None:
    app = new(world, "a", max_poll_records=1)

    def program() -> Program:
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while not app.handled:
            app.handled.extend((yield from app.calls.poll(500, app.now)))
        assert app.calls.collector.has_buffered
        leaving = app.calls.unsubscribe(app.now)
        next(leaving)
        leaving.close()
        with pytest.raises(IllegalStateError, match="neither subscribed nor assigned"):
            yield from app.calls.poll(500, app.now)
        yield from app.calls.subscribe(["t"], app.listeners(), app.now)
        while len(app.handled) < 3:
            app.handled.extend((yield from app.calls.poll(500, app.now)))

    world.call(app, program())
    assert [what for what, _ in app.listener_calls] == ["assign", "revoke", "assign"]


def test_the_time_of_a_listener_does_not_count_against_the_coordinator(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = new(world, "a")

    def program() -> Program:
        yield from app.calls.subscribe(["t"], Listeners(on_revoke=lambda _: app.busy(10_000)), app.now)
        while not app.calls.owned:
            yield from app.calls.poll(500, app.now)
        yield from app.calls.unsubscribe(app.now)

    world.call(app, program())
    assert "was not answered in time" not in caplog.text
