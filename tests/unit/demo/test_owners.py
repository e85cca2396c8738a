"""The history of a partition's owners."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from ottla.demo.dispatch import Owners, OwnershipPeriod


def test_a_kill_leaves_an_orphan_until_the_next_assignment() -> None:
    owners = Owners(2)
    owners.assigned("a", [0], 1.0)
    owners.assigned("b", [1], 1.0)
    owners.died("b", 5.0)
    assert owners.current() == {0: "a"}
    assert not owners.all_owned_by(["a"])
    owners.revoked("a", [0], 11.0)
    owners.assigned("a", [0, 1], 11.5)
    assert owners.all_owned_by(["a"])
    owners.close(20.0)
    assert sorted(owners.periods) == [
        OwnershipPeriod(0, "a", 1.0, 11.0),
        OwnershipPeriod(0, "a", 11.5, 20.0),
        OwnershipPeriod(1, "a", 11.5, 20.0),
        OwnershipPeriod(1, "b", 1.0, 5.0),
        OwnershipPeriod(1, "b", 5.0, 11.5, orphan=True),
    ]


def test_all_owned_needs_each_member_to_own_something() -> None:
    owners = Owners(2)
    owners.assigned("a", [0, 1], 1.0)
    assert owners.all_owned_by(["a"])
    assert not owners.all_owned_by(["a", "b"])


def test_a_member_cannot_revoke_partitions_of_another() -> None:
    owners = Owners(1)
    owners.assigned("a", [0], 1.0)
    owners.revoked("b", [0], 2.0)
    assert owners.current() == {0: "a"}


@given(st.lists(st.tuples(st.sampled_from(["assigned", "revoked", "died"]), st.sampled_from("abc"), st.integers(0, 3))))
def test_periods_of_a_partition_never_overlap(moves: list[tuple[str, str, int]]) -> None:
    owners = Owners(4)
    for at, (move, member, partition) in enumerate(moves):
        if move == "died":
            owners.died(member, float(at))
        elif move == "revoked":
            owners.revoked(member, [partition], float(at))
        else:
            if partition in owners.current():
                owners.revoked(owners.current()[partition], [partition], float(at))
            owners.assigned(member, [partition], float(at))
    owners.close(float(len(moves)))
    assert owners.current() == {}
    for partition in range(4):
        history = sorted(
            (period for period in owners.periods if period.partition == partition),
            key=lambda period: period.start,
        )
        assert all(period.start <= period.end for period in history)
        assert all(before.end <= after.start for before, after in pairwise(history))
