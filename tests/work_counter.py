"""The cost of a call, counted instead of timed: the executed lines of Ottla, which detect loops, and the allocated memory, which
detects copies outside of Ottla's own loops.

Owns the counting. Must not know the call. Invariant: the same call executes the same number of lines on every machine.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple


class Work(NamedTuple):
    """The cost of a call."""

    lines: int
    memory: int


def work(action: Callable[[], object]) -> Work:
    """Call ``action`` twice and count the second call: the first one may fill caches."""
    action()
    with _no_collection():
        return Work(_lines(action), min(_memory(action) for _ in range(3)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collect earlier garbage now and none in the block. Otherwise, when the collector starts within the counted call, the
    finalizers of what an earlier test dropped (a consumer's ``__del__``) are counted as lines of that call."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _lines(action: Callable[[], object]) -> int:
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
    return lines


def _memory(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
