"""The application's end of the two queues: it submits commands, handles notifications, and waits for the outcome of a command.

Owns the time of the running call, the unsettled commands and the wake-up. Must not know any one command or notification.
Invariants: notifications are handled in order, and each stays in the queue until it is handled; a wake-up ends exactly one waiting
call, the current one or the next, and never one that ignores wake-ups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from ottla.client.events import Command, Completed, WakeupRequested
from ottla.errors import OttlaTimeoutError, WakeupError
from ottla.types import Now

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
