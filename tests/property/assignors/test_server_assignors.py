"""Properties of the assignors of consumer groups, for any members, topics and previous assignments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, TopicSpec, checked

IDS = tuple(UUID(int=number) for number in (7, 3, 5, 1, 9))
Targets = dict[str, Assignment]

member_ids = st.lists(st.text("abxyz", min_size=1, max_size=3), unique=True, max_size=7)
topics = st.dictionaries(st.sampled_from(IDS), st.integers(0, 12).map(lambda count: TopicSpec("t", count)), min_size=1)
numbers = st.lists(st.integers(0, 14), unique=True, min_size=1, max_size=8).map(lambda some: tuple(sorted(some)))
assignments = st.dictionaries(st.sampled_from(IDS), numbers, max_size=4)


@st.composite
def groups(draw: st.DrawFn, homogeneous: bool | None = None) -> GroupSpec:
    """Any group, whose assignments may be invalid: with two owners of a partition, other topics, or missing partitions."""
    existing = draw(topics)
    ids = draw(member_ids)
    instances = draw(st.permutations([*(f"i{place}" for place in range(len(ids))), *[None] * len(ids)]))
    some = st.frozensets(st.sampled_from(sorted(existing)))
    alike = draw(st.booleans()) if homogeneous is None else homogeneous
    subscriptions = [draw(some)] * len(ids) if alike else [draw(some) for _ in ids]
    members = {one: MemberSpec(*of) for one, of in zip(ids, zip(subscriptions, instances, strict=False), strict=True)}
    before = draw(st.dictionaries(st.sampled_from([*ids, "gone"]), assignments))
    return GroupSpec(members, before, existing)


every_assignor = pytest.mark.parametrize("name", SERVER_ASSIGNORS)


@every_assignor
@given(group=groups())
def test_each_subscribed_partition_has_one_owner_that_subscribes_to_it(name: str, group: GroupSpec) -> None:
    targets = SERVER_ASSIGNORS[name](group)
    assert targets.keys() == group.members.keys()
    given_out = Counter((topic, number) for target in targets.values() for topic, some in target.items() for number in some)
    wanted = {topic for member in group.members.values() for topic in member.topics}
    assert given_out == Counter((topic, number) for topic in wanted for number in range(group.topics[topic].partitions))
    assert all(target.keys() <= group.members[member].topics for member, target in targets.items())
    assert checked(group, targets) == targets  # in the coordinator's form already
    assert all(some == tuple(sorted(some)) != () for target in targets.values() for some in target.values())


@every_assignor
@given(group=groups(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_mappings_does_not_matter(name: str, group: GroupSpec, random: Random) -> None:
    def shuffled(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(random.sample(list(mapping.items()), len(mapping)))

    before = {member: shuffled(had) for member, had in group.assignments.items()}
    again = GroupSpec(shuffled(group.members), shuffled(before), shuffled(group.topics))
    assert SERVER_ASSIGNORS[name](again) == SERVER_ASSIGNORS[name](group)


@every_assignor
@given(group=groups())
def test_an_unchanged_assignment_is_the_same_object(name: str, group: GroupSpec) -> None:
    first = SERVER_ASSIGNORS[name](group)
    second = SERVER_ASSIGNORS[name](GroupSpec(group.members, first, group.topics))
    assert second == first
    assert all(second[member] is first[member] for member in first)


@given(group=groups())
def test_range_is_contiguous_and_balanced_in_each_topic(group: GroupSpec) -> None:
    targets = SERVER_ASSIGNORS["range"](group)
    for topic in group.topics:
        subscribers = [member for member, of in group.members.items() if topic in of.topics]
        shares = [targets[member].get(topic, ()) for member in subscribers]
        assert all(share == tuple(range(share[0], share[-1] + 1)) for share in shares if share)
        sizes = [len(share) for share in shares]
        assert not sizes or max(sizes) - min(sizes) <= 1


def size(target: Assignment) -> int:
    return sum(map(len, target.values()))


def owned(group: GroupSpec) -> Targets:
    """The partitions that each member may keep: of subscribed topics, and not of an earlier member."""
    result: Targets = {}
    taken: set[tuple[UUID, int]] = set()
    for member in sorted(group.members):
        kept = {
            (topic, number)
            for topic, numbers in group.assignments.get(member, {}).items()
            for number in numbers
            if topic in group.members[member].topics and number < group.topics[topic].partitions
        } - taken
        taken |= kept
        result[member] = {topic: tuple(sorted(n for of, n in kept if of == topic)) for topic in {of for of, _ in kept}}
    return result


@given(group=groups(homogeneous=True))
def test_uniform_is_balanced_and_moves_the_fewest_partitions(group: GroupSpec) -> None:
    targets = SERVER_ASSIGNORS["uniform"](group)
    if not targets:
        return
    sizes = [size(target) for target in targets.values()]
    assert max(sizes) - min(sizes) <= 1
    smaller, one_more = divmod(sum(sizes), len(sizes))
    before = owned(group)
    had = [size(target) for target in before.values()]
    most = sum(min(size, smaller) for size in had) + min(one_more, sum(size > smaller for size in had))
    kept = [set(numbers) & set(targets[member].get(topic, ())) for member, of in before.items() for topic, numbers in of.items()]
    assert sum(map(len, kept)) == most


@given(group=groups(homogeneous=True), comes=st.booleans())
def test_one_member_joins_or_leaves(group: GroupSpec, comes: bool) -> None:
    """Only the necessary members change: those that give partitions to the new member, or get those of the one that left."""
    before = SERVER_ASSIGNORS["uniform"](group)
    members = dict(group.members)
    if comes:
        members["newcomer"] = next(iter(members.values()), MemberSpec(frozenset(group.topics)))
    elif members:
        del members[min(members)]
    after = SERVER_ASSIGNORS["uniform"](GroupSpec(members, before, group.topics))
    moved = size(after["newcomer"]) if comes else size(before[min(before)]) if members else 0
    assert sum(after[member] is not before.get(member) for member in members) <= moved + comes


@given(group=groups(homogeneous=False))
def test_no_partition_of_a_mixed_group_has_a_much_better_owner(group: GroupSpec) -> None:
    targets = SERVER_ASSIGNORS["uniform"](group)
    for target in targets.values():
        for topic in target:
            for other, of in group.members.items():
                assert topic not in of.topics or size(targets[other]) >= size(target) - 1
