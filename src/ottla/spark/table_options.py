"""The options of a table in Spark's catalog (``CREATE TABLE ... USING ottla OPTIONS (...)``).

Owns their path from ``CREATE TABLE`` to the queries. Spark (4.0 to 4.3) stores the options, but ``PythonDataSourceV2.getTable``
drops them, so a query does not pass them to a Python source. It does pass the table's columns with their metadata: this module
stores the options there. Must not know what they mean, except which are secret. Invariant: no secret is stored in metadata, because
Spark copies metadata to columns derived from a column, and into files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from ottla.errors import ConfigError
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, secrets_in
from ottla.spark.options import ADDED_BY_SPARK

CREATION_OPTION = "provider"
"""Spark adds this option only when it creates a table."""

METADATA_KEY = "ottla.options"
"""The key of the options in the metadata of a table's first column."""


def store_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """Return ``columns`` of a new table, with its options in their metadata. Raises ``ConfigError`` if an option is secret."""
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
