"""Which records a batch takes, and how Spark's tasks share them.

Owns the arithmetic on ranges of offsets: rate limit, splitting, packing, and the shares of tasks whose ranges are settled later.
Must not know a cluster nor Spark. Invariants: what is planned covers every range exactly once; a limit is never exceeded; equal
input gives an equal plan.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
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

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""Partition -> the offset at which a batch begins in it, and the one before which it ends."""


class Share(NamedTuple):
    """The part of one partition that belongs to one task, from offset ``low`` up to, and without, ``high``; ``None`` is where the
    batch itself begins or ends, wherever that will be."""

    topic: str
    partition: int
    low: int | None = None
    high: int | None = None


class UnboundTask(NamedTuple):
    """What one Spark task reads of a batch whose bounds are settled by each execution.

    Each offset belongs to the same task under any bounds. Spark may have computed the blocks of a cached DataFrame in different
    executions: they hold no record twice, and leave none out between them.
    """

    shares: tuple[Share, ...]
    number: int
    tasks: int
    """This task's number, from 0 on, and how many there are."""
    known: dict[str, int]
    """The partitions of each topic that have their tasks, as a bit mask, the same in each task. Any other is given to a task by
    its name."""

    def ranges(self, bounds: Bounds) -> Task:
        """The ranges that this task reads within ``bounds``. A partition that is not in ``bounds`` has none."""
        shares = list(self.shares)
        for tp in sorted(bounds):
            is_new = not self.known.get(tp.topic, 0) >> tp.partition & 1
            if is_new and zlib.crc32(str(tp).encode()) % self.tasks == self.number:
                shares.append(Share(*tp))
        ranges = []
        for topic, partition, low, high in shares:
            start, end = bounds.get(TopicPartition(topic, partition), (0, 0))
            start, end = max(start, low or 0), end if high is None else min(end, high)
            if start < end:
                ranges.append(OffsetRange(topic, partition, start, end))
        return tuple(ranges)


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
    return _share_out(filled, min_partitions=min_partitions, max_partitions=max_partitions, cores=cores)


def plan_unbound_tasks(bounds: Bounds, *, min_partitions: int | None, max_partitions: int | None, cores: int) -> list[UnboundTask]:
    """Share out what lies within ``bounds`` in the same way, for tasks that will read within other bounds; at least one task.

    Empty partitions have their share, too, since they may fill up.
    """
    ranges = [OffsetRange(*tp, *bounds[tp]) for tp in sorted(bounds)]
    planned = _share_out(ranges, min_partitions=min_partitions, max_partitions=max_partitions, cores=cores) or [()]
    known: dict[str, int] = {}
    for tp in bounds:
        known[tp.topic] = known.get(tp.topic, 0) | 1 << tp.partition
    shares = [tuple(_share(piece, *bounds[piece.topic_partition]) for piece in pieces) for pieces in planned]
    return [UnboundTask(of_task, number, len(shares), known) for number, of_task in enumerate(shares)]


def _share(piece: OffsetRange, start: int, end: int) -> Share:
    """The share that ``piece`` of a range from ``start`` to ``end`` is: open where the range begins, and where it ends."""
    low = None if piece.start == start else piece.start
    return Share(piece.topic, piece.partition, low, None if piece.end == end else piece.end)


def _share_out(ranges: list[OffsetRange], *, min_partitions: int | None, max_partitions: int | None, cores: int) -> list[Task]:
    records = sum(each.size for each in ranges)
    most = max_partitions or max(cores, min_partitions or 1, records // RECORDS_PER_TASK)
    if min_partitions is not None and len(ranges) < min_partitions:
        ranges = split_ranges(ranges, min_partitions)
    return pack_ranges(ranges, most)


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
    tasks: list[list[OffsetRange]] = [[] for _ in range(max(most, _max_pieces_per_partition(ranges)))]
    lightest = [(0, 0, number) for number in range(len(tasks))]  # records, pieces
    for each in sorted(ranges, key=lambda each: (-each.size, each)):
        passed = []
        while any(other.topic_partition == each.topic_partition for other in tasks[lightest[0][2]]):
            passed.append(heapq.heappop(lightest))
        load, pieces, number = heapq.heappop(lightest)
        tasks[number].append(each)
        for entry in (*passed, (load + each.size, pieces + 1, number)):
            heapq.heappush(lightest, entry)
    return [tuple(task) for task in tasks]


def _max_pieces_per_partition(ranges: Iterable[OffsetRange]) -> int:
    counts: dict[TopicPartition, int] = {}
    for each in ranges:
        counts[each.topic_partition] = counts.get(each.topic_partition, 0) + 1
    return max(counts.values())


def ranges_between(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """What lies between two points, for the partitions that both know; a partition cut off before its start gives nothing."""
    known = ((tp, starts[tp], end) for tp, end in sorted(ends.items()) if tp in starts)
    return [OffsetRange(tp.topic, tp.partition, start, end) for tp, start, end in known if end > start]
