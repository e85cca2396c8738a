"""A member deletes nodes of its own session only, also if a second member has its id."""

from __future__ import annotations

import enum

import pytest

from ottla.client.groups.zookeeper.states import State
from ottla.errors import ConfigError, KeeperCode, ZooKeeperError
from ottla.zookeeper.operations import Create, Delete
from tests.property.client.zookeeper_world import POLL_INTERVAL, Member, World

NODE = "/consumers/g/ids/g_a"


def rest(*members: Member) -> None:
    """Let everything happen that is due, without time passing."""
    for _ in range(30):
        for member in members:
            member.run_pass()
            if member.topics:
                member.poll()
            member.deliver()


def wait(*members: Member, milliseconds: int = 10_000) -> None:
    for _ in range(milliseconds // 500):
        members[0].world.pass_time(500)
        rest(*members)


def live_member_and_its_double() -> tuple[World, Member, Member]:
    world = World({"t": 2}, "a")
    (live,) = world.members
    live.connect()
    live.subscribe("t")
    rest(live)
    assert len(live.owned) == 2
    double = Member(world, "a", rebalance_max_retries=1)
    world.members.append(double)
    double.connect()
    double.subscribe("t")
    return world, live, double


def stayed(world: World, live: Member) -> bool:
    owners = ["g_a-0", "g_a-0"]
    return world.model.owner(NODE) == live.session_id and list(world.owners().values()) == owners and len(live.readable) == 2


class Moment(enum.Enum):
    """When the double leaves."""

    TAKEN = "it waits for the end of the other session"
    CREATING = "the creation of its node is in flight"
    UNKNOWN = "the answer to the creation of its node was lost"
    EXPIRED = "its application has not polled in time"


@pytest.mark.parametrize("moment", Moment)
def test_a_second_member_with_the_same_id_leaves_the_node_of_the_first_alone(moment: Moment) -> None:
    world, live, double = live_member_and_its_double()
    if moment in (Moment.TAKEN, Moment.EXPIRED):
        rest(live, double)
        assert double.membership.state is State.REGISTERING
    else:
        double.deliver()
        double.run_pass()
        assert [perform.operation for perform in double.outgoing if perform.operation.path == NODE]
    if moment is Moment.UNKNOWN:
        double.disconnect(len(double.outgoing))
        double.deliver()
        double.connect()
        double.deliver()
    if moment is Moment.EXPIRED:
        world.pass_time(POLL_INTERVAL)
        live.poll()
        rest(live)
        double.run_pass()
        double.deliver()
        double.run_pass()
        double.deliver()
        assert double.membership.state is State.STALE
    double.unsubscribe()
    rest(double)
    assert double.membership.state is State.UNSUBSCRIBED
    assert stayed(world, live)
    wait(live, double)
    assert stayed(world, live)


def test_the_error_of_a_second_member_with_the_same_id_says_what_to_do() -> None:
    _world, live, double = live_member_and_its_double()
    rest(live, double)
    wait(live, double, milliseconds=5_000)
    assert f"{NODE} belongs to another session" in str(double.errors[0])
    advice = "give each member its own consumer.id (or wait until the session of the earlier process has ended)"
    assert double.errors[0].hint == advice


def test_the_error_for_an_owner_node_that_no_session_deletes_says_what_to_do() -> None:
    world = World({"t": 2}, "")
    member = Member(world, "a", rebalance_max_retries=1)
    world.members.append(member)
    for path in ("/consumers", "/consumers/g", "/consumers/g/owners", "/consumers/g/owners/t"):
        world.write(Create(path))
    world.write(Create("/consumers/g/owners/t/1", b"g_x-0"))
    member.connect()
    member.subscribe("t")
    rest(member)
    wait(member, milliseconds=5_000)
    assert "t-1 is owned by g_x-0, in a node that no session deletes" in str(member.errors[0])
    assert member.errors[0].hint == "delete the node /consumers/g/owners/t/1: no session deletes it"


def taken_over() -> tuple[World, Member, Member]:
    """Somebody deletes the node of a member, and its double creates it before the member learns of it."""
    world, live, double = live_member_and_its_double()
    rest(live, double)
    world.write(Delete(NODE))
    rest(double)
    assert world.model.owner(NODE) == double.session_id
    return world, live, double


def test_a_member_whose_node_was_taken_over_does_not_delete_it_when_it_leaves() -> None:
    world, live, double = taken_over()
    live.unsubscribe()
    rest(live, double)
    assert live.membership.state is State.UNSUBSCRIBED
    assert world.model.owner(NODE) == double.session_id
    wait(live, double)
    assert len(double.readable) == 2


def test_a_member_whose_node_was_taken_over_does_not_overwrite_it_for_another_subscription() -> None:
    world, live, double = taken_over()
    world.resize("u", 1)
    live.subscribe("t", "u")
    wait(live, double)
    assert world.model.owner(NODE) == double.session_id
    assert live.membership.state is State.REGISTERING
    assert len(double.readable) == 2


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_whose_node_was_taken_over_gives_up_its_owner_nodes(leaves: bool) -> None:
    world, live, double = live_member_and_its_double()
    rest(live, double)
    world.write(Delete(NODE))
    rest(live)
    assert list(world.owners().values()) == ["g_a-0", "g_a-0"]
    rest(double)
    assert world.model.owner(NODE) == double.session_id
    if leaves:
        live.unsubscribe()
    wait(live, double)
    assert live.membership.state is (State.UNSUBSCRIBED if leaves else State.REGISTERING)
    assert world.model.owner(NODE) == double.session_id
    assert len(double.readable) == 2


def test_the_record_of_a_rebalance_says_that_the_own_node_was_deleted() -> None:
    world = World({"t": 2}, "a")
    (member,) = world.members
    member.connect()
    member.subscribe("t")
    rest(member)
    world.write(Delete(NODE))
    wait(member)
    assert len(member.readable) == 2
    assert member.assembly.recorder is not None
    reasons = [record.reason for record in member.assembly.recorder.records]
    assert reasons == ["the member joins the group", f"another client has deleted {NODE}"]


def test_a_chroot_that_does_not_exist_is_named() -> None:
    world = World({"t": 2}, "")
    member = Member(world, "a", zookeeper_connect="zk:2181/nope")
    member.connect()
    member.subscribe("t")
    member.deliver()
    member.run_pass()
    while member.outgoing:
        number, operation = member.outgoing.popleft()
        fail(member, number, ZooKeeperError(KeeperCode.NONODE, operation.path))
    member.deliver()
    member.run_pass()
    member.poll()
    (error,) = [error for error in member.errors if isinstance(error, ConfigError)]
    assert error.args == ("'zk:2181/nope': ZooKeeper has no node '/nope'",)
    assert error.hint == "what follows the servers must be as in zookeeper.connect of the brokers"


def fail(member: Member, number: int, error: ZooKeeperError) -> None:
    member.report(lambda session, now: session.on_failed(number, error, now))


def test_the_log_says_what_follows_from_a_malformed_offset(caplog: pytest.LogCaptureFixture) -> None:
    world = World({"t": 1}, "a")
    (member,) = world.members
    for path in ("/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"):
        world.write(Create(path))
    world.write(Create("/consumers/g/offsets/t/0", b"x"))
    member.connect()
    member.subscribe("t")
    rest(member)
    (line,) = [record.getMessage() for record in caplog.records if "/consumers/g/offsets/t/0" in record.getMessage()]
    assert line.endswith("; the partition is not read")
