"""Who reads what, and the sums of that."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ottla.comparison.history import History


def test_a_group_is_shared_when_each_partition_has_a_live_member_and_each_member_a_partition() -> None:
    history = History(3)
    history.started("a", 0)
    history.assigned("a", (0, 1), 1)
    assert not history.is_shared()
    history.assigned("a", (2,), 2)
    assert history.is_shared()
    history.started("b", 3)
    assert not history.is_shared()
    history.given_up("a", (2,), 4)
    history.assigned("b", (2,), 5)
    assert history.is_shared()
    assert history.owners == {0: "a", 1: "a", 2: "b"}
    history.ended("a", 6)
    assert not history.is_shared()
    history.assigned("b", (0, 1), 7)
    assert history.is_shared()
    history.added(4, 8)
    assert not history.is_shared()


def test_partitions_are_unread_between_their_members() -> None:
    history = History(3)
    history.started("a", 0)
    history.assigned("a", (0, 1, 2), 1)
    history.given_up("a", (1, 2), 4)
    history.assigned("a", (1,), 5)
    history.ended("a", 10)
    assert history.unread(0, 1) == 3
    assert history.unread(1, 4) == 0
    assert history.unread(4, 5) == 2
    assert history.unread(4.5, 7) == pytest.approx(1 + 2)
    assert history.unread(9, 12) == pytest.approx(1 + 6)


def test_reports_whose_times_go_back_by_milliseconds() -> None:
    history = History(2)
    history.started("a", 0)
    history.started("b", 0)
    history.assigned("a", (0, 1), 1.0)
    history.given_up("a", (1,), 5.002)
    history.assigned("b", (1,), 5.001)
    assert history.unread(1, 9) == 0
    assert [reading.at for reading in history.readings] == sorted(reading.at for reading in history.readings)


def test_only_a_change_of_an_owner_is_a_change() -> None:
    history = History(1)
    history.started("a", 0)
    history.assigned("a", (0,), 1)
    changes = history.changes
    history.assigned("a", (), 2)
    history.assigned("a", (0,), 2)
    history.given_up("a", (), 3)
    history.given_up("b", (0,), 3)
    assert history.changes == changes


def test_partitions_that_are_added_are_unread_until_they_are_assigned() -> None:
    history = History(1)
    history.started("a", 0)
    history.assigned("a", (0,), 0)
    history.added(3, 10)
    history.assigned("a", (1, 2), 10.5)
    assert history.unread(0, 20) == pytest.approx(1)


def test_what_a_killed_member_reports_late_does_not_count() -> None:
    history = History(1)
    history.started("a", 0)
    history.assigned("a", (0,), 0)
    history.ended("a", 1)
    history.started("b", 2)
    history.assigned("b", (0,), 3)
    history.given_up("a", (0,), 4)
    history.assigned("a", (0,), 5)
    assert history.owners == {0: "b"}


def test_records_that_are_handled_twice() -> None:
    history = History(2)
    history.handled(0, (0, 1, 2))
    history.handled(0, (2, 3))
    history.handled(1, (2,))
    history.handled(0, (2,))
    assert history.distinct == 5
    assert history.repeated == 2


def test_only_commits_that_were_asked_for_since_count() -> None:
    history = History(2)
    history.started("a", 0)
    history.started("b", 0)
    history.committed("a", 5)
    history.committed("b", 6)
    history.committed("a", 3)  # an answer that comes late
    assert history.have_committed(4)
    assert not history.have_committed(5)
    history.ended("a", 7)
    assert history.have_committed(5)


changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.sets(st.integers(0, 3)), st.floats(0, 2)), min_size=1, max_size=20
)


@given(changes, st.floats(0, 1))
def test_the_unread_time_of_two_parts_is_that_of_the_whole(events: list[tuple[str, bool, set[int], float]], part: float) -> None:
    history, at = History(4), 0.0
    for member in "abc":
        history.started(member, at)
    for member, gets, partitions, wait in events:
        at += wait
        (history.assigned if gets else history.given_up)(member, partitions, at)
    middle, end = at * part, at + 1
    assert history.unread(0, middle) + history.unread(middle, end) == pytest.approx(history.unread(0, end))
    assert 0 <= history.unread(0, end) <= 4 * end + 1e-9
