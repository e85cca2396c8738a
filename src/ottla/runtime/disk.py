"""Slow work on files: the disk thread, which does one job after the other, away from the event loop; and many jobs at once.

Owns the threads that do it. Must not know what a job does. Invariants: the jobs of the disk thread run in the order in which they
were given; each is reported exactly once, also when it raised; nothing a job does ends the thread; where many jobs at once were
interrupted, the next ones begin when those have ended.
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
"""Threads beside the caller's that do many jobs: most of it is waiting for the disk, which serves several at once."""

log = logging.getLogger("ottla.broker")


class DiskWorkers:
    """Threads that do many jobs, beside the caller's."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def run_all(self, jobs: Iterable[DiskJob]) -> None:
        """Do jobs in any order, several at a time; returns when all are done. Raises what the first that fails has raised; then
        some of the others may not have been done.

        After Ctrl-C no job is begun. Those that run may do so for a while; the next call waits for them.
        """
        self._join()
        left, errors = deque(jobs), list[BaseException]()
        work = partial(_work, left, errors)
        count = min(_WORKERS, len(left) - 1)
        self._threads = [threading.Thread(target=work, name="ottla-broker-disk", daemon=True) for _ in range(count)]
        try:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending and makes no more threads
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
        with contextlib.suppress(IndexError):  # another thread has taken the last one
            job = left.popleft()
            try:
                job()
            except BaseException as error:
                errors.append(error)


class DiskThread:
    """Runs jobs. ``report(tag, outcome)`` is called on the disk thread: the outcome is the job's result, or the ``Exception`` that
    it raised."""

    def __init__(self, report: Callable[[Tag, object], None]) -> None:
        self._report = report
        self._jobs: queue.SimpleQueue[tuple[Tag, DiskJob] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failing: dict[str, str] = {}
        """The last error of each kind of job that has not succeeded since."""

    def submit(self, tag: Tag, job: DiskJob) -> None:
        """Do a job after all those before it; the thread starts with the first."""
        self._jobs.put((tag, job))
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="ottla-broker-disk", daemon=True)
            thread.start()  # may raise; the next job tries again then
            self._thread = thread

    def close(self) -> None:
        """Wait until all jobs are done."""
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
        """One line, not one for each attempt: a full disk would fill the log."""
        if self._failing.get(kind) != error:
            log.error("work on the data directory failed (%s): %s", kind, error)
        self._failing[kind] = error
