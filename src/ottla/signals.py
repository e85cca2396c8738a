"""What a program does about SIGINT (Ctrl-C) and SIGTERM, for those who ask for it.

Owns the handlers while a ``with`` lasts; the library itself installs none. Must not know brokers or sockets: a consumer
is whatever has a ``wakeup()``. Invariant: the handlers that were there before are there again afterwards. As Python
delivers signals to the main thread, these context managers are entered there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from ottla.errors import WakeupError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_EVERY = 1.0
"""Seconds between two calls of what goes on meanwhile."""
Handler = Callable[[int, FrameType | None], None]


class Wakeable(Protocol):
    """Something whose waiting call another thread, or a signal, can end: ``Consumer``."""

    def wakeup(self) -> None:
        """Make the waiting call, or the next one, raise ``WakeupError``."""
        ...


class Stop:
    """Whether, and by which signal, the program was asked to stop.

    ``wake`` is called when that happens, in the middle of whatever the main thread is doing: it may only do what can be done there,
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
    """SIGINT or SIGTERM arrived; ``exit_code`` is the one a shell expects of a process that such a signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def handled(handler: Handler | signal.Handlers) -> Iterator[None]:
    """``handler`` for SIGINT and SIGTERM within the ``with``."""
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_on_signals(consumer: Wakeable) -> Iterator[Stop]:
    """End the loop inside the ``with`` on SIGINT or SIGTERM, between two polls.

    The signal wakes ``consumer``: its ``poll()``, the present one or the next, raises ``WakeupError``, and the ``with`` swallows
    that. Records in hand are finished first, and the consumer is still open afterwards, to ``close()``. A ``commit()`` that is
    under way is ended, too: its records will be delivered again, unless the program catches the error and commits once more. The
    value is true once a signal came, for loops that want to look. A second signal does what it did before the ``with``::

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
            signal.signal(each, before[each])  # type: ignore[arg-type]
        if os.getpid() != process:
            signal.raise_signal(number)  # a forked child has inherited this handler, and no consumer
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
    """Note the first SIGINT or SIGTERM and ignore the rest, so that nothing disturbs the cleaning up.

    Nothing is raised in the handler: code written in C may lose such an exception, or crash. Whoever works calls ``check()`` of the
    value now and then, and whoever sleeps is woken by its ``wake``.
    """
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        if stop.signal is None:
            stop.signal = signal.Signals(number)
            stop.wake()

    with handled(handler):
        yield stop


def wait_for_signal(meanwhile: Callable[[], object] = lambda: None) -> signal.Signals:
    """Wait until SIGINT or SIGTERM arrives, and say which. ``meanwhile`` is called every second; what it raises ends the wait."""
    arrived = threading.Event()
    stop = Stop()

    def handler(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        arrived.set()

    with handled(handler):
        while not arrived.wait(LOOK_EVERY):
            meanwhile()
    assert stop.signal is not None
    return stop.signal
