"""The data source itself: what Spark makes of ``format("ottla")``.

Owns the entry points that Spark calls. Must not do I/O, and imports its readers only when they are asked for, since Spark imports
this module in many short-lived processes. Invariant: wrong options are refused by ``load()`` or, where only the kind of query
shows that they are wrong, before anything is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ottla.errors import OttlaError
from ottla.spark.options import SourceOptions, bounding_options, parse_options

if TYPE_CHECKING:
    from ottla.spark.batch import OttlaBatchReader
    from ottla.spark.stream import OttlaStreamReader


class OttlaDataSource(DataSource):
    """``spark.read.format("ottla")`` and ``spark.readStream.format("ottla")``."""

    @classmethod
    def name(cls) -> str:
        """The word that goes into ``format()``. (``kafka`` cannot be taken: Spark keeps it for its own connector.)"""
        return "ottla"

    def schema(self) -> StructType:
        """The columns that a query gets unless it names its own."""
        from ottla.spark.columns import full_schema

        return full_schema(self._options().include_headers)

    def reader(self, schema: StructType) -> OttlaBatchReader:
        """The reader of a batch."""
        from ottla.spark.batch import OttlaBatchReader
        from ottla.spark.columns import wanted_columns

        return OttlaBatchReader(self._options().for_batch(), wanted_columns(schema), bounding_options(self.options))

    def streamReader(self, schema: StructType) -> OttlaStreamReader:
        """The reader of a stream."""
        try:
            from ottla.spark.stream import OttlaStreamReader
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            raise OttlaError("streams need Spark 4.2 or newer; batches work from 4.0 on", cause=error) from error
        from ottla.spark.columns import wanted_columns

        return OttlaStreamReader(self._options().for_stream(), wanted_columns(schema))

    def _options(self) -> SourceOptions:
        return parse_options(self.options)
