"""The protocol of a member: the choice of ``auto`` and its reasons, and groups that are migrated member by member."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.faults.rules import ExpireMember, Fail
from ottla.client.calls.listeners import Listeners
from ottla.client.groups.classic.membership import ClassicMembership
from ottla.client.groups.consumer.membership import ConsumerMembership
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.simulation.application import App, member
from ottla.types import TopicPartition
from tests.simulation.world import QUICK_GROUPS, World

PARTITIONS = 4
ALL = [TopicPartition("t", number) for number in range(PARTITIONS)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, **QUICK_GROUPS)
    world.create_topic("t", PARTITIONS)
    return world


def join(world: World, name: str, protocol: str = "auto", **settings: Any) -> App:
    app = world.app(name, group_id="g", group_protocol=protocol, **settings)
    app.start(member(app, commits=True, timeout=200))
    return app


def settle(world: World, *apps: App) -> None:
    """Run until these members share all partitions, each has some, and for a while after."""

    def settled() -> bool:
        return all(app.calls.owned for app in apps) and sorted(tp for app in apps for tp in app.calls.owned) == ALL

    world.run_until(settled)
    world.run(3_000)
    assert settled()


def speaks(app: App) -> type[Any]:
    return type(app.membership.chosen)


def stop(world: World, app: App) -> None:
    app.stop = True
    world.run_until(lambda: not app.running)
    assert app.error is None


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.client.groups.protocol")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines that name the chosen protocol."""
    return [line for line in caplog.messages if "group.protocol=auto chose" in line]


def test_a_new_group_is_a_consumer_group_and_is_logged_in_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(world, first, second)
    assert {speaks(first), speaks(second)} == {ConsumerMembership}
    assert len(said(caplog)) == 2
    assert "group 'g': group.protocol=auto chose consumer" in said(caplog)[0]
    assert len([api for _, api, _ in world.broker.seen if api is Api.DESCRIBE_GROUPS]) == 2, "one DescribeGroups for each join"
    assert [api for _, api, _ in world.broker.seen if api is Api.JOIN_GROUP] == []


