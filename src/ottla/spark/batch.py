"""The batch reader: one range of offsets, settled once, when the query is planned.

Owns the plan of a batch. Must not know how rows are fetched. Invariant: Spark plans once for each ``load()``, so every action on
one DataFrame reads the same records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.errors import ConfigError
from ottla.spark.cluster import Cluster
from ottla.spark.offsets import EARLIEST, LATEST, Offsets
from ottla.spark.options import SourceOptions
from ottla.spark.planning import plan_tasks, ranges_between

if TYPE_CHECKING:
    import pyarrow as pa


class OttlaBatchReader(DataSourceReader):
    """Plans on the driver, reads on the executors; Spark pickles it from the one to the other."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """One input partition a task."""
        with Cluster(self._options) as cluster:
            starts, ends = self._bounds(cluster)
        for tp, start in starts.items():
            if start > ends[tp]:
                raise ConfigError(
                    f"{tp} would be read from offset {start} to {ends[tp]}: startingOffsets lie behind endingOffsets",
                    hint="an endingOffsets of latest is where the log ends now",
                )
        tasks = plan_tasks(
            ranges_between(starts, ends),
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
            cores=os.cpu_count() or 1,
        )
        return [InputPartition(task) for task in tasks]

    def _bounds(self, cluster: Cluster) -> tuple[Offsets, Offsets]:
        starting, ending = self._options.starting_offsets, self._options.ending_offsets
        assert starting is not None
        assert ending is not None
        partitions = cluster.partitions()
        starting.check_covers("startingOffsets", partitions)
        ending.check_covers("endingOffsets", partitions)
        earliest = cluster.earliest(starting.unresolved(partitions, EARLIEST))
        latest = cluster.latest(ending.unresolved(partitions, LATEST))
        return starting.resolve(partitions, earliest, {}), ending.resolve(partitions, {}, latest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on an executor."""
        from ottla.spark.reading import read_ranges

        return read_ranges(partition.value or (), self._columns, self._options)
