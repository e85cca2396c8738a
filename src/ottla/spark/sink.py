"""The sink: ``df.write.format("ottla")``, and what it has in common with ``stream_sink``. Each row is written at least once.

Owns what Spark calls on the driver and on the executors, and the producers of a worker process. Must not know requests or retries.
Invariants: a task succeeds only when all of its rows are acknowledged; one task at a time uses a producer, and none after an error;
the memory of a task is bounded by ``buffer.memory`` and one batch of Spark's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ottla.errors import OttlaError
from ottla.producer import Producer
from ottla.spark import worker_logs
from ottla.spark.client_settings import with_option_names
from ottla.spark.executors import Shipped
from ottla.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

MAX_IDLE_PRODUCERS = 2
"""Idle producers that a worker process keeps for later tasks, each with different settings."""

_ROW = re.compile(r"row (\d+)")

_idle: dict[tuple[int, tuple[tuple[str, str], ...]], Producer] = {}


@dataclass
class RowsWritten(WriterCommitMessage):
    """The report of a task."""

    rows: int


class RowWriter(Shipped):
    """The part that the writers of batches and of streams have. Spark pickles it for each task."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsWritten:
        """Write the rows of one task. Called on an executor."""
        worker_logs.configure()
        try:
            with _borrowed_producer(self._options.client) as producer:
                return RowsWritten(_write(producer, iterator, self._columns, self._options.topic))
        except OttlaError as error:
            with_option_names(error)
            raise


class OttlaBatchWriter(RowWriter, DataSourceArrowWriter):
    """``df.write.format("ottla").mode("append").save()``."""


def _write(producer: Producer, batches: Iterator[pa.RecordBatch], columns: tuple[str, ...], topic: str | None) -> int:
    """Send all rows, and wait for their acknowledgements; return their number."""
    rows = 0
    pending: deque[Any] = deque()
    for batch in batches:
        try:
            pending.append(producer.send_arrow(batch.select(list(columns)), topic))
        except (OttlaError, ValueError) as error:
            _add_row(error, batch, topic)
            raise
        rows += batch.num_rows
        while pending and pending[0].done():  # a failure ends the task here, and not after its last row
            pending.popleft().result()
    for delivery in pending:
        delivery.result()
    producer.flush()
    return rows


def _add_row(error: Exception, batch: pa.RecordBatch, topic: str | None) -> None:
    """Add the topic and the key of a row that cannot be sent to the error about it, which begins with the number of the row."""
    found = _ROW.match(str(error.args[0])) if error.args else None
    if found is None or int(found[1]) >= batch.num_rows:
        return
    row = batch.slice(int(found[1]), 1).to_pydict()
    to = topic if topic is not None else row["topic"][0]
    key = f", key {row['key'][0]!r}" if "key" in row else ""
    error.args = (f"{error.args[0]} (topic {to!r}{key})", *error.args[1:])


@contextlib.contextmanager
def _borrowed_producer(settings: tuple[tuple[str, str], ...]) -> Iterator[Producer]:
    """Yield a producer with these settings, if possible a connected one of an earlier task."""
    key = (os.getpid(), settings)
    producer = _idle.pop(key, None) or Producer(dict(settings))
    try:
        yield producer
    except BaseException:
        _close(producer)
        raise
    _idle[key] = producer
    while len(_idle) > MAX_IDLE_PRODUCERS:
        _close(_idle.pop(next(iter(_idle))))


def _close(producer: Producer) -> None:
    with contextlib.suppress(OttlaError):
        producer.close(timeout=0)