def test_a_live_classic_group_is_joined_as_it_is(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = join(world, "a", "classic")
    settle(world, first)
    second = join(world, "b")
    settle(world, first, second)
    assert speaks(second) is ClassicMembership
    (line,) = said(caplog)
    assert line.endswith("chose classic: the group is a classic group with 1 member")
    assert [api for _, api, _ in world.broker.seen if api is Api.CONSUMER_GROUP_HEARTBEAT] == []


def test_partition_assignment_strategy_selects_the_classic_protocol(world: World, caplog: pytest.LogCaptureFixture) -> None:
    app = join(world, "a", partition_assignment_strategy=["roundrobin"])
    settle(world, app)
    assert speaks(app) is ClassicMembership
    assert "chose classic: partition.assignment.strategy is set" in said(caplog)[0]


def test_settings_that_the_chosen_protocol_ignores_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    settle(world, join(world, "a", session_timeout_ms=20_000))
    assert said(caplog)[0].endswith("it ignores session.timeout.ms")


def test_without_describe_groups_the_member_is_a_classic_one(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.broker.set_fault(Fail(ErrorCode.unknown_server_error), Api.DESCRIBE_GROUPS)
    app = join(world, "a")
    settle(world, app)
    assert speaks(app) is ClassicMembership
    assert "cannot be determined" in said(caplog)[0]


@pytest.mark.parametrize("error", ["not_coordinator", "coordinator_not_available", "coordinator_load_in_progress"])
def test_describe_groups_is_retried_while_the_coordinator_moves(world: World, error: str, caplog: pytest.LogCaptureFixture) -> None:
    world.broker.set_fault(Fail(ErrorCode[error]), Api.DESCRIBE_GROUPS, times=3)
    app = join(world, "a")
    settle(world, app)
    assert speaks(app) is ConsumerMembership
    assert len(said(caplog)) == 1


def test_each_join_chooses_the_protocol_again(world: World) -> None:
    first = join(world, "a", "classic")
    settle(world, first)
    app = world.app("b", group_id="g", group_protocol="auto")

    def polls(until: Any) -> Any:
        while not until():
            app.handled.extend((yield from app.calls.poll(200, app.now)))

    def program() -> Any:
        yield from app.calls.subscribe(["t"], Listeners(), app.now)
        yield from polls(lambda: app.calls.owned)
        assert speaks(app) is ClassicMembership
        first.stop = True
        yield from polls(lambda: len(app.calls.owned) == PARTITIONS)
        assert speaks(app) is ClassicMembership, "it is alone now, but still a member"
        yield from app.calls.unsubscribe(app.now)
        yield from app.calls.subscribe(["t"], Listeners(), app.now)
        yield from polls(lambda: app.calls.owned)
        assert speaks(app) is ConsumerMembership

    world.call(app, program())


def test_an_expired_member_does_not_convert_a_group_that_became_classic(world: World) -> None:
    first = join(world, "a")
    settle(world, first)
    second = join(world, "b", "classic")
    settle(world, first, second)
    assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    world.run_until(lambda: first.listener_calls[-1][0] == "lost")
    settle(world, first, second)
    assert speaks(first) is ClassicMembership
    assert "lost" in [what for what, _ in first.listener_calls]


def test_a_group_moves_to_the_consumer_protocol_and_back_member_by_member(world: World) -> None:
    """As in a rolling restart: one instance after the other is replaced while the others read."""
    everybody: list[App] = []
    produced = 0

    def produce() -> None:
        nonlocal produced
        for partition in range(PARTITIONS):
            world.produce("t", partition, 10)
        produced += 10

    def replace(before: App | None, name: str, protocol: str) -> App:
        after = join(world, name, protocol, max_poll_records=5)
        everybody.append(after)
        produce()
        world.run(4_000)
        if before is not None:
            stop(world, before)
        produce()
        world.run(4_000)
        return after

    one, two = replace(None, "a1", "classic"), replace(None, "b1", "classic")
    settle(world, one, two)
    one = replace(one, "a2", "consumer")
    settle(world, one, two)
    two = replace(two, "b2", "consumer")
    settle(world, one, two)
    auto = replace(None, "c1", "auto")
    settle(world, one, two, auto)
    assert speaks(auto) is ConsumerMembership
    one = replace(one, "a3", "classic")
    stop(world, auto)
    settle(world, one, two)
    two = replace(two, "b3", "classic")
    settle(world, one, two)
    produce()
    world.run(5_000)
    handled = [(record.partition, record.offset) for app in everybody for record in app.handled]
    assert sorted(set(handled)) == [(p, o) for p in range(PARTITIONS) for o in range(produced)]
    assert len(handled) == len(set(handled)), "no record is repeated, as each member committed before it left"
    assert world.committed("g", "t", PARTITIONS) == dict.fromkeys(range(PARTITIONS), produced)
    assert [app.errors for app in everybody if any(not one.retriable for one in app.errors)] == []  # type: ignore[attr-defined]
    assert all("lost" not in [what for what, _ in app.listener_calls] for app in everybody)


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("consumer", {}),
        ("classic", {"partition_assignment_strategy": ["cooperative-sticky"]}),
        ("classic", {"partition_assignment_strategy": ["range"]}),
    ],
)
def test_poll_returns_no_record_of_a_revoked_partition(world: World, protocol: str, settings: dict[str, Any]) -> None:
    """The network thread passes on a response before it continues its pass, so the application may act on it meanwhile."""
    for partition in range(PARTITIONS):
        world.produce("t", partition, 5_000)
    quick = {"max_poll_records": 1, "enable_auto_commit": False}
    first = world.app("a", group_id="g", group_protocol=protocol, **quick, **settings)
    first.pause = 7
    first.start(member(first, work=1, timeout=200))
    world.run_until(lambda: bool(first.handled))
    second = join(world, "b", protocol, **settings)
    settle(world, first, second)
    assert not first.errors
    assert "revoke" in [what for what, _ in first.listener_calls]
