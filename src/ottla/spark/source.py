"""The data source behind ``format("ottla")``.

Owns the entry points that Spark calls. Must not do I/O, and imports its readers only when Spark requests them, since Spark imports
this module in many short-lived processes. Invariant: ``load()`` raises for invalid options; an option that only a batch or only a
stream supports raises before anything is read. (After ``.schema(...)`` Spark's ``load()`` calls nothing here, so options and schema
are checked when Spark plans the query.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ottla.errors import OttlaError
from ottla.spark import worker_logs
from ottla.spark.options import SourceOptions, parse_options, plain_options, planner_options

if TYPE_CHECKING:
    from ottla.spark.batch import OttlaBatchReader


class OttlaDataSource(DataSource):
    """``spark.read.format("ottla")`` and ``spark.readStream.format("ottla")``."""

    _parsed: SourceOptions | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(plain_options(options))
        worker_logs.configure()

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``. (It cannot be ``kafka``: Spark reserves that name for its own connector.)"""
        return "ottla"

    def schema(self) -> StructType:
        """The schema of a query that does not call ``.schema()``."""
        from ottla.spark.columns import full_schema
        from ottla.spark.table_options import CREATION_OPTION, store_options

        columns = full_schema(self._options().include_headers)
        return store_options(columns, self.options) if CREATION_OPTION in self.options else columns

    def reader(self, schema: StructType) -> OttlaBatchReader:
        """Return the batch reader."""
        worker_logs.configure()
        from ottla.spark.batch import OttlaBatchReader
        from ottla.spark.columns import wanted_columns

        return OttlaBatchReader(self._options(schema).for_batch(), wanted_columns(schema), planner_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader, or for invalid options one that raises the error."""
        worker_logs.configure()
        try:
            return self._stream_reader(schema)
        except OttlaError as error:
            from ottla.spark.failing_stream import FailingStreamReader

            return FailingStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raise ``OttlaError``; without this method PySpark's error is only that a method is not implemented."""
        raise _only_a_source()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raise ``OttlaError``."""
        raise _only_a_source()

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            from ottla.spark.stream import OttlaStreamReader
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            raise OttlaError("streams need Spark 4.2 or newer; batches work from 4.0 on", cause=error) from error
        from ottla.spark.columns import wanted_columns

        return OttlaStreamReader(self._options(schema).for_stream(), wanted_columns(schema))

    def _options(self, schema: StructType | None = None) -> SourceOptions:
        # Stored, and pickled with the source, so that warnings about options are logged once per load().
        if self._parsed is None:
            if schema is not None:
                from ottla.spark.table_options import restore_options

                self.options = restore_options(schema, self.options)
            self._parsed = parse_options(self.options)
        return self._parsed


def _only_a_source() -> OttlaError:
    return OttlaError(
        'format("ottla") reads from Kafka and cannot write to it',
        hint="send the rows with a producer, such as confluent-kafka's, in foreachPartition; or use Spark's own connector",
    )
