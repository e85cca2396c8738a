"""The disk thread: slow work on files, one job after the other, away from the event loop.

Owns one thread and its queue. Must not know what a job does. Invariants: jobs run in the order in which they were given; each
is reported exactly once, also when it raised; nothing a job does ends the thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable

Tag = tuple[Hashable, ...]
Job = Callable[[], object]

log = logging.getLogger("ottla.broker")


class DiskThread:
    """Runs jobs. ``report(tag, outcome)`` is called on the disk thread: the outcome is what the job returned, or the ``Exception``
    that it raised."""

    def __init__(self, report: Callable[[Tag, object], None]) -> None:
        self._report = report
        self._jobs: queue.SimpleQueue[tuple[Tag, Job] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, tag: Tag, job: Job) -> None:
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
            try:
                outcome = job()
            except BaseException as error:  # a panic in a codec's library is no Exception
                log.error("work on the data directory failed (%s): %s", " ".join(map(str, tag)), error)
                outcome = error if isinstance(error, Exception) else RuntimeError(repr(error))
            self._report(tag, outcome)
