"""What holds for every assignor, whatever the members and topics."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ottla.assignors import ASSIGNORS, Assignor, MemberSubscription
from ottla.types import TopicPartition

TOPICS = ("t0", "t1", "t2", "t3")
Members = dict[str, MemberSubscription]
topics = st.lists(st.sampled_from(TOPICS), unique=True, max_size=4).map(tuple)
partitions = st.dictionaries(st.sampled_from(TOPICS[:3]), st.integers(0, 9), max_size=3)


@st.composite
def memberships(draw: st.DrawFn, subscription: st.SearchStrategy[tuple[str, ...]] = topics) -> Members:
    ids = draw(st.lists(st.text("abxyz", min_size=1, max_size=3), unique=True, max_size=6))
    instances = draw(st.permutations([*(f"i{place}" for place in range(len(ids))), *[None] * len(ids)]))
    return {one: MemberSubscription(draw(subscription), instance) for one, instance in zip(ids, instances, strict=False)}


every_assignor = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda assignor: assignor.name)


@every_assignor
@given(memberships(), partitions)
def test_every_subscribed_partition_has_one_reader_who_wants_it(
    assignor: Assignor, members: Members, counts: dict[str, int]
) -> None:
    shares = assignor.assign(members, counts)
    assert shares.keys() == members.keys()
    given_out = sorted(one for share in shares.values() for one in share)
    wanted = {topic for member in members.values() for topic in member.topics}
    assert given_out == sorted(TopicPartition(topic, n) for topic in wanted & counts.keys() for n in range(counts[topic]))
    assert all(one.topic in members[member].topics for member, share in shares.items() for one in share)


@every_assignor
@given(memberships(), partitions, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(assignor: Assignor, members: Members, counts: dict[str, int], dice) -> None:  # type: ignore[no-untyped-def]
    def shuffled(mapping):  # type: ignore[no-untyped-def]
        return dict(dice.sample(sorted(mapping.items(), key=lambda item: item[0]), len(mapping)))

    assert assignor.assign(shuffled(members), shuffled(counts)) == assignor.assign(members, counts)


@given(memberships(), partitions)
def test_range_is_contiguous_and_balanced_in_each_topic(members: Members, counts: dict[str, int]) -> None:
    shares = ASSIGNORS["range"].assign(members, counts)
    for topic in counts:
        sizes = []
        for member, subscription in members.items():
            numbers = [one.partition for one in shares[member] if one.topic == topic]
            assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))
            if topic in subscription.topics:
                sizes.append(len(numbers))
        assert not sizes or max(sizes) - min(sizes) <= 1


@given(memberships(st.just(TOPICS)), partitions)
def test_round_robin_is_balanced_when_all_want_the_same(members: Members, counts: dict[str, int]) -> None:
    sizes = [len(share) for share in ASSIGNORS["roundrobin"].assign(members, counts).values()]
    assert not sizes or max(sizes) - min(sizes) <= 1
