"""The sink of streams: ``df.writeStream.format("ottla")``.

Owns what Spark calls on the driver. Must not know how rows are written. Invariant: Spark commits a batch only when all of its rows
are acknowledged, and with ``exactlyOnce`` only when their transactions are committed. (A module of its own, since Spark 4.0 has no
Arrow writer for streams.)
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.admin import TransactionDescription
from ottla.spark.exactly_once.driver import abort_before_batch
from ottla.spark.sink import RowWriter


class OttlaStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """``df.writeStream.format("ottla").start()``. A batch that Spark repeats after a failure is written again, unless the sink has
    the option ``exactlyOnce``."""

    def _find_earlier(self) -> tuple[TransactionDescription, ...]:
        return abort_before_batch(self._options, super()._find_earlier())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called on the driver when all tasks have succeeded. If it raises, Spark calls ``abort``, and later repeats the batch."""
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Called on the driver when a task has failed, or ``commit``. Without ``exactlyOnce`` the rows of others stay written."""
        self._abort(messages)
