"""A coordinator that refuses a member, for a while or permanently: ``poll()`` raises, and the member recovers afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import Fail
from ottla.errors import GroupAuthorizationFailedError, error_class
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from tests.scenarios.health_probe import Probe
from tests.simulation.world import World

KINDS = {
    "range": {"group_protocol": "classic", "partition_assignment_strategy": "range"},
    "cooperative": {"group_protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create_topic("t", 2)
    return world


def app_of(world: World, kind: str, **settings: Any) -> App:
    return world.app("a", group_id="g", **{"max_poll_interval_ms": 60_000, **KINDS[kind], **settings})


def at_work(world: World, app: App) -> App:
    """A member that has read records."""
    app.start(member(app))
    world.produce("t", 0, 5)
    world.run_until(lambda: len(app.handled) == 5)
    world.run(2_000)
    assert app.errors == []
    return app


@pytest.mark.parametrize("kind", ["range", "cooperative"])
@pytest.mark.parametrize("api", [Api.HEARTBEAT, Api.FIND_COORDINATOR])
def test_a_member_without_authorization_raises_loses_its_partitions_and_rejoins_once_authorized(
    world: World, kind: str, api: Api
) -> None:
    app = at_work(world, app_of(world, kind))
    # As after an administrator has removed the ACL.
    world.broker.set_fault(
        Fail(ErrorCode.group_authorization_failed), Api.HEARTBEAT, Api.JOIN_GROUP, Api.FIND_COORDINATOR, times=None
    )
    if api is Api.FIND_COORDINATOR:
        assert app.assembly.coordinator.node_id is not None
        app.assembly.coordinator.mark_unknown("the connection broke", app.now)
    world.run_until(lambda: bool(app.errors), 5_000)
    assert [what for what, _ in app.listener_calls] == ["assign", "lost"]
    world.produce("t", 0, 5)
    world.run(20_000)
    assert len(app.handled) == 5, "records of partitions that others may own are not delivered"
    assert {type(error) for error in app.errors} == {GroupAuthorizationFailedError}
    assert len(app.errors) > 5, "each poll raises"
    health = Probe(app).look()
    assert (health.ready, health.healthy) == (False, False)
    world.broker.clear_faults()
    world.run_until(lambda: {record.offset for record in app.handled} == set(range(10)), 10_000)
    assert [what for what, _ in app.listener_calls] == ["assign", "lost", "assign"]


def test_a_consumer_group_member_without_authorization_fails_for_good(world: World) -> None:
    app = at_work(world, app_of(world, "consumer"))
    world.broker.set_fault(Fail(ErrorCode.group_authorization_failed), Api.CONSUMER_GROUP_HEARTBEAT, times=1)
    world.run_until(lambda: bool(app.errors), 10_000)
    world.produce("t", 0, 5)
    world.run(10_000)
    assert len(app.handled) == 5
    assert {type(error) for error in app.errors} == {GroupAuthorizationFailedError}
    assert app.errors[0].fatal  # type: ignore[attr-defined]
    assert [what for what, _ in app.listener_calls] == ["assign", "lost"]
    health = Probe(app).look()
    assert not health.live


REFUSED = [
    ("range", Api.JOIN_GROUP, "coordinator_load_in_progress"),
    ("range", Api.JOIN_GROUP, "not_coordinator"),
    ("range", Api.JOIN_GROUP, "rebalance_in_progress"),
    ("range", Api.SYNC_GROUP, "coordinator_not_available"),
    ("range", Api.SYNC_GROUP, "rebalance_in_progress"),
    ("range", Api.FIND_COORDINATOR, "coordinator_not_available"),
    ("range", Api.OFFSET_FETCH, "coordinator_load_in_progress"),
    ("range", Api.OFFSET_FETCH, "unstable_offset_commit"),
    ("range", Api.LIST_OFFSETS, "leader_not_available"),
    ("consumer", Api.CONSUMER_GROUP_HEARTBEAT, "coordinator_load_in_progress"),
    ("consumer", Api.CONSUMER_GROUP_HEARTBEAT, "not_coordinator"),
    ("auto", Api.DESCRIBE_GROUPS, "coordinator_load_in_progress"),
]


@pytest.mark.parametrize(("kind", "api", "error"), REFUSED)
def test_a_request_that_is_always_refused_raises_eventually(world: World, kind: str, api: Api, error: str) -> None:
    """Only after the time in which a broker can start and a group rebalance."""
    world.broker.set_fault(Fail(ErrorCode[error]), api, times=None)
    settings = {"group_protocol": "auto"} if kind == "auto" else KINDS[kind]
    app = world.app("a", group_id="g", **settings)
    app.start(member(app))
    world.run(2_000)
    assert app.errors == []
    world.run_until(lambda: bool(app.errors), 150_000)
    told = app.errors[0]
    assert type(told) is error_class(ErrorCode[error]) or error.upper() in str(told)
    world.broker.clear_faults()
    world.produce("t", 0, 5)
    world.run_until(lambda: len(app.handled) == 5, 30_000)
    count = len(app.errors)
    world.run(30_000)
    assert len(app.errors) == count


@pytest.mark.parametrize("accepted", [False, True])
def test_health_measures_the_silence_of_the_coordinator_from_the_join(world: World, accepted: bool) -> None:
    """Even if it has never accepted a heartbeat, or only of an earlier membership."""
    app = app_of(world, "range")
    if accepted:
        at_work(world, app)
        app.stop = True
        world.run_until(lambda: not app.running)
        app.stop = False
        world.run(60_000)
        app = app_of(world, "range")
    world.broker.set_fault(Fail(ErrorCode.coordinator_load_in_progress), Api.HEARTBEAT, times=None)
    app.start(member(app))
    world.run_until(lambda: bool(app.calls.owned))
    world.run(500)
    probe = Probe(app)
    assert probe.look().healthy
    world.run(6_000)
    (reason,) = probe.look().reasons
    assert reason.startswith("no heartbeat was answered for 6.")
    assert probe.look().last_heartbeat is None
