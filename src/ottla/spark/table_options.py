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
from ottla.spark.client_settings import CLIENT_PREFIX, SERVERS, secrets_in
from ottla.spark.options import ADDED_BY_SPARK

CREATION = "provider"
"""The option that Spark adds when a table is created, and only then."""

KEY = "ottla.options"
"""The key in the metadata of a table's first column."""


def keep(columns: StructType, options: Mapping[str, str]) -> StructType:
    """``columns`` of a table that is created, with its options. Raises ``ConfigError`` if one of those is secret."""
    if secret := secrets_in(options):
        raise ConfigError(
            f"a table cannot have the option {', '.join(secret)}: Spark would copy it into files that are made of the table",
            hint="use a temporary view: load() and createOrReplaceTempView()",
        )
    kept = {name: value for name, value in sorted(options.items()) if name not in ADDED_BY_SPARK}
    first, *others = columns.fields
    return StructType([StructField(first.name, first.dataType, first.nullable, {KEY: json.dumps(kept)}), *others])


def restored(columns: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a query: ``options`` as Spark gives them, with those of the table whose ``columns`` are read."""
    if SERVERS in options:
        return dict(options)
    kept = next((field.metadata[KEY] for field in columns.fields if KEY in (field.metadata or {})), None)
    if kept is None and not any(name.startswith(CLIENT_PREFIX) or name == "subscribe" for name in options):
        raise ConfigError(
            "Spark has passed no options: it drops those of a table that was created with columns, or whose first column is gone",
            hint="leave the columns out of CREATE TABLE, and keep its first column; or use load() with options",
        )
    return {**(json.loads(kept) if kept is not None else {}), **options}
