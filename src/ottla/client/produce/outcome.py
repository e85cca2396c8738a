"""The outcome of a call that the network thread works on, for any number of threads to wait for.

Owns that value, and how a call waits. Must not know threads or event loops. Invariant: the outcome is set once, before its waiters
are called; who adds a waiter and then looks finds the outcome, or is called.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol, TypeVar

from ottla.errors import OttlaError
from ottla.types import Now

T = TypeVar("T")


class Awaited(Protocol):
    """What a call can wait for: each of ``waiters`` is called once, by any thread, when something has changed."""

    @property
    def waiters(self) -> list[Callable[[], object]]:
        """The functions to call."""


class Wait(NamedTuple):
    """Yielded by a call: it waits until ``for_`` calls its waiters, or ``until`` (monotonic ms). ``is_over``: it need not wait."""

    for_: Awaited
    is_over: Callable[[], bool]
    until: int | None


Call = Generator[Wait, Now, T]
"""A public call. The driver sends the time each time it is to go on."""


class Outcome:
    """A value or an error that is still to come."""

    __slots__ = ("done", "error", "value", "waiters")

    def __init__(self) -> None:
        self.done = False
        self.value: object = None
        self.error: OttlaError | None = None
        self.waiters: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<Outcome {self.error or self.value!r}>" if self.done else "<Outcome pending>"

    def settle(self, value: object = None, error: OttlaError | None = None) -> None:
        """Set the outcome, unless there is one, and call the waiters."""
        if self.done:
            return
        self.value, self.error = value, error
        self.done = True
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()
