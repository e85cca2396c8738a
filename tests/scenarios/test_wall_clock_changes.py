"""The wall clock is set forward and back while a group reads: only lookups by time depend on it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.apis import Api
from ottla.simulation.application import offsets
from tests.scenarios.assigned_consumer import TP0, assigned, poll
from tests.scenarios.groups import PARTITIONS, filled, join, settle
from tests.simulation.world import QUICK_GROUPS, World

HOUR = 3_600_000
RECORDS = 100


def history(path: Path, protocol: str, *jumps: int) -> tuple[list[Any], list[Any]]:
    """Two members read while the wall clock jumps; returns all requests to the broker and the members' records."""
    world = filled(path, records=RECORDS, **QUICK_GROUPS)
    world.protocol = protocol
    more: dict[str, Any] = {"auto_commit_interval_ms": 500, "metadata_max_age_ms": 3_000, "connections_max_idle_ms": 5_000}
    apps = [join(world, "a", **more), join(world, "b", commits=True, enable_auto_commit=False, **more)]
    settle(world, *apps)
    for jump in jumps:
        world.clock.set_wall(jump)
        for _ in range(7):
            for partition in range(PARTITIONS):
                world.produce("t", partition, 5)
            world.run(1_000)
    assert not any(app.errors for app in apps)
    read = [record for app in apps for record in app.handled]
    for partition in range(PARTITIONS):
        assert sorted(offsets(read, partition)) == list(range(RECORDS + 35 * len(jumps)))
    committed = world.committed("g", "t", PARTITIONS)
    assert committed == dict.fromkeys(range(PARTITIONS), RECORDS + 35 * len(jumps))
    return world.broker.seen, [(app.listener_calls, [(record.partition, record.offset) for record in app.handled]) for app in apps]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_behaves_the_same_without_clock_jumps(protocol: str, tmp_path: Path) -> None:
    """Heartbeats, sessions, commits, fetches, refreshes: each request is the same, and leaves in the same millisecond."""
    jumps = (HOUR, -HOUR, -HOUR, 2 * HOUR)
    quiet = history(tmp_path / "quiet", protocol, *[0 for _ in jumps])
    assert history(tmp_path / "jumping", protocol, *jumps) == quiet


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_reset_by_age_uses_the_current_wall_clock(world: World, jump: int) -> None:
    world.produce("t", 0, 3)
    world.clock.set_wall(jump)
    app = assigned(world, TP0, auto_offset_reset=timedelta(minutes=1))
    assert poll(world, app) == []
    at, asked = next((at, message) for at, api, message in world.broker.seen if api is Api.LIST_OFFSETS)
    ago = world.now.wall - (world.now.mono - at) - asked.topics[0].partitions[0].timestamp
    assert 60_000 <= ago <= 60_100
