"""The sink: ``df.write.format("ottla")``, and what it has in common with ``stream_sink``.

Owns what Spark calls on the driver and on the executors. Must not know requests or retries, nor how a batch is written exactly once
(``exactly_once``). Invariant: a task succeeds only when all of its rows are acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ottla.admin import TransactionDescription
from ottla.errors import ConfigError, OttlaError
from ottla.producer import Producer
from ottla.spark import worker_logs
from ottla.spark.arrow_rows import in_groups, send_rows
from ottla.spark.client_pool import ClientPool
from ottla.spark.client_settings import with_option_names
from ottla.spark.exactly_once.driver import Attempted, abort_batch, commit_batch, open_transactions
from ottla.spark.exactly_once.replay import UNKNOWN_RUN, SinkName, TaskReport
from ottla.spark.exactly_once.tasks import TaskAttempt, write_task
from ottla.spark.executors import Shipped
from ottla.spark.sink_options import ExactlyOnce, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""Local properties that Spark sets in each task of a streaming query, those in ``foreachBatch`` included."""

Messages = Sequence[WriterCommitMessage | None]

producers = ClientPool(lambda settings: Producer(dict(settings)), lambda producer: producer.close(timeout=0), max_idle=2)
"""The producers of tasks in this process that write at least once."""


@dataclass
class RowsWritten(WriterCommitMessage):
    """The report of a task that writes at least once."""

    rows: int


class RowWriter(Shipped):
    """The part that the writers of batches and of streams have. Spark pickles it for each task."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._earlier: tuple[TransactionDescription, ...] | None = None
        """What was open when Spark first pickled this, before the batch."""
        self._job = str(uuid.uuid4())
        """Stands for the query in a batch job."""

    def _before_shipping(self) -> None:
        """Look for open transactions before the tasks of a batch. (Not in the constructor: Spark creates another writer to commit,
        or abort, a batch.)"""
        if self._earlier is None:
            self._earlier = () if self._options.exactly_once is None else self._find_earlier()

    def _find_earlier(self) -> tuple[TransactionDescription, ...]:
        """Return what is open before the batch, for its tasks."""
        return open_transactions(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. Called on an executor."""
        worker_logs.configure()
        with _option_names():
            if self._options.exactly_once is not None:
                return write_task(self._options, self._columns, iterator, self._attempt(self._options.exactly_once))
            with producers.borrow(self._options.client) as producer:
                return RowsWritten(send_rows(producer, in_groups(iterator), self._options.topic, self._columns))

    def _attempt(self, given: ExactlyOnce) -> TaskAttempt:
        context = TaskContext.get()
        assert context is not None
        query, batch, run = (context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
        number, earlier = context.partitionId(), self._earlier or ()
        if given.query is not None:
            return TaskAttempt(SinkName(given.query, given.sink_id), given.batch, self._job, number, earlier)
        if query is not None and batch is not None:
            return TaskAttempt(SinkName(query, given.sink_id), int(batch), _run(run) or UNKNOWN_RUN + self._job, number, earlier)
        if given.of_query:  # a sink of a query, which as a batch job would write a repeated batch again
            raise ConfigError(
                f"only a sink of a streaming query can have {' and '.join(given.of_query)}, and Spark passes no query to this task",
                hint="in a batch job, leave it out; in foreachBatch, write in the thread in which Spark calls the function, or set "
                "txnAppId and txnVersion, which Spark Connect needs",
            )
        return TaskAttempt(SinkName(self._job, given.sink_id), None, self._job, number, earlier)

    def _commit(self, messages: Messages, batch: int | None = None) -> None:
        """Commit the batch with this number; ``None``: the number in the reports."""
        if self._options.exactly_once is None:
            return
        reports = _reports(messages)
        if len(reports) != len(messages) or any(batch not in (None, report.batch) for report in reports):
            raise OttlaError(
                f"Spark passed {len(reports)} reports of {len(messages)} tasks for batch {batch}: nothing was committed"
            )
        with _option_names():
            commit_batch(self._options, reports, is_every_batch=batch is not None)

    def _abort(self, messages: Messages, attempted: Attempted | None = None) -> None:
        if self._options.exactly_once is not None:
            abort_batch(self._options, _reports(messages), attempted)


class OttlaBatchWriter(RowWriter, DataSourceArrowWriter):
    """``df.write.format("ottla").mode("append").save()``, also in ``foreachBatch``."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Called on the driver when all tasks have succeeded."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Called on the driver when a task has failed, or ``commit``."""
        given = self._options.exactly_once
        self._abort(
            messages,
            None if given is None else Attempted(SinkName(given.query or self._job, given.sink_id), given.batch, self._job),
        )


def _run(job_group: str | None) -> str | None:
    """Return the id of the query's run, which Spark makes the job group; ``None`` if ``foreachBatch`` has set another group."""
    try:
        run = str(uuid.UUID(job_group))
    except (AttributeError, TypeError, ValueError):
        return None
    return run if run == job_group else None


def _reports(messages: Messages) -> list[TaskReport]:
    """Return the reports of tasks with transactions; a task that has failed has none."""
    return [message for message in messages if isinstance(message, TaskReport)]


@contextlib.contextmanager
def _option_names() -> Iterator[None]:
    """Have errors name options instead of settings of the client."""
    try:
        yield
    except OttlaError as error:
        with_option_names(error, of_sink=True)
        raise
