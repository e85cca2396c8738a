"""The cost of a call, counted instead of timed: the executed lines of Ottla, which detect loops, and the allocated memory, which
detects copies outside of Ottla's own loops.

Owns the counting. Must not know the call. Invariant: the same call executes the same number of lines on every machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Work(NamedTuple):
    """The cost of a call."""

    lines: int
    memory: int


def work(action: Callable[[], object]) -> Work:
    """Call ``action`` twice and count the second call: the first one may fill caches."""
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
