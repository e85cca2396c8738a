"""Which records a batch takes, and how Spark's tasks share them.

Owns the arithmetic on ranges of offsets: rate limit, splitting, packing. Must not know a cluster nor Spark. Invariants: what is
planned covers every range exactly once; a limit is never exceeded; equal input gives an equal plan.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.spark.offsets import Offsets
from ottla.types import TopicPartition

RECORDS_PER_TASK = 100_000
"""A task that reads fewer is more start-up than work."""


class OffsetRange(NamedTuple):
    """The records of one partition from offset ``start`` up to, and without, ``end``."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the records are."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Offsets in the range; as many records, unless compaction or transactions left gaps."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}"


Task = tuple[OffsetRange, ...]
"""What one Spark task reads: ranges of different partitions."""


def limit_ends(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """``ends`` drawn nearer so that at most ``limit`` records lie between ``starts`` and the result.

    Each partition gets its share in proportion to what waits in it, and at least one record where the limit allows, so that a
    small one is not starved by a large one. With fewer records than partitions those with most waiting come first. A partition
    whose end lies before its start, since it was cut off there, keeps that end. A partition without a start does not move.
    """
    waiting = {tp: ends[tp] - starts[tp] for tp in sorted(ends) if ends[tp] > starts.get(tp, ends[tp])}
    if sum(waiting.values()) <= limit:
        return dict(ends)
    largest_first = sorted(waiting, key=lambda tp: (-waiting[tp], tp))
    granted = dict.fromkeys(largest_first[:limit], 1)
    spare, beyond_first = limit - len(granted), sum(waiting.values()) - len(waiting)
    if spare:
        shares = {tp: divmod(spare * (waiting[tp] - 1), beyond_first) for tp in granted}
        for tp, (whole, _) in shares.items():
            granted[tp] += whole
        left_over = limit - sum(granted.values())
        for tp in sorted(shares, key=lambda tp: (-shares[tp][1], tp))[:left_over]:
            granted[tp] += 1
    return {tp: starts[tp] + granted.get(tp, 0) if tp in waiting else end for tp, end in ends.items()}


def plan_tasks(ranges: Iterable[OffsetRange], *, min_partitions: int | None, max_partitions: int | None, cores: int) -> list[Task]:
    """Share out ``ranges``: at least ``min_partitions`` tasks where there are as many records, at most ``max_partitions``.

    Not told how many at most, as many as the driver has ``cores``, or one for every 100,000 records where that is more: small
    batches are not drowned in tasks, large ones get one for each partition as with Spark's own connector.
    """
    filled = sorted(each for each in ranges if each.size > 0)
    records = sum(each.size for each in filled)
    most = max_partitions or max(cores, min_partitions or 1, records // RECORDS_PER_TASK)
    if min_partitions is not None and len(filled) < min_partitions:
        filled = split_ranges(filled, min_partitions)
    return pack_ranges(filled, most)


def split_ranges(ranges: Sequence[OffsetRange], pieces: int) -> list[OffsetRange]:
    """Cut ``ranges`` into ``pieces`` of like size, or into as many as there are records if those are fewer."""
    cuts = dict.fromkeys(ranges, 1)
    largest_piece: list[tuple[float, OffsetRange]] = [(-each.size, each) for each in ranges if each.size > 1]
    heapq.heapify(largest_piece)
    for _ in range(pieces - len(cuts)):
        if not largest_piece:
            break
        _, each = heapq.heappop(largest_piece)
        cuts[each] += 1
        if cuts[each] < each.size:
            heapq.heappush(largest_piece, (-each.size / cuts[each], each))
    return [piece for each, count in cuts.items() for piece in _cut(each, count)]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in itertools.pairwise(bounds)]


def pack_ranges(ranges: Sequence[OffsetRange], most: int) -> list[Task]:
    """At most ``most`` tasks of like size. Two pieces of one partition never meet in a task, even if that takes more tasks."""
    if len(ranges) <= most:
        return [(each,) for each in ranges]
    tasks: list[list[OffsetRange]] = [[] for _ in range(max(most, _most_pieces(ranges)))]
    lightest = [(0, number) for number in range(len(tasks))]
    for each in sorted(ranges, key=lambda each: (-each.size, each)):
        passed = []
        while any(other.topic_partition == each.topic_partition for other in tasks[lightest[0][1]]):
            passed.append(heapq.heappop(lightest))
        load, number = heapq.heappop(lightest)
        tasks[number].append(each)
        for entry in (*passed, (load + each.size, number)):
            heapq.heappush(lightest, entry)
    return [tuple(task) for task in tasks]


def _most_pieces(ranges: Iterable[OffsetRange]) -> int:
    counts: dict[TopicPartition, int] = {}
    for each in ranges:
        counts[each.topic_partition] = counts.get(each.topic_partition, 0) + 1
    return max(counts.values())


def ranges_between(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """What lies between two points, for the partitions that both know; a partition cut off before its start gives nothing."""
    known = ((tp, starts[tp], end) for tp, end in sorted(ends.items()) if tp in starts)
    return [OffsetRange(tp.topic, tp.partition, start, end) for tp, start, end in known if end > start]
