"""The descendants of a test, found by a variable of their environment, which all of them inherit.

Owns the name of the variable. Must not know the programs. Invariant: a process counts until it has
ended, also if its parent is another one by then.
"""

from __future__ import annotations

import time
from pathlib import Path

MARK = "MARK_OF_THIS_TEST"
PATIENCE = 60
"""Seconds."""


def named(mark: str) -> list[tuple[int, str]]:
    """The processes that carry the mark, and their command lines; a zombie has none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            continue
    return found


def alive(mark: str) -> list[str]:
    """The command lines of these processes."""
    return [command for _, command in named(mark)]


def none_left(mark: str) -> bool:
    """Whether no process of a run is left, or only such as are on their way out."""
    deadline = time.monotonic() + PATIENCE
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(mark)
