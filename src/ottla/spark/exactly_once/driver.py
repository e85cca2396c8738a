"""The driver of the sink with ``exactlyOnce``: it commits what the tasks have prepared.

Owns the order of the steps of the driver. Must not know Spark's interfaces of writers, nor judge a repeated batch (``replay``).
Invariants: the driver records a batch before it commits the first transaction, and commits nothing of a batch with a conflict.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

from ottla.admin import Admin, TransactionDescription
from ottla.errors import OttlaError, ReplayMismatchError, UnsupportedApiError
from ottla.spark.checkpoint import query_id
from ottla.spark.exactly_once.replay import PREFIX, Batch, BatchRecord, Marker, SinkName, TaskReport, conflicts
from ottla.spark.exactly_once.stored import newest_markers, newest_record, record_places, store_record
from ottla.spark.exactly_once.transactions import (
    COMMIT_TIMEOUT,
    ONGOING,
    admins,
    end_prepared,
    fence,
    first_began_at,
    open_ids,
    prepared_by,
    raise_if_too_long,
    raise_unless_open,
)
from ottla.spark.sink_options import SKIP, ExactlyOnce, SinkOptions

log = logging.getLogger(__name__)

LATE = 1.0
"""Seconds after which the driver reads the record of the latest batch once more, before it replaces it."""

LIST_TIMEOUT = 2.0
"""Seconds that the driver waits before a batch for brokers to list their open transactions."""


def open_transactions(options: SinkOptions) -> tuple[TransactionDescription, ...]:
    """Return the open transactions of all sinks.

    Called on the driver before each batch, for which Spark does not say yet which query it is. No task of the batch has begun, so
    what is open is of an earlier run, or of another sink. It raises nothing.
    """
    try:
        with admins.borrow(options.admin) as admin:
            listed = admin.list_transactions(states=[ONGOING], timeout=LIST_TIMEOUT)
            names = [each.transactional_id for each in listed if each.transactional_id.startswith(PREFIX)]
            found = admin.describe_transactions(names, timeout=LIST_TIMEOUT) if names else {}
    except OttlaError as error:
        level = logging.INFO if isinstance(error, UnsupportedApiError) else logging.WARNING  # brokers before 3.0
        log.log(level, "transactions of earlier runs stay open until their tasks run or they time out: %s", error)
        return ()
    return tuple(dataclasses.replace(each, partitions=()) for each in found.values() if each.state == ONGOING)


def abort_before_batch(options: SinkOptions, earlier: tuple[TransactionDescription, ...]) -> tuple[TransactionDescription, ...]:
    """Abort those of ``earlier`` that this sink has left open, and return the others.

    That is some seconds before the first task runs, and so possible only where the checkpoint tells the query's id.
    """
    assert options.exactly_once is not None
    query = None if options.checkpoint is None else query_id(options.checkpoint)
    if query is None:
        return earlier
    name = SinkName(query, options.exactly_once.sink_id)
    mine = [each for each in earlier if name.task_of(each.transactional_id) is not None]
    try:
        with admins.borrow(options.admin) as admin:
            # Not with EndTxn: a task of the earlier run that still writes must not go on (``tasks._abort_earlier_runs``).
            fence(admin, [each.transactional_id for each in mine])
    except OttlaError as error:
        log.warning("transactions of earlier runs stay open until their tasks run or they time out: %s", error)
        return earlier
    return tuple(each for each in earlier if each not in mine)


def commit_batch(options: SinkOptions, reports: Sequence[TaskReport], *, is_every_batch: bool) -> None:
    """Commit what the tasks of a batch have prepared. Called on the driver. It may be repeated.

    Raises ``ReplayMismatchError``, before anything is committed, if the batch may be in the topics already.
    """
    _check(reports)
    number = reports[0].batch
    with admins.borrow(options.admin) as admin:
        if number is None:
            raise_unless_open(admin, options, reports)
        if number is None or _may_commit(admin, options, reports, number, is_every_batch=is_every_batch):
            _commit(admin, options, reports)


def _check(reports: Sequence[TaskReport]) -> None:
    """Raise ``OttlaError`` if these are not the reports of all tasks of one batch: then something would be lost."""
    kinds = {(report.name, report.batch, report.run) for report in reports}
    if len(kinds) != 1 or [report.task for report in reports] != list(range(len(reports))):
        tasks = ", ".join(f"task {report.task} of batch {report.batch}" for report in reports[:10])
        raise OttlaError(f"Spark did not pass the reports of all tasks of one batch, but {tasks}", hint="nothing was committed")


def _may_commit(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport], number: int, *, is_every_batch: bool) -> bool:
    """Check a batch, and record that its transactions are about to be committed. ``False``: it is to be skipped."""
    assert options.exactly_once is not None
    name, run, count = reports[0].name, reports[0].run, len(reports)
    read_at = time.monotonic()
    place, record = newest_record(admin, name)
    if record is None or record.run != run:
        fence(admin, [each for each in open_ids(admin, name) if (name.task_of(each) or 0) >= count])
        # What another driver has committed before that, it has recorded.
        read_at = time.monotonic()
        place, record = newest_record(admin, name)
    surplus: list[tuple[int, Marker]] = []
    if record is not None and record.batch == number and record.tasks > count:
        surplus = _fence_surplus(admin, options, name, range(count, record.tasks))
    known = reports
    if record is None or (record.batch == number and record.run != run):
        known = _with_newest_markers(admin, options, reports, number)
    batch = Batch(number, run, known, record, surplus, time.time())
    found = conflicts(batch, least_record=_least_record(options.exactly_once, number, is_every_batch=is_every_batch))
    if found and options.exactly_once.on_mismatch == SKIP and batch.is_complete:
        log.warning("onReplayMismatch=skip: batch %d is not written again: %s", number, found[0].text)
        end_prepared(admin, reports)
        return False
    if found and not options.exactly_once.repeats:
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        end_prepared(admin, reports)
        raise ReplayMismatchError("; ".join(each.text for each in found[:3]) + more, hint=found[0].hint)
    if batch.committed:
        log.warning("batch %d is repeated: %d of %d tasks are committed already", number, len(batch.committed), count)
    for each in found:
        log.warning("onReplayMismatch=repeat: rows of batch %d are written again: %s", number, each.text)
    is_late = time.monotonic() - read_at > LATE or reports[0].prepared is None
    if is_late and newest_record(admin, name)[1] != record:
        # A driver that was cut off for a time. It holds no transactional id any more, and must not replace what another has stored.
        end_prepared(admin, reports)
        raise OttlaError(
            f"batch {number} is not committed: another driver has committed a batch of this query meanwhile",
            hint="two drivers run one query, or this one was thought to be dead; see which of them goes on",
        )
    at = int(batch.now)
    if record is not None and batch.is_repeated and batch.committed and not options.exactly_once.repeats:
        at = record.at + 1  # Markers that are not written again are as old as the first attempt. The later record still counts.
    if record is None or (record.batch, record.run) != (number, run):  # otherwise this driver has begun to commit it before
        raise_unless_open(admin, options, reports)
    store_record(admin, name, BatchRecord(number, count, run, at), record_places(admin, options, reports, place))
    return True


def _with_newest_markers(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport], number: int) -> list[TaskReport]:
    """Return the reports with the markers that are there by now, of tasks without a transaction, which would protect them.

    1. Task 0 of driver A has no rows, and no topic for a marker. 2. Driver B, which has taken over, commits the whole batch. 3. The
    other tasks of A begin, and B had fewer. 4. A must not commit them. Nor may B commit afterwards, if it has prepared such a task
    by now: so its transaction is ended.
    """
    unprotected = [report for report in reports if report.prepared is None and report.marker is None]
    admin.fence_producers([report.name.of_task(report.task) for report in unprotected])
    newest = newest_markers(admin, options, reports[0].name, [report.task for report in unprotected])
    committed = {task: marker for task, (_, marker) in newest.items() if marker is not None and marker.batch >= number}
    return [dataclasses.replace(report, marker=committed.get(report.task, report.marker)) for report in reports]


def _least_record(given: ExactlyOnce, number: int, *, is_every_batch: bool) -> int | None:
    """The number of the batch before, which has a record. In ``foreachBatch`` that is any batch, and with ``txnVersion`` none."""
    if given.query is not None:
        return None
    return number - 1 if is_every_batch else 0


def _fence_surplus(admin: Admin, options: SinkOptions, name: SinkName, tasks: range) -> list[tuple[int, Marker]]:
    """Abort what tasks have prepared that this attempt of the batch does not have, and return their markers."""
    admin.fence_producers([name.of_task(task) for task in tasks])
    found = newest_markers(admin, options, name, tasks)
    return [(task, marker) for task, (_, marker) in found.items() if marker is not None]


def _commit(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    prepared, began_at = prepared_by(reports), first_began_at(reports)
    raise_if_too_long(None, options, began_at, "the batch")  # or those that began later would be committed, and the others not
    try:
        # One first. Two drivers may commit attempts of the same batch, because one was thought dead. Each attempt has the first
        # task, and only the later one of the two can commit it, so the other driver ends here, before it has committed anything.
        admin.end_transactions(prepared[:1], commit=True, timeout=COMMIT_TIMEOUT)
        admin.end_transactions(prepared[1:], commit=True, timeout=COMMIT_TIMEOUT)
    except OttlaError as error:
        raise_if_too_long(error, options, began_at, "the batch")
        raise OttlaError(
            f"the batch is not committed, or not in whole: {error.args[0]}",
            hint="the topics may have the rows of some tasks, and a job that runs again writes all of them; with txnAppId and "
            "txnVersion it would write those that are missing"
            if reports[0].batch is None
            else "start the query again, which repeats the batch: no row is lost or twice in the topic. If this comes again while "
            "all brokers run, a second driver, or spark.speculation, runs other attempts of the same tasks",
            cause=error,
        ) from error


class Attempted(NamedTuple):
    """What an attempt has written: the sink, the number of the batch (``None``: a batch job has none), and the run."""

    name: SinkName
    batch: int | None
    run: str


def abort_batch(options: SinkOptions, reports: Sequence[TaskReport], attempted: Attempted | None = None) -> None:
    """Abort the transactions of a batch that has failed, those of tasks that did not report included. It raises nothing.

    ``attempted`` is known without a report in a batch job; a query is known only by a report.
    """
    if reports:
        attempted = Attempted(reports[0].name, reports[0].batch, reports[0].run)
    try:
        with admins.borrow(options.admin) as admin:
            end_prepared(admin, reports)
            if attempted is not None:
                _fence_attempt(admin, attempted)
    except OttlaError as error:
        log.warning("the transactions of the batch stay open until they time out: %s", error)


def _fence_attempt(admin: Admin, attempted: Attempted) -> None:
    """Abort what is open of this sink, unless another driver has taken over."""
    name, number, run = attempted
    record = None if number is None else newest_record(admin, name)[1]
    if record is None or number is None or record.run == run or record.batch < number:
        fence(admin, open_ids(admin, name))
