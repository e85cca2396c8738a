"""Members of a ZooKeeper group, with operations, answers, watches, lost connections and expired sessions in every order.

At every moment a partition is read by one member at most, only owners commit, and no offset goes back. Once the faults end, the
group is stable by 0.8's formula.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given, settings, strategies as st

from tests.example_counts import examples
from tests.property.client.zookeeper_world import Member, World

TOPICS = {"t": 5, "u": 3}
LEAVES_WHILE_IT_REGISTERS = [324, 210, 110, 244]


def actions(world: World) -> list[Callable[[int], object]]:
    """What may happen now; each takes a number that chooses a variant."""
    possible: list[Callable[[int], object]] = [
        lambda variant: world.pass_time((1, 20, 300, 2_500)[variant % 4]),
        lambda variant: world.resize("t", world.topics["t"] + variant % 2) if world.topics["t"] < 9 else None,
    ]
    return possible + [action for member in world.members for action in actions_of(member)]


def actions_of(member: Member) -> list[Callable[[int], object]]:
    possible: list[Callable[[int], object]] = [lambda _: member.run_pass()] * 2
    if member.session_id is None:
        possible.append(lambda _: member.connect())
    else:
        possible.append(lambda variant: member.disconnect(variant % 4))
        if member.outgoing:
            possible += [lambda _: member.execute()] * 3
    if member.answers:
        possible += [lambda _: member.take_answer()] * 3
    if member.watches:
        possible += [lambda _: member.take_watch()] * 2
    if member.topics:
        return [*possible, lambda _: member.poll(), lambda _: member.commit(), lambda variant: change(member, variant)]
    return [*possible, lambda _: member.subscribe("t", "u")]


def change(member: Member, variant: int) -> None:
    """Leave the group, or subscribe to other topics."""
    if variant % 3 == 0:
        member.unsubscribe()
    else:
        member.subscribe(*(("t",), ("t", "u"))[variant % 2])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=20, max_size=300))
@example(LEAVES_WHILE_IT_REGISTERS)
def test_a_group_is_right_in_every_order_of_events(choices: list[int]) -> None:
    world = World(TOPICS, "abc")
    for member in world.members:
        member.connect()
        member.subscribe("t", "u")
    for choice in choices:
        possible = actions(world)
        possible[choice % len(possible)](choice // len(possible))
        world.check()
    world.settle()
    assert world.vain_errors() == []
