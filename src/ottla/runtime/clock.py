"""The real clock.

Owns the reading of the time; must not know its callers. Invariant: ``mono`` never decreases.
"""

from __future__ import annotations

import time

from ottla.types import Now

monotonic = time.monotonic
"""The same clock as ``mono``, in seconds, for code that reads it a million times a second."""


def now() -> Now:
    """Return the current monotonic and wall-clock time, in whole milliseconds."""
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)


def monotonic_milliseconds() -> int:
    """Return the current monotonic time, in whole milliseconds."""
    return time.monotonic_ns() // 1_000_000
