"""The assignors compute the same as Kafka's: the examples of its documentation and the traces of a real group."""

from __future__ import annotations

import pytest

from ottla.assignors import ASSIGNORS, Cluster, MemberSubscription
from ottla.assignors.owned_partitions import StickyUserData, encode_generation, resolve_claims
from ottla.types import TopicPartition


def shares(name: str, members: dict[str, MemberSubscription], partitions: dict[str, int]) -> dict[str, list[str]]:
    answer = ASSIGNORS[name]().assign(Cluster(partitions), members)
    return {member: [str(one) for one in share.partitions] for member, share in answer.items()}


def subscribed(*topics: str, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(topics, instance_id)


def test_the_table_is_keyed_by_the_name_on_the_wire() -> None:
    assert [assignor.name for assignor in ASSIGNORS.values()] == list(ASSIGNORS)
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]


def test_range_divides_each_topic_and_the_first_members_get_one_more() -> None:
    members = {"c1": subscribed("t0", "t1"), "c0": subscribed("t0", "t1")}
    assert shares("range", members, {"t0": 3, "t1": 3}) == {
        "c0": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "c1": ["t0-2", "t1-2"],
    }


def test_round_robin_deals_over_all_topics() -> None:
    members = {"c1": subscribed("t0", "t1"), "c0": subscribed("t0", "t1")}
    assert shares("roundrobin", members, {"t0": 3, "t1": 3}) == {
        "c0": ["t0-0", "t0-2", "t1-1"],
        "c1": ["t0-1", "t1-0", "t1-2"],
    }


def test_round_robin_passes_over_members_that_did_not_subscribe() -> None:
    members = {"c0": subscribed("t0"), "c1": subscribed("t0", "t1"), "c2": subscribed("t0", "t1", "t2")}
    assert shares("roundrobin", members, {"t0": 1, "t1": 2, "t2": 3}) == {
        "c0": ["t0-0"],
        "c1": ["t1-0"],
        "c2": ["t1-1", "t2-0", "t2-1", "t2-2"],
    }


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_static_members_come_first_by_instance_id(name: str) -> None:
    members = {"a": subscribed("t"), "z": subscribed("t", instance_id="i1"), "b": subscribed("t", instance_id="i2")}
    assert shares(name, members, {"t": 3}) == {"z": ["t-0"], "b": ["t-1"], "a": ["t-2"]}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_more_members_than_partitions(name: str) -> None:
    members = {member: subscribed("t") for member in "abc"}
    assert shares(name, members, {"t": 2}) == {"a": ["t-0"], "b": ["t-1"], "c": []}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_nothing_to_share(name: str) -> None:
    assert shares(name, {}, {"t": 2}) == {}
    assert shares(name, {"a": subscribed("absent")}, {"t": 2}) == {"a": []}
    assert shares(name, {"a": subscribed()}, {}) == {"a": []}
    assert shares(name, {"a": subscribed("t", "t")}, {"t": 1}) == {"a": ["t-0"]}


def test_the_latest_previous_owner_counts() -> None:
    """A partition goes back to its last owner if that improves the balance."""
    tp = TopicPartition("t", 0)
    claims = {
        "a": StickyUserData((), 5),
        "b": StickyUserData((tp,), 3),
        "c": StickyUserData((tp,), 4),
        "d": StickyUserData((tp,), 2),
    }
    owned = resolve_claims(claims, frozenset({tp}))
    assert owned.owners() == {tp: "c"}
    assert owned.earlier == {tp: "c"}


def holding(*numbers: int, generation: int = 5, user_data: bytes | None = None) -> MemberSubscription:
    owned = tuple(TopicPartition("t", number) for number in numbers)
    return MemberSubscription(("t",), owned=owned, generation=generation, user_data=user_data)


def test_only_as_many_members_keep_one_more_as_there_are_left_over() -> None:
    members = {"a": holding(0, 1, 2), "b": holding(3, 4, 5), "c": holding()}
    found = shares("cooperative-sticky", members, {"t": 7})
    assert found == {"a": ["t-0", "t-1", "t-2"], "b": ["t-3", "t-4"], "c": ["t-6"]}, "t-5 is still b's to give up"


def test_a_generation_in_user_data_counts_too() -> None:
    members = {"a": holding(0), "b": holding(0, generation=-1, user_data=encode_generation(6))}
    assert shares("cooperative-sticky", members, {"t": 2})["b"] == ["t-0"]
