"""For any offsets: limits hold, each record is planned once, offsets survive JSON, lost and remaining ones make up the range."""

import json
from collections import Counter
from random import Random

from hypothesis import given, strategies as st

from ottla.spark.data_loss import losses_in_range
from ottla.spark.offsets import StreamOffset, from_json, to_json
from ottla.spark.planning import Bounds, OffsetRange, limit_ends, plan_tasks, plan_unbound_tasks, ranges_between
from ottla.types import TopicPartition

PARTITIONS = st.builds(TopicPartition, st.text("ab._-9", min_size=1, max_size=4), st.integers(0, 12))
POSITIONS = st.integers(0, 2**62)
OFFSETS = st.dictionaries(PARTITIONS, POSITIONS, max_size=8)
POINTS = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 1000), st.integers(-50, 5000)), min_size=1, max_size=8)
RANGES = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 10**6), st.integers(0, 500)), max_size=10).map(
    lambda found: [OffsetRange(*tp, start, start + size) for tp, (start, size) in found.items()]
)


@given(OFFSETS, st.none() | OFFSETS, st.none() | st.integers(1, 256))
def test_offsets_come_back_from_json(
    positions: dict[TopicPartition, int], first: dict[TopicPartition, int] | None, cores: int | None
) -> None:
    point = StreamOffset(positions, first, cores=cores)
    assert StreamOffset.from_json(json.loads(json.dumps(point.to_json()))) == point
    backwards = dict(reversed(positions.items()))
    assert json.dumps(to_json(backwards)) == json.dumps(to_json(positions))
    assert from_json(to_json(positions), "test") == positions


@given(POINTS, st.integers(1, 3000))
def test_a_limit_is_used_up_and_never_exceeded(points: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    starts = {tp: start for tp, (start, _) in points.items()}
    ends = {tp: start + size for tp, (start, size) in points.items()}
    limited = limit_ends(starts, ends, limit)
    waiting = {tp: size for tp, (_, size) in points.items() if size > 0}
    granted = {tp: limited[tp] - starts[tp] for tp in waiting}
    assert sum(granted.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= granted[tp] <= waiting[tp] for tp in waiting)
    assert all(limited[tp] == ends[tp] for tp in points if tp not in waiting)
    if limit >= len(waiting):
        assert all(granted.values())


@given(POINTS, st.integers(1, 3000))
def test_a_limited_stream_reaches_its_end(points: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    at = {tp: start for tp, (start, _) in points.items()}
    ends = {tp: start + size for tp, (start, size) in points.items()}
    batches = 0
    while at != ends:
        at = limit_ends(at, ends, limit)
        batches += 1
        assert batches <= 1 + sum(max(0, size) for _, size in points.values()) // limit


def _offsets(ranges: list[OffsetRange]) -> Counter[tuple[TopicPartition, int]]:
    return Counter((each.topic_partition, offset) for each in ranges for offset in range(each.start, each.end))


@given(RANGES, st.none() | st.integers(1, 20), st.none() | st.integers(1, 20), st.integers(1, 16))
def test_a_plan_holds_every_record_once(ranges: list[OffsetRange], least: int | None, most: int | None, cores: int) -> None:
    if least is not None and most is not None and least > most:
        least, most = most, least
    tasks = plan_tasks(ranges, min_partitions=least, max_partitions=most, max_records=None, cores=cores)
    assert _offsets([each for task in tasks for each in task]) == _offsets(ranges)
    assert all(task for task in tasks)
    assert all(each.size > 0 for task in tasks for each in task)
    assert all(len({each.topic_partition for each in task}) == len(task) for task in tasks)
    if most is not None:
        assert len(tasks) <= most
    if least is not None:
        assert len(tasks) >= min(least, sum(each.size for each in ranges))


BOUNDS = st.dictionaries(PARTITIONS, st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=10).map(
    lambda found: Bounds({tp: (start, start + size) for tp, (start, size) in found.items()})
)


@given(BOUNDS, st.lists(BOUNDS, min_size=1, max_size=4), st.none() | st.integers(1, 20), st.integers(1, 16), st.randoms())
def test_an_offset_belongs_to_one_task_in_every_execution(
    planned: Bounds, executions: list[Bounds], least: int | None, cores: int, random: Random
) -> None:
    tasks = plan_unbound_tasks(planned, min_partitions=least, max_partitions=None, max_records=None, cores=cores)
    for bounds in executions:
        found = [each for task in tasks for each in task.ranges(bounds)]
        assert _offsets(found) == _offsets([OffsetRange(*tp, *both) for tp, both in bounds.offsets.items()])
    assert [task for task in tasks if len({share[:2] for share in task.shares}) != len(task.shares)] == []
    mixed = [each for task in tasks for each in task.ranges(random.choice(executions))]
    assert all(count == 1 for count in _offsets(mixed).values())


@given(OFFSETS, OFFSETS)
def test_ranges_lie_between_the_points(starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
    ranges = ranges_between(starts, ends)
    assert {each.topic_partition for each in ranges} == {tp for tp in starts if ends.get(tp, -1) > starts[tp]}
    assert all((each.start, each.end) == (starts[each.topic_partition], ends[each.topic_partition]) for each in ranges)


@given(st.integers(0, 50), st.integers(1, 50), st.integers(0, 120), st.integers(0, 120))
def test_lost_and_remaining_offsets_make_up_the_range(start: int, size: int, begin: int, length: int) -> None:
    wanted = OffsetRange("t", 0, start, start + size)
    losses, left = losses_in_range(wanted, begin, begin + length)
    available = set(range(start, start + size)) & set(range(begin, begin + length))
    assert set(range(left.start, left.end) if left else ()) == available
    lost = [offset for loss in losses for offset in range(loss.start, loss.end)]
    assert sorted([*lost, *available]) == list(range(start, start + size))
