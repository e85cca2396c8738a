"""An error that a retry does not fix is asked for again after a back-off only, also if ZooKeeper contradicts itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.errors import KeeperCode, ZooKeeperError
from ottla.simulation.zookeeper import Executed
from ottla.zookeeper.operations import Create, Exists, GetChildren, GetData, Multi, Operation, Sync
from tests.property.client.zookeeper_world import Member, World

MEMBER = "/consumers/g/ids/g_a"

ASKED: dict[str, Callable[[Operation[Any]], bool]] = {
    "the parents are created": lambda it: isinstance(it, Create) and it.path == "/consumers/g",
    "the member registers": lambda it: isinstance(it, Create) and it.path == MEMBER,
    "the member's node is looked at": lambda it: isinstance(it, Exists) and it.path == MEMBER,
    "the subscription is replaced": lambda it: isinstance(it, Multi) and it.operations[0].path == it.operations[-1].path,
    "the server catches up": lambda it: isinstance(it, Sync),
    "the members are listed": lambda it: isinstance(it, GetChildren) and it.path == "/consumers/g/ids",
    "the topic is read": lambda it: isinstance(it, GetData) and it.path == "/brokers/topics/t",
    "the brokers are listed": lambda it: isinstance(it, GetChildren) and it.path == "/brokers/ids",
    "the brokers are read": lambda it: isinstance(it, GetData) and it.path == "/brokers/ids/1",
    "the partitions are claimed": lambda it: isinstance(it, Multi) and isinstance(it.operations[-1], Create),
    "the owners are read": lambda it: isinstance(it, GetData) and "/owners/" in it.path,
    "the partitions are released": lambda it: isinstance(it, Multi) and not isinstance(it.operations[-1], Create),
}


def rest(member: Member) -> int:
    """Let everything happen that is due now; return the number of passes."""
    for number in range(60):
        member.run_pass()
        busy = bool(member.outgoing or member.answers or member.watches or member.notifications)
        member.poll()
        member.deliver()
        if not busy:
            return number
    return 60


@pytest.mark.parametrize(
    ("what", "code"),
    [
        *((what, KeeperCode.NONODE) for what in ASKED),
        ("the member registers", KeeperCode.NODEEXISTS),
        ("the partitions are claimed", KeeperCode.NODEEXISTS),
        ("the partitions are released", KeeperCode.NOAUTH),
    ],
)
def test_what_fails_for_ever_is_not_asked_in_a_loop(what: str, code: KeeperCode, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World({"t": 2, "u": 1}, "a")
    (member,) = world.members
    execute, asked = world.execute, 0

    def refuse(of: Member, operation: Operation[Any]) -> Executed:
        nonlocal asked
        if ASKED[what](operation):
            asked += 1
            return Executed(None, ZooKeeperError(code, operation.path))
        return execute(of, operation)

    monkeypatch.setattr(world, "execute", refuse)
    member.connect()
    passes = []
    for step in (
        lambda: member.subscribe("t"),
        lambda: world.write(Create("/brokers/ids/2", b'{"host":"h","port":9093}')),
        lambda: world.resize("t", 3),
        lambda: member.subscribe("t", "u"),
        member.unsubscribe,
    ):
        step()
        for _ in range(4):
            passes.append(rest(member))
            world.pass_time(500)
    assert max(passes) < 40
    assert asked < 80, "in ten seconds"
