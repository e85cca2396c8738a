"""The rows of the source: the schema of Spark's own Kafka connector, and which of its columns a query wants.

Owns names, types and order of the columns. Must not know how they are filled. Invariant: whatever schema is accepted here,
the record layer can produce, column for column and type for type.
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


def full_schema(include_headers: bool) -> StructType:
    """All columns; ``headers`` only where asked for."""
    return StructType([StructField(name, kind) for name, kind in _TYPES.items() if include_headers or name != HEADERS])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user may have cut down (``.schema("value binary")``); raises ``ConfigError``.

    A column that is not asked for is neither decoded nor sent.
    """
    for field in schema.fields:
        kind = _TYPES.get(field.name)
        if kind is None:
            raise ConfigError(f"there is no column {field.name!r}", hint=f"the columns are {', '.join(_TYPES)}")
        if field.dataType.simpleString() != kind.simpleString():
            raise ConfigError(f"column {field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
        if not field.nullable:
            raise ConfigError(f"column {field.name} cannot be declared NOT NULL")
    return tuple(field.name for field in schema.fields)
