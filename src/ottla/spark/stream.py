"""The micro-batch reader: where a stream begins, how far the next batch goes, and what its tasks read.

Owns the sequence of offsets that Spark writes into its checkpoint. Must not know how rows are fetched. Invariants: whatever Spark
asks again after a failure is planned as the first time; an offset with nothing new behind it comes back unchanged; no failure to
commit a group's progress ends the query.

Spark's order for batch N: ``latestOffset(start)``, write the offset log, ``commit(end of N - 1)``, ``partitions``, tasks ``read``,
write the commit log, ``latestOffset(end of N)``. So ``start`` is always done with, and after the last batch ``commit`` does not
come, but ``latestOffset`` does: both report progress.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ottla.spark.cluster import Cluster
from ottla.spark.data_loss import Loss, losses_between, losses_of_new_partitions, report
from ottla.spark.offset_checks import clamp_to_logs
from ottla.spark.offsets import EARLIEST, LATEST, Offsets, StreamOffset
from ottla.spark.options import SourceOptions
from ottla.spark.planning import limit_ends, plan_tasks, ranges_between
from ottla.spark.progress import Progress
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

IDLE_INTERVAL = 0.05
"""Seconds between two looks at the cluster while nothing is new; Spark itself would look every 10 ms."""


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process that lives as long as the query, reads on the executors; Spark pickles it from the one to the other."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._cluster = Cluster(options)
        self._progress = Progress(self._cluster, options.group_id)
        self._initial: dict[TopicPartition, int] | None = None
        self._available_now_end: dict[TopicPartition, int] | None = None
        self._latest: dict[TopicPartition, int] | None = None
        self._checked_at = 0.0
        self._waiting: frozenset[TopicPartition] = frozenset()
        self._reported: frozenset[Loss] = frozenset()

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins; asked more than once, and the same each time."""
        if self._initial is None:
            starting = self._options.starting_offsets
            assert starting is not None
            partitions = self._cluster.partitions()
            starting.check_covers("startingOffsets", partitions)
            earliest = self._cluster.earliest(starting.unresolved(partitions, EARLIEST))
            latest = self._cluster.latest(starting.unresolved(partitions, LATEST))
            self._initial = dict(clamp_to_logs(self._cluster, self._options, starting.resolve(partitions, earliest, latest), {})[0])
        return StreamOffset(self._initial).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or all there is."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query to what is there now."""
        self._available_now_end = self._end_offsets(())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs ended when last looked at: what a query's progress shows as its source's latest offset."""
        return None if self._latest is None else StreamOffset(self._latest).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the batch that begins at ``start`` goes; ``start`` itself where nothing is new."""
        begin = StreamOffset.from_json(start)
        first = begin.positions == self._initial and begin.first_start is None
        self._progress.report(begin.positions)
        ends = self._wait_for_transactions(
            begin.positions, self._end_offsets(begin.positions) if self._available_now_end is None else self._available_now_end
        )
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends({**self._new_starts(begin.positions, ends), **begin.positions}, ends, limit.max_rows)
        if first:
            return StreamOffset(ends, first_start=begin.positions).to_json()
        if ends == begin.positions:
            self._handle_no_data(begin.positions)
            return start
        return StreamOffset(ends).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One input partition a task of the batch between two offsets."""
        finish = StreamOffset.from_json(end)
        starts = StreamOffset.from_json(start).positions if finish.first_start is None else finish.first_start
        self._report(losses_between(starts, finish.positions, self._options.subscription.includes))
        appeared = self._new_starts(starts, finish.positions)
        self._report(losses_of_new_partitions(appeared))
        tasks = plan_tasks(
            ranges_between({**appeared, **starts}, finish.positions),
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
            cores=os.cpu_count() or 1,
        )
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on an executor."""
        from ottla.spark.reading import read_ranges

        return read_ranges(partition.value or (), self._columns, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """The batch up to ``end`` is done with. Never raises: Spark would end the query."""
        self._progress.report(StreamOffset.from_json(end).positions)

    def stop(self) -> None:
        """Let go of the cluster. (Spark mostly ends the process instead.)"""
        self._cluster.close()

    def _end_offsets(self, expected: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the logs end now. What is gone of ``expected`` is missing; the plan that follows reports it."""
        self._checked_at = time.monotonic()
        self._latest = self._cluster.latest(self._cluster.await_partitions(expected))
        return self._latest

    def _wait_for_transactions(self, positions: Offsets, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """``ends`` without steps back to where an open transaction begins.

        With ``read_committed`` a log ends there for this query. A position may lie behind that: the query that wrote the checkpoint
        read uncommitted records, or ``startingOffsets`` names the position. It stays until the transaction has ended. Where the
        log itself ends before the position, records are lost.
        """
        behind = [tp for tp, end in ends.items() if end < positions.get(tp, end)] if self._options.read_committed else []
        if not behind:
            self._waiting = frozenset()
            return ends
        logs = self._cluster.log_end_offsets(behind)
        waiting = frozenset(tp for tp in behind if logs[tp] >= positions[tp])
        for tp in sorted(waiting - self._waiting):
            log.warning(
                "%s: an open transaction begins at offset %d, before offset %d, where this query continues; with "
                "kafka.isolation.level=read_committed it waits until that transaction has ended",
                tp, ends[tp], positions[tp],
            )  # fmt: skip
        self._waiting = waiting
        return {tp: positions[tp] if tp in waiting else end for tp, end in ends.items()}

    def _report(self, losses: Iterable[Loss]) -> None:
        """Report what was not yet reported: Spark may plan a batch more than once."""
        new = [loss for loss in losses if loss not in self._reported]
        report(new, fail=self._options.fail_on_data_loss)
        self._reported |= frozenset(new)

    def _handle_no_data(self, positions: Offsets) -> None:
        """Nothing is new: the last word to the group where the query ends here, else a pause before the next look."""
        if self._available_now_end is not None:
            self._progress.report(positions, final=True)
        else:
            time.sleep(max(0.0, self._checked_at + IDLE_INTERVAL - time.monotonic()))

    def _new_starts(self, starts: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Where to begin in partitions that appeared behind ``starts``: at the beginning of their logs."""
        return self._cluster.earliest(sorted(ends.keys() - starts.keys()))
