"""The division of a batch between Spark's tasks, and its rate limit.

Owns the arithmetic on offset ranges: rate limit, splitting, packing, and the shares of tasks whose bounds are resolved later. Must
not know a cluster nor Spark. Invariants: a plan covers each offset of its ranges exactly once; a limit is never exceeded; equal
input gives equal plans.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.spark.offsets import Offsets, TopicIds
from ottla.types import FrozenMapping, TopicPartition

RECORDS_PER_TASK = 1_000_000
"""With fewer records, the start of a task takes longer than its work."""


class OffsetRange(NamedTuple):
    """The records of one partition from offset ``start`` to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """The id of the topic, which the task compares with that of the topic it reads; ``None`` if it is not known."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of offsets. There are fewer records if compaction or transactions left gaps."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.start} to {self.end}"


Task = tuple[OffsetRange, ...]
"""The work of one Spark task: ranges of different partitions."""


class Bounds(NamedTuple):
    """The offsets between which a batch reads, and the topics to which these offsets belong."""

    offsets: Mapping[TopicPartition, tuple[int, int]]
    """Partition -> the first offset and the end offset (exclusive)."""
    topic_ids: TopicIds = FrozenMapping()
    """Empty for a cluster without ids (Kafka before 2.8)."""

    def ranges(self) -> list[OffsetRange]:
        """The range of each partition, which may be empty."""
        return [OffsetRange(*tp, *self.offsets[tp], self.topic_ids.get(tp.topic)) for tp in sorted(self.offsets)]


class Share(NamedTuple):
    """A task's part of one partition, from offset ``low`` to ``high`` (exclusive). ``None`` stands for the bounds of the batch,
    which are resolved later."""

    topic: str
    partition: int
    low: int | None = None
    high: int | None = None


class UnboundTask(NamedTuple):
    """The work of one Spark task in a batch whose bounds are resolved in each execution.

    An offset belongs to the same task under any bounds. So if Spark computes the blocks of a cached DataFrame in different
    executions, they contain no record twice and miss none.
    """

    shares: tuple[Share, ...]
    number: int
    tasks: int
    """The number of this task, from 0, and the number of tasks."""
    planned: dict[str, int]
    """Topic -> bit mask of the partitions that have shares, the same in each task. A hash assigns any other partition to a task."""

    def ranges(self, bounds: Bounds) -> Task:
        """Return the ranges of this task within ``bounds``. A partition that is not in ``bounds`` has none."""
        shares = list(self.shares)
        for tp in sorted(bounds.offsets):
            is_new = not self.planned.get(tp.topic, 0) >> tp.partition & 1
            if is_new and zlib.crc32(str(tp).encode()) % self.tasks == self.number:
                shares.append(Share(*tp))
        ranges = []
        for topic, partition, low, high in shares:
            start, end = bounds.offsets.get(TopicPartition(topic, partition), (0, 0))
            start, end = max(start, low or 0), end if high is None else min(end, high)
            if start < end:
                ranges.append(OffsetRange(topic, partition, start, end, bounds.topic_ids.get(topic)))
        return tuple(ranges)


def limit_ends(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return ``ends``, reduced to at most ``limit`` offsets after ``starts``.

    Partitions share the limit in proportion to their backlog. Each gets at least one offset, so that a large one does not starve a
    small one; if the limit is below the number of partitions, those with the largest backlog get one. A partition that ends before
    its start, because it was truncated, keeps that end. A partition without a start keeps its end.
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


def plan_tasks(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None, max_partitions: int | None, max_records: int | None, cores: int
) -> list[Task]:
    """Divide ``ranges`` between at least ``min_partitions`` tasks, if there are as many records, and at most ``max_partitions``.
    With ``max_records``, each task has a single range of at most so many offsets.

    Without ``max_partitions``, the maximum is the driver's ``cores``, and with two million records for each core or more a multiple
    of it, so that a task has one to two million. So a small batch has few tasks, and a large one has a task per partition as with
    Spark's own connector.
    """
    filled = sorted(each for each in ranges if each.size > 0)
    return _share_out(filled, min_partitions, max_partitions, max_records, cores)


def plan_unbound_tasks(
    bounds: Bounds, *, min_partitions: int | None, max_partitions: int | None, max_records: int | None, cores: int
) -> list[UnboundTask]:
    """Divide the partitions in the same way, by their sizes within the current ``bounds``, for tasks whose bounds are resolved
    later.

    There is at least one task. Empty partitions have shares as well, as they may get records.
    """
    planned = _share_out(bounds.ranges(), min_partitions, max_partitions, max_records, cores) or [()]
    masks: dict[str, int] = {}
    for tp in bounds.offsets:
        masks[tp.topic] = masks.get(tp.topic, 0) | 1 << tp.partition
    shares = [tuple(_share(piece, *bounds.offsets[piece.topic_partition]) for piece in pieces) for pieces in planned]
    return [UnboundTask(of_task, number, len(shares), masks) for number, of_task in enumerate(shares)]


def _share(piece: OffsetRange, start: int, end: int) -> Share:
    """Return ``piece`` of the range from ``start`` to ``end`` as a share: without a limit at the start and end of the range."""
    low = None if piece.start == start else piece.start
    return Share(piece.topic, piece.partition, low, None if piece.end == end else piece.end)


def _share_out(
    ranges: list[OffsetRange], min_partitions: int | None, max_partitions: int | None, max_records: int | None, cores: int
) -> list[Task]:
    records = sum(each.size for each in ranges)
    # A multiple of the cores, so that none is idle while the last tasks run.
    most = max_partitions or max(min_partitions or 1, cores * max(1, records // (cores * RECORDS_PER_TASK)))
    if max_records is not None:
        ranges = [piece for each in ranges for piece in _cut(each, max(1, -(-each.size // max_records)))]
        most = max(most, len(ranges))
    if min_partitions is not None and len(ranges) < min_partitions:
        ranges = split_ranges(ranges, min_partitions)
    return pack_ranges(ranges, most)


def split_ranges(ranges: Sequence[OffsetRange], pieces: int) -> list[OffsetRange]:
    """Split ``ranges`` into ``pieces`` of similar size, or one per offset if there are fewer offsets."""
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
    """Combine ``ranges`` into at most ``most`` tasks of similar size; more if otherwise two pieces of one partition shared a
    task."""
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
    """Return the ranges from ``starts`` to ``ends``, for the partitions in both. One that ends before its start has no range."""
    both = ((tp, starts[tp], end) for tp, end in sorted(ends.items()) if tp in starts)
    return [OffsetRange(tp.topic, tp.partition, start, end) for tp, start, end in both if end > start]
