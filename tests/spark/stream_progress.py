"""Waiting for the progress of a stream."""

from __future__ import annotations

import time
from typing import Any


def wait_until(condition: Any, timeout: float = 90.0) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)
