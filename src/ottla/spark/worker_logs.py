"""What a log line looks like in a worker process of Spark, whose ``logging`` has no configuration.

Owns one handler of the logger ``ottla``. Must not know what is logged. Invariant: where logging is configured, by the user or by
Spark's own log of its workers, that configuration alone counts.
"""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class WorkerHandler(logging.Handler):
    """Writes warnings to stderr, from where Spark takes them to the log of the driver or executor."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, unless another handler does."""
        if logging.getLogger().handlers:
            return
        try:
            # Looked up for each line: Spark exchanges stderr.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def configure() -> None:
    """Add the handler to the logger ``ottla`` of this process, once, and only if it has none."""
    logger = logging.getLogger("ottla")
    if not logger.handlers:
        logger.addHandler(WorkerHandler())
