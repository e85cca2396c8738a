"""Assignors that members of a consumer group run: which member computes, its input, and members that join or leave meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.assignors import Cluster, ConsumerPartitionAssignor, RebalanceProtocol
from ottla.broker.faults.rules import Delay, ExpireMember
from ottla.client.calls.listeners import Listeners
from ottla.client.groups.consumer.client_assignors import RunState
from ottla.protocol.apis import Api
from ottla.simulation.application import Program, Sleep
from ottla.types import TopicPartition
from tests.scenarios.client_assignors import (
    INSTALL,
    PREPARE,
    SETTINGS,
    Members,
    Slow,
    Weighted,
    assignor_of,
    computing,
    installs,
    member_id,
    run_state,
    start,
)
from tests.scenarios.groups import ALL, PARTITIONS, check_listeners, filled, join, new, sent, settle
from tests.simulation.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = filled(tmp_path, records=10, **SETTINGS)
    world.protocol = "consumer"
    return world


def test_one_member_computes_and_every_member_receives_the_assignment(world: World) -> None:
    heavy, light = Weighted(3), Weighted(1)
    first = start(world, "a", heavy)
    settle(world, first)
    second = start(world, "b", light)
    settle(world, first, second)
    assert (len(first.calls.owned), len(second.calls.owned)) == (3, 1)
    assert (len(heavy.asked), len(light.asked)) == (2, 0), "the same member computes again"
    cluster, members = heavy.asked[-1]
    assert cluster == Cluster({"t": PARTITIONS})
    mine, other = members[member_id(first)], members[member_id(second)]
    assert (mine.topics, mine.owned, mine.user_data) == (("t",), tuple(ALL), b"3 t")
    assert (other.topics, other.owned, other.user_data) == (("t",), (), b"1 t")
    for app, assignor, count in ((first, heavy, 3), (second, light, 1)):
        assignment, metadata = assignor.heard[-1]
        assert (set(assignment.partitions), assignment.user_data) == (app.calls.owned, b"you have %d" % count)
        assert app.membership is not None
        assert metadata == app.membership.metadata()
        assert all(one.user_data is not None for one, _ in assignor.heard), (
            "a joining member gets no user data of an earlier assignment"
        )
        assert assignor_of(app) == "weighted"
        assert app.assembly.recorder is not None
        assert app.assembly.recorder.records[-1].assignor == "weighted"
        check_listeners(app)
        assert not app.errors


def test_the_assignors_are_in_a_heartbeat_only_when_they_change(world: World) -> None:
    """Like all fields of a heartbeat: those that did not change are left out."""
    heavy = Weighted(1)
    first = start(world, "a", heavy)
    settle(world, first)
    world.run(5_000)

    def said() -> list[list[bytes | None] | None]:
        beats = [message for _, message in sent(world, Api.CONSUMER_GROUP_HEARTBEAT)]
        return [None if one.client_assignors is None else [each.metadata for each in one.client_assignors] for one in beats]

    assert said()[0] == [b"1 t"]
    assert len(said()) > 5
    assert set(map(str, said()[1:])) == {"None"}
    count = len(said())
    assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    settle(world, first)
    world.run(3_000)
    assert [one for one in said()[count:] if one is not None] == [[b"1 t"]], "a member that rejoins sends a full heartbeat"


@pytest.mark.parametrize("other", [{"group_client_assignors": ["range"]}, {"group_remote_assignor": "range"}, {}])
def test_members_without_a_common_assignor_use_one_of_the_broker(world: World, other: dict[str, Any]) -> None:
    mine = Weighted()
    first = start(world, "a", mine)
    settle(world, first)
    assert assignor_of(first) == "weighted"
    second = join(world, "b", **other)
    settle(world, first, second)
    assert [assignor_of(app) for app in (first, second)] == ["", ""], "the broker does not name its own"
    assert len(mine.asked) == 1
    second.stop = True
    settle(world, first)
    assert assignor_of(first) == "weighted"
    assert not first.errors + second.errors


def test_on_assignment_runs_before_the_listener(world: World) -> None:
    told: list[str] = []

    class Telling(Weighted):
        def on_assignment(self, assignment: Any, metadata: Any) -> None:
            told.append("assignor")

    app = new(world, "a", group_client_assignors=[Telling()])

    def program() -> Program:
        listeners = Listeners(on_assign=lambda partitions: told.append("listener"))
        yield from app.calls.subscribe(["t"], listeners, app.now)
        while app.calls.owned != set(ALL):
            yield from app.calls.poll(500, app.now)

    world.call(app, program())
    assert told[-2:] == ["assignor", "listener"], told


def never_shared(world: World, duration: int) -> None:
    """Let time pass, and check that no partition has two owners."""
    until = world.now.mono + duration
    while world.clock.step(until):
        owned = [tp for app in world.apps.values() if app.alive for tp in app.calls.owned]
        assert len(owned) == len(set(owned)), {app.name: sorted(app.calls.owned) for app in world.apps.values()}


def test_no_partition_has_two_owners_while_members_join_and_leave(world: World) -> None:
    apps = []
    for number in range(4):
        apps.append(start(world, f"m{number}", Weighted))
        never_shared(world, 2_500)
    settle(world, *apps)
    for app in apps[:3]:
        app.stop = True
        never_shared(world, 2_500)
    settle(world, apps[3])
    for app in apps:
        check_listeners(app)
        assert not app.errors


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_the_built_in_assignors(world: World, name: str) -> None:
    first = start(world, "a", name)
    settle(world, first)
    second, third = start(world, "b", name), start(world, "c", name)
    settle(world, first, second, third)
    kept = {app: app.calls.owned for app in (first, second)}
    third.stop = True
    settle(world, first, second)
    assert sorted(len(app.calls.owned) for app in (first, second)) == [2, 2]
    if "sticky" in name:
        assert all(before <= app.calls.owned for app, before in kept.items()), "owned partitions are retained"
    assert assignor_of(first) == assignor_of(second) == name
    count = len(installs(world))
    world.run(30_000)
    assert len(installs(world)) == count, "no member has changes to send"


def test_a_cooperative_assignor_of_the_user_sets_the_whole_assignment_at_once(world: World) -> None:
    class Polite(ConsumerPartitionAssignor):
        """Leaves out partitions that another member owns, as a cooperative assignor must."""

        name = "polite"

        def supported_protocols(self) -> Sequence[RebalanceProtocol]:
            return (RebalanceProtocol.COOPERATIVE,)

        def assign(self, cluster: Cluster, members: Members) -> Any:
            ids = sorted(members)
            wanted = {one: [tp for tp in ALL if tp.partition % len(ids) == place] for place, one in enumerate(ids)}
            owners = {tp: one for one in ids for tp in members[one].owned}
            return {one: [tp for tp in share if owners.get(tp, one) == one] for one, share in wanted.items()}

    first = start(world, "a", Polite)
    settle(world, first)
    second = start(world, "b", Polite)
    settle(world, first, second)
    assert len(installs(world)) == 2


def test_a_member_that_leaves_during_the_computation_gets_nothing(world: World) -> None:
    slow = Slow(world, "a")
    first, second = start(world, "a", slow), start(world, "b", Weighted)
    settle(world, first, second)
    slow.takes = 4_000
    third = start(world, "c", Weighted)
    computing(world, first)
    second.stop = True
    settle(world, first, third)
    assert not second.calls.owned
    assert len(slow.asked[-1][1]) == 2, "asked again without the member that left"
    assert not any(app.errors for app in (first, second, third))


def test_a_member_that_joins_during_the_computation_is_in_the_next_assignment(world: World) -> None:
    slow = Slow(world, "a", takes=4_000)
    first = start(world, "a", slow)
    computing(world, first)
    second = start(world, "b", Weighted)
    settle(world, first, second)
    assert [len(members) for _, members in slow.asked] == [1, 2]
    assert [len(one.members) for one in installs(world)] == [1, 2]


def test_a_slow_assignor_delays_no_heartbeat(world: World) -> None:
    slow = Slow(world, "a", takes=10_000)
    first = start(world, "a", slow)
    world.run_until(lambda: bool(first.calls.owned))
    beats = [at for at, _ in sent(world, Api.CONSUMER_GROUP_HEARTBEAT)]
    assert len(beats) >= 10, "the session timeout is 6 s"
    assert [one for one in first.listener_calls if one[1]] == [("assign", ALL)]
    assert not first.errors


def test_an_assignor_slower_than_the_rebalance_timeout_is_given_up(world: World) -> None:
    slow = Slow(world, "a")
    first, second = start(world, "a", slow), start(world, "b", Weighted)
    settle(world, first, second)
    slow.takes = 60_000
    third = start(world, "c", Weighted)
    began = world.now.mono
    settle(world, first, second, third, limit=100_000)
    installed = sent(world, INSTALL, began)
    assert 20_000 < installed[0][0] - began < 25_000, "max_poll_interval is 20 s"
    assert [message.error for _, message in installed] == [0] * len(installed)
    assert [message.member_id for at, message in installed if at < began + 61_000] != [member_id(first)]
    assert not [one for at, one in installed if one.member_id == member_id(first) and len(one.members) != 3]


@pytest.mark.parametrize("goes", ["dies", "closes", "is fenced"])
def test_another_member_computes_after_the_first_has_left(world: World, goes: str) -> None:
    asked, other = Slow(world, "a"), Weighted()
    first, second = start(world, "a", asked), start(world, "b", other)
    settle(world, first, second)
    world.broker.set_fault(Delay(3_000), PREPARE)
    third = start(world, "c", Weighted)
    world.run_until(lambda: run_state(first) is RunState.PREPARING)
    match goes:
        case "dies":
            first.kill()
        case "closes":
            first.stop = True
        case _:
            assert world.broker.expire(ExpireMember("g", client_id="a")) == 1
    left = [second, third] if goes != "is fenced" else [first, second, third]
    world.run(15_000)
    settle(world, *left)
    assert all(not app.errors for app in left)
    assert assignor_of(second) == "weighted"


def test_a_member_that_does_not_poll_within_the_rebalance_timeout_is_given_up(world: World) -> None:
    """It announces a long job, so it stays in the group, and its rebalance timeout ends the run."""
    first, second = new(world, "a", group_client_assignors=[Weighted]), start(world, "b", Weighted)
    settle(world, second)
    second.stop = True
    began: list[int] = []

    def program() -> Program:
        yield from first.calls.subscribe(["t"], first.listeners(), first.now)
        while first.calls.owned != set(ALL):
            yield from first.calls.poll(500, first.now)
        with first.calls.jobs.job(100_000):
            began.append(first.now.mono)
            yield Sleep(40_000)
        while not first.stop:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    world.run_until(lambda: bool(began))
    third = start(world, "c", Weighted)
    world.run(39_000)
    ((at, message),) = sent(world, INSTALL, began[0])
    assert 20_000 <= at - began[0] <= 25_000
    assert message.member_id == member_id(third)
    assert run_state(first) is RunState.IDLE
    settle(world, first, third)
    assert not third.errors


def test_an_assignment_of_an_earlier_epoch_is_never_sent(world: World) -> None:
    """The member acknowledges an assignment, and so reaches its epoch, while its assignor computes the next one."""
    slow = Slow(world, "a")
    first = new(world, "a", group_client_assignors=[slow])
    busy_with: list[int] = []

    def slowly(partitions: list[TopicPartition]) -> None:
        if len(slow.asked) == 2 and not busy_with:
            busy_with.append(world.now.mono)
            start(world, "c", Weighted)
            slow.takes = 3_000
            first.busy(3_000)

    def program() -> Program:
        yield from first.calls.subscribe(["t"], Listeners(on_assign=slowly), first.now)
        while not first.stop:
            yield from first.calls.poll(500, first.now)

    first.start(program())
    settle(world, first)
    start(world, "b", Weighted)
    world.run_until(lambda: "c" in world.apps)
    settle(world, *world.apps.values())
    prepared = [(one.member_epoch, at) for at, one in sent(world, PREPARE, busy_with[0])]
    assert [epoch for epoch, _ in prepared] == [2, 3], "asked again in the epoch that it reached meanwhile"
    (installed,) = installs(world, busy_with[0])
    assert (installed.member_epoch, len(installed.members)) == (3, 3)
    assert len(slow.asked) == 4
