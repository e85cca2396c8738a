"""The end of fetching: nothing behind it is asked for, and little of it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from ottla.client.subscription import FetchEnd, RangeSizes
from tests.example_counts import examples


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), min_size=1, max_size=60),
    st.data(),
    st.sampled_from([200, 20_000, 4 << 20]),
    st.none() | st.builds(RangeSizes, st.integers(0, 100_000), st.floats(0, 5_000), st.integers(1, 5_000)),
)
@settings(max_examples=examples(300))
def test_at_most_twice_the_range_and_a_batch_are_fetched(
    batches: list[tuple[int, int]], data: st.DataObject, most: int, before: RangeSizes | None
) -> None:
    """``batches`` have a number of records, and bytes. A response has as many as fit, and at least one. If the records have less
    than 16 bytes each, or 16 KiB in all, that much arrives; and as much as for the range ``before``, if its sizes mislead."""
    places = [0]
    for count, _ in batches:
        places.append(places[-1] + count)
    end = data.draw(st.integers(1, places[-1]))
    needed = [size for place, (_, size) in zip(places, batches, strict=False) if place < end]
    limits, position, total = FetchEnd(0, end, before), 0, 0
    while position < end:
        limit, taken = min(most, limits.limit(position)), 0
        number = places.index(position)
        while number < len(batches) and (not taken or taken + batches[number][1] <= limit):
            taken += batches[number][1]
            number += 1
        offsets = places[number] - position
        position, total = places[number], total + taken
        limits.fetched(taken, batches[number - 1][1], offsets)
    learnt = 0 if before is None else before.fetched
    assert total <= max(2 * sum(needed), 16 * end, 16 << 10, learnt) + max(size for _, size in batches)


def test_the_bytes_of_a_record_are_learnt() -> None:
    end = FetchEnd(1_000, 3_000)
    assert end.limit(1_000) == 32_000
    end.fetched(40_000, 20_000, 100)  # 400 bytes a record
    assert end.limit(1_100) == 40_000
    end.fetched(40_000, 20_000, 100)
    assert end.limit(1_200) == 80_000
    end.fetched(240_000, 20_000, 600)
    assert end.limit(1_800) == 320_000
    assert end.limit(2_900) == 20_000, "a whole batch"


def test_the_next_range_of_a_topic_needs_one_fetch() -> None:
    first = FetchEnd(0, 500)
    for _ in range(4):
        first.fetched(20_000, 20_000, 150)
    before = first.sizes()
    assert before.record == pytest.approx(133.3, abs=0.1)
    assert FetchEnd(500, 1_000, before).limit(500) == 80_000, "500 records, and what is left of the batches at both ends"
    assert FetchEnd(500, 600, before).limit(500) == 16_384, "a part of one batch, which comes whole"
    assert FetchEnd(500, 50_000, before).limit(500) == 49_500 * 16, "no guess beyond what was fetched before"
