"""A task of the sink with ``exactlyOnce``: it prepares a transaction, which the driver commits.

Owns the order of the steps of a task. Must not know Spark's interfaces of writers, nor judge a repeated batch (``replay``).
Invariants: a task looks at its marker only after its producer was initialized, so that no earlier attempt can commit afterwards;
rows and marker are in one transaction, which a task never commits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.admin import Admin, TransactionDescription
from ottla.errors import OttlaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from ottla.producer import Producer
from ottla.records.row_fingerprint import RowFingerprint
from ottla.spark.arrow_rows import in_groups, send_rows
from ottla.spark.exactly_once.replay import Marker, SinkName, TaskReport
from ottla.spark.exactly_once.stored import newest_markers
from ottla.spark.exactly_once.transactions import abort, admins, raise_if_too_long
from ottla.spark.sink_options import SinkOptions
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_runs: set[tuple[int, SinkName, str]] = set()
"""Runs in which this process has aborted the transactions of earlier runs."""


@dataclass(frozen=True)
class TaskAttempt:
    """The place of a task in its query. ``batch`` is ``None`` in a batch job, which has no repeated batches."""

    name: SinkName
    batch: int | None
    run: str
    task: int
    earlier: tuple[TransactionDescription, ...]
    """The transactions that were open before the batch began: see ``open_transactions``."""


def write_task(
    options: SinkOptions, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch], attempt: TaskAttempt
) -> TaskReport:
    """Write the rows of a task into a transaction, unless an earlier attempt has committed them. Called on an executor."""
    filled = (batch for batch in batches if batch.num_rows)
    with _producer(options, attempt.name.of_task(attempt.task)) as producer, admins.borrow(options.admin) as admin:
        producer.initialize()
        _abort_earlier_runs(admin, attempt)
        if attempt.batch is None:
            return _prepare(options, columns, producer, filled, attempt, None, None)
        place, marker = newest_markers(admin, options, attempt.name, [attempt.task])[attempt.task]
        if marker is not None and marker.batch < attempt.batch:
            marker = None
        assert options.exactly_once is not None
        if marker is not None and not options.exactly_once.repeats:
            return _compare(options, columns, filled, attempt, marker)
        first = next(filled, None)
        rows = iter(()) if first is None else itertools.chain([first], filled)
        if place is None:
            place = _place_of(admin, options, attempt.name, first)
        return _prepare(options, columns, producer, rows, attempt, marker, place)


def _place_of(admin: Admin, options: SinkOptions, name: SinkName, first: pa.RecordBatch | None) -> TopicPartition | None:
    """Return the partition for the first marker of a task: one that exists, and for which the sink may commit offsets.

    That is partition 0 of a topic that the task writes to. Without rows it may be that of the record of the latest batch.
    """
    if options.topic is None and first is not None:
        return TopicPartition(str(first.column("topic")[0].as_py()), 0)
    if options.topic is not None and (first is not None or _exists(admin, options.topic)):
        return TopicPartition(options.topic, 0)
    return next(iter(admin.group_offsets(name.group)), None)


def _exists(admin: Admin, topic: str) -> bool:
    try:
        return topic in admin.describe_topics([topic])
    except (UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
        return False


def _compare(
    options: SinkOptions, columns: tuple[str, ...], filled: Iterator[pa.RecordBatch], attempt: TaskAttempt, marker: Marker
) -> TaskReport:
    """Report the rows of a task without writing them."""
    fingerprint = RowFingerprint(options.topic)
    for batch in filled:
        fingerprint.update(batch.select(list(columns)))
    return _report(attempt, fingerprint, marker)


def _prepare(
    options: SinkOptions,
    columns: tuple[str, ...],
    producer: Producer,
    rows: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
    marker: Marker | None,
    place: TopicPartition | None,
) -> TaskReport:
    """Write the rows, and the marker to ``place``, and prepare the transaction. A batch job has no markers."""
    fingerprint = RowFingerprint(options.topic)
    groups = in_groups(rows)
    first = next(groups, None)
    began_at = time.time()  # now, since the brokers' clock starts with the first record
    groups = groups if first is None else itertools.chain([first], groups)
    try:
        with producer.transaction() as transaction:
            send_rows(producer, _counted(groups, fingerprint, columns), options.topic, columns)
            report = _report(attempt, fingerprint, marker, place=place, began_at=began_at)
            if report.is_committed:  # it is repeated, and was right before
                transaction.abort()
                return report
            if attempt.batch is not None and place is not None:
                position = OffsetAndMetadata(attempt.batch, Marker(attempt.batch, report.rows, report.fingerprint).dumps())
                transaction.commit_offsets(ConsumerGroupMetadata(attempt.name.of_task(attempt.task)), {place: position})
            prepared = transaction.prepare()
    except OttlaError as error:
        raise_if_too_long(error, options, began_at, f"task {attempt.task}")
        raise
    return dataclasses.replace(report, prepared=None if prepared.is_empty else prepared)


def _counted(groups: Iterator[pa.Table], fingerprint: RowFingerprint, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    for rows in groups:
        yield rows
        fingerprint.update(rows.select(list(columns)))  # when the producer has checked its rows


def _report(
    attempt: TaskAttempt,
    rows: RowFingerprint,
    marker: Marker | None,
    *,
    place: TopicPartition | None = None,
    began_at: float = 0.0,
) -> TaskReport:
    return TaskReport(
        name=attempt.name,
        batch=attempt.batch,
        run=attempt.run,
        task=attempt.task,
        rows=rows.rows,
        fingerprint=rows.value,
        marker=marker,
        prepared=None,
        topic=None if place is None else place.topic,
        began_at=began_at,
    )


@contextlib.contextmanager
def _producer(options: SinkOptions, transactional_id: str) -> Iterator[Producer]:
    producer = Producer({**dict(options.client), "transactional.id": transactional_id})
    try:
        yield producer
    finally:
        with contextlib.suppress(OttlaError):
            producer.close(timeout=0)


def _abort_earlier_runs(admin: Admin, attempt: TaskAttempt) -> None:
    """Abort the transactions that earlier runs have left open, so that readers go on before all tasks of this run have begun.

    Their own tasks may begin at the same time. Initializing a producer here would then fence that of such a task, and asking for
    its epoch first would not help: the coordinator looks at the epoch only when no transaction is open (KIP-360). EndTxn is for one
    epoch, and in the second version of transactions it is the last request of that epoch (KIP-890).

    In the first version the epoch goes on, and a task of an earlier run that was thought dead could: 1. Its rows are aborted. 2. It
    sends its marker, which begins another transaction. 3. That is committed, and the repeated task finds the marker, and skips its
    rows. So with Kafka before 4.0 readers wait until the tasks of this run begin, or its first batch is committed.
    """
    run = (os.getpid(), attempt.name, attempt.run)
    found = [each for each in attempt.earlier if attempt.name.task_of(each.transactional_id) not in (None, attempt.task)]
    if attempt.batch is not None and found and run not in _runs:
        abort(admin, found)
        _runs.add(run)
