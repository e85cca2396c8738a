"""The main job: real flights through the broker, a consumer group that survives a kill, and Spark.

Owns one run from an empty folder to a report. Must not be needed by anything but the command line. Invariant: a figure that
does not add up is reported, and no process is left behind.
"""

from __future__ import annotations

from collections.abc import Sequence


class DemoFailed(Exception):
    """The run cannot go on; the message says why, and where to look. ``details`` are lines below it."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details
