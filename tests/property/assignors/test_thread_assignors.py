"""Properties of the assignors of zookeeper groups, for any members, threads and topics."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, strategies as st

from ottla.assignors.threads import THREAD_ASSIGNORS, Owners
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread

TOPICS = ("a", "b-1", "orders", "Q.x")
Readers = dict[str, list[ConsumerThread]]
Members = dict[str, dict[str, int]]
Partitions = dict[str, list[int]]

partitions = st.dictionaries(st.sampled_from(TOPICS), st.lists(st.integers(0, 60), unique=True, max_size=30))
member_ids = st.text("abé-_.😀10", min_size=1, max_size=4)
streams = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 13), max_size=4)
members = st.dictionaries(member_ids, streams, max_size=5)


def readers(members: Members) -> Readers:
    found: Readers = {}
    for member_id, counts in members.items():
        for topic, count in counts.items():
            found.setdefault(topic, []).extend(ConsumerThread(member_id, number) for number in range(count))
    return found


def sizes(owners: Owners, among: list[ConsumerThread]) -> list[int]:
    counted = Counter(owners.values())
    return [counted[thread] for thread in among]


@pytest.mark.parametrize("assignor", THREAD_ASSIGNORS)
@given(members=members, partitions=partitions, order=st.randoms(use_true_random=False))
def test_each_partition_has_one_owner_that_reads_its_topic(
    assignor: str, members: Members, partitions: Partitions, order: Random
) -> None:
    threads = readers(members)
    owners = THREAD_ASSIGNORS[assignor](threads, partitions)
    assert owners.keys() == {TopicPartition(topic, number) for topic in threads for number in partitions.get(topic, ())}
    assert all(thread in threads[partition.topic] for partition, thread in owners.items())
    shuffled = [(topic, order.sample(among, len(among))) for topic, among in threads.items()]
    order.shuffle(shuffled)
    mixed = {topic: order.sample(numbers, len(numbers)) for topic, numbers in reversed(partitions.items())}
    assert THREAD_ASSIGNORS[assignor](dict(shuffled), mixed) == owners


@given(members, partitions)
def test_ranges_are_even_and_contiguous_in_each_topic(members: Members, partitions: Partitions) -> None:
    threads = readers(members)
    owners = THREAD_ASSIGNORS["range"](threads, partitions)
    for topic, among in threads.items():
        mine = [owners[TopicPartition(topic, number)] for number in sorted(partitions.get(topic, ()))]
        counts = Counter(mine)
        assert max((counts[thread] for thread in among), default=0) - min((counts[thread] for thread in among), default=0) <= 1
        texts = list(dict.fromkeys(str(thread) for thread in mine))
        assert texts == sorted(texts, key=lambda text: text.encode("utf-16-be")), "the order of Java's strings"
        assert mine == sorted(mine, key=mine.index), "the partitions of a thread follow each other"


@given(members, partitions)
def test_a_range_does_not_depend_on_other_topics(members: Members, partitions: Partitions) -> None:
    threads = readers(members)
    owners = THREAD_ASSIGNORS["range"](threads, partitions)
    for topic, among in threads.items():
        alone = THREAD_ASSIGNORS["range"]({topic: among}, partitions)
        assert alone == {partition: thread for partition, thread in owners.items() if partition.topic == topic}


@given(st.lists(member_ids, unique=True, min_size=1, max_size=5), st.integers(1, 13), partitions)
def test_in_turn_members_with_the_same_streams_get_the_same_share(ids: list[str], count: int, partitions: Partitions) -> None:
    threads = readers({member_id: dict.fromkeys(TOPICS, count) for member_id in ids})
    owners = THREAD_ASSIGNORS["roundrobin"](threads, partitions)
    counts = sizes(owners, threads["a"])
    assert max(counts) - min(counts) <= 1
