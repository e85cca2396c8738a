"""The demo: real flight data through a broker, a consumer group with a killed member, and Spark.

Owns one run, from an empty output directory to a report. Must not be imported except by the command line; ``ottla compare`` uses
its processes. Invariant: a wrong figure is reported, and no process outlives the run.
"""

from __future__ import annotations

from collections.abc import Sequence


class DemoFailed(Exception):
    """The run cannot continue. The message has the reason and the place of further information; ``details`` are lines below it."""

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = details
