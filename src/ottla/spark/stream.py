"""The micro-batch reader: the start of a stream, the end of each batch, and the batch's tasks.

Owns the sequence of offsets that Spark writes into its checkpoint. Must not know how rows are fetched. Invariants: a batch that
Spark repeats after a failure has the same plan; without new records ``latestOffset`` returns its argument unchanged; a failure to
commit the group's progress does not end the query.

Spark's calls for batch N:

1. ``latestOffset(start)``, where ``start`` is the end of batch N - 1; Spark writes the result to the offset log.
2. ``commit(end of N - 1)``.
3. ``partitions(start, end)``; the tasks call ``read``; Spark writes the commit log.
4. ``latestOffset(end of N)``.

So all records before the argument of ``latestOffset`` are processed. After the last batch Spark does not call ``commit``, but
``latestOffset``: both report progress.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ottla.errors import ConfigError
from ottla.spark.cluster import MISSING_TIMEOUT, RETRY_PAUSE, Cluster
from ottla.spark.data_loss import Loss, LossKind, losses_between, losses_of_new_partitions, report
from ottla.spark.ends import starts_of
from ottla.spark.executors import Shipped
from ottla.spark.offset_checks import clamp_to_logs
from ottla.spark.offsets import Offsets, StreamOffset
from ottla.spark.options import SourceOptions
from ottla.spark.planning import limit_ends, plan_tasks, ranges_between
from ottla.spark.progress import Progress, ProgressThread
from ottla.spark.runner_environment import is_draining, sample_size, sample_starts
from ottla.spark.watch import Watch
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

IDLE_INTERVAL = 1.0
"""Seconds between two lookups of partitions and ends without new records, which ``Watch`` notices sooner. Spark itself calls
``latestOffset`` every 10 ms."""

BACKLOG_INTERVAL = 0.5
"""Seconds between two lookups while ``maxOffsetsPerTrigger`` allows no batch beyond the known ends. A lookup takes 7 ms of a
micro-batch of 100 ms."""

SHORT_OF_OFFSETS = 0.5
"""Seconds between two lookups while there are fewer new records than ``minOffsetsPerTrigger``."""


NOWHERE = StreamOffset({})
"""The position of a query that has none yet."""


class OttlaStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process that lives as long as the query, and reads on the executors; Spark sends it there pickled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._cluster = Cluster(options)
        self._watch = Watch(options)
        group = options.group_id if sample_size() is None else None
        self._progress = ProgressThread(Progress(Cluster(options), group))
        self._initial: StreamOffset | None = None
        self._available_now_end: StreamOffset | None = None
        self._gone: frozenset[TopicPartition] = frozenset()
        """Positions that ``_available_now_end`` lacks, since their partitions do not exist."""
        self._latest: dict[TopicPartition, int] | None = None
        self._checked_at = 0.0
        self._is_busy = False
        """Whether there were new records when the ends were last looked up."""
        self._has_committed = False
        """Whether a batch was processed since, perhaps with records of the query's other sources only."""
        self._finished: Offsets | None = None
        """The positions of the last commit that an ``availableNow`` query has waited for."""
        self._triggered_at = -math.inf
        """When a batch was last due."""
        self._waiting: frozenset[TopicPartition] = frozenset()
        self._reported: frozenset[Loss] = frozenset()

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint; repeated calls return the same.

        It is its own ``$from``, which tells a first batch that Ottla has begun from one of Spark's connector (``partitions``).
        """
        if self._initial is None:
            starts = starts_of(self._cluster, self._options, self._cluster.partitions())
            first, _ = clamp_to_logs(self._cluster, self._options, starts, {})
            if (count := sample_size()) is not None:
                ends = (self._available_now_end or self._end_offsets(NOWHERE)).positions
                first = sample_starts(self._cluster.earliest(sorted(ends)), ends, count)
            self._initial = StreamOffset(first, first, topic_ids=self._cluster.topic_ids)
            if self._available_now_end is not None:
                # Spark has fixed the end before it asks for the start, which with latest may be later.
                ends = self._available_now_end.positions
                later = {tp: max(end, first.get(tp, end)) for tp, end in ends.items()}
                self._available_now_end = dataclasses.replace(self._available_now_end, positions=later)
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxOffsetsPerTrigger`` as a limit, or no limit."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the current end offsets the end of the query."""
        self._available_now_end = self._end_offsets(NOWHERE)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known end offsets, which ``QueryProgress`` shows as ``latestOffset``."""
        return None if self._latest is None else StreamOffset(self._latest).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the batch that begins at ``start``; ``start`` itself if there are no new records, or if the runner of
        the job drains its streams."""
        begin = StreamOffset.from_json(start)
        self._progress.report(begin.positions)
        ends = begin if is_draining() else self._end_of_query(begin, self._least_backlog(limit))
        recreated = begin.recreated(ends.topic_ids)
        known = _without(recreated, begin.positions)
        positions = self._wait_for_transactions(known, dict(ends.positions))
        if self._options.fail_on_data_loss:
            # Now: when Spark has stored the end, each start of the query would fail, whether or not the records are back.
            self._report(losses_between(begin.positions, positions, self._options.subscription.includes, recreated))
        if self._waits_for_more(known, positions):
            time.sleep(SHORT_OF_OFFSETS)
            return start
        if isinstance(limit, ReadMaxRows):
            positions = limit_ends({**self._new_starts(known, positions), **known}, positions, limit.max_rows)
        is_first = begin == self._initial
        if positions == begin.positions and not recreated and not is_first:
            self._handle_no_data(begin.positions)
            return start
        self._is_busy = True
        first_start = known if is_first else None
        return StreamOffset(positions, first_start, topic_ids=ends.topic_ids, cores=os.cpu_count()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one input partition per task of the batch between two offsets."""
        begin, finish = StreamOffset.from_json(start), StreamOffset.from_json(end)
        if finish.first_start is None and begin == self._initial and not self._options.starts_are_repeatable:
            raise ConfigError(
                "the checkpoint has a first batch that another source has begun and not finished: only that source knows where it "
                "begins",
                hint='finish it with format("kafka"), or set startingOffsets to the offsets in sources/N/0 of the checkpoint',
            )
        recreated = begin.recreated(finish.topic_ids) if finish.first_start is None else set()
        starts = begin.positions if finish.first_start is None else finish.first_start
        self._report(losses_between(starts, finish.positions, self._options.subscription.includes, recreated))
        starts = _without(recreated, starts)
        appeared = self._new_starts(starts, finish.positions)
        gone = finish.positions.keys() - starts.keys() - appeared.keys()
        lost = [Loss(LossKind.PARTITION_GONE, *tp, 0, finish.positions[tp]) for tp in sorted(gone) if finish.positions[tp]]
        self._report([*losses_of_new_partitions(appeared), *lost])
        ranges = ranges_between({**appeared, **starts}, finish.positions)
        tasks = plan_tasks(
            [each._replace(topic_id=finish.topic_ids.get(each.topic)) for each in ranges],
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
            max_records=self._options.max_records,
            cores=finish.cores or os.cpu_count() or 1,
        )
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task. Called on an executor."""
        from ottla.spark.reading import read_ranges

        return read_ranges(partition.value or (), self._columns, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit ``end``, whose batch is processed, to the group. Never raises: Spark would end the query."""
        self._has_committed = True
        self._progress.report(StreamOffset.from_json(end).positions)

    def stop(self) -> None:
        """Close all connections. (Spark usually kills the process instead.)"""
        self._cluster.close()
        self._watch.close()
        self._progress.close()

    def _least_backlog(self, limit: ReadLimit) -> float:
        """The number of new records from which on a batch does not depend on later ones."""
        if isinstance(limit, ReadMaxRows):
            return max(limit.max_rows, self._options.min_offsets_per_trigger or 0)
        return math.inf

    def _end_of_query(self, begin: StreamOffset, least_backlog: float) -> StreamOffset:
        """The current end offsets, or with ``availableNow`` those when the query was started."""
        fixed = self._available_now_end
        if fixed is None:
            return self._known_ends(begin.positions, least_backlog) or self._end_offsets(begin)
        if any(tp not in fixed.positions and tp not in self._gone for tp in begin.positions):
            # The broker that was asked first may just have been started, and does not know all topics yet.
            latest = self._end_offsets(begin)
            self._gone = frozenset(tp for tp in begin.positions if tp not in latest.positions)
            fixed = StreamOffset({**latest.positions, **fixed.positions}, topic_ids={**latest.topic_ids, **fixed.topic_ids})
            self._available_now_end = fixed
        return fixed

    def _known_ends(self, positions: Offsets, least_backlog: float) -> StreamOffset | None:
        """The ends of the last lookup, if they are enough for a batch that begins at ``positions``, and not old."""
        known = self._latest
        if known is None or known.keys() != positions.keys() or time.monotonic() >= self._checked_at + BACKLOG_INTERVAL:
            return None
        backlog = [known[tp] - position for tp, position in positions.items()]
        if min(backlog, default=0) < 0 or sum(backlog) < least_backlog:
            return None
        return StreamOffset(known, topic_ids=self._cluster.topic_ids)

    def _end_offsets(self, begin: StreamOffset) -> StreamOffset:
        """Look up the end offsets. Deleted partitions of ``begin`` are missing, which is reported as a loss.

        An end before a position may be temporary as well: until a new leader has heard from the other replicas, brokers before 2.2
        answer with an earlier one (KIP-207).
        """
        deadline = time.monotonic() + MISSING_TIMEOUT
        while True:
            self._checked_at = time.monotonic()
            self._latest = self._cluster.latest(self._cluster.await_partitions(begin.positions))
            ends = StreamOffset(self._latest, topic_ids=self._cluster.topic_ids)
            if not self._has_shrunk(begin, ends) or time.monotonic() + RETRY_PAUSE >= deadline:
                return ends
            time.sleep(RETRY_PAUSE)

    def _has_shrunk(self, begin: StreamOffset, ends: StreamOffset) -> bool:
        """Whether the log of a topic that was not recreated ends before the position."""
        known = _without(begin.recreated(ends.topic_ids), begin.positions)
        behind = [tp for tp, end in ends.positions.items() if end < known.get(tp, end)]
        logs = self._cluster.log_end_offsets(behind)
        return any(logs[tp] < known[tp] for tp in behind)

    def _wait_for_transactions(self, positions: Offsets, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return ``ends``, with the position instead where an open transaction begins before the position.

        With ``read_committed`` the end of a log is its last stable offset. A position may be greater: an earlier run of the query
        read uncommitted records, or ``startingOffsets`` has the position. It stays there until the transaction ends. A high
        watermark before the position means lost records instead.
        """
        behind = [tp for tp, end in ends.items() if end < positions.get(tp, end)] if self._options.read_committed else []
        if not behind:
            self._waiting = frozenset()
            return ends
        logs = self._cluster.log_end_offsets(behind)
        waiting = frozenset(tp for tp in behind if logs[tp] >= positions[tp])
        for tp in sorted(waiting - self._waiting):
            log.warning(
                "%s: an open transaction begins at offset %d, before offset %d, the position of this query; with "
                "kafka.isolation.level=read_committed it waits until that transaction ends",
                tp, ends[tp], positions[tp],
            )  # fmt: skip
        self._waiting = waiting
        return {tp: positions[tp] if tp in waiting else end for tp, end in ends.items()}

    def _waits_for_more(self, starts: Offsets, ends: Offsets) -> bool:
        """Whether there are new records, but fewer than ``minOffsetsPerTrigger``, and the latest batch is not ``maxTriggerDelay``
        ago. A query that ends with the available records does not wait."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._available_now_end is not None:
            return False
        now = time.monotonic()
        grown = {tp: end - starts[tp] for tp, end in ends.items() if tp in starts}
        is_plain = ends.keys() == starts.keys() and min(grown.values(), default=0) >= 0
        if is_plain and 0 < sum(grown.values()) < least and now < self._triggered_at + self._options.max_trigger_delay:
            return True
        self._triggered_at = now
        return False

    def _report(self, losses: Iterable[Loss]) -> None:
        """Report each loss once: Spark may plan a batch more than once."""
        new = [loss for loss in losses if loss not in self._reported]
        report(new, fail=self._options.fail_on_data_loss)
        self._reported |= frozenset(new)

    def _handle_no_data(self, positions: Offsets) -> None:
        """Without new records: commit a last time if the query ends here, otherwise wait for some, or for the next lookup."""
        if self._available_now_end is not None:
            if positions != self._finished:  # or each batch of the query's other sources would wait for a silent coordinator
                self._finished = positions
                self._progress.finish(positions)
        else:
            # The first answer after a batch comes at once: ``StreamingQuery.processAllAvailable()`` waits for it. So does each
            # answer while other sources of the query have records, since Spark asks one source after the other.
            was_busy, self._is_busy, self._has_committed = self._is_busy or self._has_committed, False, False
            if not was_busy:
                self._watch.wait(positions, max(0.0, self._checked_at + IDLE_INTERVAL - time.monotonic()))

    def _new_starts(self, starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Return the start of partitions that are not in ``starts``, because they are new: the beginning of their logs. One that
        was deleted since has none."""
        new = sorted(ends.keys() - starts.keys())
        if not new:
            return {}
        return self._cluster.earliest(self._cluster.await_existing(new))


def _without(topics: set[str], offsets: Offsets) -> dict[TopicPartition, int]:
    return {tp: offset for tp, offset in offsets.items() if tp.topic not in topics}
