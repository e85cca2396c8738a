"""The assignors of zookeeper groups: the order of threads and partitions."""

from __future__ import annotations

import pytest

from ottla.assignors.threads import THREAD_ASSIGNORS, Owners, Threads
from ottla.config.old_consumer import STRATEGIES
from ottla.types import TopicPartition
from ottla.zookeeper.nodes import ConsumerThread

C1_0, C1_1, C2_0, C2_1 = (ConsumerThread(member, thread) for member in ("C1", "C2") for thread in (0, 1))


def threads(member_id: str, count: int) -> list[ConsumerThread]:
    return [ConsumerThread(member_id, number) for number in range(count)]


def assign(assignor: str, readers: Threads, **partitions: int) -> Owners:
    return THREAD_ASSIGNORS[assignor](readers, {topic: range(count) for topic, count in partitions.items()})


def of(owners: Owners, topic: str) -> list[ConsumerThread]:
    """The owners of a topic's partitions, in order."""
    return [owners[partition] for partition in sorted(owners) if partition.topic == topic]


def test_each_strategy_of_the_settings_has_an_assignor() -> None:
    assert tuple(THREAD_ASSIGNORS) == STRATEGIES


def test_two_members_with_two_threads_each_share_five_partitions() -> None:
    owners = assign("range", {"t": [C2_1, C2_0, C1_1, C1_0]}, t=5)
    assert [owners[TopicPartition("t", number)] for number in range(5)] == [C1_0, C1_0, C1_1, C2_0, C2_1]


def test_thread_10_comes_before_thread_2() -> None:
    owners = assign("range", {"t": threads("m", 12)}, t=13)
    assert [thread.thread for thread in of(owners, "t")] == [0, 0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_text_of_threads_is_sorted_not_member_and_number() -> None:
    """A hyphen is below a letter, and 'm-1-0' below 'm-2': the text of a member may be a prefix of another's."""
    owners = assign("range", {"t": [ConsumerThread("m", 2), ConsumerThread("m-1", 0), ConsumerThread("m", 0)]}, t=3)
    assert [str(thread) for thread in of(owners, "t")] == ["m-0", "m-1-0", "m-2"]


def test_threads_are_in_the_order_of_utf_16() -> None:
    """A character outside of the first plane is below U+FF5E in Java's order, and above it in Python's."""
    owners = assign("range", {"t": [ConsumerThread("\uff5e", 0), ConsumerThread("\U0001f600", 0)]}, t=2)
    assert [thread.member_id for thread in of(owners, "t")] == ["\U0001f600", "\uff5e"]


def test_each_topic_begins_with_the_first_thread() -> None:
    owners = assign("range", {"a": [C1_0, C2_0], "b": [C1_0, C2_0]}, a=1, b=3)
    assert (of(owners, "a"), of(owners, "b")) == ([C1_0], [C1_0, C1_0, C2_0])


def test_in_turn_the_order_is_that_of_hash_codes() -> None:
    """Java's hash codes of events-0, payments-0 and payments-1 are 278135932, 1612905872 and 1612905873."""
    readers = [C1_0, C1_1, C2_0, C2_1]
    owners = assign("roundrobin", {"payments": readers, "events": readers}, payments=2, events=1)
    assert (of(owners, "events"), of(owners, "payments")) == ([C1_0], [C1_1, C2_0])


def test_in_turn_negative_hash_codes_come_first() -> None:
    """Java's hash codes of a-0 and logs-0 are 94660 and -1097327726."""
    owners = assign("roundrobin", {"a": [C1_0, C2_0], "logs": [C1_0, C2_0]}, a=1, logs=1)
    assert owners == {TopicPartition("logs", 0): C1_0, TopicPartition("a", 0): C2_0}


def test_in_turn_a_thread_without_the_topic_is_skipped() -> None:
    owners = assign("roundrobin", {"a": [C1_0, C2_0], "b": [C2_0]}, a=2, b=3)
    assert of(owners, "b") == [C2_0] * 3
    assert set(of(owners, "a")) == {C1_0, C2_0}


def test_in_turn_equal_hash_codes_are_in_the_order_of_topics() -> None:
    assert of(assign("roundrobin", {"BB": [C1_0, C2_0], "Aa": [C1_0, C2_0]}, BB=1, Aa=1), "Aa") == [C1_0]


@pytest.mark.parametrize("assignor", THREAD_ASSIGNORS)
def test_topics_without_partitions_or_threads_have_no_owners(assignor: str) -> None:
    assert assign(assignor, {"missing": [C1_0], "empty": [C1_0], "unread": []}, empty=0, unread=3, other=2) == {}
    assert assign(assignor, {}) == {}


@pytest.mark.parametrize("assignor", THREAD_ASSIGNORS)
def test_partitions_need_not_be_numbered_from_zero(assignor: str) -> None:
    owners = THREAD_ASSIGNORS[assignor]({"t": [C1_0, C2_0]}, {"t": (7, 3)})
    assert owners == {TopicPartition("t", 3): C1_0, TopicPartition("t", 7): C2_0}
