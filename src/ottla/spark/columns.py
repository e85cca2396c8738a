"""The columns of the source: the schema of Spark's own Kafka connector, and the selection by a query.

Owns names, types and order of the columns. Must not know how they are filled. Invariant: the record layer can produce every
schema that this module accepts, column for column and type for type.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.errors import ConfigError

HEADERS = "headers"

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}

_BY_LOWER_NAME = {name.lower(): name for name in _TYPES}


def full_schema(include_headers: bool) -> StructType:
    """Return all columns; ``headers`` only with ``include_headers``."""
    return StructType([StructField(name, kind) for name, kind in _TYPES.items() if include_headers or name != HEADERS])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema that may be the user's (``.schema("value binary")``), in the user's spelling.

    Names are case-insensitive, as elsewhere in Spark. Only the selected columns are decoded and sent. Raises ``ConfigError``.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        name = _BY_LOWER_NAME.get(field.name.lower())
        if name is None:
            raise ConfigError(f"there is no column {field.name!r}", hint=f"the columns are {', '.join(_TYPES)}")
        kind = _TYPES[name].simpleString()
        if field.dataType.simpleString() != kind:
            raise ConfigError(f"column {field.name} is {kind}, not {field.dataType.simpleString()}")
        if not field.nullable:
            raise ConfigError(f"column {field.name} cannot be declared NOT NULL")
        if name in found:
            spellings = f"as {found[name]} and {field.name}" if found[name] != field.name else f"as {field.name}"
            raise ConfigError(f"column {name} is named twice in the schema, {spellings}", hint="name it once")
        found[name] = field.name
    return tuple(found.values())


def names_of(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the record layer's names of columns in the user's spelling."""
    return tuple(_BY_LOWER_NAME[column.lower()] for column in columns)
