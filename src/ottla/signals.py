"""Optional handling of SIGINT (Ctrl-C) and SIGTERM for programs.

Owns the handlers while a ``with`` lasts; the library itself installs none. Must not know brokers or sockets: a consumer
is anything with a ``wakeup()``. Invariant: afterwards the previous handlers are restored. Since Python delivers signals
to the main thread, these context managers are entered there.
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
LOOK_EVERY = 1.0
"""Seconds between two calls of ``meanwhile``."""
Handler = Callable[[int, FrameType | None], None]


class Wakeable(Protocol):
    """An object whose waiting call another thread, or a signal, can interrupt: ``Consumer``."""

    def wakeup(self) -> None:
        """Make the waiting call, or the next one, raise ``WakeupError``."""
        ...


class Stop:
    """Whether, and by which signal, the program was asked to stop.

    ``wake`` is called when that happens, in the middle of whatever the main thread is doing: it may only call re-entrant functions,
    like ``SimpleQueue.put``.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.wake: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return self.signal is not None

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal came."""
        if self.signal is not None:
            raise Interrupted(self.signal)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; ``exit_code`` is the one that a shell reports for a process killed by that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def handled(handler: Handler | signal.Handlers, signals: Iterable[signal.Signals] = STOP_SIGNALS) -> Iterator[None]:
    """``handler`` for SIGINT and SIGTERM, or the given signals, within the ``with``."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _as(previous: Any) -> Any:
    """A handler that does what ``previous`` does.

    It is a function also where that is none (``SIG_DFL``, ``SIG_IGN``): Python loses a signal that came at the same time as the one
    being handled if its handler is no function by then, and prints a traceback about a race condition.
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
            signal.signal(each, _as(before[each]))
        if os.getpid() != process:
            signal.raise_signal(number)  # a forked child has inherited this handler, but no consumer
            return
        stop.signal = signal.Signals(number)
        consumer.wakeup()

    before.update({number: signal.getsignal(number) for number in STOP_SIGNALS})
    with handled(handler):
        try:
            yield stop
        except WakeupError:
            if not stop:
                raise


@contextmanager
def noted_signals() -> Iterator[Stop]:
    """Record the first SIGINT or SIGTERM and ignore the rest, so that nothing disturbs the clean-up.

    The handler raises nothing: code written in C may lose such an exception, or crash. Running code calls ``check()`` of the value
    now and then, and ``wake`` wakes sleeping code.
    """
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.signal is None:
            stop.signal = signal.Signals(number)
            stop.wake()

    with handled(handler):
        yield stop


def wait_for_signal(
    meanwhile: Callable[[], object] = lambda: None, *, announce: Callable[[], object] = lambda: None
) -> signal.Signals:
    """Wait until SIGINT, SIGTERM or SIGHUP arrives, and return which. A SIGHUP that is ignored, as under ``nohup``, stays so.

    ``announce`` is called first, when signals are already handled: who reads what it prints may send one at once. ``meanwhile``
    is called every second. What one of them raises ends the wait.
    """
    arrived = threading.Event()
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        arrived.set()

    signals = STOP_SIGNALS
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        signals = (*STOP_SIGNALS, HANG_UP)
    with handled(handler, signals):
        announce()
        while not arrived.wait(LOOK_EVERY):
            meanwhile()
    assert stop.signal is not None
    return stop.signal
