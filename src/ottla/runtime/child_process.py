"""A program in a child process that ends with this process, however this one ends.

Owns the shell that starts the program and watches this process. Must not know the program. Invariants: the program does not survive
this process, not even if that is killed with SIGKILL; no signal goes to a process that has only inherited the number of one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

KILLED_AFTER = 10.0
"""Seconds between SIGTERM and SIGKILL."""

_LAUNCHER = """
exec 9<&0 </dev/null
{ read -r _ <&9; kill -9 $$; } >/dev/null 2>&1 &
exec 9<&-
exec "$@"
"""
"""Starts a watcher in the background, and becomes the program.

The watcher reads from a pipe into which nothing is written. The read returns when this process ends or closes the pipe; then the
watcher kills the program. (Linux can send a signal instead, with PR_SET_PDEATHSIG, but it does so when the *thread* that started
the program ends.) The watcher is in the process group of the program: as long as the watcher lives, no other process gets the
number of that group, which is the number of the program."""


class ChildProcess:
    """A running program, whose output is appended to the file ``output``.

    It has a session of its own, so that Ctrl-C at a terminal reaches this process only. ``inherited``: open descriptors that the
    program gets, all of them 10 or greater. Raises ``OSError`` if no process can be created.
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, output: Path, environment: Mapping[str, str], inherited: Sequence[int] = ()
    ) -> None:
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCHER, "sh", *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )

    @property
    def pid(self) -> int:
        """The process id of the program."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code of the program, -N if signal N ended it, or ``None`` while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._process.terminate()

    def stop(self) -> None:
        """Send SIGTERM and wait until the program has ended; after ``KILLED_AFTER``, or if an exception ends the wait, kill it."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            try:
                self._process.wait(KILLED_AFTER)
            except BaseException:
                self.kill()
                raise
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait until the program has ended. Does nothing if it has."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()  # ends the watcher
