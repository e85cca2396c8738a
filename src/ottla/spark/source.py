"""The data source behind ``format("ottla")``.

Owns the entry points that Spark calls, and the detours for what Spark drops: the options of a table in its catalog, and an error in
``streamReader()``. Must not do I/O, and imports its readers only when Spark requests them, since Spark imports this module in many
short-lived processes. Invariant: ``load()`` raises for invalid options; an option that only a batch or only a stream supports
raises before anything is read. (After ``.schema(...)`` Spark's ``load()`` calls nothing here, so options and schema are checked
when Spark plans the query.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructField, StructType

from ottla.errors import ConfigError, OttlaError
from ottla.spark import worker_logs
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, secrets_in
from ottla.spark.executors import Shipped
from ottla.spark.options import ADDED_BY_SPARK, SourceOptions, parse_options, plain_options, planner_options

if TYPE_CHECKING:
    from ottla.spark.batch import OttlaBatchReader

CREATION_OPTION = "provider"
"""Spark adds this option only when it creates a table."""

METADATA_KEY = "ottla.options"
"""The key of the options in the metadata of a table's first column."""


class OttlaDataSource(Shipped, DataSource):
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
            return FailingStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        worker_logs.configure()
        from ottla.spark.sink import OttlaBatchWriter
        from ottla.spark.sink_options import parse_sink_options, written_columns

        if overwrite:
            raise ConfigError("a topic cannot be overwritten: rows are appended to it", hint='use mode("append")')
        options = parse_sink_options(self.options)
        return OttlaBatchWriter(options, written_columns(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of micro-batches. ``overwrite``, which stands for the output mode complete, appends all rows again, as
        Spark's connector does."""
        worker_logs.configure()
        try:
            from ottla.spark.stream_sink import OttlaStreamWriter
        except ImportError as error:
            if error.name != "pyspark.sql.datasource":
                raise
            raise OttlaError("the sink for streams needs Spark 4.1 or newer", cause=error) from error
        from ottla.spark.sink_options import parse_sink_options, written_columns

        options = parse_sink_options(self.options)
        if options.exactly_once is not None and options.exactly_once.query is not None:
            hint = "leave them out: a stream has the id of its query and the number of its batch"
            raise ConfigError(
                "options txnAppId and txnVersion are for foreachBatch and for batch jobs, not for writeStream", hint=hint
            )
        return OttlaStreamWriter(options, written_columns(schema, options))

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
                self.options = restore_options(schema, self.options)
            self._parsed = parse_options(self.options)
        return self._parsed


class FailingStreamReader(DataSourceStreamReader):
    """Every method raises ``error``, which was found in ``streamReader()``; Spark's first call does.

    An exception in ``streamReader()`` itself makes PySpark's runner (4.3's ``python_streaming_source_runner``) fail with an
    ``UnboundLocalError`` about its variable ``reader``, which hides ours.
    """

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


def store_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return ``columns`` of a new table, with its options in their metadata. Raises ``ConfigError`` if an option is secret.

    Spark (4.0 to 4.3) stores the options of ``CREATE TABLE ... USING ottla OPTIONS (...)``, but ``PythonDataSourceV2.getTable``
    drops them, so a query does not pass them to a Python source. It does pass the table's columns with their metadata. No secret
    is stored there, because Spark copies metadata to columns derived from a column, and into files.
    """
    if secret := secrets_in(options):
        raise ConfigError(
            f"a table cannot have the option {', '.join(secret)}: Spark would copy it into files written from the table",
            hint="use a temporary view: load() and createOrReplaceTempView()",
        )
    stored = {name: value for name, value in sorted(options.items()) if name not in ADDED_BY_SPARK}
    first, *others = columns.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA_KEY: json.dumps(stored)}), *others])


def restore_options(columns: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a query: those in the metadata of ``columns``, and Spark's ``options``, which take precedence."""
    if BOOTSTRAP_SERVERS in options:
        return dict(options)
    stored = next((field.metadata[METADATA_KEY] for field in columns.fields if METADATA_KEY in (field.metadata or {})), None)
    if stored is None and not any(name.startswith(CLIENT_PREFIX) or name == "subscribe" for name in options):
        raise ConfigError(
            "Spark passed no options: it drops those of a table that was created with columns, or whose first column was removed",
            hint="omit the columns in CREATE TABLE, and keep the table's first column; or use load() with options",
        )
    return {**(json.loads(stored) if stored is not None else {}), **options}
