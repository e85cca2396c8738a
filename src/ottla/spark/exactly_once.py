"""The sink with ``exactlyOnce``: tasks prepare transactions, and the driver commits them.

Owns the order of the steps of a task, and of the driver. Must not know Spark's interfaces of writers, nor judge a repeated batch
(``replay``). Invariants: a task looks at its marker only after its producer was initialized, so that no earlier attempt can commit
afterwards; rows and marker are in one transaction, which a task never commits; the driver records a batch before it commits the
first transaction, and commits nothing of a batch with a conflict.

Why a row is there once:

1. At most one attempt of a task commits a batch. Initializing the producer fences every earlier attempt: if that had committed, the
   marker says so, and the rows are only compared; if not, its transaction is aborted.
2. Spark logs a batch as done after ``commit_batch`` has returned, which is when all transactions are committed. So a batch whose
   transactions time out fails, and is repeated.
3. If the driver dies between the first and the last commit, the repeated batch skips the tasks that are committed. That is right if
   each task has the same rows as before, which is checked before anything else is committed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.admin import Admin, TransactionDescription
from ottla.client.produce.transactions.prepared import Prepared
from ottla.errors import (
    InvalidTxnStateError,
    OttlaError,
    ReplayMismatchError,
    TopicAuthorizationFailedError,
    TransactionOutcomeUnknownError,
    UnknownTopicOrPartitionError,
    UnsupportedApiError,
)
from ottla.producer import Producer
from ottla.records.row_fingerprint import RowFingerprint
from ottla.spark.arrow_rows import in_groups, send_rows
from ottla.spark.checkpoint import query_id
from ottla.spark.client_settings import CLIENT_PREFIX, admin_settings
from ottla.spark.replay import PREFIX, Batch, BatchRecord, Marker, SinkName, TaskReport, conflicts
from ottla.spark.sink_options import SKIP, TRANSACTION_TIMEOUT, ExactlyOnce, SinkOptions
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, short_list

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

StoredT = TypeVar("StoredT", Marker, BatchRecord)

COMMIT_TIMEOUT = 120.0
"""Seconds that the driver tries to commit the transactions of a batch: as long as a producer tries to send a record."""

ABORT_TIMEOUT = 10.0
"""Seconds that the driver tries to abort transactions, which brokers otherwise do after ``transaction.timeout.ms``."""

SPARE = 5.0
"""Seconds before their time-out in which the transactions of a batch are not committed any more, since that takes a moment."""

LATE = 1.0
"""Seconds after which the driver reads the record of the latest batch once more, before it replaces it."""

LIST_TIMEOUT = 2.0
"""Seconds that the driver waits before a batch for brokers to list their open transactions."""

RETENTION = timedelta(days=3650)
"""How long brokers keep the record of a batch: a query may be idle for longer than they keep the offsets of other groups."""

ONGOING = "Ongoing"
COMMITTING = ("PrepareCommit", "CompleteCommit")
"""States of transactions, by Kafka's names."""

_admins: dict[tuple[int, tuple[tuple[str, str], ...]], Admin] = {}
"""One for each process and cluster. A process of Spark's driver or executors serves many batches."""

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


# -- tasks ----------------------------------------------------------------------------------------------------------------


def write_task(
    options: SinkOptions, columns: tuple[str, ...], batches: Iterator[pa.RecordBatch], attempt: TaskAttempt
) -> TaskReport:
    """Write the rows of a task into a transaction, unless an earlier attempt has committed them. Called on an executor."""
    name = attempt.name.of_task(attempt.task)
    admin = admin_of(options)
    filled = (batch.select(list(columns)) for batch in batches if batch.num_rows)
    with _producer(options, name) as producer:
        producer.initialize()
        _abort_earlier_runs(admin, attempt)
        if attempt.batch is None:
            return _prepare(options, producer, filled, attempt, None, None)
        place, marker = _newest_markers(admin, options, attempt.name, [attempt.task])[attempt.task]
        if marker is not None and marker.batch < attempt.batch:
            marker = None
        assert options.exactly_once is not None
        if marker is not None and not options.exactly_once.repeats:
            return _compare(options, filled, attempt, marker)
        first = next(filled, None)
        rows = iter(()) if first is None else itertools.chain([first], filled)
        if place is None:
            place = _place_of(admin, options, attempt.name, first)
        return _prepare(options, producer, rows, attempt, marker, place)


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


