"""Rate limit, splitting and packing on examples small enough to check by hand."""

from ottla.spark.planning import (
    Bounds,
    OffsetRange,
    Share,
    UnboundTask,
    limit_ends,
    pack_ranges,
    plan_tasks,
    plan_unbound_tasks,
    ranges_between,
    split_ranges,
)
from ottla.types import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)


def a(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("a", partition, start, end)


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    assert limit_ends({A: 0, B: 5}, {A: 10, B: 15}, 20) == {A: 10, B: 15}


def test_partitions_share_a_limit_in_proportion_to_their_backlog() -> None:
    assert limit_ends({A: 0, B: 1000}, {A: 901, B: 1101}, 102) == {A: 91, B: 1011}


def test_a_small_partition_is_not_starved() -> None:
    assert limit_ends({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


def test_with_fewer_records_than_partitions_those_with_most_waiting_come_first() -> None:
    assert limit_ends({A: 0, B: 0, C: 0}, {A: 5, B: 7, C: 6}, 2) == {A: 0, B: 1, C: 1}


def test_a_partition_cut_off_before_its_start_keeps_its_end() -> None:
    assert limit_ends({A: 100, B: 0}, {A: 40, B: 10}, 3) == {A: 40, B: 3}


def test_a_range_is_cut_where_it_is_largest() -> None:
    assert split_ranges([a(0, 90), a(0, 10, 1)], 4) == [a(0, 30), a(30, 60), a(60, 90), a(0, 10, 1)]


def test_no_piece_is_empty() -> None:
    assert split_ranges([a(5, 7)], 10) == [a(5, 6), a(6, 7)]


def test_ranges_are_packed_into_tasks_of_like_size() -> None:
    ranges = [a(0, 60, 0), a(0, 30, 1), a(0, 30, 2), a(0, 10, 3), a(0, 50, 4)]
    tasks = pack_ranges(ranges, 2)
    assert sorted(sum(each.size for each in task) for task in tasks) == [90, 90]
    assert sorted(each for task in tasks for each in task) == sorted(ranges)


def test_pieces_of_one_partition_never_share_a_task() -> None:
    tasks = pack_ranges([a(0, 5), a(5, 10), a(10, 15), a(0, 1, 1)], 2)
    assert len(tasks) == 3
    assert all(len({each.partition for each in task}) == len(task) for task in tasks)


def test_default_number_of_tasks() -> None:
    small = [a(0, 10, number) for number in range(8)]
    large = [a(0, 1_000_000, number) for number in range(8)]
    assert len(plan_tasks(small, min_partitions=None, max_partitions=None, max_records=None, cores=2)) == 2
    assert len(plan_tasks(large, min_partitions=None, max_partitions=None, max_records=None, cores=2)) == 8
    assert len(plan_tasks(small, min_partitions=None, max_partitions=None, max_records=None, cores=64)) == 8


def test_the_tasks_of_a_large_batch_are_a_multiple_of_the_cores() -> None:
    for records, tasks in ((1_500_000, 2), (3_000_000, 2), (4_000_000, 4), (7_900_000, 6)):
        ranges = [a(0, records // 8, partition) for partition in range(8)]
        assert len(plan_tasks(ranges, min_partitions=None, max_partitions=None, max_records=None, cores=2)) == tasks


def test_min_and_max_partitions_set_the_number_of_tasks() -> None:
    ranges = [a(0, 10, number) for number in range(4)]
    assert len(plan_tasks(ranges, min_partitions=7, max_partitions=None, max_records=None, cores=2)) == 7
    assert len(plan_tasks(ranges, min_partitions=None, max_partitions=3, max_records=None, cores=64)) == 3
    assert len(plan_tasks(ranges, min_partitions=3, max_partitions=3, max_records=None, cores=1)) == 3


def test_the_most_records_of_a_task() -> None:
    ranges = [a(0, 25), a(0, 10, 1), a(0, 1, 2)]
    tasks = plan_tasks(ranges, min_partitions=None, max_partitions=None, max_records=10, cores=1)
    assert tasks == [(a(0, 8),), (a(8, 16),), (a(16, 25),), (a(0, 10, 1),), (a(0, 1, 2),)]
    assert len(plan_tasks(ranges, min_partitions=9, max_partitions=None, max_records=10, cores=1)) == 9


def test_an_empty_range_is_no_task() -> None:
    assert plan_tasks([a(3, 3), a(4, 3, 1)], min_partitions=2, max_partitions=None, max_records=None, cores=2) == []


def test_ranges_between_starts_and_ends() -> None:
    assert ranges_between({A: 1, B: 9, C: 4}, {A: 3, B: 2, C: 4}) == [OffsetRange("a", 0, 1, 3)]


def open_tasks(bounds: Bounds, least: int | None = None, most: int | None = None, cores: int = 2) -> list[UnboundTask]:
    return plan_unbound_tasks(bounds, min_partitions=least, max_partitions=most, max_records=None, cores=cores)


def test_a_share_is_open_where_the_batch_begins_and_ends() -> None:
    tasks = open_tasks(Bounds({A: (10, 40)}), least=3)
    assert [task.shares for task in tasks] == [
        (Share("a", 0, None, 20),),
        (Share("a", 0, 20, 30),),
        (Share("a", 0, 30, None),),
    ]
    later = Bounds({A: (15, 100)})
    assert [task.ranges(later) for task in tasks] == [(a(15, 20),), (a(20, 30),), (a(30, 100),)]
    assert [task.ranges(Bounds({A: (35, 100)})) for task in tasks] == [(), (), (a(35, 100),)]


def test_empty_partitions_have_their_shares() -> None:
    empty = Bounds({TopicPartition("a", number): (0, 0) for number in range(4)})
    tasks = open_tasks(empty)
    assert len(tasks) == 2
    assert [task.ranges(empty) for task in tasks] == [(), ()]
    filled = Bounds(dict.fromkeys(empty.offsets, (0, 5)))
    assert [len(task.ranges(filled)) for task in tasks] == [2, 2]


def test_partitions_that_are_new_belong_to_one_task_each() -> None:
    tasks = open_tasks(Bounds({A: (0, 5), B: (0, 5), C: (0, 5)}), cores=3)
    names = [TopicPartition(topic, number) for topic in ("a", "b", "new") for number in range(20)]
    later = Bounds(dict.fromkeys(names, (0, 9)))
    found = [each.topic_partition for task in tasks for each in task.ranges(later)]
    assert sorted(found) == sorted(names)
    assert all(task.ranges(later) for task in tasks)


def test_a_pattern_that_matches_nothing_yet_has_a_task() -> None:
    [task] = open_tasks(Bounds({}))
    assert task.ranges(Bounds({})) == ()
    assert task.ranges(Bounds({A: (0, 3)})) == (a(0, 3),)


def test_a_partition_that_is_gone_is_not_read() -> None:
    [first, second] = open_tasks(Bounds({A: (0, 5), B: (0, 5)}))
    later = Bounds({A: (0, 6)})
    assert [first.ranges(later), second.ranges(later)] == [(a(0, 6),), ()]


def test_ranges_have_the_ids_of_the_topics_to_which_the_bounds_belong() -> None:
    new = TopicPartition("new", 0)
    planned = Bounds({A: (0, 5), B: (0, 5)}, {"a": "before", "b": "b's"})
    assert planned.ranges() == [OffsetRange(*A, 0, 5, "before"), OffsetRange(*B, 0, 5, "b's")]
    later = Bounds({A: (0, 3), B: (0, 5), new: (0, 1)}, {"a": "after", "new": "new's"})
    found = [each for task in open_tasks(planned) for each in task.ranges(later)]
    assert sorted((each.topic, each.topic_id) for each in found) == [("a", "after"), ("b", None), ("new", "new's")]
