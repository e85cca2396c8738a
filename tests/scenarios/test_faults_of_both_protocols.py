"""Guarantees of a group that no broker fault breaks, in either protocol. Time is virtual.

Faults of single requests are in ``test_classic_group_faults`` (classic) and ``test_consumer_group_faults`` (KIP-848).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.faults.rules import ExpireMember, FailAppends, Freeze, MoveCoordinator
from ottla.errors import OttlaTimeoutError
from ottla.simulation.application import App
from ottla.types import OffsetAndMetadata
from tests.scenarios.group_under_faults import Group, supplied, working
from tests.scenarios.groups import ALL, PARTITIONS
from tests.simulation.connections import hold_coordinator


@pytest.fixture(params=["classic", "consumer"])
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Group:
    return supplied(tmp_path, request.param)


@pytest.mark.parametrize("lasts", [500, 5_000, 15_000])
def test_the_coordinator_moves_away_and_comes_back(group: Group, lasts: int) -> None:
    working(group).world.broker.set_fault(MoveCoordinator("g"), times=None)
    group.produce(50)
    group.run(lasts)
    assert group.world.broker.struck >= 1
    group.heal()
    # The group was kept in the log with its members: they need not join again.
    assert all("lost" not in [what for what, _ in app.listener_calls] for app in group.apps)


@pytest.mark.parametrize("lasts", [500, 5_000, 15_000])
def test_the_broker_stalls(group: Group, lasts: int) -> None:
    working(group).world.broker.set_fault(Freeze(), times=None)
    group.run(lasts)
    group.heal()


def test_an_expired_member_rejoins(group: Group) -> None:
    first, second = working(group).apps
    member_id = first.membership.metadata().member_id
    assert group.world.broker.expire(ExpireMember("g", client_id="a")) == 1
    group.heal()
    assert [what for what, _ in first.listener_calls].count("lost") == 1
    assert "lost" not in [what for what, _ in second.listener_calls]
    # The coordinator names a classic member, and that one again; a member of a consumer group names itself.
    kept = first.membership.metadata().member_id == member_id
    assert kept is (group.world.protocol == "consumer")


def kept_waiting(group: Group) -> App:
    """A member whose coordinator does not read its connection for four seconds."""
    world = group.world
    app = world.app("a", group_id="g", group_protocol=world.protocol, enable_auto_commit=False)
    world.call(app, app.calls.subscribe(["t"], app.listeners(), app.now))
    while not world.call(app, app.calls.poll(500, app.now)):
        pass
    hold_coordinator(world, app, 4_000)
    return app


def test_an_abandoned_commit_does_not_overtake_the_next(group: Group) -> None:
    app, world = kept_waiting(group), group.world
    with pytest.raises(OttlaTimeoutError):
        world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(10)}, 1_000, app.now))
    world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(20)}, 10_000, app.now))
    world.run(10_000)
    assert world.committed("g", "t", PARTITIONS) == {0: 20}


def test_an_abandoned_offset_fetch_does_not_reorder_commits(group: Group) -> None:
    app, world = kept_waiting(group), group.world
    world.call(app, app.calls.commits.commit_async({ALL[0]: OffsetAndMetadata(10)}, None, app.now))
    with pytest.raises(OttlaTimeoutError):
        world.call(app, app.calls.commits.committed(ALL[:1], 1_000, app.now))
    world.call(app, app.calls.commits.commit({ALL[0]: OffsetAndMetadata(20)}, 10_000, app.now))
    world.run(10_000)
    assert world.committed("g", "t", PARTITIONS) == {0: 20}


def test_a_full_disk_of_the_coordinator(group: Group) -> None:
    working(group).world.broker.set_fault(FailAppends("__consumer_offsets"), times=None)
    group.produce(50)
    group.run(10_000)
    assert group.world.broker.struck >= 1
    group.heal()
