"""A stream's reader that refuses.

Owns the detour by which an error reaches the user as it is: an exception in ``streamReader()`` itself makes PySpark's runner
(4.3's ``python_streaming_source_runner``) fail with an ``UnboundLocalError`` about its variable ``reader``, which hides ours. Must
not know what was refused. Invariant: the first question of Spark to the reader raises the error.
"""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader

from ottla.errors import OttlaError


class RefusedStream(DataSourceStreamReader):
    """Raises ``error`` whatever Spark asks."""

    def __init__(self, error: OttlaError) -> None:
        self._error = error

    def initialOffset(self) -> Never:
        """Asked first, by a query without a checkpoint."""
        self._refuse()

    def getDefaultReadLimit(self) -> Never:
        """Asked first, by a query that continues from a checkpoint."""
        self._refuse()

    def latestOffset(self, *_: Any) -> Never:
        """Asked by neither before the two above."""
        self._refuse()

    def partitions(self, *_: Any) -> Never:
        """Asked first, where the checkpoint has a batch that was not finished."""
        self._refuse()

    def read(self, _: Any) -> Never:
        """Never asked, but every reader has it."""
        self._refuse()

    def _refuse(self) -> Never:
        # A copy: the frames in which it was found would be the longer part of what the user sees.
        raise self._error.afresh()
