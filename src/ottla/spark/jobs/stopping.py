"""SIGTERM and Ctrl-C while a job runs.

Owns the count of the signals and the wait that they interrupt. Must not know what is stopped. Invariant: a handler raises
nothing: an exception could interrupt a call into the JVM, whose answer would be taken for that of the next call. (PySpark's handler
does raise, so it is not installed.)
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ottla.signals import STOP_SIGNALS, handling

STDERR = 2
"""Its descriptor: the signal may have interrupted a write to ``sys.stderr``, which cannot be called again then."""
_set_handler = signal.signal
MOST = 2
"""A further signal kills the process: something in it, or in Spark, hangs."""


class StopRequests:
    """The signals so far: the first asks for the end of the job after its running batches, the second for its end now."""

    def __init__(self) -> None:
        self.count = 0
        self.signal: signal.Signals | None = None
        self.announcement: str | None = None
        """What the handler itself writes to stderr after the first signal, while nothing else looks for one."""
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.count += 1
        if self.count > MOST:
            _set_handler(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.signal = self.signal or signal.Signals(number)
        if self.announcement is not None and self.count == 1:
            with contextlib.suppress(OSError):
                os.write(STDERR, f"{self.signal.name}: {self.announcement}\n".encode())
        self._arrived.put(None)

    def wait(self, timeout: float) -> None:
        """Wait ``timeout`` seconds, or until the next signal."""
        with contextlib.suppress(queue.Empty):
            self._arrived.get(timeout=timeout)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Count the signals during the ``with``."""
    requests = StopRequests()
    with handling(requests.handle):
        yield requests


@contextlib.contextmanager
def own_handlers_kept() -> Iterator[None]:
    """Let the code of the ``with`` install no handlers for these signals.

    A new SparkContext installs one for SIGINT, which cancels all jobs and raises ``KeyboardInterrupt``. To replace it when the
    session is there would be late: until then, or until the end of a file that creates a session, Ctrl-C would end the program.
    """
    process = os.getpid()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def install(signalnum: int, handler: Any) -> Any:
        # PySpark has the JVM ignore SIGINT by a call in the child process, before the JVM is executed there.
        is_ours = signalnum in before and os.getpid() == process
        return signal.getsignal(signalnum) if is_ours else _set_handler(signalnum, handler)

    replaced, signal.signal = signal.signal, install
    try:
        yield
    finally:
        signal.signal = replaced
        for number, handler in before.items():  # code that had imported the function has called it itself
            _set_handler(number, handler)
