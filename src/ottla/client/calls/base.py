"""What every call of a consumer needs, whatever it is about: the settings, the mailbox, the collector, and what has to hold.

Owns the checks that several calls make. Must not know any one call. Invariant: a call that may not be made is refused before
anything was asked of the network thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client import commands
from ottla.client.calls.collector import Collector
from ottla.client.calls.mailbox import Call, Mailbox
from ottla.client.calls.pace import Pace
from ottla.client.subscription import Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import (
    IllegalStateError,
    InvalidGroupIdError,
    NoOffsetForPartitionError,
    OttlaError,
    OttlaTimeoutError,
)
from ottla.types import TopicPartition


class CallBase:
    """The base of the groups of calls. They share one consumer's state and are one object: ``ConsumerCalls``."""

    def __init__(self, config: ConsumerConfig, mailbox: Mailbox, collector: Collector) -> None:
        self.collector = collector
        self.pace = Pace()
        self._config = config
        self._mailbox = mailbox
        self._look_up: commands.LookUpAgain | None = None
        """Sent since it was last raised that nothing is committed."""

    @property
    def snapshot(self) -> Snapshot:
        """The subscription as it was last told."""
        return self.collector.snapshot

    def _deadline(self) -> int:
        return self._mailbox.now.mono + self._config.default_api_timeout_ms

    def _catch_up(self, what: str, deadline: int) -> Call[None]:
        """A call that was cancelled may have asked for a seek: know the positions that are valid now, or raise a time-out."""
        if not (yield from self._mailbox.catch_up(deadline)):
            raise OttlaTimeoutError(f"{what} was not done in time")

    def _raise_failure(self) -> None:
        if self.snapshot.failure is not None:
            raise self.snapshot.failure.afresh()

    def _raise_problem(self, problem: OttlaError) -> None:
        """Raise it, or return to wait for news: that nothing is committed is asked once more each time before it is raised.

        As by Java's consumer: an operator, or the application itself, may have committed since.
        """
        if not isinstance(problem, NoOffsetForPartitionError) or self._config.group_id is None:
            raise problem.afresh()
        if self._look_up is None:
            self._look_up = commands.LookUpAgain()
            self._mailbox.submit(self._look_up)
        elif self._look_up.completion.done:
            # The snapshot that shows the problem is newer than the look-up: it arrived with its completion or later.
            self._look_up = None
            raise problem.afresh()

    def _require_group(self, what: str) -> None:
        if self._config.group_id is None:
            raise InvalidGroupIdError(f"{what} needs a group", hint="set group_id")

    def _require_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = sorted(tp for tp in partitions if tp not in self.snapshot.partitions)
        if missing:
            listed = ", ".join(map(str, missing))
            raise IllegalStateError(f"not assigned to this consumer: {listed}", hint="only assigned partitions have a position")
