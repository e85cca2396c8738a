"""The transactions of a sink: which are open, which can still be committed, and their end.

Owns the requests to coordinators of transactions. Must not know what a batch has written. Invariants: what aborts transactions
raises nothing if they have ended meanwhile; nothing here commits a transaction.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence

from ottla.admin import Admin, TransactionDescription
from ottla.client.produce.transactions.prepared import Prepared
from ottla.errors import InvalidTxnStateError, OttlaError, TransactionOutcomeUnknownError, UnsupportedApiError
from ottla.spark.client_pool import ClientPool
from ottla.spark.client_settings import CLIENT_PREFIX
from ottla.spark.exactly_once.replay import Marker, SinkName, TaskReport
from ottla.spark.exactly_once.stored import newest
from ottla.spark.sink_options import TRANSACTION_TIMEOUT, SinkOptions
from ottla.types import short_list

log = logging.getLogger(__name__)

admins = ClientPool(lambda settings: Admin(dict(settings)), Admin.close, max_idle=2)
"""The clients of this process, for tasks or for the driver."""

COMMIT_TIMEOUT = 120.0
"""Seconds that the driver tries to commit the transactions of a batch: as long as a producer tries to send a record."""

ABORT_TIMEOUT = 10.0
"""Seconds that the driver tries to abort transactions, which brokers otherwise do after ``transaction.timeout.ms``."""

SPARE = 5.0
"""Seconds before their time-out in which the transactions of a batch are not committed any more, since that takes a moment."""

ONGOING = "Ongoing"
COMMITTING = ("PrepareCommit", "CompleteCommit")
"""States of transactions, by Kafka's names."""


def raise_if_too_long(cause: OttlaError | None, options: SinkOptions, began_at: float, what: str) -> None:
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


def raise_unless_open(admin: Admin, options: SinkOptions, reports: Sequence[TaskReport]) -> None:
    """Raise, before anything is recorded or committed, if the transaction of a task is not open any more.

    Otherwise a driver that was thought dead would replace the record of the one that has taken over, and could commit a part: 1.
    Task 0 of driver A is late, and task 1 has prepared its rows. 2. Driver B takes over. Its task 0 has no rows, and no topic for a
    marker, so no transaction. B commits the batch. 3. Task 0 of A prepares its rows, and its transaction is the latest of its id.
    Only task 1 shows that B has taken over: B has initialized it before it fenced task 0, and so before the latter began.
    """
    prepared = {one.transactional_id: one for one in prepared_by(reports)}
    raise_if_too_long(None, options, first_began_at(reports), "the batch")
    try:
        found = admin.describe_transactions(prepared, timeout=COMMIT_TIMEOUT)
    except UnsupportedApiError:  # brokers before 3.0
        ended = _committed_meanwhile(admin, reports)
    else:
        # The ids of a batch job are its own, so no other driver commits their transactions: this driver has begun to, if any is.
        states = {ONGOING} if reports[0].batch is not None else {ONGOING, *COMMITTING}
        ended = [name for name, one in prepared.items() if found[name].state not in states or _has_successor(one, found[name])]
    if ended:
        end_prepared(admin, reports)
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
            _, marker = newest(admin.group_offsets(group), Marker, group)  # not the stable one: its own is pending
            if marker is not None and marker != report.marker and marker.batch >= report.batch:
                found.append(group)
    return found


def open_ids(admin: Admin, name: SinkName) -> list[str]:
    """Return the transactional ids of a sink that have an open transaction."""
    try:
        listed = admin.list_transactions(states=[ONGOING], timeout=ABORT_TIMEOUT)
    except UnsupportedApiError as error:  # brokers before 3.0
        log.info("transactions of earlier attempts stay open until they time out: %s", error)
        return []
    return [each.transactional_id for each in listed if name.task_of(each.transactional_id) is not None]


def abort(admin: Admin, found: Sequence[TransactionDescription]) -> None:
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


def fence(admin: Admin, transactional_ids: Sequence[str]) -> None:
    """Abort the transactions of these ids, whose producers cannot go on. Raises ``OttlaError``."""
    if transactional_ids:
        log.warning("aborting the open transactions of earlier attempts: %s", ", ".join(transactional_ids))
        admin.fence_producers(transactional_ids, timeout=ABORT_TIMEOUT)


def end_prepared(admin: Admin, reports: Sequence[TaskReport]) -> None:
    """Abort what the tasks have prepared. It raises nothing."""
    with contextlib.suppress(OttlaError):  # some may have ended; the others time out
        admin.end_transactions(prepared_by(reports), commit=False, timeout=ABORT_TIMEOUT)


def prepared_by(reports: Sequence[TaskReport]) -> list[Prepared]:
    """Return the prepared transactions."""
    return [report.prepared for report in reports if report.prepared is not None]


def first_began_at(reports: Sequence[TaskReport]) -> float:
    """When the first of the transactions began (seconds since 1970)."""
    return min((report.began_at for report in reports if report.prepared is not None), default=time.time())
