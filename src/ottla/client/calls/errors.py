"""Which errors a call raises: those that the network thread reported, what keeps records from coming, and misuse.

Owns the reported errors that no call has raised yet, and the problems of the latest snapshot. Must not know any one call.
Invariants: an error is raised once, a problem for as long as it lasts; neither is raised if it concerns a membership that the
application has left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from ottla.client import commands
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import Mailbox
from ottla.client.notifications import TopicErrorNotification
from ottla.client.subscription import Mode, Snapshot
from ottla.config import ConsumerConfig
from ottla.errors import (
    ConnectionFailedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    DisconnectedError,
    IllegalStateError,
    InvalidGroupIdError,
    LeaderNotAvailableError,
    NoOffsetForPartitionError,
    NotCoordinatorError,
    OttlaError,
    OttlaTimeoutError,
)
from ottla.types import TopicPartition

_log = logging.getLogger(__name__)

PROBLEM_GRACE = 3_000
"""Milliseconds before an empty poll raises a problem that may pass, such as a topic that is just being created."""

UNREACHABLE_GRACE = 500
"""Milliseconds before an empty poll raises that no broker can be reached: less than the second that most polls wait."""

_OF_A_RESTART = (
    DisconnectedError,
    OttlaTimeoutError,
    LeaderNotAvailableError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
"""Expected while a broker restarts: no leader, a coordinator that loads its groups, is not available or has moved."""


class CallErrors:
    """See the module. It reads the snapshot and ``has_waiting`` of the collector; of the mailbox, the time, and it may submit."""

    def __init__(self, config: ConsumerConfig, mailbox: Mailbox, collector: FetchCollector) -> None:
        self._config = config
        self._mailbox = mailbox
        self._collector = collector
        self._reported: deque[OttlaError] = deque()
        self._problems: list[OttlaError] = []
        """All that keeps records from coming; what concerns all partitions comes first."""
        self._problem_since: dict[type[OttlaError], int] = {}
        self._void_until: tuple[commands.Command, ...] = ()
        """Until one of these is done, reported errors concern the membership that the application has left."""
        self._look_up: commands.LookUpAgain | None = None
        """Sent since ``NoOffsetForPartitionError`` was last raised."""

    # -- what the network thread reports ----------------------------------------------------------------------------------

    def report(self, error: OttlaError) -> None:
        """Have the next poll raise ``error``. A retry may fail again before that: the same error is raised once."""
        if not self._is_void() and all((type(error), str(error)) != (type(known), str(known)) for known in self._reported):
            self._reported.append(error)

    def add(self, error: OttlaError) -> None:
        """Have the next poll raise what the application's own assignor has raised, whatever membership that concerns."""
        self._reported.append(error)

    def on_topic_error(self, item: TopicErrorNotification) -> None:
        """Have the next poll raise it, if the topic is still subscribed to."""
        if item.topic in self._collector.snapshot.topics and not self._is_void():
            self._reported.append(item.error)

    def on_published(self, snapshot: Snapshot) -> None:
        """Take the problems of a new snapshot."""
        general = [snapshot.problem] if snapshot.problem is not None else []
        self._problems = [*general, *snapshot.problems.values()]
        kinds = {type(problem) for problem in self._problems}
        self._problem_since = {kind: self._problem_since.get(kind, self._mailbox.now.mono) for kind in kinds}

    # -- a membership that was left ---------------------------------------------------------------------------------------

    def leaving(self, command: commands.Command) -> None:
        """The application leaves by ``command``: errors of the membership so far are void.

        The network thread may report some more before it executes the command, and they arrive here afterwards.
        """
        self._reported.clear()
        self._void_until = (command,)

    def beginning(self, command: commands.Command) -> None:
        """The application begins to read something else by ``command``.

        If ``unsubscribe()`` was cancelled, it may be executed later than this; either one ends the membership that was left.
        """
        if self._void_until:
            self._void_until += (command,)

    @property
    def awaits_leaving(self) -> bool:
        """Whether the snapshot is still that of the membership that was left, which is so only after a cancelled call."""
        return bool(self._void_until) and self._is_void() and self._collector.snapshot.mode is not Mode.NONE

    def _is_void(self) -> bool:
        if any(command.completion.done for command in self._void_until):
            self._void_until = ()
        return bool(self._void_until)

    # -- what calls raise -------------------------------------------------------------------------------------------------

    def raise_reported(self) -> None:
        """Raise the first reported error and log the others; then raise an error that does not go away, each time."""
        if self._reported:
            first, *others = self._reported
            self._reported.clear()
            log_others(others)
            raise first.afresh()
        self.raise_failure()
        for problem in self._problems:
            if not problem.retriable and not self._collector.has_buffered:
                self.raise_problem(problem)
                return

    def explain_nothing(self) -> None:
        """A poll timed out without records: raise a problem that has lasted longer than its grace."""
        now = self._mailbox.now.mono
        for problem in self._problems:
            if now - self._problem_since.get(type(problem), now) >= self._grace(problem):
                self.raise_problem(problem)
                return

    def raise_problem(self, problem: OttlaError) -> None:
        """Raise it; ``NoOffsetForPartitionError`` only if another look-up finds no commit either, until then return.

        Java's consumer does the same: an operator, or the application itself, may have committed since.
        """
        if not isinstance(problem, NoOffsetForPartitionError) or self._config.group_id is None:
            raise problem.afresh()
        if self._look_up is None:
            self._look_up = commands.LookUpAgain()
            self._mailbox.submit(self._look_up)
        elif self._look_up.completion.done:
            # Notifications are in order, and the network thread publishes before it completes a command: so the snapshot that shows
            # the problem is newer than the look-up.
            self._look_up = None
            raise problem.afresh()

    def raise_failure(self) -> None:
        """Raise why this consumer can never be a member of its group again, if that is so."""
        failure = self._collector.snapshot.failure
        if failure is not None:
            raise failure.afresh()

    def require_group(self, what: str) -> None:
        """Raise ``InvalidGroupIdError`` if the consumer has no group."""
        if self._config.group_id is None:
            raise InvalidGroupIdError(f"{what} needs a group", hint="set group_id")

    def require_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise ``IllegalStateError`` if any of these is not assigned."""
        assigned = self._collector.snapshot.partitions
        missing = sorted(tp for tp in partitions if tp not in assigned)
        if missing:
            listed = ", ".join(map(str, missing))
            raise IllegalStateError(f"not assigned to this consumer: {listed}", hint="only assigned partitions have a position")

    def _grace(self, problem: OttlaError) -> int:
        if isinstance(problem, ConnectionFailedError):
            was_connected = self._collector.snapshot.was_connected
            return self._config.default_api_timeout_ms if was_connected else UNREACHABLE_GRACE
        if isinstance(problem, _OF_A_RESTART):
            return self._config.default_api_timeout_ms
        return PROBLEM_GRACE if problem.retriable else 0


def log_others(errors: Iterable[Exception]) -> None:
    """A call can raise only one error."""
    for error in errors:
        _log.error("another error besides the one raised: %s", error)
