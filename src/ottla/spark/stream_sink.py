"""The sink of streams: ``df.writeStream.format("ottla")``. Each row is written at least once.

Owns what Spark calls on the driver. Must not know how rows are written. Invariant: Spark commits a batch only when all of its rows
are acknowledged. (A module of its own, since Spark 4.0 has no Arrow writer for streams.)
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.spark.sink import RowWriter


class OttlaStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """``df.writeStream.format("ottla").start()``. A batch that Spark repeats after a failure is written again."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called on the driver when all tasks have succeeded: their rows are acknowledged, so nothing is left to be done."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called on the driver when a task has failed. The rows of the others stay written."""
