"""A source and a sink in Python that do nothing: Spark's own part of the time that any Python source or sink takes.

The session pickles this module by value, since Spark's worker processes cannot import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
TASKS = 2
ROWS_OF_BATCH = 6000


def batch_of(rows: int) -> pa.RecordBatch:
    """Return a batch with the sizes of the benchmark's records."""
    columns = {
        "key": pa.array([bytes(8)] * rows),
        "value": pa.array([bytes(100)] * rows),
        "topic": pa.array(["benchmark-spark-1"] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows)),
        "timestamp": pa.array([0] * rows, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)


class Reader(DataSourceReader):
    """Hands out the same batch over and over."""

    def __init__(self, rows: int, schema: StructType) -> None:
        self._rows = rows
        self._columns = schema.names

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        from ottla.spark.reading import freeze_heap

        freeze_heap()  # as Ottla's source does: without it each task is followed by 30 ms of garbage collection
        left = self._rows // TASKS
        batch = batch_of(min(left, ROWS_OF_BATCH)).select(self._columns)
        while left:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)


class StreamReader(Reader, DataSourceStreamReader):
    """Has a batch at any time."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the start."""
        return {"offset": 0}

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        """Return the end of the next batch."""
        return {"offset": start["offset"] + self._rows}

    def partitions(self, *bounds: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        return super().partitions()


class Writer(DataSourceArrowWriter):
    """Drops its rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Read all rows of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class PythonAlone(DataSource):
    """``format("python-alone")``; option ``rows``: of a batch."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "python-alone"

    def schema(self) -> str:
        """The source's columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> Reader:
        """The reader of a batch."""
        return Reader(int(self.options["rows"]), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """The reader of a stream."""
        return StreamReader(int(self.options["rows"]), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """The writer of a batch."""
        return Writer()
