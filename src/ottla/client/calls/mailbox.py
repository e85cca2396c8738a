"""The application's end of the two queues: commands out, notifications in, and how a call waits for what it asked.

Owns the inbox, the time of the call that runs, and the wake-up. Must not know any one command or notification. Invariants:
notifications are taken in order, and each is in the inbox until it was handled; a wake-up ends exactly one waiting call, this one
or the next, and never one that ignores wake-ups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar

from ottla.client.commands import Command
from ottla.client.notifications import Completed, WakeupRequested
from ottla.errors import OttlaTimeoutError, WakeupError
from ottla.types import Now

ANSWER_GRACE = 100
"""Milliseconds that the network thread is given beyond a deadline to say why nothing came of a call. Where it is stuck, no call
lasts longer. Measured with eleven busy processes on two cores: it is 2 ms late in half of the calls, 92 ms in one of a hundred."""

T = TypeVar("T")

News = deque[object] | list[object]
"""What there is to handle, oldest first."""


class Wait(NamedTuple):
    """What a call waits for. ``for_`` is for debugging; the driver obeys ``until`` (monotonic ms, ``None``: no limit)."""

    for_: object
    until: int | None


class Await(NamedTuple):
    """What a listener or a callback of the application returned, for the driver to await where it has an event loop.

    Then it sends the time, or throws what was raised. A call that is closed here goes on as if the listener had returned.
    """

    awaitable: Awaitable[object]


Call = Generator[Wait | Await, Now, T]


class Mailbox:
    """``submit`` sends a command to the network thread, ``news`` returns its notifications; ``handlers``: by class of notification.

    ``default_timeout``: milliseconds for a call that has no timeout of its own.
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
        """Commands that the network thread executes at once. Until they are done, the snapshot is outdated."""

    @property
    def default_deadline(self) -> int:
        """The deadline of a call that has no timeout of its own."""
        return self.now.mono + self._default_timeout

    def take(self) -> None:
        """Handle every notification that has come."""
        news = self._news()
        while news:
            item = news[0]
            self._handlers[type(item)](item)
            # Now, not before: the handler of a signal may raise between any two of these steps.
            del news[0]

    def wait(self, for_: object, until: int) -> Call[None]:
        """Until something comes, or the time has come."""
        self.now = yield Wait(for_, until)

    def wait_in_poll(self, for_: object, until: int) -> Call[None]:
        """As ``wait``, in a poll: if several calls wait, a wake-up ends this one."""
        self._poll_waits = True
        try:
            yield from self.wait(for_, until)
        finally:
            self._poll_waits = False

    def outcome(self, returned: object) -> Call[None]:
        """Until what a listener or a callback returned has come to its end, if that takes any time."""
        if isinstance(returned, Awaitable):
            self.now = yield Await(returned)

    def look_at_the_clock(self) -> Call[None]:
        """What ran since the last wait may have taken its time: know what time it is."""
        self.now = yield Wait("the time", self.now.mono)

    def ask(self, command: Command, what: str, deadline: int, *, wakeable: bool = False) -> Call[Any]:
        """Send a command and give its outcome. ``wakeable``: it may take as long as a broker takes, so a wake-up ends the wait."""
        if wakeable:
            self.submit(command)
        else:
            self.submit_unattended(command)
        return (yield from self.settle(command, what, deadline, wakeable=wakeable))

    def submit_unattended(self, command: Command) -> None:
        """Send a command that the network thread executes at once; ``settled`` says when it is done."""
        self.settled()
        self.submit(command)
        self._unsettled.append(command)

    def settled(self) -> bool:
        """Whether the network thread has executed all such commands.

        Until then the snapshot is outdated, and records must not be returned by it.
        """
        while self._unsettled and self._unsettled[0].completion.done:
            del self._unsettled[0]
        return not self._unsettled

    def catch_up(self, until: int) -> Call[bool]:
        """Wait until the network thread has executed what cancelled calls asked it for, a seek for example.

        False: it has not by ``until``, so it is not known which positions are valid.
        """
        self.take()
        while not self.settled():
            if self.now.mono >= until + ANSWER_GRACE:
                return False
            yield from self.wait("a turn of the network thread", until + ANSWER_GRACE)
            self.take()
        return True

    def require_caught_up(self, what: str, deadline: int) -> Call[None]:
        """As ``catch_up``, or raise ``OttlaTimeoutError``. A call that was cancelled may have asked for a seek."""
        if not (yield from self.catch_up(deadline)):
            raise OttlaTimeoutError(f"{what} was not done in time")

    def settle(self, command: Command, what: str, deadline: int, *, wakeable: bool = True, grace: int = ANSWER_GRACE) -> Call[Any]:
        """Wait for the outcome of a command that was sent. The network thread knows the deadline, too, and the error.

        ``grace``: milliseconds that it gets beyond the deadline to report it.
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
        """From now on wake-ups are ignored."""
        self.wakeups_enabled = self._woken = False

    def raise_wakeup(self) -> None:
        """Raise ``WakeupError`` if one was asked for, once."""
        if self._woken and not self._poll_waits:
            self._woken = False
            raise WakeupError("wakeup() was called")

    def _on_wakeup(self, item: WakeupRequested) -> None:
        del item
        self._woken = self.wakeups_enabled
