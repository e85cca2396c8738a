"""Members of a ZooKeeper group, with operations, answers, watches, lost connections and expired sessions in every order.

At every moment an application has only partitions that its member owns in ZooKeeper, only owners commit, and no offset goes back.
Once the faults end, the group is stable by 0.8's formula.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings, strategies as st

from tests.example_counts import examples
from tests.property.client.zookeeper_world import Member, World

TOPICS = {"t": 5, "u": 3}


def actions(world: World) -> list[Callable[[int], object]]:
    """What may happen now; each takes a number that chooses a variant."""
    possible: list[Callable[[int], object]] = [
        lambda variant: world.pass_time((1, 20, 300, 2_500)[variant % 4]),
        lambda variant: world.resize("t", world.topics["t"] + variant % 2) if world.topics["t"] < 9 else None,
    ]
    return possible + [action for member in world.members for action in actions_of(member)]


def actions_of(member: Member) -> list[Callable[[int], object]]:
    """What may happen to one member; faults are rare, since a rebalance takes some thirty steps without one."""
    possible: list[Callable[[int], object]] = [lambda _: member.run_pass()] * 2
    if member.session_id is None:
        possible += [lambda _: member.connect()] * 6
    else:
        possible += [lambda variant: member.disconnect(variant % 4), *[lambda _: exchange(member)] * 10]
        if member.outgoing:
            possible += [lambda _: member.execute()] * 3
    if member.answers:
        possible += [lambda _: member.take_answer()] * 3
    if member.watches:
        possible += [lambda _: member.take_watch()] * 2
    if not member.topics:
        return [*possible, lambda _: member.subscribe("t", "u")]
    return [*possible, *[lambda _: member.poll()] * 4, lambda _: member.commit(), lambda variant: change(member, variant)]


def exchange(member: Member) -> None:
    """All that a member wants of ZooKeeper now is done, without its application."""
    member.run_pass()
    member.deliver()


def change(member: Member, variant: int) -> None:
    """Leave the group, or subscribe to other topics."""
    if variant % 3 == 0:
        member.unsubscribe()
    else:
        member.subscribe(*(("t",), ("t", "u"))[variant % 2])


@settings(max_examples=examples(200), deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 10**6), min_size=60, max_size=300))
def test_a_group_is_right_in_every_order_of_events(begins_stable: bool, choices: list[int]) -> None:
    world = World(TOPICS, "abc")
    for member in world.members:
        member.connect()
        member.subscribe("t", "u")
    if begins_stable:
        world.settle()
    for choice in choices:
        possible = actions(world)
        possible[choice % len(possible)](choice // len(possible))
        world.check()
    world.settle()
    assert world.vain_errors() == []
