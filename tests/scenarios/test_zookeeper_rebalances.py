"""Rebalances of ZooKeeper groups that other members cause or hold up, under virtual time."""

from __future__ import annotations

import pytest

from ottla.client.groups.zookeeper.states import State
from ottla.errors import ConsumerRebalanceFailedError
from ottla.simulation.application import member
from ottla.simulation.world import World
from ottla.types import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.operations import Create, Delete


@pytest.mark.parametrize("interval", [0, 700, 1_500], ids=["quiet", "two changes in a wait", "one change in a wait"])
def test_changes_of_the_group_do_not_put_off_the_error_for_a_foreign_owner(interval: int) -> None:
    world = World()
    world.create_topic("t", 2)
    zookeeper = world.zookeeper
    foreign = zookeeper.model.open(1 << 40, world.now)
    owner = paths.owner("g", "t", 0)
    for path in paths.parents(owner):
        zookeeper.execute(foreign, Create(path))
    zookeeper.execute(foreign, Create(owner, b"g_x-0", ephemeral=True))

    def come_and_go(path: str) -> None:
        if zookeeper.execute(foreign, Create(path, b'{"subscription":{"u":1},"pattern":"static"}', ephemeral=True)).error:
            zookeeper.execute(foreign, Delete(path))
        world.clock.after(interval, lambda: come_and_go(path))

    app = world.app("a", group_id="g", group_protocol="zookeeper", rebalance_max_retries=3, rebalance_backoff_ms=2_000)
    app.start(member(app))
    world.run_until(lambda: app.membership.state is State.WAITING, limit=1_000)
    if interval:
        world.clock.after(interval, lambda: come_and_go(paths.member("g", "g_z")))
    world.run(5_900)
    assert app.errors == []
    world.run(500)
    (error,) = app.errors
    assert isinstance(error, ConsumerRebalanceFailedError)
    assert "t-0 is owned by g_x-0" in str(error)
    world.run(6_500)
    assert len(app.errors) == 2, "it goes on trying, and says so"
    zookeeper.execute(foreign, Delete(owner))
    world.run_until(lambda: app.calls.owned == {TopicPartition("t", 0), TopicPartition("t", 1)}, limit=3_000)
