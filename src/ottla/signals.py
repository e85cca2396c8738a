"""Optional handling of SIGINT (Ctrl-C) and SIGTERM for programs.

Owns the handlers during a ``with``; the library itself installs none. Must not know brokers or sockets: a consumer is any object
with a ``wakeup()``. Invariant: at the end the previous handlers are restored. Python delivers signals to the main thread, so these
context managers must be entered there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from ottla.errors import WakeupError

STOP_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""The terminal was closed; Windows has no such signal."""
MEANWHILE_INTERVAL = 1.0
"""Seconds between two calls of ``meanwhile``."""
Handler = Callable[[int, FrameType | None], None]


class Wakeable(Protocol):
    """An object whose waiting call another thread, or a signal, can interrupt: ``Consumer``."""

    def wakeup(self) -> None:
        """Make the waiting call, or the next one, raise ``WakeupError``."""
        ...


class Stop:
    """Whether a signal has asked the program to stop, and which.

    The handler of the signal calls ``wake``. It interrupts the main thread anywhere, so ``wake`` may only call re-entrant functions
    such as ``SimpleQueue.put``.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.wake: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal has arrived."""
        if self.signal is not None:
            raise Interrupted(self.signal)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM has arrived. ``exit_code`` is what a shell reports for a process killed by that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def handling(handler: Handler | signal.Handlers, signals: Iterable[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """Install ``handler`` for SIGINT and SIGTERM, or for ``signals``, during the ``with``."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _chained(previous: Any) -> Any:
    """Return a handler that does what ``previous`` does, and is a function even if that is ``SIG_DFL`` or ``SIG_IGN``.

    1. Two signals arrive at the same time. 2. Python calls our handler for the first, which restores the previous handlers.
    3. Python calls the handler of the second: if that is not a function, Python prints a traceback about a race condition and loses
    the signal.
    """
    if callable(previous):
        return previous

    def act(number: int, frame: FrameType | None) -> None:
        signal.signal(number, previous)
        signal.raise_signal(number)

    return act


@contextmanager
def stop_on_signals(consumer: Wakeable) -> Iterator[Stop]:
    """End the loop inside the ``with`` on SIGINT or SIGTERM, between two polls.

    The signal wakes ``consumer``: its ``poll()``, the current one or the next, raises ``WakeupError``, and the ``with`` suppresses
    that. The current records are finished first, and the consumer is still open afterwards, to ``close()``. A running ``commit()``
    is interrupted, too: its records will be delivered again, unless the program catches the error and commits again. The value is
    true once a signal has arrived, for loops that check it. A second signal does what it did before the ``with``::

        with Consumer(...) as consumer, stop_on_signals(consumer):
            consumer.subscribe(["orders"])
            while True:
                for record in consumer.poll(timeout=1.0):
                    handle(record)
                consumer.commit()
    """
    stop, process = Stop(), os.getpid()
    before: dict[int, object] = {}

    def handler(number: int, frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, _chained(before[each]))
        if os.getpid() != process:
            signal.raise_signal(number)  # this is a forked child, which has inherited the handler, but cannot use the consumer
            return
        stop.signal = signal.Signals(number)
        consumer.wakeup()

    before.update({number: signal.getsignal(number) for number in STOP_SIGNALS})
    with handling(handler):
        try:
            yield stop
        except WakeupError:
            if not stop:
                raise


@contextmanager
def recorded_signals() -> Iterator[Stop]:
    """Record the first SIGINT or SIGTERM and ignore later ones, so that they do not interrupt the clean-up.

    The handler does not raise: an exception may get lost in code written in C, or crash it. Instead the running code calls
    ``Stop.check()`` regularly, and ``Stop.wake`` wakes it if it waits.
    """
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.signal is None:
            stop.signal = signal.Signals(number)
            stop.wake()

    with handling(handler):
        yield stop


def wait_for_signal(
    meanwhile: Callable[[], object] = lambda: None, *, announce: Callable[[], object] = lambda: None
) -> signal.Signals:
    """Wait until SIGINT, SIGTERM or SIGHUP arrives, and return which. If SIGHUP is ignored, as under ``nohup``, it remains ignored.

    ``announce`` is called once the handlers are installed: a program that reads its output may send a signal at once. ``meanwhile``
    is called every second. An exception of either ends the wait.
    """
    arrived = threading.Event()
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        arrived.set()

    signals = STOP_SIGNALS
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        signals = (*STOP_SIGNALS, HANG_UP)
    with handling(handler, signals):
        announce()
        while not arrived.wait(MEANWHILE_INTERVAL):
            meanwhile()
    assert stop.signal is not None
    return stop.signal
