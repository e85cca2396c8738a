"""A long job that the application announces, so that the group waits for it, but not for an unannounced silence.

Owns the one job that may be running. Must not know how long a job takes, nor what a group does about one that takes too long.
Invariants: while a job is running nothing is polled, so its records do not count as processed; however it ends, the application's
usual deadline applies again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from ottla.client import commands
from ottla.errors import IllegalStateError


class Job:
    """See ``Consumer.processing``. ``progress`` and ``rebalancing`` may be used by any thread."""

    def __init__(self, processing: Processing, limit: int) -> None:
        self._processing = processing
        self._limit = limit

    def __enter__(self) -> Self:
        self._processing.begin(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._processing.end(self)

    @property
    def limit_ms(self) -> int:
        """Milliseconds that the job may be silent for."""
        return self._limit

    @property
    def rebalancing(self) -> bool:
        """Whether the group waits for this member to give up partitions: end early if you can, commit, and ``poll()``."""
        return self._processing.rebalancing()

    def progress(self) -> None:
        """Report progress: the limit counts from now."""
        self._processing.go_on(self)


class Processing:
    """See the module. ``submit`` sends a command to the network thread."""

    def __init__(self, submit: Callable[[object], None]) -> None:
        self.rebalancing: Callable[[], bool] = lambda: False
        """Whether a rebalance is in progress; set by the owner."""
        self._submit = submit
        self._job: Job | None = None

    def job(self, limit: int) -> Job:
        """A job that may be silent for ``limit`` ms; it begins when it is entered."""
        return Job(self, limit)

    def check_idle(self) -> None:
        """Raises ``IllegalStateError`` while a job is running."""
        if self._job is not None:
            raise IllegalStateError(
                "a processing() block is open: poll() would count its records as processed",
                hint="leave the processing() block first",
            )

    def begin(self, job: Job) -> None:
        """A job begins."""
        self.check_idle()
        self._job = job
        self._submit(commands.ProcessingBegan(job.limit_ms))

    def go_on(self, job: Job) -> None:
        """A job reports progress; a late report does no harm."""
        if self._job is job:
            self._submit(commands.ProcessingBegan(job.limit_ms))

    def end(self, job: Job) -> None:
        """A job has ended, or was abandoned."""
        if self._job is job:
            self._job = None
            self._submit(commands.ProcessingEnded())
