"""The standard streams of the program.

Owns what happens when one of them is closed, full, or no longer read. Must not know any command. Invariant: a failure of a stream
never becomes a traceback, and after a signal no write waits longer than ``GRACE`` for a reader that has stopped.
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

GRACE = 0.4
"""Seconds that output may still take after a signal."""
LOOK_EVERY = 0.1
"""Seconds between two looks for a signal while the reader of the output is slow."""
AGAIN_AFTER = 0.01
"""Seconds until a write is tried again for which the space was too small."""
PIECE = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
"""Bytes; a pipe with space at all has space for so many, so that writing them does not block."""


class OutputFailed(Exception):
    """Stdout could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror or error}")
        self.closed = isinstance(error, BrokenPipeError)
        """Whether the reader has closed a pipe, as ``| head`` does: that is no error."""


class Output(io.FileIO):
    """The lowest layer of an output stream: raises ``OSError``, and, after a signal that ``stop`` notes, ``Interrupted``."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.stop: Stop | None = None
        self._has_given_up = False
        self._may_block = os.name != "nt" and not stat.S_ISREG(os.fstat(number).st_mode)
        self._fd = number
        if os.isatty(number):
            # A terminal with space may still have less than ``PIECE``. Its own descriptor is left as it is: the shell has the same.
            with contextlib.suppress(OSError):
                self._fd = os.open(os.ttyname(number), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def write(self, data: Any, /) -> int:
        """Write some or all of ``data`` and return how much.

        Nothing here blocks for long: a blocking write goes on after a signal whose handler raises nothing.
        """
        if not self._may_block:
            return super().write(data) or 0
        give_up_at: float | None = None
        while True:
            if select.select([], [self._fd], [], 0 if self._has_given_up else LOOK_EVERY)[1]:
                try:
                    return os.write(self._fd, memoryview(data).cast("B")[:PIECE])
                except BlockingIOError:  # another process writes to the same pipe, or a terminal has too little space
                    time.sleep(AGAIN_AFTER)
            if self.stop is None or self.stop.signal is None:
                continue
            give_up_at = give_up_at or time.monotonic() + GRACE
            if self._has_given_up or time.monotonic() >= give_up_at:
                self._has_given_up = True
                raise Interrupted(self.stop.signal)

    def abandon(self) -> None:
        """Discard what is written from now on."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self._fd != self.fileno():
            os.close(self._fd)
            self._fd = self.fileno()


class Stdout(Output):
    """The lowest layer of ``sys.stdout``: raises ``OutputFailed`` and ``Interrupted``."""

    def __init__(self) -> None:
        super().__init__(1)

    def write(self, data: Any, /) -> int:
        """Write some or all of ``data`` and return how much."""
        try:
            return super().write(data)
        except OSError as error:
            raise OutputFailed(error) from error


class Stderr(Output):
    """The lowest layer of ``sys.stderr``: what cannot be reported is dropped, and the command continues."""

    def __init__(self) -> None:
        super().__init__(2)

    def write(self, data: Any, /) -> int:
        """Write ``data``, if that is possible."""
        with contextlib.suppress(OSError, Interrupted):
            return super().write(data)
        return len(data)


def prepare() -> None:
    """Make the standard streams safe: for a program, before it does anything else."""
    _open_closed()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)))
    out, err = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Stdout()), getattr(out, "encoding", None), "backslashreplace", line_buffering=os.isatty(1)
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(Stderr()), getattr(err, "encoding", None), "backslashreplace", line_buffering=True
    )


def _open_closed() -> None:
    """Put something that fails as they would in the place of closed streams: the next socket would take their number."""
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)


def _ours() -> list[Output]:
    """The output streams that ``prepare`` has made; none if they belong to a program that calls ``run()``, such as a test."""
    raws = [getattr(getattr(stream, "buffer", None), "raw", None) for stream in (sys.stdout, sys.stderr)]
    return [raw for raw in raws if isinstance(raw, Output)]


def abandon_stdout() -> None:
    """Discard what is buffered: Python flushes stdout once more when it exits."""
    for output in _ours():
        if isinstance(output, Stdout):
            output.abandon()


def end_writes_on(stop: Stop) -> None:
    """From now on, a signal that ``stop`` notes also ends a write, to stdout or stderr, whose reader has stopped reading."""
    for output in _ours():
        output.stop = stop
