"""What it takes to do something, counted and not timed: the lines of Ottla that run, which tell of loops, and the memory that is
taken meanwhile, which tells of copies that no loop of ours makes.

Owns the counting. Must not know what is done. Invariant: the same work gives the same count of lines on every machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Work(NamedTuple):
    """What it took to do something."""

    lines: int
    memory: int


def work(action: Callable[[], object]) -> Work:
    """Do something for the second time, and count: the first may fill caches."""
    action()
    lines, tracer = 0, sys.gettrace()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if "ottla" in frame.f_code.co_filename else None

    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(tracer)
    return Work(lines, min(_memory(action) for _ in range(3)))


def _memory(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
