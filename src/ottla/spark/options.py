"""The options of the source: names and meaning of Spark's own Kafka connector, and a few of ours.

Owns the one table of options, their parsing into a frozen ``SourceOptions``, and what is said about a wrong one. Must not do
I/O, nor know Spark. Invariant: an option that is given is honoured or refused; only what Spark itself adds is passed over.

Source of names and defaults: "Structured Streaming + Kafka Integration Guide" of Apache Spark.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import ConfigError
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, check_client_settings, without_ignored
from ottla.spark.offsets import EARLIEST, LATEST, OffsetSpec, parse_json, parse_partition, parse_spec
from ottla.types import TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TopicSelection:
    """Which partitions are read: some (``assign``), all of some topics (``subscribe``), or all of the topics whose whole name a
    pattern matches (``subscribePattern``). Exactly one of the three is set."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the whole name of ``topic``."""
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    def includes(self, tp: TopicPartition) -> bool:
        """Whether ``tp`` is read if it exists."""
        return tp in self.partitions or tp.topic in self.topics or self.matches(tp.topic)


@dataclass(frozen=True)
class SourceOptions:
    """The options of one source, checked. ``None`` stands for what was not given and has no default."""

    subscription: TopicSelection
    client: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)
    """The client's settings by Kafka's names, in order: equal settings share connections. Not shown: there may be a password."""
    starting_offsets: OffsetSpec | None = None
    ending_offsets: OffsetSpec | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    plan_once: bool | None = None
    group_id: str | None = None
    poll_timeout: float = 120.0
    """Seconds that a task waits for a record before it fails."""

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return dict(self.client).get("isolation.level", "").strip().lower() == "read_committed"

    def for_batch(self) -> SourceOptions:
        """The same for a batch, with a batch's defaults; raises ``ConfigError`` for what only a stream can do."""
        _refuse("maxOffsetsPerTrigger", self.max_offsets_per_trigger, "a batch", "name endingOffsets to read less")
        _refuse(
            "groupId (or kafka.group.id)", self.group_id, "a batch", "Spark does not report when rows were processed: remove it"
        )
        starting, ending = self.starting_offsets or OffsetSpec(EARLIEST), self.ending_offsets or OffsetSpec(LATEST)
        if starting.mentions(LATEST):
            raise ConfigError("startingOffsets of a batch cannot be latest (-1): there would be nothing to read")
        if ending.mentions(EARLIEST):
            raise ConfigError("endingOffsets cannot be earliest (-2): there would be nothing to read")
        return dataclasses.replace(self, starting_offsets=starting, ending_offsets=ending)

    def for_stream(self) -> SourceOptions:
        """The same for a stream, with a stream's defaults; raises ``ConfigError`` for what only a batch can do."""
        _refuse("endingOffsets", self.ending_offsets, "a stream", "trigger(availableNow=True) ends at what is there now")
        _refuse("planOnce", self.plan_once, "a stream", "each of its batches is planned once")
        return dataclasses.replace(self, starting_offsets=self.starting_offsets or OffsetSpec(LATEST))


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a data source, or of a table in Spark's catalog, under lower-case names.

    Those of a table have a prefix. Beside them come the same options without it, and the properties of the table, which are not
    ours.
    """
    lowered = {name.lower(): value for name, value in given.items()}
    of_table = {name.removeprefix(TABLE_PREFIX): value for name, value in lowered.items() if name.startswith(TABLE_PREFIX)}
    if not of_table:
        return lowered
    return {name: value for name, value in lowered.items() if name in ADDED_BY_SPARK} | of_table


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read a data source's options; the case of their names does not matter. Raises ``ConfigError``."""
    ours: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered.startswith(CLIENT_PREFIX):
            client[lowered.removeprefix(CLIENT_PREFIX)] = value
        elif lowered in _BY_LOWER_NAME:
            ours[lowered] = value
        else:
            _check_unknown(name)
    if not client.get("bootstrap.servers", "").strip():
        raise ConfigError(f"option {SERVERS} is missing", hint=f'for example .option("{SERVERS}", "localhost:9092")')
    parsed = {option.field: option.parse(option.name, ours[key]) for key, option in _BY_LOWER_NAME.items() if key in ours}
    group = client.pop("group.id", None)
    if group is not None:
        _merge_group_id(parsed, _name("kafka.group.id", group))
    client = check_client_settings(without_ignored(client))
    most, least = parsed.get("max_partitions"), parsed.get("min_partitions")
    if most is not None and least is not None and most < least:
        raise ConfigError(f"minPartitions is {least}, more than maxPartitions, which is {most}")
    return SourceOptions(subscription=_topic_selection(parsed), client=tuple(sorted(client.items())), **parsed)


