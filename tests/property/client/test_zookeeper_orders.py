"""Orders of events in which a member of a ZooKeeper group once got stuck or left nodes behind, or may write in a later session."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.groups.zookeeper import claims
from ottla.client.groups.zookeeper.states import State
from ottla.errors import ConsumerRebalanceFailedError, KeeperCode, ZooKeeperError
from ottla.simulation.zookeeper import Executed
from ottla.zookeeper.operations import Create, Delete, GetData, Multi, Operation
from tests.property.client.zookeeper_world import SESSION, Member, World


def rest(member: Member) -> None:
    """Let everything happen that is due for a member, without time passing."""
    idle = 0
    for _ in range(400):
        member.run_pass()
        if member.topics:
            member.poll()
        busy = bool(member.outgoing or member.answers or member.watches or member.wake_at == member.world.now.mono)
        member.deliver()
        idle = 0 if busy or member.notifications else idle + 1
        if idle > 2:
            return
    raise AssertionError(f"{member.membership} never comes to rest")


def run_until_asked(member: Member, wanted: Callable[[Operation[Any]], bool]) -> None:
    """Run a member until the last operation that it has handed over is the wanted one."""
    for _ in range(60):
        member.run_pass()
        if member.outgoing and wanted(member.outgoing[-1].operation):
            return
        member.deliver()
    raise AssertionError(f"{member.membership} never asks for it")


def hand_over_between_sessions(member: Member) -> None:
    """The connection had broken, and the session had ended, before the latest operations were handed over: the next executes them.

    Their outcomes arrive before the member learns of the end of its session.
    """
    waiting, member.outgoing = member.outgoing, deque()
    member.disconnect(0)
    member.world.pass_time(SESSION)
    member.outgoing = waiting
    unknown, member.answers = member.answers, deque()
    member.connect()
    later, member.answers = member.answers, unknown
    while member.outgoing:
        member.execute()
    member.answers += later


def is_claim(operation: Operation[Any]) -> bool:
    return isinstance(operation, Multi) and "/owners/" in operation.operations[-1].path


def is_commit(operation: Operation[Any]) -> bool:
    return isinstance(operation, Multi) and "/offsets/" in operation.operations[-1].path


def reads_owners(operation: Operation[Any]) -> bool:
    return isinstance(operation, GetData) and "/owners/" in operation.path


def test_a_member_that_may_not_create_its_node_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"t": 3}, "a")
    (member,) = world.members
    execute, count = world.execute, 0

    def refuse_consumers(of: Member, operation: Operation[Any]) -> Executed:
        nonlocal count
        count += 1
        if isinstance(operation, Create) and operation.path == "/consumers":
            return Executed(None, ZooKeeperError(KeeperCode.NOAUTH, operation.path))
        return execute(of, operation)

    monkeypatch.setattr(world, "execute", refuse_consumers)
    member.connect()
    member.subscribe("t")
    rest(member)
    assert count < 50
    assert "NOAUTH at /consumers" in str(member.errors[0])


@pytest.mark.parametrize("watches_first", [True, False])
def test_an_owner_that_releases_while_it_is_looked_for_is_not_waited_for(watches_first: bool) -> None:
    world = World({"t": 4}, "ab")
    one, two = world.members
    one.connect()
    two.connect()
    one.subscribe("t")
    rest(one)
    two.subscribe("t")
    run_until_asked(two, reads_owners)
    while two.outgoing:
        two.execute()
    rest(one)  # it releases, and claims its new share
    for take, waiting in ((two.take_watch, two.watches), (two.take_answer, two.answers))[:: 1 if watches_first else -1]:
        while waiting:
            take()
    rest(two)
    assert two.membership.state is State.STABLE
    assert len(two.owned) == 2


def test_owner_nodes_of_a_lost_answer_are_deleted_by_a_member_that_leaves() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    run_until_asked(member, is_claim)
    member.disconnect(len(member.outgoing))
    member.connect()
    while member.answers:
        member.take_answer()
    member.run_pass()
    world.pass_time(200)
    run_until_asked(member, reads_owners)
    member.unsubscribe()
    for _ in range(20):
        member.run_pass()
        member.deliver()
    assert world.owners() == {}
    assert world.children("/consumers/g/ids") == []


def test_a_member_that_leaves_while_its_node_is_created_leaves_no_node_behind() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    run_until_asked(member, lambda operation: operation.path == "/consumers/g/ids/g_a")
    member.unsubscribe()
    for _ in range(5):
        member.run_pass()
        member.deliver()
    assert member.membership.state is State.UNSUBSCRIBED
    assert world.children("/consumers/g/ids") == []


def test_a_subscription_that_cannot_be_leaves_the_member_alive() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("bad/name")
    rest(member)
    member.subscribe("t")
    for _ in range(10):
        world.pass_time(3_000)
        rest(member)
    assert len(member.owned) == 2


def test_another_members_impossible_topic_does_not_stop_round_robin() -> None:
    world = World({"t": 2}, "")
    member = Member(world, "a", partition_assignment_strategy=["roundrobin"])
    world.members.append(member)
    fields = {"version": 1, "pattern": "static", "subscription": {"a/b": 1}, "timestamp": "1"}
    member.connect()
    member.subscribe("t")
    rest(member)
    world.write(Create("/consumers/g/ids/g_x", json.dumps(fields).encode()))
    world.resize("t", 3)
    for _ in range(5):
        rest(member)
        world.pass_time(1_000)
    assert len(member.owned) == 3


def test_deleted_owners_are_created_again() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    rest(member)
    for path in ("owners/t/0", "owners/t/1", "owners/t", "owners"):
        world.write(Delete(f"/consumers/g/{path}"))
    world.resize("t", 3)
    for _ in range(10):
        rest(member)
        world.pass_time(1_000)
    assert len(member.owned) == 3


def test_a_share_that_fits_into_no_request_is_not_claimed_until_others_take_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"t": 60}, "ab")
    one, two = world.members
    monkeypatch.setattr(claims, "REQUEST_BYTES", 4_000)
    one.connect()
    one.subscribe("t")
    for _ in range(15):
        rest(one)
        world.pass_time(1_000)
    assert world.owners() == {}
    (error,) = one.errors
    assert isinstance(error, ConsumerRebalanceFailedError)
    assert "claiming 60 partitions takes a request of 4,695 bytes, and ZooKeeper accepts 1 MB (jute.maxbuffer)" in str(error)
    assert "start more members" in str(error)
    two.connect()
    two.subscribe("t")
    for _ in range(5):
        rest(one)
        rest(two)
        world.pass_time(1_000)
    assert [len(member.owned) for member in world.members] == [30, 30]


@pytest.mark.parametrize(("pattern", "subscription"), [("static", {"t": 2**31 - 1}), ("white_list", {".*": 2**31 - 1})])
def test_another_members_billions_of_streams_are_skipped_and_logged_once(
    pattern: str, subscription: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    fields = {"version": 1, "pattern": pattern, "subscription": subscription, "timestamp": "1"}
    for path in ("/consumers", "/consumers/g", "/consumers/g/ids"):
        world.write(Create(path))
    world.write(Create("/consumers/g/ids/g_x", json.dumps(fields).encode()))
    member.connect()
    member.subscribe("t")
    rest(member)
    world.resize("t", 3)
    rest(member)
    assert len(member.owned) == 3
    (line,) = [record for record in caplog.records if "/consumers/g/ids/g_x" in record.getMessage()]
    assert "2147483647, not a whole number from 1 to 10000; it is skipped" in line.getMessage()


def test_a_wait_that_has_ended_in_time_is_not_counted_among_the_vain_ones() -> None:
    world = World({"t": 2}, "")
    member = Member(world, "a", rebalance_max_retries=1)
    world.members.append(member)
    for path in ("/consumers", "/consumers/g", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/owners/t"):
        world.write(Create(path))
    world.write(Create("/consumers/g/ids/g_a", ephemeral=True))
    world.write(Create("/consumers/g/owners/t/0", b"g_x-0", ephemeral=True))
    member.connect()
    member.subscribe("t")
    rest(member)
    assert member.membership.state is State.REGISTERING
    world.write(Delete("/consumers/g/ids/g_a"))
    rest(member)
    assert member.membership.state is State.WAITING
    assert member.errors == []
    world.pass_time(2_500)
    rest(member)
    assert "t-0 is owned by g_x-0" in str(member.errors)


def test_waits_for_the_own_node_are_reported_after_so_many_vain_ones() -> None:
    world = World({"t": 2}, "")
    member = Member(world, "a", rebalance_max_retries=2)
    world.members.append(member)
    for path in ("/consumers", "/consumers/g", "/consumers/g/ids"):
        world.write(Create(path))
    world.write(Create("/consumers/g/ids/g_a", ephemeral=True))
    member.connect()
    member.subscribe("t")
    counts = []
    for _ in range(5):
        rest(member)
        counts.append(len(member.errors))
        world.pass_time(2_500)
    assert counts == [0, 0, 1, 1, 2]
    assert "/consumers/g/ids/g_a belongs to another session" in str(member.errors)


def test_a_claim_that_the_next_session_executes_creates_no_owners() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    run_until_asked(member, is_claim)
    hand_over_between_sessions(member)
    assert world.owners() == {}
    rest(member)
    world.pass_time(1_000)
    rest(member)
    assert len(member.owned) == 2


def test_a_commit_that_the_next_session_executes_writes_no_offset() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    rest(member)
    member.commit()
    run_until_asked(member, is_commit)
    hand_over_between_sessions(member)
    assert world.children("/consumers/g/offsets/t") == []
    rest(member)
    world.pass_time(1_000)
    rest(member)
    assert len(member.owned) == 2
