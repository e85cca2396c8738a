"""The options of a table in Spark's catalog (``CREATE TABLE ... USING ottla OPTIONS (...)``).

Owns how they get from the creation of the table to its queries. Spark (4.0 to 4.3) stores them, but gives a Python source none
when the table is read: ``PythonDataSourceV2.getTable`` drops them. It gives the table's columns, with their metadata. So the
options are there. Must not know what they mean, except which are secret. Invariant: no secret is kept in metadata, which Spark
copies to what is made of a column, also into files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from ottla.errors import ConfigError
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, secrets_in
from ottla.spark.options import ADDED_BY_SPARK

CREATION_OPTION = "provider"
"""The option that Spark adds when a table is created, and only then."""

METADATA_KEY = "ottla.options"
"""The key in the metadata of a table's first column."""


def store_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """``columns`` of a table that is created, with its options. Raises ``ConfigError`` if one of those is secret."""
    if secret := secrets_in(options):
        raise ConfigError(
            f"a table cannot have the option {', '.join(secret)}: Spark would copy it into files that are made of the table",
            hint="use a temporary view: load() and createOrReplaceTempView()",
        )
    stored = {name: value for name, value in sorted(options.items()) if name not in ADDED_BY_SPARK}
    first, *others = columns.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {METADATA_KEY: json.dumps(stored)}), *others])


def restore_options(columns: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query: ``options`` as Spark gives them, with those of the table whose ``columns`` are read."""
    if BOOTSTRAP_SERVERS in options:
        return dict(options)
    stored = next((field.metadata[METADATA_KEY] for field in columns.fields if METADATA_KEY in (field.metadata or {})), None)
    if stored is None and not any(name.startswith(CLIENT_PREFIX) or name == "subscribe" for name in options):
        raise ConfigError(
            "Spark has passed no options: it drops those of a table that was created with columns, or whose first column is gone",
            hint="leave the columns out of CREATE TABLE, and keep its first column; or use load() with options",
        )
    return {**(json.loads(stored) if stored is not None else {}), **options}
