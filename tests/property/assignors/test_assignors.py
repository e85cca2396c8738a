"""Properties of the assignors of classic groups, for any members, topics and previous assignments."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from ottla.assignors import ASSIGNORS, Cluster, MemberSubscription
from ottla.assignors.owned_partitions import decode_sticky, encode_sticky
from ottla.types import TopicPartition
from tests.example_counts import examples

TOPICS = ("t0", "t1", "t2", "t3")
RACKS = ("r0", "r1", "r2")
STICKY = ("sticky", "cooperative-sticky")
Members = dict[str, MemberSubscription]
Shares = dict[str, tuple[TopicPartition, ...]]
topics = st.lists(st.sampled_from(TOPICS), unique=True, max_size=4).map(tuple)
racks = st.none() | st.sampled_from(RACKS)
one_generation, several_generations = st.just(7), st.integers(-1, 3)
few = settings(max_examples=examples(30))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    partitions = draw(st.dictionaries(st.sampled_from(TOPICS[:3]), st.integers(0, 9), max_size=3))
    replicas = st.sets(st.sampled_from(RACKS), max_size=3).map(frozenset)
    known = draw(st.booleans())
    where = {topic: draw(st.lists(replicas, min_size=count, max_size=count)) for topic, count in partitions.items() if known}
    return Cluster(partitions, where)


@st.composite
def memberships(
    draw: st.DrawFn,
    subscription: st.SearchStrategy[tuple[str, ...]] = topics,
    generations: st.SearchStrategy[int] = several_generations,
    rack: st.SearchStrategy[str | None] = racks,
) -> Members:
    """Members with previous assignments, in which each partition had no owner, one, or two."""
    ids = draw(st.lists(st.text("abxyz", min_size=1, max_size=3), unique=True, max_size=6))
    instances = draw(st.permutations([*(f"i{place}" for place in range(len(ids))), *[None] * len(ids)]))
    members = {}
    for one, instance in zip(ids, instances, strict=False):
        held = draw(st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9)), unique=True, max_size=12))
        generation = draw(generations)
        data = encode_sticky(held, generation)
        members[one] = MemberSubscription(draw(subscription), instance, draw(rack), tuple(held), generation, data)
    return members


def assign(name: str, cluster: Cluster, members: Members) -> Shares:
    return {member_id: share.partitions for member_id, share in ASSIGNORS[name]().assign(cluster, members).items()}


def wanted(cluster: Cluster, members: Members) -> set[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {TopicPartition(topic, number) for topic in topics for number in range(cluster.partitions.get(topic, 0))}


def owners(members: Members) -> Counter[TopicPartition]:
    return Counter(tp for member in members.values() for tp in member.owned)


every_assignor = pytest.mark.parametrize("name", ASSIGNORS)
sticky_ones = pytest.mark.parametrize("name", STICKY)


@every_assignor
@few
@given(clusters(), memberships())
def test_each_partition_has_at_most_one_owner_that_subscribes_to_it(name: str, cluster: Cluster, members: Members) -> None:
    shares = assign(name, cluster, members)
    assert shares.keys() == members.keys()
    given_out = Counter(one for share in shares.values() for one in share)
    assert set(given_out) <= wanted(cluster, members)
    assert not given_out or max(given_out.values()) == 1
    assert all(one.topic in members[member].topics for member, share in shares.items() for one in share)
    if name != "cooperative-sticky":
        assert set(given_out) == wanted(cluster, members)


@every_assignor
@few
@given(clusters(), memberships(), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(name: str, cluster: Cluster, members: Members, random) -> None:  # type: ignore[no-untyped-def]
    def shuffled(mapping):  # type: ignore[no-untyped-def]
        return dict(random.sample(sorted(mapping.items(), key=lambda item: item[0]), len(mapping)))

    other = Cluster(shuffled(cluster.partitions), cluster.racks)
    assert assign(name, other, shuffled(members)) == assign(name, cluster, members)


@few
@given(clusters(), memberships(rack=st.none()))
def test_range_is_contiguous(cluster: Cluster, members: Members) -> None:
    shares = assign("range", cluster, members)
    for topic in cluster.partitions:
        for member in members:
            numbers = [one.partition for one in shares[member] if one.topic == topic]
            assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))


@few
@given(clusters(), memberships())
def test_range_is_balanced_in_each_topic_with_racks_or_without(cluster: Cluster, members: Members) -> None:
    shares = assign("range", cluster, members)
    for topic in cluster.partitions:
        takers = [member for member, subscription in members.items() if topic in subscription.topics]
        sizes = [sum(one.topic == topic for one in shares[member]) for member in takers]
        assert not sizes or max(sizes) - min(sizes) <= 1


@few
@given(st.integers(1, 9), st.integers(2, 4), memberships(st.just(TOPICS)), st.data())
def test_range_co_partitions_equal_topics_despite_racks(count: int, topics: int, members: Members, data: st.DataObject) -> None:
    replicas = st.lists(st.sets(st.sampled_from(RACKS), min_size=1).map(frozenset), min_size=count, max_size=count)
    cluster = Cluster(dict.fromkeys(TOPICS[:topics], count), {topic: data.draw(replicas) for topic in TOPICS[:topics]})
    for share in assign("range", cluster, members).values():
        numbers = {topic: {one.partition for one in share if one.topic == topic} for topic in TOPICS[:topics]}
        assert all(found == numbers["t0"] for found in numbers.values())


@pytest.mark.parametrize("name", ["roundrobin", "sticky"])
@few
@given(clusters(), memberships(st.just(TOPICS)))
def test_sizes_differ_by_at_most_one_with_equal_subscriptions(name: str, cluster: Cluster, members: Members) -> None:
    sizes = [len(share) for share in assign(name, cluster, members).values()]
    assert not sizes or max(sizes) - min(sizes) <= 1


@few
@given(clusters(), memberships())
def test_no_member_has_two_partitions_more_than_another_that_subscribes_to_one_of_them(cluster: Cluster, members: Members) -> None:
    shares = assign("sticky", cluster, members)
    for richer in members:
        topics = {tp.topic for tp in shares[richer]}
        for poorer in members:
            assert len(shares[richer]) <= len(shares[poorer]) + 1 or topics.isdisjoint(members[poorer].topics)


@sticky_ones
@few
@given(clusters(), memberships(generations=one_generation, rack=st.none()), st.randoms(use_true_random=False))
def test_a_second_assignment_moves_nothing(name: str, cluster: Cluster, members: Members, random) -> None:  # type: ignore[no-untyped-def]
    """The first assignment is kept; a cooperative assignor is called until all revoked partitions are assigned."""

    def holding(shares: Shares) -> Members:
        return {
            one: MemberSubscription(member.topics, None, None, shares[one], 8, encode_sticky(shares[one], 8))
            for one, member in members.items()
        }

    first = assign(name, cluster, members)
    second = assign(name, cluster, holding(first))
    assert {tp for share in second.values() for tp in share} == wanted(cluster, members)
    assert all(set(first[one]) <= set(second[one]) for one in members)
    assert assign(name, cluster, holding(second)) == second


@sticky_ones
@few
@given(clusters(), memberships(st.just(TOPICS), one_generation, st.none()))
def test_only_as_many_partitions_move_as_balance_requires(name: str, cluster: Cluster, members: Members) -> None:
    exists = wanted(cluster, members)
    owned_by = owners(members)
    shares = assign(name, cluster, members)
    smaller, larger = divmod(len(exists), len(members)) if members else (0, 0)
    owned = {one: {tp for tp in member.owned if tp in exists and owned_by[tp] == 1} for one, member in members.items()}
    kept = {one: len(owned[one] & set(shares[one])) for one in members}
    assert all(kept[one] >= min(len(owned[one]), smaller) for one in members)
    if larger > sum(count > smaller for count in kept.values()):
        assert all(kept[one] >= min(len(owned[one]), smaller + 1) for one in members)


@few
@given(clusters(), memberships(generations=one_generation))
def test_cooperative_assigns_no_partition_that_another_member_owns(cluster: Cluster, members: Members) -> None:
    owned_by = owners(members)
    for one, share in assign("cooperative-sticky", cluster, members).items():
        for tp in share:
            assert owned_by[tp] == (tp in members[one].owned), "another member still owns it, or two claim it"


@sticky_ones
@few
@given(clusters())
def test_a_later_generation_wins_a_claim_and_equal_generations_void_it(name: str, cluster: Cluster) -> None:
    def member(generation: int) -> MemberSubscription:
        return MemberSubscription(TOPICS, None, None, held, generation, encode_sticky(held, generation))

    held = tuple(sorted(wanted(cluster, {"a": MemberSubscription(TOPICS)})))
    settled = assign(name, cluster, {"old": member(3), "new": member(4)})
    assert len(settled["new"]) == (len(held) + 1) // 2
    if name == "cooperative-sticky":
        assert settled["old"] == ()
        assert assign(name, cluster, {"one": member(4), "two": member(4)}) == {"one": (), "two": ()}


@few
@given(st.lists(st.builds(TopicPartition, st.text(max_size=9), st.integers(0, 2**31 - 1)), unique=True), st.integers(-1, 2**31 - 1))
def test_sticky_user_data_survives_the_wire(partitions: list[TopicPartition], generation: int) -> None:
    blob = encode_sticky(partitions, generation)
    assert sorted(decode_sticky(blob).partitions) == sorted(partitions)
    assert decode_sticky(blob).generation == generation
    assert sorted(decode_sticky(blob[:-4]).partitions) == sorted(partitions), "version 0 has no generation"
    assert decode_sticky(blob[:-4]).generation == -1


@few
@given(st.binary(max_size=60))
def test_garbage_is_not_a_claim(blob: bytes) -> None:
    decode_sticky(blob)
    decode_sticky(encode_sticky([TopicPartition("t", 1)], 3)[: len(blob)])
