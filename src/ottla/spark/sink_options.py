"""The options and columns of the sink: those of Spark's own Kafka connector.

Owns their parsing into a frozen ``SinkOptions``, and the check of the columns. Must not do I/O. Invariants: every option takes
effect, raises an error, or is logged; a query whose columns cannot be those of records fails before it writes any.

Sources: the "Structured Streaming + Kafka Integration Guide" of Apache Spark, and its ``KafkaWriter``.
"""

from __future__ import annotations

import dataclasses
import logging
import re
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
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, admin_settings, check_producer_settings, setting_of
from ottla.spark.offsets import MAX_DIGITS
from ottla.spark.options import ADDED_BY_SPARK, OPTIONS, check_spelling, parse_boolean

log = logging.getLogger(__name__)

TOPIC = "topic"
TRANSACTION_TIMEOUT, DEFAULT_TRANSACTION_TIMEOUT = "transaction.timeout.ms", "600000"
"""A batch has to end within this time. The brokers' default maximum is 15 minutes."""

EXACTLY_ONCE, SINK_ID, ON_REPLAY_MISMATCH = "exactlyOnce", "sinkId", "onReplayMismatch"
TXN_APP_ID, TXN_VERSION = "txnAppId", "txnVersion"
"""Delta Lake has options of these names for the same purpose."""

SKIP, REPEAT = "skip", "repeat"
_OWN = {name.lower(): name for name in (TOPIC, EXACTLY_ONCE, SINK_ID, ON_REPLAY_MISMATCH, TXN_APP_ID, TXN_VERSION)}
CHECKPOINT_LOCATION = "checkpointlocation"
COLUMNS = ("key", "value", "headers", TOPIC, "partition")
"""The columns that are written. All others are not, as with Spark's connector."""

_TYPES: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "key": ((StringType, BinaryType, NullType), "string or binary"),
    "value": ((StringType, BinaryType, NullType), "string or binary"),
    TOPIC: ((StringType,), "string"),
    "partition": ((IntegerType, LongType), "int"),
}
_HEADERS = "array<struct<key: string, value: binary>>"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class ExactlyOnce:
    """The options of a sink that writes exactly once."""

    sink_id: str = "sink"
    """Tells the sinks of one query apart. It has no dot: names of tasks would be ambiguous."""
    of_query: tuple[str, ...] = ()
    """The options that the user has set, and that have no effect in a batch job without ``query``."""
    query: str | None = None
    batch: int | None = None
    """The options ``txnAppId`` and ``txnVersion``: what stands for a query's id and a batch's number where Spark passes none."""
    on_mismatch: str = "fail"
    """What happens with a repeated batch that is not the same: ``fail``, ``skip`` or ``repeat``."""

    @property
    def repeats(self) -> bool:
        """Whether a batch is written again that may be there already, in whole or in part."""
        return self.on_mismatch == REPEAT


@dataclass(frozen=True)
class SinkOptions:
    """The validated options of one sink."""

    client: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)
    """The producer's settings by Kafka's names, sorted. Not in the ``repr``: they may be secret."""
    topic: str | None = None
    """Where all rows go, whatever a column ``topic`` has."""
    exactly_once: ExactlyOnce | None = None
    checkpoint: str | None = None
    """The ``checkpointLocation`` of a stream."""

    @property
    def admin(self) -> tuple[tuple[str, str], ...]:
        """The settings of an ``Admin`` for the same cluster."""
        return tuple(admin_settings(dict(self.client)).items())

    @property
    def transaction_timeout(self) -> float:
        """How long a transaction may be open, in seconds."""
        return int(dict(self.client).get(TRANSACTION_TIMEOUT, DEFAULT_TRANSACTION_TIMEOUT)) / 1000


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse a data source's options. Names are case-insensitive. Raises ``ConfigError``."""
    client: dict[str, str] = {}
    own: dict[str, str] = {}
    checkpoint: str | None = None
    for name, value in given.items():
        lowered = name.lower()
        if lowered.startswith(CLIENT_PREFIX):
            client[setting_of(name)] = value
        elif lowered in _OWN:
            own[_OWN[lowered]] = value
        elif lowered == CHECKPOINT_LOCATION:
            checkpoint = value
        elif lowered not in ADDED_BY_SPARK:
            _check_unknown(name)
    if not client.get("bootstrap.servers", "").strip():
        example = f'for example .option("{BOOTSTRAP_SERVERS}", "localhost:9092")'
        hint = f"{example}; a table of the catalog cannot be written to, since Spark passes its options to no writer"
        raise ConfigError(f"option {BOOTSTRAP_SERVERS} is missing", hint=hint)
    topic = own.get(TOPIC)
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty", hint="leave it out, and have a column topic")
    exactly_once = _exactly_once(own)
    if exactly_once is not None:
        client.setdefault(TRANSACTION_TIMEOUT, DEFAULT_TRANSACTION_TIMEOUT)
    settings = check_producer_settings(client, in_transactions=exactly_once is not None)
    return SinkOptions(tuple(sorted(settings.items())), topic, exactly_once, checkpoint)


def _exactly_once(own: Mapping[str, str]) -> ExactlyOnce | None:
    sink_id, on_mismatch = own.get(SINK_ID, "sink"), own.get(ON_REPLAY_MISMATCH, "fail").strip().lower()
    query, version = own.get(TXN_APP_ID), own.get(TXN_VERSION)
    for name in (SINK_ID, TXN_APP_ID):
        if name in own and not _NAME.fullmatch(own[name]):
            raise ConfigError(f"option {name} must be 1 to 100 letters, digits, '-' and '_', not {own[name][:120]!r}")
    if (query is None) != (version is None):
        raise ConfigError(f"options {TXN_APP_ID} and {TXN_VERSION} need each other", hint="give both, or neither")
    if version is not None and not (version.isascii() and version.isdigit() and len(version) <= MAX_DIGITS):
        raise ConfigError(f"option {TXN_VERSION} must be a number of a batch, not {version[:40]!r}")
    if on_mismatch not in ("fail", SKIP, REPEAT):
        raise ConfigError(f"option {ON_REPLAY_MISMATCH} must be fail, {SKIP} or {REPEAT}, not {own[ON_REPLAY_MISMATCH]!r}")
    if query is not None and on_mismatch == SKIP:
        hint = "leave it out: a batch with the same rows is skipped in any case"
        raise ConfigError(
            f"option {ON_REPLAY_MISMATCH} cannot be {SKIP} with {TXN_APP_ID}: a second sink with the name, whose rows would "
            "be lost, looks like a repeated batch",
            hint=hint,
        )
    if parse_boolean(EXACTLY_ONCE, own.get(EXACTLY_ONCE, "false")):
        of_query = tuple(name for name in (SINK_ID, ON_REPLAY_MISMATCH) if name in own)
        return ExactlyOnce(sink_id, of_query, query, None if version is None else int(version), on_mismatch)
    if query is not None:
        hint = "without it, a job that is run again writes its rows again"
        raise ConfigError(f"options {TXN_APP_ID} and {TXN_VERSION} need {EXACTLY_ONCE}=true", hint=hint)
    if without_effect := [name for name in own if name not in (TOPIC, EXACTLY_ONCE)]:
        log.warning("options without an effect unless %s is true: %s", EXACTLY_ONCE, ", ".join(without_effect))
    return None


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
    of_source = {option.name.lower() for option in OPTIONS}
    if lowered in of_source:
        log.warning("option %r is one of sources, and has no effect on a sink", name)
        return
    check_spelling(name, _OWN)
