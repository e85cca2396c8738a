"""Timers by key."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ottla.broker.timers import Timers

steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(0, 100)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 100)),
    ),
    max_size=200,
)


@given(steps)
def test_timers_are_a_map_of_deadlines(todo: list[tuple[str, int, int]]) -> None:
    timers = Timers()
    model: dict[tuple[int], int] = {}
    for kind, number, at in todo:
        if kind == "set":
            timers.set((number,), at)
            model[number,] = at
        elif kind == "cancel":
            timers.cancel((number,))
            model.pop((number,), None)
        else:
            popped = timers.pop_due(at)
            due = {key for key, deadline in model.items() if deadline == min(model.values()) and deadline <= at}
            assert (popped in due) if due else (popped is None)
            if popped is not None:
                del model[popped]
        assert timers.next_at() == (min(model.values()) if model else None)
        assert len(timers) == len(model)


def test_a_timer_that_moves_all_the_time_takes_no_room() -> None:
    timers = Timers()
    for at in range(10_000):
        timers.set(("session",), at)
    assert len(timers._heap) < 100
    assert timers.pop_due(9_998) is None
    assert timers.pop_due(9_999) == ("session",)
