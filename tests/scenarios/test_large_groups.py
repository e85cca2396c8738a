"""A group of fifty members that join one by one, leave, die and are replaced, in either protocol."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ottla.simulation.application import App, offsets
from ottla.types import TopicPartition
from tests.scenarios.groups import STABLE, check_listeners, filled, join
from tests.simulation.world import QUICK_GROUPS, World

pytestmark = pytest.mark.long

PARTITIONS, RECORDS, MEMBERS = 60, 10, 50
EVERYTHING = [TopicPartition("t", number) for number in range(PARTITIONS)]


@pytest.fixture(params=["classic", "consumer"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = filled(tmp_path, PARTITIONS, RECORDS, **{**QUICK_GROUPS, "offsets.topic.num.partitions": 1})
    world.protocol = request.param
    return world


def settle(world: World, apps: list[App]) -> None:
    """Run until these members share all partitions evenly."""

    def settled() -> bool:
        owned = [app.calls.owned for app in apps]
        return (
            sorted(tp for one in owned for tp in one) == EVERYTHING
            and max(map(len, owned)) - min(map(len, owned)) <= 1
            and all(app.membership.state in STABLE for app in apps)
        )

    world.run_until(settled, 120_000)


def test_members_of_a_large_group_join_and_leave_and_no_record_is_skipped(world: World) -> None:
    chance = random.Random(1)
    apps = []
    for number in range(MEMBERS):
        apps.append(join(world, f"m{number:02}"))
        world.run(chance.randrange(0, 200))
    settle(world, apps)
    for _ in range(2):
        gone = chance.sample(apps, 12)
        for app in gone[:8]:
            app.stop = True
            world.run(chance.randrange(0, 100))
        for app in gone[8:]:
            app.kill()
        apps = [app for app in apps if app not in gone]
        for _ in range(6):
            apps.append(join(world, f"m{len(world.apps):02}"))
            world.run(chance.randrange(0, 100))
        for tp in EVERYTHING:
            world.produce(tp.topic, tp.partition, RECORDS)
        settle(world, apps)
        for app in gone[:8]:
            assert not app.running
            assert app.error is None
    world.run(5_000)
    everyone = list(world.apps.values())
    assert [app.errors for app in everyone] == [[]] * len(everyone)
    for tp in EVERYTHING:
        handled = {offset for app in everyone for offset in offsets(app.handled, tp.partition)}
        assert handled == set(range(world.produced[tp])), tp
    for app in everyone:
        check_listeners(app)
