"""Runs Ottla's programs in processes, as a user does.

Owns how a test starts, feeds and ends ``ottla``. Must not import the package: the tests run the installed program. Invariant: a
program that a test has started ends with the test.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.real_kafka import QUICK_JVM

OTTLA = str(Path(sys.executable).with_name("ottla"))
LISTENING = re.compile(r"ottla broker listening on (\S+:\d+)\n")


def environment(bootstrap_servers: str | None = None) -> dict[str, str]:
    """An environment with ``ottla`` and ``python`` on the ``PATH``."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("OTTLA_", "PYTEST_"))}
    mine.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
    mine["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), mine["PATH"]])
    return mine if bootstrap_servers is None else {**mine, "OTTLA_BOOTSTRAP_SERVERS": bootstrap_servers}


def ottla(
    *arguments: str, bootstrap_servers: str | None = None, stdin: str = "", timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run ``ottla`` and wait until it ends. ``timeout`` is in seconds."""
    return subprocess.run(
        [OTTLA, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, env=environment(bootstrap_servers)
    )


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(
    *arguments: str, bootstrap_servers: str | None = None, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run ``ottla`` in a process during the ``with``, and kill it at the end if it still runs."""
    process = subprocess.Popen(
        [OTTLA, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env=environment(bootstrap_servers),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def broker(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``ottla broker start`` and the address it listens on; SIGTERM ends it, with exit code 0."""
    with started("broker", "start", *arguments) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = LISTENING.fullmatch(first)
        assert found is not None, (first, process.communicate()[1] if not first else "")
        yield process, found[1]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
