"""The application's end of the two queues: commands and their outcomes, notifications, and the errors that calls raise.

Owns, in ``Mailbox``, the time of the running call, the unsettled commands and the wake-up; in ``CallErrors``, the errors that the
network thread reported and that no call has raised yet, and the problems of the latest snapshot. Must not know any one call.
Invariants: notifications are handled in order, and each stays in the queue until it is handled; a wake-up ends exactly one waiting
call, the current one or the next, and never one that ignores wake-ups; an error is raised once, a problem for as long as it lasts,
and neither is raised if it concerns a membership that the application has left.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from ottla.client.calls.collector import FetchCollector
from ottla.client.events import Command, Completed, LookUpAgain, Rewind, TopicErrorNotification, WakeupRequested
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
    WakeupError,
)
from ottla.types import Now, OffsetAndMetadata, TopicPartition

_log = logging.getLogger(__name__)

ANSWER_GRACE = 100
"""Milliseconds after a deadline in which the network thread may still report why a call has failed; if it is stuck, the call ends
then. Measured with eleven busy processes on two cores: the report is 2 ms late in half of the calls, 92 ms in one of a hundred."""

T = TypeVar("T")

News = deque[object] | list[object]
"""The notifications that are not handled yet, oldest first."""


class Wait(NamedTuple):
    """What a call waits for. ``for_`` is for debugging; the driver waits for a notification or ``until`` (monotonic ms, ``None``:
    no limit)."""

    for_: object
    until: int | None


class Await(NamedTuple):
    """The awaitable that a listener or a callback of the application returned. A driver with an event loop awaits it.

    The driver then sends the time, or throws the exception that was raised. If it closes the generator here, the call continues as
    if the listener had returned.
    """

    awaitable: Awaitable[object]


Call = Generator[Wait | Await, Now, T]


class Mailbox:
    """``submit`` sends a command to the network thread, ``news`` returns its notifications; ``handlers`` by class of notification.

    ``default_timeout``: milliseconds, for a call without a timeout of its own.
    """

    def __init__(
        self,
        submit: Callable[[object], None],
        news: Callable[[], News],
        handlers: Mapping[type[object], Callable[[Any], None]],
        default_timeout: int,
    ) -> None:
        self.submit = submit
        self.now = Now(0, 0)
        """The time when the running call was last resumed."""
        self.wakeups_enabled = True
        self._news = news
        self._handlers = {
            **handlers,
            Completed: lambda item: item.completion.settle(item.value, item.error),
            WakeupRequested: self._on_wakeup,
        }
        self._woken = self._poll_waits = False
        self._default_timeout = default_timeout
        self._unsettled: deque[Command] = deque()
        """Commands that change the subscription. Until the network thread has executed them, the snapshot is outdated."""

    @property
    def default_deadline(self) -> int:
        """The deadline of a call without a timeout of its own."""
        return self.now.mono + self._default_timeout

    def take(self) -> None:
        """Handle all notifications that have arrived."""
        news = self._news()
        while news:
            item = news[0]
            self._handlers[type(item)](item)
            # Removed only now: if a signal handler raises before this, the notification is handled again.
            del news[0]

    def wait(self, for_: object, until: int) -> Call[None]:
        """Wait for a notification, or until a time (monotonic ms)."""
        self.now = yield Wait(for_, until)

    def wait_in_poll(self, for_: object, until: int) -> Call[None]:
        """As ``wait``, in a poll. If calls of several tasks wait, a wake-up ends the poll."""
        self._poll_waits = True
        try:
            yield from self.wait(for_, until)
        finally:
            self._poll_waits = False

    def outcome(self, returned: object) -> Call[None]:
        """Wait for what a listener or a callback returned, if that is awaitable."""
        if isinstance(returned, Awaitable):
            self.now = yield Await(returned)

    def update_time(self) -> Call[None]:
        """Set ``now`` to the current time: user code may have taken long since the last wait."""
        self.now = yield Wait("the time", self.now.mono)

    def ask(self, command: Command, what: str, deadline: int, *, wakeable: bool = False) -> Call[Any]:
        """Send a command and return its outcome. ``wakeable``: the outcome depends on a broker, so a wake-up ends the wait."""
        if wakeable:
            self.submit(command)
        else:
            self.submit_change(command)
        return (yield from self.settle(command, what, deadline, wakeable=wakeable))

    def submit_change(self, command: Command) -> None:
        """Send a command that changes the subscription; ``settled`` tells when it is executed."""
        self.settled()
        self.submit(command)
        self._unsettled.append(command)

    def rewind(self, positions: Mapping[TopicPartition, tuple[int, OffsetAndMetadata]]) -> None:
        """Have the records from these positions on fetched again, if there are any."""
        if positions:
            self.submit_change(Rewind(positions))

    def settled(self) -> bool:
        """Whether the network thread has executed all commands that change the subscription.

        Until then the snapshot is outdated, and no records may be returned by it.
        """
        while self._unsettled and self._unsettled[0].completion.done:
            del self._unsettled[0]
        return not self._unsettled

    def catch_up(self, until: int) -> Call[bool]:
        """Wait until the network thread has executed the commands of cancelled calls, a seek for example.

        Return False if it has not by ``until``: then it is not known which positions are valid.
        """
        self.take()
        while not self.settled():
            if self.now.mono >= until + ANSWER_GRACE:
                return False
            yield from self.wait("a turn of the network thread", until + ANSWER_GRACE)
            self.take()
        return True

    def require_caught_up(self, what: str, deadline: int) -> Call[None]:
        """As ``catch_up``, but raise ``OttlaTimeoutError`` after ``deadline``."""
        if not (yield from self.catch_up(deadline)):
            raise OttlaTimeoutError(f"{what} was not done in time")

    def settle(self, command: Command, what: str, deadline: int, *, wakeable: bool = True, grace: int = ANSWER_GRACE) -> Call[Any]:
        """Wait for the outcome of a command that was sent, and return it or raise its error.

        ``grace``: milliseconds after the deadline in which the network thread may still report the error.
        """
        while True:
            self.take()
            if command.completion.done:
                return command.completion.result()
            if wakeable:
                self.raise_wakeup()
            if self.now.mono >= deadline + grace:
                raise OttlaTimeoutError(f"{what} was not done in time")
            yield from self.wait(command.completion, deadline + grace)

    def disable_wakeups(self) -> None:
        """Ignore wake-ups from now on."""
        self.wakeups_enabled = self._woken = False

    def raise_wakeup(self) -> None:
        """Raise ``WakeupError``, once, if ``wakeup()`` was called."""
        if self._woken and not self._poll_waits:
            self._woken = False
            raise WakeupError("wakeup() was called")

    def _on_wakeup(self, item: WakeupRequested) -> None:
        del item
        self._woken = self.wakeups_enabled


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
        self._void_until: tuple[Command, ...] = ()
        """Until one of these is done, reported errors concern a membership that the application has left."""
        self._look_up: LookUpAgain | None = None
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

    def leaving(self, command: Command) -> None:
        """The application leaves the group by ``command``: errors of the membership are void.

        Until the network thread executes the command, it may report more of them, which arrive after this call.
        """
        self._reported.clear()
        self._void_until = (command,)

    def beginning(self, command: Command) -> None:
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
            self._look_up = LookUpAgain()
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
