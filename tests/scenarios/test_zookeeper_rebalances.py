"""Rebalances of ZooKeeper groups that other members cause or hold up, under virtual time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ottla.client.groups.zookeeper.states import State
from ottla.errors import ConsumerRebalanceFailedError
from ottla.simulation.application import App, Program, member
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


FIRST = ("c1", "c1", "c2", "c2")
SECOND = ("c1", "c1", "c3", "c3")
THIRD = ("c2", "c2", "c3", "c3")


def reader(app: App, subscriptions: list[tuple[str, ...]]) -> Program:
    """A member with the first of these subscriptions, then the next one whenever one is added to the list, until ``app.stop``."""
    subscribed = 0
    while not app.stop:
        if len(subscriptions) > subscribed:
            yield from app.calls.subscribe(subscriptions[subscribed], app.listeners(), app.now)
            subscribed += 1
        yield from app.calls.poll(100, app.now)
    yield from app.calls.close(10_000, app.now)


def owners(world: World) -> dict[str, tuple[str, ...]]:
    """Topic -> the members that own its partitions, in order; an empty string: a partition without an owner."""
    model = world.zookeeper.model
    nodes = {topic: [model.data(paths.owner("g", topic, number)) or b"" for number in range(4)] for topic in ("t1", "t2", "t3")}
    return {topic: tuple(data.decode().removeprefix("g_").removesuffix("-0") for data in found) for topic, found in nodes.items()}


def test_a_change_of_one_member_makes_all_rebalance_whatever_topics_they_share() -> None:
    world = World()
    for topic in ("t1", "t2", "t3"):
        world.create_topic(topic, 4)
    subscriptions: Mapping[str, list[tuple[str, ...]]] = {"c1": [("t1", "t2")], "c2": [("t1", "t3")], "c3": [("t2", "t3")]}
    apps = {
        name: world.app(name, group_id="g", group_protocol="zookeeper", consumer_id=name, enable_auto_commit=False)
        for name in subscriptions
    }

    def start(name: str) -> None:
        apps[name].start(reader(apps[name], subscriptions[name]))

    def rebalanced(expected: dict[str, tuple[str, ...]]) -> list[str]:
        """Run until the partitions have these owners, and all is quiet; return which members have rebalanced meanwhile."""
        before = {name: len(app.calls.shared.rebalances) for name, app in apps.items()}
        world.run(5_000)
        assert owners(world) == expected
        for name, app in apps.items():
            owned = sorted(f"{tp.topic}-{tp.partition}" for tp in app.calls.owned)
            assert owned == [f"{topic}-{n}" for topic, all_ in expected.items() for n, owner in enumerate(all_) if owner == name]
        return [name for name, app in apps.items() if len(app.calls.shared.rebalances) > before[name]]

    start("c2")
    start("c3")
    assert rebalanced({"t1": ("c2",) * 4, "t2": ("c3",) * 4, "t3": THIRD}) == ["c2", "c3"]
    start("c1")
    assert rebalanced({"t1": FIRST, "t2": SECOND, "t3": THIRD}) == ["c1", "c2", "c3"]
    subscriptions["c1"].append(("t1",))  # which changes nothing for c2: it does not read t2
    assert rebalanced({"t1": FIRST, "t2": ("c3",) * 4, "t3": THIRD}) == ["c1", "c2", "c3"]
    (record,) = apps["c2"].calls.shared.rebalances[-1:]
    assert record.reason == "a member has joined or left the group"
    assert record.revoked == record.assigned == tuple(sorted(apps["c2"].calls.owned))
    apps["c1"].stop = True  # which changes nothing for c3: c1 does not read t2 any more
    assert rebalanced({"t1": ("c2",) * 4, "t2": ("c3",) * 4, "t3": THIRD}) == ["c1", "c2", "c3"]
