"""The invariants on a failing cluster: each check accepts a correct history, and finds its kind of violation."""

from __future__ import annotations

from typing import Any

from tests.interop.cluster.invariants import (
    begun_elsewhere,
    late_for_its_topic,
    out_of_order,
    read_periods,
    shared_badly,
)
from tests.interop.groups.invariants import Commit, MemberReport


def assigned(*partitions: str) -> dict[str, Any]:
    return {"name": "partitions_assigned", "partitions": [{"partition": one} for one in partitions]}


def revoked(*partitions: str) -> dict[str, Any]:
    return {"name": "partitions_revoked", "partitions": [{"partition": one} for one in partitions]}


def read(partition: str, first: int, last: int) -> dict[str, Any]:
    row = {"partition": partition, "count": last - first + 1, "minOffset": first, "maxOffset": last}
    return {"name": "records_consumed", "partitions": [row]}


def commit(partition: str, offset: int) -> Commit:
    return Commit(partition, offset, "a/1/1", 0)


def test_each_poll_goes_on_where_the_one_before_it_ended() -> None:
    sound = [assigned("t-0", "t-1"), read("t.1-0", 0, 4), read("t.1-1", 0, 1), read("t.1-0", 5, 9)]
    assert out_of_order(read_periods("a", sound)) == []
    assert out_of_order(read_periods("a", [*sound, read("t.1-0", 9, 12)])) == ["t.1-0: a read 9 after 9"]
    assert out_of_order(read_periods("a", [*sound, read("t.1-0", 11, 12)])) == ["t.1-0: a read 11 after 9"]


def test_a_partition_that_was_given_up_may_be_read_again_from_the_commit() -> None:
    story = [assigned("t-0"), read("t.1-0", 0, 9), revoked("t-0"), assigned("t-0"), read("t.1-0", 4, 12)]
    found = list(read_periods("a", story))
    assert out_of_order(found) == []
    assert begun_elsewhere(found, [commit("t.1-0", 4)]) == []
    assert begun_elsewhere(found, [commit("t.1-0", 5)]) == ["t.1-0: a began at 4, which no member has committed"]


def test_a_read_of_a_recreated_topic_must_begin_at_its_beginning() -> None:
    kept = [assigned("t-0"), read("t.1-0", 0, 9), read("t.2-0", 0, 3)]
    assert begun_elsewhere(read_periods("a", kept), []) == []
    skipped = [assigned("t-0"), read("t.1-0", 0, 9), read("t.2-0", 10, 13)]
    assert begun_elsewhere(read_periods("a", skipped), [commit("t.1-0", 10)]) == [
        "t.2-0: a began at 10, which no member has committed"
    ]


def test_a_commit_of_a_topic_that_is_gone_must_not_follow_one_of_its_successor() -> None:
    assert late_for_its_topic(["t.1-0", "t.1-1", "t.2-0", "t.2-1", "t.2-0"]) == []
    assert late_for_its_topic(["t.1-0", "t.2-0", "t.1-1", "t.1-0"]) == ["t.1-0 was committed after t-0 of incarnation 2"]


def test_every_partition_has_one_owner() -> None:
    def owner(member: str, *owned: str) -> MemberReport:
        return MemberReport(member, frozenset(owned))

    assert shared_badly([owner("a", "t-0"), owner("b", "t-1")], ["t-0", "t-1"]) == []
    assert shared_badly([owner("a", "t-0")], ["t-0", "t-1"]) == ["t-1: owned by []"]
    assert shared_badly([owner("a", "t-0"), owner("b", "t-0")], ["t-0"]) == ["t-0: owned by ['a', 'b']"]
    assert shared_badly([owner("a", "t-0", "gone-1")], ["t-0"]) == [], "the owner of a deleted partition does not matter"
