"""Log lines about clients: one per address and minute, and what is left out is counted."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from ottla.runtime.server import INTERVAL_MS, LogThrottle


def test_the_first_line_after_a_minute_counts_those_that_were_left_out() -> None:
    rate = LogThrottle()
    assert rate.admit("a", 1000) == 0
    assert [rate.admit("a", 1000 + late) for late in (0, 1, INTERVAL_MS - 1)] == [None] * 3
    assert rate.admit("b", 1001) == 0, "each address has its own"
    assert rate.admit("a", 1000 + INTERVAL_MS) == 3
    assert rate.admit("a", 1001 + INTERVAL_MS) is None
    assert rate.admit("a", 1000 + 2 * INTERVAL_MS) == 1


def test_what_nothing_more_comes_of_is_counted_when_it_is_forgotten() -> None:
    rate = LogThrottle()
    rate.admit("quiet", 0)
    rate.admit("loud", 0)
    rate.admit("loud", 1)
    assert list(rate.forget(INTERVAL_MS - 1)) == []
    assert list(rate.forget(2 * INTERVAL_MS - 1)) == []
    assert list(rate.forget(2 * INTERVAL_MS)) == [("loud", 1)]
    assert list(rate.forget(2 * INTERVAL_MS)) == []
    assert rate.admit("loud", 2 * INTERVAL_MS) == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, INTERVAL_MS))))
def test_each_is_written_or_counted_and_lines_are_a_minute_apart(events: list[tuple[str, int]]) -> None:
    rate, mono, counted = LogThrottle(), 0, 0
    written: dict[str, list[int]] = {"a": [], "b": []}
    for address, pause in events:
        mono += pause
        counted += sum(count for _, count in rate.forget(mono))
        left_out = rate.admit(address, mono)
        if left_out is not None:
            written[address].append(mono)
            counted += left_out
    counted += sum(count for _, count in rate.forget(mono + 2 * INTERVAL_MS))
    assert sum(map(len, written.values())) + counted == len(events)
    for times in written.values():
        assert all(later - earlier >= INTERVAL_MS for earlier, later in pairwise(times))
