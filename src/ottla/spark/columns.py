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

_BY_LOWER_NAME = {name.lower(): name for name in _TYPES}


def full_schema(include_headers: bool) -> StructType:
    """All columns; ``headers`` only where asked for."""
    return StructType([StructField(name, kind) for name, kind in _TYPES.items() if include_headers or name != HEADERS])


def wanted_columns(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user may have cut down (``.schema("value binary")``), as they are spelled there.

    Names match without regard to case, as elsewhere in Spark. A column that is not asked for is neither decoded nor sent. Raises
    ``ConfigError``.
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
    """The names of the record layer for columns in a user's spelling."""
    return tuple(_BY_LOWER_NAME[column.lower()] for column in columns)
