"""Replacements for ``sys.stdin``, ``sys.stdout`` and ``sys.stderr``.

Owns the behaviour if one of them is closed, full, or no longer read. Must not know any command. Invariant: an error of a stream
never becomes a traceback, and after a signal no write waits longer than ``WRITE_GRACE`` for a reader that has stopped reading.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import sys
import time
from typing import Any

from ottla.signals import Interrupted, Stop

WRITE_GRACE = 0.4
"""Seconds for which a write may continue after a signal."""
SIGNAL_CHECK_INTERVAL = 0.1
"""Seconds between two checks for a signal while a write waits for its reader."""
WRITE_RETRY_PAUSE = 0.01
"""Seconds before a retry of a write for which there was too little space."""
MAX_WRITE = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
"""Bytes of one write. A pipe that is ready for writing has space for ``PIPE_BUF`` bytes, so the write does not block."""


class OutputFailed(Exception):
    """Writing to stdout failed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror or error}")
        self.closed = isinstance(error, BrokenPipeError)
        """Whether the reader has closed the pipe, as ``head`` does. That is no error."""


class Output(io.FileIO):
    """The raw layer of an output stream. Raises ``OSError``, and ``Interrupted`` after a signal in ``stop``."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.stop: Stop | None = None
        self._has_given_up = False
        self._may_block = os.name != "nt" and not stat.S_ISREG(os.fstat(number).st_mode)
        self._fd = number
        if os.isatty(number):
            # A terminal that is ready for writing may have less space than MAX_WRITE, so it needs O_NONBLOCK. That would also
            # change the shell's descriptor, which shares the open file. So the terminal is opened again.
            with contextlib.suppress(OSError):
                self._fd = os.open(os.ttyname(number), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def write(self, data: Any, /) -> int:
        """Write some or all of ``data`` and return the number of bytes.

        Never blocks for long. Python would restart a blocking ``write()`` after a signal whose handler does not raise (PEP 475).
        """
        if not self._may_block:
            return super().write(data) or 0
        give_up_at: float | None = None
        while True:
            if select.select([], [self._fd], [], 0 if self._has_given_up else SIGNAL_CHECK_INTERVAL)[1]:
                try:
                    return os.write(self._fd, memoryview(data).cast("B")[:MAX_WRITE])
                except BlockingIOError:  # another process has written to the same pipe, or a terminal has too little space
                    time.sleep(WRITE_RETRY_PAUSE)
            if self.stop is None or self.stop.signal is None:
                continue
            give_up_at = give_up_at or time.monotonic() + WRITE_GRACE
            if self._has_given_up or time.monotonic() >= give_up_at:
                self._has_given_up = True
                raise Interrupted(self.stop.signal)

    def abandon(self) -> None:
        """Discard all later writes."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self._fd != self.fileno():
            os.close(self._fd)
            self._fd = self.fileno()


class Stdout(Output):
    """The raw layer of ``sys.stdout``. Raises ``OutputFailed`` and ``Interrupted``."""

    def __init__(self) -> None:
        super().__init__(1)

    def write(self, data: Any, /) -> int:
        """Write some or all of ``data`` and return the number of bytes."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputFailed(error) from error


class Stderr(Output):
    """The raw layer of ``sys.stderr``. Drops data that cannot be written, so that the command continues."""

    def __init__(self) -> None:
        super().__init__(2)

    def write(self, data: Any, /) -> int:
        """Write ``data``, or drop it."""
        with contextlib.suppress(OSError, Interrupted):
            return super().write(data)
        return len(data)


def install() -> None:
    """Replace the standard streams. A program calls this before anything else."""
    _reopen_closed()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)))
    out, err = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Stdout()), getattr(out, "encoding", None), "backslashreplace", line_buffering=os.isatty(1)
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(Stderr()), getattr(err, "encoding", None), "backslashreplace", line_buffering=True
    )


def _reopen_closed() -> None:
    """Open closed standard descriptors so that their use fails. Otherwise the next socket would get the number, and the output."""
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)


def _installed() -> list[Output]:
    """Return the output streams that ``install`` has created; none if another program, such as a test, calls ``run()``."""
    raws = [getattr(getattr(stream, "buffer", None), "raw", None) for stream in (sys.stdout, sys.stderr)]
    return [raw for raw in raws if isinstance(raw, Output)]


def abandon_stdout() -> None:
    """Discard buffered output, because Python flushes stdout again on exit."""
    for output in _installed():
        if isinstance(output, Stdout):
            output.abandon()


def interrupt_writes_on(stop: Stop) -> None:
    """Let a signal in ``stop`` interrupt writes to stdout and stderr whose reader has stopped reading."""
    for output in _installed():
        output.stop = stop
