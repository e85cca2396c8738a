"""Threads for slow work on files: the disk thread, which runs one job after the other beside the event loop, and workers that run
many jobs at once.

Owns these threads. Must not know what a job does. Invariants: the disk thread runs jobs in the order of their submission; it
reports the outcome of each exactly once, also if it raised; no job ends the thread; after an interrupted ``run_all`` the next one
begins when the jobs of the first have ended.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from ottla.broker.ports import DiskJob

Tag = tuple[Hashable, ...]

_WORKERS = 7
"""The maximum number of threads beside the caller's: jobs mostly wait for the disk, which serves several requests at once."""

log = logging.getLogger("ottla.broker")


class DiskWorkers:
    """Threads that run many jobs at once, together with the caller's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def run_all(self, jobs: Iterable[DiskJob]) -> None:
        """Run jobs in any order, several at a time; return when all are done. Raises the first exception of a job; then some of the
        others may not have run.

        After Ctrl-C no job is started: 1. Ctrl-C interrupts the caller's thread. 2. The other threads are still in their jobs,
        which cannot be interrupted. 3. The caller calls again, to complete the shutdown. So the next call waits for these threads
        first.
        """
        self._join()
        left, errors = deque(jobs), list[BaseException]()
        work = partial(_work, left, errors)
        count = min(_WORKERS, len(left) - 1)
        self._threads = [threading.Thread(target=work, name="ottla-broker-disk", daemon=True) for _ in range(count)]
        try:
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down and starts no more threads
                for thread in self._threads:
                    thread.start()
            work()
            self._join()
        finally:
            left.clear()
        if errors:
            raise errors[0]

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


def _work(left: deque[DiskJob], errors: list[BaseException]) -> None:
    while left and not errors:
        with contextlib.suppress(IndexError):  # another thread has taken the last job
            job = left.popleft()
            try:
                job()
            except BaseException as error:
                errors.append(error)


class DiskThread:
    """Runs one job after the other. It calls ``report(tag, outcome)`` on the disk thread; the outcome is the job's result, or the
    ``Exception`` that it raised."""

    def __init__(self, report: Callable[[Tag, object], None]) -> None:
        self._report = report
        self._jobs: queue.SimpleQueue[tuple[Tag, DiskJob] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failing: dict[str, str] = {}
        """The last error of each kind of job whose last run has failed."""

    def submit(self, tag: Tag, job: DiskJob) -> None:
        """Queue a job; the first one starts the thread."""
        self._jobs.put((tag, job))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ottla-broker-disk", daemon=True)
            thread.start()  # if it raises, the job stays in the queue, and the next submit() tries again
            self._thread = thread

    def close(self) -> None:
        """Wait until all jobs are done, and end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            tag, job = item
            outcome: object
            kind = " ".join(str(word) for word in tag if not isinstance(word, int))  # the numbers are those of attempts
            try:
                outcome = job()
            except BaseException as error:  # a panic in a codec's library is not an Exception
                self._log_once(kind, str(error))
                outcome = error if isinstance(error, Exception) else RuntimeError(repr(error))
            else:
                self._failing.pop(kind, None)
            self._report(tag, outcome)

    def _log_once(self, kind: str, error: str) -> None:
        """Log an error once, not for each attempt: otherwise a full disk fills the log."""
        if self._failing.get(kind) != error:
            log.error("work on the data directory failed (%s): %s", kind, error)
        self._failing[kind] = error
