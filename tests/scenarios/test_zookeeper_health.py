"""The health of members of ZooKeeper groups, and their errors while ZooKeeper names no broker, under virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from ottla import Health
from ottla.client.groups.zookeeper.states import State
from ottla.errors import ConnectionFailedError, ConsumerRebalanceFailedError
from ottla.simulation.application import App, member
from ottla.simulation.world import World
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.operations import Create, Delete
from tests.scenarios.health_probe import Probe

BOOTSTRAP: dict[str, dict[str, str]] = {"bootstrap_servers": {"bootstrap_servers": "127.0.0.1:9092"}, "zookeeper_connect": {}}
BROKER = paths.broker(1)


@pytest.fixture
def world() -> World:
    world = World()
    world.create_topic("t", 2)
    return world


@pytest.fixture
def foreign(world: World) -> int:
    """The session of another client."""
    return world.zookeeper.model.open(1 << 40, world.now)


def unregister(world: World, foreign: int) -> bytes:
    """Delete the node of the broker, as if this were a wrong chroot; return its data."""
    data = world.zookeeper.model.data(BROKER)
    assert data is not None
    assert world.zookeeper.execute(foreign, Delete(BROKER)).error is None
    return data


def register(world: World, foreign: int, data: bytes) -> None:
    world.zookeeper.execute(foreign, Create(BROKER, data, ephemeral=True))


def join(world: World, name: str, **settings: Any) -> App:
    app = world.app(name, group_id="g", group_protocol="zookeeper", consumer_id=name, **settings)
    app.start(member(app))
    return app


def verdicts(health: Health) -> tuple[bool, bool, bool]:
    return health.live, health.ready, health.healthy


@pytest.mark.parametrize("settings", BOOTSTRAP.values(), ids=BOOTSTRAP)
def test_a_member_without_a_registered_broker_raises_and_is_not_ready(world: World, foreign: int, settings: dict[str, str]) -> None:
    broker = unregister(world, foreign)
    app = join(world, "a", **settings)
    world.run(10_000)
    assert len(app.errors) > 5, "each poll that has waited long enough raises"
    for error in app.errors:
        assert isinstance(error, ConnectionFailedError)
        assert "no broker is registered in ZooKeeper: /brokers/ids of zookeeper:2181: empty (check the chroot)" in str(error)
    health = Probe(app).look()
    assert verdicts(health) == (True, False, False)
    assert health.reasons[0].startswith("no broker is registered in ZooKeeper: ")
    assert health.reasons[1:] == ("group 'g' is rebalancing: READING",)
    assert app.calls.shared.rebalancing, "so the log has no line about it yet"
    register(world, foreign, broker)
    world.run_until(lambda: len(app.calls.owned) == 2, limit=1_000)
    app.errors.clear()
    world.run(5_000)
    assert app.errors == []
    assert verdicts(Probe(app).look()) == (True, True, True)
    (record,) = app.calls.shared.rebalances
    assert (record.reason, len(record.assigned)) == ("the member joins the group", 2)


def test_a_member_that_has_its_partitions_reads_them_while_no_broker_is_registered(world: World, foreign: int) -> None:
    app = join(world, "a", **BOOTSTRAP["bootstrap_servers"])
    world.run_until(lambda: len(app.calls.owned) == 2)
    unregister(world, foreign)
    world.produce("t", 0, 5)
    world.run(90_000)
    assert [record.offset for record in app.handled] == [0, 1, 2, 3, 4]
    assert app.errors == []
    assert verdicts(Probe(app).look()) == (True, True, True)


def test_a_member_for_which_no_partition_is_left_is_ready(world: World, foreign: int) -> None:
    apps = [join(world, name) for name in ("a", "b", "c")]
    world.run_until(lambda: all(app.membership.state is State.STABLE for app in apps))
    world.run(5_000)
    assert [len(app.calls.owned) for app in apps] == [1, 1, 0]
    assert [verdicts(Probe(app).look()) for app in apps] == [(True, True, True)] * 3
    unregister(world, foreign)
    world.run(1_000)
    assert [verdicts(Probe(app).look())[1] for app in apps] == [True, True, False], "it could not take over a partition now"


def test_a_member_that_waits_for_its_partitions_is_not_ready(world: World, foreign: int) -> None:
    owner = paths.owner("g", "t", 0)
    for path in paths.parents(owner):
        world.zookeeper.execute(foreign, Create(path))
    world.zookeeper.execute(foreign, Create(owner, b"g_x-0", ephemeral=True))
    app = join(world, "a", rebalance_max_retries=1, rebalance_backoff_ms=2_000)
    world.run_until(lambda: app.membership.state is State.WAITING, limit=1_000)
    waits = "group 'g' is rebalancing: WAITING; t-0 is owned by g_x-0"
    for _ in range(2):  # before and after the error
        health = Probe(app).look()
        assert verdicts(health) == (True, False, False)
        assert health.reasons == (waits,)
        world.run(2_500)
    assert isinstance(app.errors[0], ConsumerRebalanceFailedError)
    world.zookeeper.execute(foreign, Delete(owner))
    world.run_until(lambda: app.calls.owned == {TopicPartition("t", 0), TopicPartition("t", 1)}, limit=3_000)
    world.run(1_000)
    assert verdicts(Probe(app).look()) == (True, True, True)


def test_a_member_whose_id_another_session_has_is_not_ready(world: World, foreign: int) -> None:
    node = paths.member("g", "g_a")
    for path in paths.parents(node):
        world.zookeeper.execute(foreign, Create(path))
    world.zookeeper.execute(foreign, Create(node, b'{"subscription":{"t":1},"pattern":"static"}', ephemeral=True))
    app = join(world, "a")
    world.run(1_000)
    health = Probe(app).look()
    assert verdicts(health) == (True, False, False)
    assert health.reasons == (f"it is not a member of group 'g' now: REGISTERING; {node} belongs to another session",)
