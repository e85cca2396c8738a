"""The options and columns of the sink: those of Spark's own Kafka connector.

Owns their parsing into a frozen ``SinkOptions``, and the check of the columns. Must not do I/O. Invariants: every option takes
effect, raises an error, or is logged; a query whose columns cannot be those of records fails before it writes any.

Sources: the "Structured Streaming + Kafka Integration Guide" of Apache Spark, and its ``KafkaWriter``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructType,
)

from ottla.errors import ConfigError
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, check_producer_settings
from ottla.spark.options import ADDED_BY_SPARK, OPTIONS, check_spelling

log = logging.getLogger(__name__)

TOPIC = "topic"
COLUMNS = ("key", "value", "headers", TOPIC, "partition")
"""The columns that are written. All others are not, as with Spark's connector."""

_TYPES: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": ((StringType, BinaryType, NullType), "string or binary"),
    "value": ((StringType, BinaryType, NullType), "string or binary"),
    TOPIC: ((StringType,), "string"),
    "partition": ((IntegerType, LongType), "int"),
}
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class SinkOptions:
    """The validated options of one sink."""

    client: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)
    """The producer's settings by Kafka's names, sorted. Not in the ``repr``: they may be secret."""
    topic: str | None = None
    """Where all rows go, whatever a column ``topic`` has."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a data source's options. Names are case-insensitive. Raises ``ConfigError``."""
    client: dict[str, str] = {}
    topic: str | None = None
    for name, value in given.items():
        lowered = name.lower()
        if lowered.startswith(CLIENT_PREFIX):
            client[lowered.removeprefix(CLIENT_PREFIX)] = value
        elif lowered == TOPIC:
            topic = value
        elif lowered not in ADDED_BY_SPARK:
            _check_unknown(name)
    if not client.get("bootstrap.servers", "").strip():
        example = f'for example .option("{BOOTSTRAP_SERVERS}", "localhost:9092")'
        hint = f"{example}; a table of the catalog cannot be written to, since Spark passes its options to no writer"
        raise ConfigError(f"option {BOOTSTRAP_SERVERS} is missing", hint=hint)
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty", hint="leave it out, and have a column topic")
    return SinkOptions(tuple(sorted(check_producer_settings(client).items())), topic)


def written_columns(schema: StructType, options: SinkOptions) -> tuple[str, ...]:
    """Return the columns of ``schema`` that are written. Raises ``ConfigError`` for missing ones and wrong types."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError(
            f"there is no column 'value', only {', '.join(map(repr, types)) or 'none'}", hint="name one: df.select(...)"
        )
    if options.topic is None and TOPIC not in types:
        raise ConfigError("there is no topic: neither an option topic nor a column topic")
    for name, (kinds, expected) in _TYPES.items():
        if name in types and not isinstance(types[name], kinds):
            raise ConfigError(f"column {name!r} is {types[name].simpleString()}; expected: {expected}", hint="cast it in the query")
    if "headers" in types and not _are_headers(types["headers"]):
        raise ConfigError(f"column 'headers' is {types['headers'].simpleString()}; expected: {_HEADERS}")
    if others := [name for name in types if name not in COLUMNS]:
        log.info("columns that are not written: %s", ", ".join(others))
    return tuple(name for name in COLUMNS if name in types and not (name == TOPIC and options.topic is not None))


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return fields.keys() == {"key", "value"} and isinstance(fields["key"], StringType) and isinstance(fields["value"], BinaryType)


def _check_unknown(name: str) -> None:
    lowered = name.lower()
    if lowered == "exactlyonce":
        raise ConfigError("option exactlyOnce is not supported yet", hint="without it, each row is written at least once")
    of_source = {option.name.lower() for option in OPTIONS}
    if lowered in of_source:
        log.warning("option %r is one of sources, and has no effect on a sink", name)
        return
    check_spelling(name, {TOPIC: TOPIC})
