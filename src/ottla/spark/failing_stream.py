"""A stream reader that raises an error found in ``streamReader()``.

Owns this detour, without which the user does not see the error: an exception in ``streamReader()`` itself makes PySpark's runner
(4.3's ``python_streaming_source_runner``) fail with an ``UnboundLocalError`` about its variable ``reader``, which hides ours. Must
not know the cause of the error. Invariant: Spark's first call of the reader raises it.
"""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader

from ottla.errors import OttlaError


class FailingStreamReader(DataSourceStreamReader):
    """Every method raises ``error``."""

    def __init__(self, error: OttlaError) -> None:
        self._error = error

    def initialOffset(self) -> Never:
        """Called for the start of a query without a checkpoint."""
        self._refuse()

    def getDefaultReadLimit(self) -> Never:
        """Called first by Spark 4.3, with and without a checkpoint."""
        self._refuse()

    def latestOffset(self, *_: Any) -> Never:
        """Called for the end of the next batch."""
        self._refuse()

    def partitions(self, *_: Any) -> Never:
        """Called for the tasks of a batch, which may be an unfinished one in the checkpoint."""
        self._refuse()

    def read(self, _: Any) -> Never:
        """Not called; required of every reader."""
        self._refuse()

    def _refuse(self) -> Never:
        # A copy without the traceback: most of the message that the user sees would be its frames.
        raise self._error.afresh()