def _compare(options: SinkOptions, filled: Iterator[pa.RecordBatch], attempt: TaskAttempt, marker: Marker) -> TaskReport:
    """Report the rows of a task without writing them."""
    fingerprint = RowFingerprint(options.topic)
    for batch in filled:
        fingerprint.update(batch)
    return _report(attempt, fingerprint, marker)


def _prepare(
    options: SinkOptions,
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
            send_rows(producer, _counted(groups, fingerprint), options.topic)
            report = _report(attempt, fingerprint, marker, place=place, began_at=began_at)
            if report.is_committed:  # it is repeated, and was right before
                transaction.abort()
                return report
            if attempt.batch is not None and place is not None:
                position = OffsetAndMetadata(attempt.batch, Marker(attempt.batch, report.rows, report.fingerprint).dumps())
                transaction.commit_offsets(ConsumerGroupMetadata(attempt.name.of_task(attempt.task)), {place: position})
            prepared = transaction.prepare()
    except OttlaError as error:
        _raise_if_too_long(error, options, began_at, f"task {attempt.task}")
        raise
    return dataclasses.replace(report, prepared=None if prepared.is_empty else prepared)


def _counted(groups: Iterator[pa.Table], fingerprint: RowFingerprint) -> Iterator[pa.Table]:
    for rows in groups:
        yield rows
        fingerprint.update(rows)  # when the producer has checked its rows


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


def _raise_if_too_long(cause: OttlaError | None, options: SinkOptions, began_at: float, what: str) -> None:
    """Raise an error if the transaction was open for so long that the brokers have aborted it, or are about to."""
    seconds, limit = time.time() - began_at, options.transaction_timeout
    if seconds < (limit - min(SPARE, limit / 10) if cause is None else limit):
        return
    raise OttlaError(
        f"{what}: its transaction was open for {seconds:.0f} s; the brokers abort it after {options.transaction_timeout:g} s",
        hint="write smaller batches, with maxOffsetsPerTrigger of the source; or set "
        f"{CLIENT_PREFIX}{TRANSACTION_TIMEOUT} higher, which the brokers allow up to their transaction.max.timeout.ms",
        cause=cause,
    ) from cause


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
        _abort(admin, found)
        _runs.add(run)


def _abort(admin: Admin, found: Sequence[TransactionDescription]) -> None:
    """Abort these transactions, unless their ids have another epoch by now. It raises nothing."""
    left = [Prepared(each.transactional_id, each.producer_id, each.producer_epoch, 2) for each in found]
    try:
        admin.end_transactions(left, commit=False, timeout=ABORT_TIMEOUT)
        log.warning("aborted the open transactions of earlier runs: %s", ", ".join(each.transactional_id for each in found))
    except UnsupportedApiError as error:
        log.info("transactions of earlier runs stay open until their tasks run: %s", error)
    except (TransactionOutcomeUnknownError, InvalidTxnStateError) as error:
        log.info("transactions of earlier runs have ended meanwhile: %s", error)
    except OttlaError as error:
        log.warning("transactions of earlier runs stay open until their tasks run or they time out: %s", error)


# -- the driver -----------------------------------------------------------------------------------------------------------


def open_transactions(options: SinkOptions) -> tuple[TransactionDescription, ...]:
    """Return the open transactions of all sinks.

    Called on the driver before each batch, for which Spark does not say yet which query it is. No task of the batch has begun, so
    what is open is of an earlier run, or of another sink. It raises nothing.
    """
    admin = admin_of(options)
    try:
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
        # Not with EndTxn: a task of the earlier run that still writes must not go on (``_abort_earlier_runs``).
        _fence(admin_of(options), [each.transactional_id for each in mine])
    except OttlaError as error:
        log.warning("transactions of earlier runs stay open until their tasks run or they time out: %s", error)
        return earlier
    return tuple(each for each in earlier if each not in mine)


def commit_batch(options: SinkOptions, reports: Sequence[TaskReport], *, is_every_batch: bool) -> None:
    """Commit what the tasks of a batch have prepared. Called on the driver. It may be repeated.

    Raises ``ReplayMismatchError``, before anything is committed, if the batch may be in the topics already.
    """
    _check(reports)
    admin, number = admin_of(options), reports[0].batch
    if number is None:
        _raise_unless_open(admin, options, reports)
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
    place, record = _newest_record(admin, name)
    if record is None or record.run != run:
        _fence(admin, [each for each in _open_transactions(admin, name) if (name.task_of(each) or 0) >= count])
        # What another driver has committed before that, it has recorded.
        read_at = time.monotonic()
        place, record = _newest_record(admin, name)
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
        _end_prepared(admin, reports)
        return False
    if found and not options.exactly_once.repeats:
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        _end_prepared(admin, reports)
        raise ReplayMismatchError("; ".join(each.text for each in found[:3]) + more, hint=found[0].hint)
    if batch.committed:
        log.warning("batch %d is repeated: %d of %d tasks are committed already", number, len(batch.committed), count)
    for each in found:
        log.warning("onReplayMismatch=repeat: rows of batch %d are written again: %s", number, each.text)
    is_late = time.monotonic() - read_at > LATE or reports[0].prepared is None
    if is_late and _newest_record(admin, name)[1] != record:
        # A driver that was cut off for a time. It holds no transactional id any more, and must not replace what another has stored.
        _end_prepared(admin, reports)
        raise OttlaError(
            f"batch {number} is not committed: another driver has committed a batch of this query meanwhile",
            hint="two drivers run one query, or this one was thought to be dead; see which of them goes on",
        )
    at = int(batch.now)
    if record is not None and batch.is_repeated and batch.committed and not options.exactly_once.repeats:
        at = record.at + 1  # Markers that are not written again are as old as the first attempt. The later record still counts.
    if record is None or (record.batch, record.run) != (number, run):  # otherwise this driver has begun to commit it before
        _raise_unless_open(admin, options, reports)
    _store(admin, name, BatchRecord(number, count, run, at), _places(admin, options, reports, place))
    return True


def _raise_unless_open(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """Raise, before anything is recorded or committed, if the transaction of a task is not open any more.

    Otherwise a driver that was thought dead would replace the record of the one that has taken over, and could commit a part: 1.
    Task 0 of driver A is late, and task 1 has prepared its rows. 2. Driver B takes over. Its task 0 has no rows, and no topic for a
    marker, so no transaction. B commits the batch. 3. Task 0 of A prepares its rows, and its transaction is the latest of its id.
    Only task 1 shows that B has taken over: B has initialized it before it fenced task 0, and so before the latter began.
    """
    prepared = {one.transactional_id: one for one in _prepared(reports)}
    _raise_if_too_long(None, options, _began_at(reports), "the batch")
    try:
        found = admin.describe_transactions(prepared, timeout=COMMIT_TIMEOUT)
    except UnsupportedApiError:  # brokers before 3.0
        ended = _committed_meanwhile(admin, reports)
    else:
        # The ids of a batch job are its own, so no other driver commits their transactions: this driver has begun to, if any is.
        states = {ONGOING} if reports[0].batch is not None else {ONGOING, *COMMITTING}
        ended = [name for name, one in prepared.items() if found[name].state not in states or _has_successor(one, found[name])]
    if ended:
        _end_prepared(admin, reports)
        raise OttlaError(
            f"the batch is not committed: the transactions of {short_list(ended, 5)} are not open any more",
            hint="start the query again, which repeats the batch. If this comes again, a second driver, or spark.speculation, runs "
            "other attempts of the same tasks, or the transactions were aborted because they had been open for too long",
        )


def _has_successor(prepared: Prepared, found: TransactionDescription) -> bool:
    """Whether the transactional id has another epoch than that of an open transaction. The end of a transaction may begin one."""
    return found.state == ONGOING and (found.producer_id, found.producer_epoch) != (prepared.producer_id, prepared.producer_epoch)


def _committed_meanwhile(admin: Admin, reports: Sequence[TaskReport]) -> list[str]:
    """Return the transactional ids of tasks of which another driver has committed a marker since they were prepared."""
    found = []
    for report in reports:
        if report.prepared is not None and report.batch is not None:
            group = report.name.of_task(report.task)
            _, marker = _newest(admin.group_offsets(group), Marker, group)  # not the stable one: its own is pending
            if marker is not None and marker != report.marker and marker.batch >= report.batch:
                found.append(group)
    return found


def _with_newest_markers(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport], number: int) -> list[TaskReport]:
    """Return the reports with the markers that are there by now, of tasks without a transaction, which would protect them.

    1. Task 0 of driver A has no rows, and no topic for a marker. 2. Driver B, which has taken over, commits the whole batch. 3. The
    other tasks of A begin, and B had fewer. 4. A must not commit them. Nor may B commit afterwards, if it has prepared such a task
    by now: so its transaction is ended.
    """
    unprotected = [report for report in reports if report.prepared is None and report.marker is None]
    admin.fence_producers([report.name.of_task(report.task) for report in unprotected])
    newest = _newest_markers(admin, options, reports[0].name, [report.task for report in unprotected])
    committed = {task: marker for task, (_, marker) in newest.items() if marker is not None and marker.batch >= number}
    return [dataclasses.replace(report, marker=committed.get(report.task, report.marker)) for report in reports]


def _least_record(given: ExactlyOnce, number: int, *, is_every_batch: bool) -> int | None:
    """The number of the batch before, which has a record. In ``foreachBatch`` that is any batch, and with ``txnVersion`` none."""
    if given.query is not None:
        return None
    return number - 1 if is_every_batch else 0


def _places(
    admin: Admin, options: SinkOptions, reports: Sequence[TaskReport], place: TopicPartition | None
) -> Iterator[TopicPartition]:
    """Partitions for the record of a batch, the best ones first: where the latest one is, so that there is only one. A batch
    without rows may have no topic that exists."""
    if place is not None:
        yield place
    yield from (TopicPartition(report.topic, 0) for report in reports if report.topic is not None)
    if options.topic is not None:
        yield TopicPartition(options.topic, 0)
    yield from (TopicPartition(topic, 0) for topic in admin.list_topics(include_internal=True))


def _store(admin: Admin, name: SinkName, record: BatchRecord, places: Iterator[TopicPartition]) -> None:
    for place in places:
        # The last one that is tried exists, since it has the offsets of groups.
        with contextlib.suppress(UnknownTopicOrPartitionError, TopicAuthorizationFailedError):
            position = {place: OffsetAndMetadata(record.batch, record.dumps())}
            admin.alter_group_offsets(name.group, position, retention=RETENTION)
            return
    raise OttlaError(f"batch {record.batch} cannot be recorded: there is no topic for which the sink may commit an offset")


def _fence_surplus(admin: Admin, options: SinkOptions, name: SinkName, tasks: range) -> list[tuple[int, Marker]]:
    """Abort what tasks have prepared that this attempt of the batch does not have, and return their markers."""
    admin.fence_producers([name.of_task(task) for task in tasks])
    found = _newest_markers(admin, options, name, tasks)
    return [(task, marker) for task, (_, marker) in found.items() if marker is not None]


def _commit(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    prepared, began_at = _prepared(reports), _began_at(reports)
    _raise_if_too_long(None, options, began_at, "the batch")  # or those that began later would be committed, and the others not
    try:
        # One first. Two drivers may commit attempts of the same batch, because one was thought dead. Each attempt has the first
        # task, and only the later one of the two can commit it, so the other driver ends here, before it has committed anything.
        admin.end_transactions(prepared[:1], commit=True, timeout=COMMIT_TIMEOUT)
        admin.end_transactions(prepared[1:], commit=True, timeout=COMMIT_TIMEOUT)
    except OttlaError as error:
        _raise_if_too_long(error, options, began_at, "the batch")
        raise OttlaError(
            f"the batch is not committed, or not in whole: {error.args[0]}",
            hint="the topics may have the rows of some tasks, and a job that runs again writes all of them; with txnAppId and "
            "txnVersion it would write those that are missing"
            if reports[0].batch is None
            else "start the query again, which repeats the batch: no row is lost or twice in the topic. If this comes again while "
            "all brokers run, a second driver, or spark.speculation, runs other attempts of the same tasks",
            cause=error,
        ) from error


def _prepared(reports: Sequence[TaskReport]) -> list[Prepared]:
    return [report.prepared for report in reports if report.prepared is not None]


def _began_at(reports: Sequence[TaskReport]) -> float:
    """When the first of the transactions began (seconds since 1970)."""
    return min((report.began_at for report in reports if report.prepared is not None), default=time.time())


class Attempted(NamedTuple):
    """What an attempt has written: the sink, the number of the batch (``None``: a batch job has none), and the run."""

    name: SinkName
    batch: int | None
    run: str


def abort_batch(options: SinkOptions, reports: Sequence[TaskReport], attempted: Attempted | None = None) -> None:
    """Abort the transactions of a batch that has failed, those of tasks that did not report included. It raises nothing.

    ``attempted`` is known without a report in a batch job; a query is known only by a report.
    """
    admin = admin_of(options)
    _end_prepared(admin, reports)
    if reports:
        attempted = Attempted(reports[0].name, reports[0].batch, reports[0].run)
    if attempted is None:
        return
    name, number, run = attempted
    try:
        record = None if number is None else _newest_record(admin, name)[1]
        if record is None or number is None or record.run == run or record.batch < number:  # else another driver took over
            _fence(admin, _open_transactions(admin, name))
    except OttlaError as error:
        log.warning("the transactions of the batch stay open until they time out: %s", error)


def _end_prepared(admin: Admin, reports: Sequence[TaskReport]) -> None:
    with contextlib.suppress(OttlaError):  # some may have ended; the others time out
        admin.end_transactions(_prepared(reports), commit=False, timeout=ABORT_TIMEOUT)


# -- both -----------------------------------------------------------------------------------------------------------------


def admin_of(options: SinkOptions) -> Admin:
    """Return the client of this process for the cluster of a sink."""
    settings = tuple(admin_settings(dict(options.client)).items())
    key = (os.getpid(), settings)
    if key not in _admins:
        _admins[key] = Admin(dict(settings))
    return _admins[key]


def _newest_record(admin: Admin, name: SinkName) -> tuple[TopicPartition | None, BatchRecord | None]:
    return _newest(admin.group_offsets(name.group), BatchRecord, name.group)


def _newest_markers(
    admin: Admin, options: SinkOptions, name: SinkName, tasks: Iterable[int]
) -> dict[int, tuple[TopicPartition | None, Marker | None]]:
    """Return the latest marker of each task, and where it is, as soon as none is pending. Their producers were initialized before.

    A broker's classic coordinator of groups (the only one before Kafka 4.0) takes the offsets of a transaction over a moment after
    that has ended, and with it all that the producer has pending by then: 1. A task commits its marker of batch 0. 2. It prepares
    that of batch 1. 3. The coordinator takes both over. 4. The transaction of batch 1 is aborted, and its repetition would find its
    marker, and skip its rows. (With 3.0.2 on a busy machine that happened 3 times in 60.) So a task waits until nothing is pending.
    Kafka waits only for partitions that have an offset in the group, or are named.
    """
    found = {}
    places: list[TopicPartition] | None = None
    for task in tasks:
        group = name.of_task(task)
        offsets = admin.group_offsets(group, require_stable=True)
        if not offsets:
            if places is None:
                topics = admin.list_topics(include_internal=True) if options.topic is None else [options.topic]
                places = [*(TopicPartition(topic, 0) for topic in topics), *admin.group_offsets(name.group)]
            offsets = admin.group_offsets(group, places, require_stable=True)
        found[task] = _newest(offsets, Marker, group)
    return found


def _newest(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], kind: type[StoredT], group: str
) -> tuple[TopicPartition | None, StoredT | None]:
    """Return what is stored about the latest batch, and where. Several topics have it if the first was deleted for a time."""
    stored = {place: kind.loads(each.metadata, group) for place, each in offsets.items()}
    place = max(stored, key=lambda each: stored[each].order, default=None)
    return place, None if place is None else stored[place]


def _open_transactions(admin: Admin, name: SinkName) -> list[str]:
    """Return the transactional ids of a sink that have an open transaction."""
    try:
        listed = admin.list_transactions(states=[ONGOING], timeout=ABORT_TIMEOUT)
    except UnsupportedApiError as error:  # brokers before 3.0
        log.info("transactions of earlier attempts stay open until they time out: %s", error)
        return []
    return [each.transactional_id for each in listed if name.task_of(each.transactional_id) is not None]


def _fence(admin: Admin, transactional_ids: Sequence[str]) -> None:
    if transactional_ids:
        log.warning("aborting the open transactions of earlier attempts: %s", ", ".join(transactional_ids))
        admin.fence_producers(transactional_ids, timeout=ABORT_TIMEOUT)
