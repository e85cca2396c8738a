"""The batch reader. The offsets to read are resolved when a query is executed.

Owns the plan of a batch. Must not know how rows are fetched. Spark calls ``partitions()`` once per table (the result of ``load()``,
also as a view, or as the static side of a stream) and reuses the result in each execution. So the result assigns a share of each
partition to each task, and the tasks request the bounds of the execution from the planner process. Invariants: all tasks of an
execution, in all attempts, read within the same bounds; an offset belongs to the same task under any bounds.
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
from ottla.spark.cluster import MAX_NAMED_TOPICS, MISSING_TIMEOUT, Cluster, api_timeout
from ottla.spark.executors import Shipped
from ottla.spark.offsets import LATEST, Offsets
from ottla.spark.options import SourceOptions
from ottla.spark.planner_client import PlannerAddress, register, request_bounds
from ottla.spark.planning import Bounds, Task, UnboundTask, plan_tasks, plan_unbound_tasks
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

EXECUTION, DRIVER_HOST = "spark.sql.execution.id", "spark.driver.host"
"""Local properties that Spark sets in each task of a query."""

MAX_LOOKUPS = MAX_NAMED_TOPICS + 4
"""The most lookups for the bounds of an execution, each with its own timeout: partitions of topics, together and one by one, the
two ends of logs, and the ends of the logs for which options have offsets."""


class UnboundPartition(NamedTuple):
    """An input partition whose offset ranges are resolved in each execution."""

    task: UnboundTask
    planned: Bounds
    """The bounds of the task's partitions at the time of ``partitions()``."""
    planner: PlannerAddress


class OttlaBatchReader(Shipped, DataSourceReader):
    """Plans on the driver and reads on the executors; Spark sends it there pickled."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...], given: Mapping[str, str]) -> None:
        self._options = options
        self._columns = columns
        self._given = dict(given)

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task."""
        options = self._options
        with Cluster(options) as cluster:
            bounds = current_bounds(cluster, options)
        least, most, cores = options.min_partitions, options.max_partitions, os.cpu_count() or 1
        if options.plan_once or are_fixed(options, bounds):
            ranges = bounds.ranges()
            planned = plan_tasks(ranges, min_partitions=least, max_partitions=most, max_records=options.max_records, cores=cores)
            return [InputPartition(task) for task in planned]
        planner = register(self._given)
        tasks = plan_unbound_tasks(bounds, min_partitions=least, max_partitions=most, max_records=options.max_records, cores=cores)
        return [InputPartition(UnboundPartition(task, _bounds_of(task, bounds), planner)) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task. Called on an executor."""
        from ottla.spark.reading import read_ranges

        work = partition.value
        ranges = self._resolve(work) if isinstance(work, UnboundPartition) else work
        return read_ranges(ranges or (), self._columns, self._options)

    def _resolve(self, unbound: UnboundPartition) -> Task:
        """Return the ranges of a task in its execution."""
        context = TaskContext.get()
        execution = context.getLocalProperty(EXECUTION) if context is not None else None
        if context is None or execution is None:
            # A job on an RDD. Spark may compute an RDD repeatedly and expects the same rows, but a task has no id of its RDD to
            # request bounds with. So all RDDs of a table have the planned bounds.
            self._warn_of_newer_records(unbound)
            return unbound.task.ranges(unbound.planned)
        driver = context.getLocalProperty(DRIVER_HOST) or "localhost"
        timeout = MAX_LOOKUPS * api_timeout(self._options) + MISSING_TIMEOUT
        bounds = request_bounds(unbound.planner, int(execution), driver=driver, timeout=timeout)
        return unbound.task.ranges(bounds_from_json(bounds))

    def _warn_of_newer_records(self, unbound: UnboundPartition) -> None:
        ending = self._options.ending_offsets
        assert ending is not None
        last = [TopicPartition(share.topic, share.partition) for share in unbound.task.shares if share.high is None]
        latest: Offsets = {}
        with contextlib.suppress(OttlaError), Cluster(self._options) as cluster:  # the read that follows raises the same error
            latest = cluster.latest(ending.unresolved(last, LATEST))
        if newer := sorted(tp for tp, end in latest.items() if end > unbound.planned.offsets[tp][1]):
            log.warning(
                "%s: an RDD, and so foreach(), foreachPartition() and toJSON(), does not read records newer than the first use of "
                "the table; call load() again to read them",
                ", ".join(map(str, newer)),
            )


def _bounds_of(task: UnboundTask, bounds: Bounds) -> Bounds:
    """Return ``bounds`` of the partitions in ``task``."""
    shared = {share[:2] for share in task.shares}
    topics = {topic for topic, _ in shared}
    return Bounds(
        {tp: both for tp, both in bounds.offsets.items() if tuple(tp) in shared},
        {topic: topic_id for topic, topic_id in bounds.topic_ids.items() if topic in topics},
    )
