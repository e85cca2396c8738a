"""The assignors of consumer groups in common cases, and the check of assignments that were computed elsewhere."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ottla.assignors import SERVER_ASSIGNORS, Assignment, GroupSpec, MemberSpec, TopicSpec, checked
from ottla.errors import AssignmentError

ONE, TWO, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
BOTH = MemberSpec(frozenset({ONE, TWO}))
ONLY_ONE, ONLY_TWO = MemberSpec(frozenset({ONE})), MemberSpec(frozenset({TWO}))

every_assignor = pytest.mark.parametrize("name", SERVER_ASSIGNORS)


def group(members: dict[str, MemberSpec], before: dict[str, Assignment] | None = None, one: int = 3, two: int = 3) -> GroupSpec:
    return GroupSpec(members, before or {}, {ONE: TopicSpec("one", one), TWO: TopicSpec("two", two)})


def uniform(members: dict[str, MemberSpec], before: dict[str, Assignment] | None = None, one: int = 3, two: int = 3) -> object:
    return SERVER_ASSIGNORS["uniform"](group(members, before, one, two))


def test_the_first_of_the_table_is_kafka_s_default() -> None:
    assert list(SERVER_ASSIGNORS) == ["uniform", "range"]


@every_assignor
def test_a_group_without_members_has_no_assignments(name: str) -> None:
    assert SERVER_ASSIGNORS[name](GroupSpec({}, {"gone": {ONE: (0,)}}, {})) == {}
    assert SERVER_ASSIGNORS[name](GroupSpec({"a": MemberSpec(frozenset())}, {"a": {ONE: (0,)}}, {})) == {"a": {}}
    assert SERVER_ASSIGNORS[name](group({"a": BOTH}, one=0, two=0)) == {"a": {}}


@every_assignor
def test_a_topic_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises(AssignmentError, match=str(GONE)):
        SERVER_ASSIGNORS[name](group({"a": BOTH, "b": MemberSpec(frozenset({GONE}))}))
    with pytest.raises(AssignmentError, match="do not exist"):
        SERVER_ASSIGNORS[name](group({"a": MemberSpec(frozenset({GONE}))}))


def test_range_cuts_each_topic_static_members_first() -> None:
    members = {"a": BOTH, "z": BOTH._replace(instance_id="i2"), "y": BOTH._replace(instance_id="i1")}
    assert SERVER_ASSIGNORS["range"](group(members, one=4, two=2)) == {
        "y": {ONE: (0, 1), TWO: (0,)},
        "z": {ONE: (2,), TWO: (1,)},
        "a": {ONE: (3,)},
    }


def test_range_assigns_only_to_subscribers() -> None:
    members = {"a": BOTH, "b": ONLY_ONE, "c": ONLY_TWO}
    assert SERVER_ASSIGNORS["range"](group(members, {"b": {ONE: (0, 1, 2)}})) == {
        "a": {ONE: (0, 1), TWO: (0, 1)},
        "b": {ONE: (2,)},
        "c": {TWO: (2,)},
    }


def test_uniform_counts_over_all_topics() -> None:
    assert uniform({"b": BOTH, "a": BOTH}, one=3, two=2) == {"a": {ONE: (0, 1, 2)}, "b": {TWO: (0, 1)}}
    assert uniform({"a": BOTH, "b": BOTH, "c": BOTH}, one=1, two=1) == {"a": {ONE: (0,)}, "b": {TWO: (0,)}, "c": {}}


def test_a_newcomer_takes_no_more_than_its_share() -> None:
    before: dict[str, Assignment] = {"a": {ONE: (0, 1, 2)}, "b": {TWO: (0, 1, 2)}}
    assert uniform({"a": BOTH, "b": BOTH, "c": BOTH}, before) == {
        "a": {ONE: (0, 1)},
        "b": {TWO: (0, 1)},
        "c": {ONE: (2,), TWO: (2,)},
    }


def test_members_with_more_partitions_keep_the_larger_shares() -> None:
    before: dict[str, Assignment] = {"a": {ONE: (0, 1)}, "b": {TWO: (0, 1)}, "c": {ONE: (2,), TWO: (2,)}}
    assert uniform(dict.fromkeys("abcd", BOTH), before) == {
        "a": {ONE: (0, 1)},
        "b": {TWO: (0, 1)},
        "c": {ONE: (2,)},
        "d": {TWO: (2,)},
    }


def test_the_partitions_of_a_member_that_left_are_shared() -> None:
    before: dict[str, Assignment] = {"a": {ONE: (0, 1)}, "b": {ONE: (2,), TWO: (0,)}, "c": {TWO: (1, 2)}}
    assert uniform({"a": BOTH, "c": BOTH}, before) == {"a": {ONE: (0, 1, 2)}, "c": {TWO: (0, 1, 2)}}


def test_new_partitions_go_to_the_members_with_the_fewest() -> None:
    before: dict[str, Assignment] = {"a": {ONE: (0, 1)}, "b": {TWO: (0,)}}
    assert uniform({"a": BOTH, "b": BOTH}, before, one=3, two=2) == {"a": {ONE: (0, 1)}, "b": {ONE: (2,), TWO: (0, 1)}}


def test_a_recreated_topic_is_another_topic() -> None:
    assert uniform({"a": ONLY_ONE, "b": ONLY_ONE}, {"b": {GONE: (0, 1, 2)}}, one=2) == {"a": {ONE: (0,)}, "b": {ONE: (1,)}}


def test_invalid_previous_assignments_are_repaired() -> None:
    before: dict[str, Assignment] = {"b": {ONE: (0, 1)}, "a": {ONE: (1, 7)}}
    assert uniform({"b": ONLY_ONE, "a": ONLY_ONE}, before) == {"a": {ONE: (1, 2)}, "b": {ONE: (0,)}}


def test_different_subscriptions_are_evened_out() -> None:
    members = {"a": BOTH, "b": ONLY_ONE, "c": ONLY_TWO}
    assert uniform(members) == {"a": {ONE: (0, 2)}, "b": {ONE: (1,)}, "c": {TWO: (0, 1, 2)}}
    before: dict[str, Assignment] = {"a": {ONE: (0, 1, 2), TWO: (0, 1)}, "b": {}, "c": {TWO: (2,)}}
    assert uniform(members, before) == {"a": {ONE: (0,), TWO: (0,)}, "b": {ONE: (1, 2)}, "c": {TWO: (1, 2)}}


@pytest.mark.parametrize("members", [{"a": BOTH, "b": BOTH}, {"a": BOTH, "b": ONLY_ONE, "c": ONLY_TWO}], ids=["same", "mixed"])
def test_an_unchanged_assignment_is_the_same_object(members: dict[str, MemberSpec]) -> None:
    first = SERVER_ASSIGNORS["uniform"](group(members))
    second = SERVER_ASSIGNORS["uniform"](group(members, first))
    assert [second[member] is first[member] for member in members] == [True] * len(members)


def test_a_checked_assignment_is_normalized() -> None:
    asked = group({"a": BOTH, "b": ONLY_ONE, "c": BOTH}, {"c": {TWO: (0, 2)}})
    answer = checked(asked, {"a": {ONE: [2, 0], TWO: []}, "c": {TWO: {2, 0}}})
    assert answer == {"a": {ONE: (0, 2)}, "b": {}, "c": {TWO: (0, 2)}}
    assert answer["c"] is asked.assignments["c"]


def test_numbers_of_other_libraries_are_numbers() -> None:
    import numpy as np

    answer = checked(group({"a": BOTH}), {"a": {ONE: np.array([2, 0])}})
    assert answer == {"a": {ONE: (0, 2)}}
    assert {type(number) for number in answer["a"][ONE]} == {int}


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ({"x": {}}, "not in the group: x"),
        ({"b": {TWO: [0]}}, "member b partitions of topic two, which it did not subscribe to"),
        ({"b": {GONE: [0]}}, "did not subscribe"),
        ({"b": {ONE: [3]}}, r"partitions \[3\] of one, which has partitions 0 to 2"),
        ({"b": {ONE: [-1]}}, "0 to 2"),
        ({"b": {ONE: ["1"]}}, "0 to 2"),
        (None, "the assignor returned None, not a mapping from member ids to partitions"),
        ("a", "the assignor returned 'a', not a mapping"),
        ({5: {}}, "not in the group: 5"),
        ({"a": None}, "the assignor gave member a None, not a mapping from topic ids to partitions"),
        ({"a": [0]}, r"the assignor gave member a \[0\], not a mapping"),
        ({"a": {ONE: None}}, "the assignor gave member a None, not partitions of one"),
        ({"a": {ONE: "01"}}, "the assignor gave member a '01', not partitions of one"),
        ({"a": {"one": [0]}}, "member a partitions of topic one, which it did not subscribe to"),
        ({"a": {ONE: [0, 1]}, "b": {ONE: [1]}}, r"partitions \[1\] of one, which it gave to another member as well"),
    ],
)
def test_an_invalid_assignment_is_refused(answer: Any, wrong: str) -> None:
    with pytest.raises(AssignmentError, match=wrong):
        checked(group({"a": BOTH, "b": ONLY_ONE}), answer)
