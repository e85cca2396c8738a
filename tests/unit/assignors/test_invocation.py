"""Calls of assignors: normalized assignments, and the complete assignment of a consumer group at once."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ottla.assignors import (
    ASSIGNORS,
    Cluster,
    ConsumerPartitionAssignor,
    MemberAssignment,
    MemberSubscription,
    RebalanceProtocol,
)
from ottla.assignors.invocation import InvalidAssignment, assign, assign_whole
from ottla.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Answering(ConsumerPartitionAssignor):
    name = "answering"

    def __init__(self, *answers: Any, protocol: RebalanceProtocol = RebalanceProtocol.EAGER) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, MemberSubscription]] = []
        self.protocol = protocol

    def supported_protocols(self) -> Sequence[RebalanceProtocol]:
        return (self.protocol,)

    def assign(self, cluster: Cluster, members: Mapping[str, MemberSubscription]) -> Any:
        self.asked.append(members)
        return self.answers[len(self.asked) - 1]


CLUSTER = Cluster({"t": 2})
MEMBERS = {"a": MemberSubscription(("t",), owned=(T0, T1), generation=3), "b": MemberSubscription(("t",))}


class Index:
    """An integer of another library."""

    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("share", "plain"),
    [
        ([T0], MemberAssignment((T0,))),
        (iter([("t", 0), ("t", Index())]), MemberAssignment((T0, T1))),
        (MemberAssignment((T0,), b"x"), MemberAssignment((T0,), b"x")),
        (MemberAssignment((T0,), bytearray(b"x")), MemberAssignment((T0,), b"x")),  # type: ignore[arg-type]
    ],
)
def test_accepted_forms_are_normalized(share: Any, plain: MemberAssignment) -> None:
    assert assign(Answering({"a": share}), CLUSTER, MEMBERS) == {"a": plain}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        3,
        [("a", [T0])],
        {"a": None},
        {"a": 3},
        {"a": ["t"]},
        {"a": [("t",)]},
        {"a": [("t", 0, 1)]},
        {"a": [(b"t", 0)]},
        {"a": [("t", "0")]},
        {"a": [("t", [0])]},
        {"a": [("t", 0.0)]},
        {1: [T0]},
        {"a": MemberAssignment((T0,), "x")},  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_an_invalid_assignment_is_named(answer: Any) -> None:
    with pytest.raises(InvalidAssignment):
        assign(Answering(answer), CLUSTER, MEMBERS)


async def _later() -> None:
    """``async def assign`` returns a coroutine, which is not an assignment."""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, r"returned None from assign\(\), not a mapping from member ids to partitions"),
        ("a", r"returned 'a' from assign\(\), not a mapping"),
        ({"a": None}, "gave member a None, not a collection of TopicPartitions"),
        ({"a": "t-0"}, "gave member a 't-0', not a collection of TopicPartitions"),
        ({"a": T0}, "gave member a 't', which is not a TopicPartition"),
        ({"a": [("t", -1)]}, "gave member a partition -1 of t: partitions are numbered from 0 to 2147483647"),
        ({"a": [("t", 2**31)]}, "gave member a partition 2147483648 of t: partitions are numbered"),
        ({"a": [("\ud800", 0)]}, "which is not a TopicPartition"),
        ({"a": MemberAssignment((), "x")}, "gave member a user data that is not bytes: 'x'"),  # type: ignore[arg-type]
        ({1: [T0]}, "named the member 1: a member id is a string"),
    ],
)
def test_an_invalid_assignment_is_named_with_the_member(answer: Any, expected: str) -> None:
    with pytest.raises(InvalidAssignment, match=expected):
        assign(Answering(answer), CLUSTER, MEMBERS)


def test_a_coroutine_is_an_invalid_assignment_and_leaves_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidAssignment, match="returned <coroutine object"):
            assign(Answering(_later()), CLUSTER, MEMBERS)


def test_a_cooperative_assignor_is_called_again_as_if_partitions_were_revoked() -> None:
    assignor = Answering({"a": [T0]}, {"a": [T0], "b": [T1]}, protocol=RebalanceProtocol.COOPERATIVE)
    assert assign_whole(assignor, CLUSTER, MEMBERS) == {"a": MemberAssignment((T0,)), "b": MemberAssignment((T1,))}
    assert [members["a"].owned for members in assignor.asked] == [(T0, T1), (T0,)]
    assert assignor.asked[1]["b"] == MEMBERS["b"]


@pytest.mark.parametrize(
    ("answer", "protocol"),
    [({"a": [T0]}, RebalanceProtocol.EAGER), ({"a": [T0], "b": [T1]}, RebalanceProtocol.COOPERATIVE)],
    ids=["eager", "nothing left out"],
)
def test_any_other_assignor_is_called_once(answer: Any, protocol: RebalanceProtocol) -> None:
    assignor = Answering(answer, protocol=protocol)
    assign_whole(assignor, CLUSTER, MEMBERS)
    assert len(assignor.asked) == 1


@given(st.sampled_from(sorted(ASSIGNORS)), st.integers(1, 6), st.integers(0, 12), st.integers(0, 2**32))
def test_ottlas_assignors_assign_every_partition_once_for_any_previous_owners(
    name: str, members: int, count: int, seed: int
) -> None:
    random_source = random.Random(seed)
    ids = [f"m{number}" for number in range(members)]
    owned: dict[str, list[TopicPartition]] = {one: [] for one in ids}
    for number in range(count):
        owned[random_source.choice(ids)].append(TopicPartition("t", number))
    group = {one: MemberSubscription(("t",), owned=tuple(owned[one]), generation=random_source.choice([4, 5])) for one in ids}
    answer = assign_whole(ASSIGNORS[name](), Cluster({"t": count}), group)
    given_out = sorted(tp.partition for share in answer.values() for tp in share.partitions)
    assert given_out == list(range(count))
    sizes = [len(answer[one].partitions) for one in ids]
    assert max(sizes) - min(sizes) <= 1
    if "sticky" in name:
        least = count // members
        for one in ids:
            assert len(set(answer[one].partitions) & set(owned[one])) >= min(len(owned[one]), least)
