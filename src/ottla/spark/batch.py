"""The batch reader: what is read is settled when a query is executed.

Owns the plan of a batch. Must not know how rows are fetched. Spark asks for ``partitions()`` once for each table (what ``load()``
returned, also as a view, or as the static side of a stream) and keeps the answer. So the answer says which part of each partition
a task reads, and the task asks the planner process where the log begins and ends. Invariants: all tasks of an execution, attempt
after attempt, read within the same bounds; under any bounds an offset belongs to the same task.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.errors import OttlaError
from ottla.spark.batch_bounds import are_fixed, bounds_from_json, current_bounds
from ottla.spark.cluster import MAX_SINGLE_TOPICS, Cluster, api_timeout
from ottla.spark.offsets import LATEST, Offsets
from ottla.spark.options import SourceOptions
from ottla.spark.planner_client import PlannerAddress, ask, register
from ottla.spark.planning import Bounds, Task, UnboundTask, plan_tasks, plan_unbound_tasks, ranges_between
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

EXECUTION, DRIVER_HOST = "spark.sql.execution.id", "spark.driver.host"
"""Local properties that Spark gives to each task of a query."""

MAX_LOOKUPS = MAX_SINGLE_TOPICS + 3
"""How many a planner asks a cluster, at most, to settle the bounds of an execution: for partitions of topics, for the two ends of
logs, and for the ends of those in which offsets are named. Each question has the same patience."""


class UnboundPartition(NamedTuple):
    """An input partition whose ranges are settled by each execution."""

    task: UnboundTask
    planned: Bounds
    """The bounds of the task's partitions when the table was planned."""
    planner: PlannerAddress


class OttlaBatchReader(DataSourceReader):
    """Plans on the driver, reads on the executors; Spark pickles it from the one to the other."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], given: Mapping[str, str]) -> None:
        self._options = options
        self._columns = columns
        self._given = dict(given)

    def partitions(self) -> list[InputPartition]:
        """One input partition a task."""
        options = self._options
        with Cluster(options) as cluster:
            bounds = current_bounds(cluster, options)
        least, most, cores = options.min_partitions, options.max_partitions, os.cpu_count() or 1
        if options.plan_once or are_fixed(options, bounds):
            starts, ends = ({tp: both[point] for tp, both in bounds.items()} for point in (0, 1))
            ranges = ranges_between(starts, ends)
            return [InputPartition(task) for task in plan_tasks(ranges, min_partitions=least, max_partitions=most, cores=cores)]
        planner = register(self._given)
        tasks = plan_unbound_tasks(bounds, min_partitions=least, max_partitions=most, cores=cores)
        return [InputPartition(UnboundPartition(task, _within(bounds, task), planner)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on an executor."""
        from ottla.spark.reading import read_ranges

        wanted = partition.value
        ranges = self._settle(wanted) if isinstance(wanted, UnboundPartition) else wanted
        return read_ranges(ranges or (), self._columns, self._options)

    def _settle(self, wanted: UnboundPartition) -> Task:
        """The ranges that a task reads in the execution that it belongs to."""
        context = TaskContext.get()
        execution = context.getLocalProperty(EXECUTION) if context is not None else None
        if context is None or execution is None:
            # A job on an RDD, which must read the same as often as Spark computes it. It cannot be told from another RDD's.
            self._warn_if_outgrown(wanted)
            return wanted.task.ranges(wanted.planned)
        driver = context.getLocalProperty(DRIVER_HOST) or "localhost"
        rows = ask(wanted.planner, int(execution), driver=driver, patience=MAX_LOOKUPS * api_timeout(self._options))
        return wanted.task.ranges(bounds_from_json(rows))

    def _warn_if_outgrown(self, wanted: UnboundPartition) -> None:
        ending = self._options.ending_offsets
        assert ending is not None
        last = [TopicPartition(share.topic, share.partition) for share in wanted.task.shares if share.high is None]
        latest: Offsets = {}
        with contextlib.suppress(OttlaError), Cluster(self._options) as cluster:  # reading says what is wrong
            latest = cluster.latest(ending.unresolved(last, LATEST))
        if newer := sorted(tp for tp, end in latest.items() if end > wanted.planned[tp][1]):
            log.warning(
                "%s: an RDD, and so foreach(), foreachPartition() and toJSON(), reads up to the offset where the log ended when "
                "the table was first used, and records were added since; call load() again to read them",
                ", ".join(map(str, newer)),
            )


def _within(bounds: Bounds, task: UnboundTask) -> Bounds:
    """``bounds`` of the partitions of ``task`` alone."""
    mine = {share[:2] for share in task.shares}
    return {tp: both for tp, both in bounds.items() if tuple(tp) in mine}
