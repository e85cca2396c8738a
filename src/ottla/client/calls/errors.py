"""The errors that calls raise: those that the network thread reported, the reasons why no records arrive, and misuse.

Owns the reported errors that no call has raised yet, and the problems of the latest snapshot. Must not know any one call.
Invariants: an error is raised once, a problem for as long as it lasts; neither is raised if it concerns a membership that the
application has left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from ottla.client import events
from ottla.client.calls.collector import FetchCollector
from ottla.client.calls.mailbox import Mailbox
from ottla.client.events import TopicErrorNotification
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
    """See the module. It reads the snapshot and ``has_buffered`` of the collector and the time of the mailbox, and may submit."""

    def __init__(self, config: ConsumerConfig, mailbox: Mailbox, collector: FetchCollector) -> None:
        self._config = config
        self._mailbox = mailbox
        self._collector = collector
        self._reported: deque[OttlaError] = deque()
        self._problems: list[OttlaError] = []
        """The reasons why no records arrive; those that concern all partitions come first."""
        self._problem_since: dict[type[OttlaError], int] = {}
        self._void_until: tuple[events.Command, ...] = ()
        """Until one of these is done, reported errors concern a membership that the application has left."""
        self._look_up: events.LookUpAgain | None = None
        """Sent since ``NoOffsetForPartitionError`` was last raised."""

    # -- what the network thread reports ----------------------------------------------------------------------------------

    def report(self, error: OttlaError) -> None:
        """Have the next poll raise ``error``. If a retry fails again before that, the same error is raised once."""
        if not self._is_void() and all((type(error), str(error)) != (type(other), str(other)) for other in self._reported):
            self._reported.append(error)

    def add(self, error: OttlaError) -> None:
        """Have the next poll raise an error of the application's own assignor, whichever membership it concerns."""
        self._reported.append(error)

    def on_topic_error(self, item: TopicErrorNotification) -> None:
        """Have the next poll raise the error, if the topic is still subscribed to."""
        if item.topic in self._collector.snapshot.topics and not self._is_void():
            self._reported.append(item.error)

    def on_published(self, snapshot: Snapshot) -> None:
        """Take the problems of a new snapshot."""
        general = [snapshot.problem] if snapshot.problem is not None else []
        self._problems = [*general, *snapshot.problems.values()]
        kinds = {type(problem) for problem in self._problems}
        self._problem_since = {kind: self._problem_since.get(kind, self._mailbox.now.mono) for kind in kinds}

    # -- a membership that was left ---------------------------------------------------------------------------------------

    def leaving(self, command: events.Command) -> None:
        """The application leaves the group by ``command``: errors of the membership are void.

        Until the network thread executes the command, it may report more of them, which arrive after this call.
        """
        self._reported.clear()
        self._void_until = (command,)

    def beginning(self, command: events.Command) -> None:
        """The application subscribes or assigns by ``command``.

        It ends the earlier membership, too: 1. ``unsubscribe()`` submits its command and is cancelled. 2. The next call submits
        this one. Whichever the network thread reports as done, the earlier membership has ended.
        """
        if self._void_until:
            self._void_until += (command,)

    @property
    def awaits_leaving(self) -> bool:
        """Whether the snapshot is still that of the membership that was left: so only after a cancelled call."""
        return bool(self._void_until) and self._is_void() and self._collector.snapshot.mode is not Mode.NONE

    def _is_void(self) -> bool:
        if any(command.completion.done for command in self._void_until):
            self._void_until = ()
        return bool(self._void_until)

    # -- what calls raise -------------------------------------------------------------------------------------------------

    def raise_reported(self) -> None:
        """Raise the first reported error and log the others; if there is none, raise the failure or a permanent problem."""
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
        """Raise a problem that has lasted longer than its grace: a poll timed out without records."""
        now = self._mailbox.now.mono
        for problem in self._problems:
            if now - self._problem_since.get(type(problem), now) >= self._grace(problem):
                self.raise_problem(problem)
                return

    def raise_problem(self, problem: OttlaError) -> None:
        """Raise a problem; ``NoOffsetForPartitionError`` only if another look-up finds no commit either. Until then, return.

        Java's consumer does the same: an operator, or the application itself, may have committed since.
        """
        if not isinstance(problem, NoOffsetForPartitionError) or self._config.group_id is None:
            raise problem.afresh()
        if self._look_up is None:
            self._look_up = events.LookUpAgain()
            self._mailbox.submit(self._look_up)
        elif self._look_up.completion.done:
            # The network thread publishes a snapshot before it completes a command, and notifications are in order: so the snapshot
            # that shows the problem is newer than the look-up.
            self._look_up = None
            raise problem.afresh()

    def raise_failure(self) -> None:
        """Raise the error that ended the membership for good, if there is one."""
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
    """Log the errors besides the one that a call raises."""
    for error in errors:
        _log.error("another error besides the one raised: %s", error)
