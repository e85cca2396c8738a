"""Exceptions in a member of a ZooKeeper group: each is reported, and the member goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.cluster.zookeeper_brokers import ZooKeeperBrokers
from ottla.client.groups.zookeeper.claims import Claims
from ottla.client.groups.zookeeper.membership import ZooKeeperMembership
from ottla.client.groups.zookeeper.registration import Registrar
from ottla.client.groups.zookeeper.registry import GroupReader
from ottla.client.groups.zookeeper.states import State
from ottla.client.positions.commit import CommitManager
from ottla.client.subscription import SubscriptionState
from ottla.errors import CommitFailedError
from ottla.types import TopicPartition
from ottla.zookeeper.operations import Create
from tests.property.client.zookeeper_world import Member, World


def break_once(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, *, at_end: bool, call: Callable[..., bool] = lambda *_: True
) -> list[str]:
    """Let the next ``call`` of a method raise, before or after it has done its work. Returns where it has raised, once it has."""
    method: Callable[..., Any] = getattr(owner, name)
    raised: list[str] = []

    def broken(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if raised or not call(*arguments):
            return method(self, *arguments, **keywords)
        if at_end:
            method(self, *arguments, **keywords)
        raised.append(name)
        raise RuntimeError(f"{name} is broken")

    monkeypatch.setattr(owner, name, broken)
    return raised


def run(world: World) -> None:
    """Let everything happen for some seconds, in which the members try again."""
    for _ in range(12):
        for member in world.members:
            while pass_and_deliver(member):
                world.check()
        world.pass_time(600)


def pass_and_deliver(member: Member) -> bool:
    """One pass of a member, and all that follows at once; return whether anything did."""
    member.run_pass()
    busy = bool(member.outgoing or member.answers or member.watches or member.notifications)
    member.poll()
    member.deliver()
    return busy or member.wake_at == member.world.now.mono


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ZooKeeperMembership, "_on_registered"),
        (ZooKeeperMembership, "_on_read"),
        (ZooKeeperMembership, "_on_claimed"),
        (ZooKeeperMembership, "_on_conflict"),
        (ZooKeeperMembership, "_on_released"),
        (ZooKeeperMembership, "_begin_rebalance"),
        (Registrar, "register"),
        (GroupReader, "begin"),
        (GroupReader, "_read_members"),
        (GroupReader, "_read_topics"),
        (Claims, "claim"),
        (Claims, "_find_owners"),
        (Claims, "release"),
        (Claims, "_delete"),
        (SubscriptionState, "set_partitions"),
        (SubscriptionState, "suspend"),
        (ZooKeeperBrokers, "_on_ids"),
        (ZooKeeperBrokers, "_take"),
    ],
)
def test_a_member_goes_on_after_an_exception_and_reports_it(
    owner: type[Any], name: str, at_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = break_once(monkeypatch, owner, name, at_end=at_end)
    world = World({"t": 4}, "ab")
    for member in world.members:
        member.connect()
        member.subscribe("t")
    run(world)
    assert raised == [name]
    assert [member.membership.state for member in world.members] == [State.STABLE] * 2
    assert [len(member.owned & member.readable) for member in world.members] == [2, 2]
    assert any(f"{name} is broken" in str(error) for member in world.members for error in member.errors)


@pytest.mark.parametrize("at_end", [False, True])
def test_a_rebalance_goes_on_after_an_exception_at_the_end_of_the_revocation(at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raised = break_once(monkeypatch, SubscriptionState, "set_partitions", at_end=at_end, call=lambda partitions: partitions == ())
    world = World({"t": 4}, "ab")
    for member in world.members:
        member.connect()
        member.subscribe("t")
        run(world)
    assert raised == ["set_partitions"]
    assert [len(member.owned & member.readable) for member in world.members] == [2, 2]


@pytest.mark.parametrize("at_end", [False, True])
def test_commits_go_on_after_one_whose_end_has_raised(at_end: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    run(world)
    raised = break_once(monkeypatch, CommitManager, "_on_committed", at_end=at_end)
    member.commit()
    member.commit()
    member.commit()
    run(world)
    assert raised == ["_on_committed"]
    assert world.committed == {"/consumers/g/offsets/t/0": 5, "/consumers/g/offsets/t/1": 6}


def test_a_look_up_of_committed_offsets_is_repeated_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    raised = break_once(monkeypatch, CommitManager, "_on_fetched", at_end=False)
    for number in range(2):
        for path in ("/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t") if not number else ():
            world.write(Create(path))
        world.write(Create(f"/consumers/g/offsets/t/{number}", b"7"))
    member.connect()
    member.subscribe("t")
    run(world)
    assert raised == ["_on_fetched"]
    positions = {tp: state.position for tp, state in member.assembly.subscription.partitions.items()}
    assert [positions[TopicPartition("t", number)].offset for number in range(2)] == [7, 7]


def test_a_broker_whose_id_is_no_number_of_kafka_is_skipped() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    world.write(Create(f"/brokers/ids/{'9' * 5_000}", b"{}"))
    member.connect()
    member.subscribe("t")
    run(world)
    assert member.membership.state is State.STABLE
    assert [error for error in member.errors if not isinstance(error, CommitFailedError)] == []
