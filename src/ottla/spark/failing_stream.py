"""A stream's reader that refuses.

Owns the detour by which an error reaches the user as it is: an exception in ``streamReader()`` itself makes PySpark's runner
(4.3's ``python_streaming_source_runner``) fail with an ``UnboundLocalError`` about its variable ``reader``, which hides ours. Must
not know what was refused. Invariant: the first question of Spark to the reader raises the error.
"""

from __future__ import annotations

from typing import Any, Never

from pyspark.sql.datasource import DataSourceStreamReader

from ottla.errors import OttlaError


class FailingStreamReader(DataSourceStreamReader):
    """Raises ``error`` whatever Spark asks."""

    def __init__(self, error: OttlaError) -> None:
        self._error = error

    def initialOffset(self) -> Never:
        """Where a query without a checkpoint begins."""
        self._refuse()

    def getDefaultReadLimit(self) -> Never:
        """What Spark 4.3 asks first, with and without a checkpoint."""
        self._refuse()

    def latestOffset(self, *_: Any) -> Never:
        """How far the next batch goes."""
        self._refuse()

    def partitions(self, *_: Any) -> Never:
        """What a batch reads, also one in the checkpoint that was not finished."""
        self._refuse()

    def read(self, _: Any) -> Never:
        """Never asked, but every reader has it."""
        self._refuse()

    def _refuse(self) -> Never:
        # A copy: the frames in which it was found would be the longer part of what the user sees.
        raise self._error.afresh()
