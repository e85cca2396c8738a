"""The log handler of a worker process of Spark, in which ``logging`` is not configured.

Owns one handler of the logger ``ottla``. Must not know what is logged. Invariant: if the user or Spark's own log of its workers has
configured logging, this handler writes nothing.
"""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class WorkerHandler(logging.Handler):
    """Writes warnings to stderr, which Spark copies to the log of the driver or executor."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, unless the root logger has a handler."""
        if logging.getLogger().handlers:
            return
        try:
            # sys.stderr is looked up for each line, because Spark replaces it.
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def configure() -> None:
    """Add the handler to the logger ``ottla`` of this process, once, and only if it has none."""
    logger = logging.getLogger("ottla")
    if not logger.handlers:
        logger.addHandler(WorkerHandler())