def planner_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options that say which offsets of which cluster are read: all that a planner needs."""
    lowered = {name.lower(): value for name, value in given.items()}
    return {name: value for name, value in sorted(lowered.items()) if name in _PLANNER_OPTIONS or name.startswith(CLIENT_PREFIX)}


class Option(NamedTuple):
    """One row of the table: the name as it is documented, the field it fills, and how its value is read."""

    name: str
    field: str
    parse: Callable[[str, str], Any]


MAX_DIGITS = 19
"""A number with fewer digits fits into 64 bits, as Spark has it."""


def _boolean(name: str, text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _positive(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < MAX_DIGITS and int(digits) > 0):
        raise ConfigError(f"option {name} must be a whole number above 0, of at most {MOST_DIGITS - 1} digits, not {text[:40]!r}")
    return int(digits)


def _seconds(name: str, text: str) -> float:
    return _positive(name, text) / 1000


def _name(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"option {name} is empty", hint="leave it out")
    return text


def _topics(name: str, text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise ConfigError(f"option {name} names no topic")
    return topics


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(_name(name, text))
    except re.error as error:
        raise ConfigError(
            f"option {name} is not a regular expression: {error.msg} at character {(error.pos or 0) + 1} of {text!r}",
            hint="it is Python's dialect, and must match a topic's whole name",
        ) from None
    return text


def _assignment(name: str, text: str) -> tuple[TopicPartition, ...]:
    example = '{"topic": [0, 1]}'
    topics = parse_json(text, name, example)
    partitions: list[TopicPartition] = []
    for topic, listed in topics.items() if isinstance(topics, dict) else (("", None),):
        numbers = [parse_partition(number) for number in listed] if isinstance(listed, list) else [None]
        if None in numbers:
            raise ConfigError(f"option {name} must look like {example}, not {text!r}")
        partitions += [TopicPartition(topic, number) for number in numbers if number is not None]
    if not partitions:
        raise ConfigError(f"option {name} names no partition")
    return tuple(sorted(set(partitions)))


OPTIONS = (
    Option("assign", "partitions", _assignment),
    Option("subscribe", "topics", _topics),
    Option("subscribePattern", "pattern", _pattern),
    Option("startingOffsets", "starting_offsets", lambda name, text: parse_spec(text, name)),
    Option("endingOffsets", "ending_offsets", lambda name, text: parse_spec(text, name)),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _positive),
    Option("minPartitions", "min_partitions", _positive),
    Option("maxPartitions", "max_partitions", _positive),
    Option("failOnDataLoss", "fail_on_data_loss", _boolean),
    Option("includeHeaders", "include_headers", _boolean),
    Option("planOnce", "plan_once", _boolean),
    Option("groupId", "group_id", _name),
    Option("kafkaConsumer.pollTimeoutMs", "poll_timeout", _seconds),
)
"""Every option there is, but for those of the client."""

UNSUPPORTED = {
    "startingTimestamp": "use startingOffsets",
    "startingOffsetsByTimestamp": "use startingOffsets",
    "startingOffsetsByTimestampStrategy": "use startingOffsets",
    "endingTimestamp": "use endingOffsets",
    "endingOffsetsByTimestamp": "use endingOffsets",
    "minOffsetsPerTrigger": "use a longer trigger interval",
    "maxTriggerDelay": "use a longer trigger interval",
    "maxRecordsPerPartition": "use minPartitions",
    "fetchOffset.numRetries": "kafka.default.api.timeout.ms bounds how long a planner tries",
    "fetchOffset.retryIntervalMs": "kafka.default.api.timeout.ms bounds how long a planner tries",
    "groupIdPrefix": "no group is needed to read; name one with groupId to have progress committed to it",
}
"""Options of Spark's own connector that are not honoured, and what to do instead."""

ADDED_BY_SPARK = frozenset(
    {
        "path", "paths", "checkpointlocation", "queryname", "outputmode",
        "owner", "provider", "comment", "location", "external", "is_managed_location", "collation", "table_type",
    }
)  # fmt: skip
"""Options that Spark itself adds: the second row for a table of its catalog."""

TABLE_PREFIX = "option."
"""Spark's catalog gives the options of a table with this prefix."""

_PLANNER_OPTIONS = frozenset({"assign", "subscribe", "subscribepattern", "startingoffsets", "endingoffsets", "failondataloss"})
_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
_UNSUPPORTED_BY_LOWER_NAME = {name.lower(): name for name in UNSUPPORTED}
_SIMILARITY = 0.75
"""From this likeness on, an unknown option is taken for a misspelt one of ours (1 is the same word)."""


def _check_unknown(name: str) -> None:
    """Raise for an option that the user must have meant for us; say so of any other that Spark did not add itself."""
    lowered = name.lower()
    if lowered in ADDED_BY_SPARK:
        return
    if lowered in _UNSUPPORTED_BY_LOWER_NAME:
        known = _UNSUPPORTED_BY_LOWER_NAME[lowered]
        raise ConfigError(f"option {known} of Spark's Kafka connector is not supported here", hint=UNSUPPORTED[known])
    names = (
        {option.name.lower(): option.name for option in OPTIONS}
        | _UNSUPPORTED_BY_LOWER_NAME
        | {BOOTSTRAP_SERVERS: BOOTSTRAP_SERVERS}
    )
    if near := difflib.get_close_matches(lowered, names, n=1, cutoff=_SIMILARITY):
        raise ConfigError(f"unknown option {name!r}", hint=f"did you mean {names[near[0]]}?")
    log.warning("option %r is unknown to format('ottla') and has no effect", name)


def _merge_group_id(parsed: dict[str, Any], group: str) -> None:
    """``kafka.group.id`` is another name for ``groupId``."""
    if parsed.setdefault("group_id", group) != group:
        raise ConfigError(f"groupId is {parsed['group_id']!r} and kafka.group.id is {group!r}: give one of them")


def _topic_selection(parsed: dict[str, Any]) -> TopicSelection:
    """Take the three ways to say what is read out of ``parsed``, where exactly one must be."""
    ways = {option.field: option.name for option in OPTIONS[:3]}
    chosen = {field: parsed.pop(field) for field in ways if field in parsed}
    if len(chosen) != 1:
        found = "none is" if not chosen else f"{' and '.join(ways[field] for field in chosen)} are"
        raise ConfigError(f"exactly one of the options assign, subscribe and subscribePattern must be given, and {found}")
    return TopicSelection(**chosen)


def _refuse(name: str, value: Any, what: str, hint: str) -> None:
    if value is not None:
        raise ConfigError(f"option {name} has no effect for {what}", hint=hint)
