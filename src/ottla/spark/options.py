"""The options of the source: those of Spark's own Kafka connector, and a few of Ottla's own.

Owns the table of options, their parsing into a frozen ``SourceOptions``, and the errors for invalid ones. Must not do I/O, nor know
Spark. Invariant: every option takes effect or raises an error; unrelated names are logged, and options that Spark itself adds are
ignored. As in Spark's connector, ``maxTriggerDelay`` without ``minOffsetsPerTrigger`` has no effect, nor has
``startingOffsetsByTimestampStrategy`` without a timestamp.

Names and defaults are those of the "Structured Streaming + Kafka Integration Guide" of Apache Spark.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import ConfigError
from ottla.java_regex import compile_java_pattern
from ottla.spark.client_settings import BOOTSTRAP_SERVERS, CLIENT_PREFIX, check_client_settings, setting_of, without_ignored
from ottla.spark.offsets import (
    EARLIEST,
    LATEST,
    MAX_DIGITS,
    OffsetSpec,
    TimestampSpec,
    parse_json,
    parse_partition,
    parse_spec,
    parse_timestamp,
    parse_timestamps,
)
from ottla.types import TopicPartition

log = logging.getLogger(__name__)

ERROR, AT_END = "error", "latest"
"""The values of ``startingOffsetsByTimestampStrategy``."""


@dataclass(frozen=True)
class TopicSelection:
    """The partitions to read: single partitions (``assign``), whole topics (``subscribe``), or the topics in whose name a pattern
    finds a match (``subscribePattern``). Exactly one of the three is set."""

    partitions: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def matches(self, topic: str) -> bool:
        """Whether the pattern finds a match in the name of ``topic``, which is not one of Kafka's own."""
        return self.pattern is not None and topic not in INTERNAL_TOPICS and _compiled(self.pattern).search(topic) is not None

    def includes(self, tp: TopicPartition) -> bool:
        """Whether the selection contains ``tp``, which may not exist."""
        return tp in self.partitions or tp.topic in self.topics or self.matches(tp.topic)


DEFAULT_TRIGGER_DELAY = 900.0
"""Seconds, as in Spark's connector."""


@dataclass(frozen=True)
class SourceOptions:
    """The validated options of one source. ``None``: not given, and without a default."""

    subscription: TopicSelection
    client: tuple[tuple[str, str], ...] = dataclasses.field(repr=False)
    """The client's settings by Kafka's names, sorted: equal settings share connections. Not in the ``repr``: they may be secret."""
    starting_offsets: OffsetSpec | None = None
    ending_offsets: OffsetSpec | None = None
    starting_times: TimestampSpec | None = None
    """Takes precedence over ``starting_offsets``; the other one in the same way."""
    ending_times: TimestampSpec | None = None
    starting_strategy: str = ERROR
    """For a partition without a record at or after its timestamp: ``ERROR``, or start at the end."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay: float = DEFAULT_TRIGGER_DELAY
    """Seconds after which a batch is made of fewer than ``min_offsets_per_trigger`` offsets."""
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records: int | None = None
    """The most offsets of a task."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    plan_once: bool | None = None
    group_id: str | None = None
    poll_timeout: float = 120.0
    """Seconds that a task waits for a record before it fails."""

    @property
    def read_committed(self) -> bool:
        """Whether ``isolation.level`` is ``read_committed``."""
        return dict(self.client).get("isolation.level", "").strip().lower() == "read_committed"

    @property
    def starts_are_repeatable(self) -> bool:
        """Whether the start of a query is the same whenever it is looked up, but for records that are deleted meanwhile."""
        if self.starting_times is not None:
            return self.starting_strategy == ERROR
        return self.starting_offsets is not None and not (self.starting_offsets.of_group or self.starting_offsets.mentions(LATEST))

    def for_batch(self) -> SourceOptions:
        """Return these options with the defaults of a batch. Raises ``ConfigError`` for options that only a stream supports."""
        starting, ending = self.starting_offsets or OffsetSpec(EARLIEST), self.ending_offsets or OffsetSpec(LATEST)
        ignored = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
            "maxTriggerDelay": None if self.max_trigger_delay == DEFAULT_TRIGGER_DELAY else self.max_trigger_delay,
            "groupId (or kafka.group.id)": None if starting.of_group else self.group_id,
        }
        if names := [name for name, value in ignored.items() if value is not None]:
            log.warning("ignored options without an effect on a batch: %s", ", ".join(names))
        if starting.mentions(LATEST) and not starting.of_group:
            raise ConfigError("startingOffsets of a batch cannot be latest (-1): there would be nothing to read")
        if ending.mentions(EARLIEST):
            raise ConfigError("endingOffsets cannot be earliest (-2): there would be nothing to read")
        return dataclasses.replace(self, starting_offsets=starting, ending_offsets=ending)

    def for_stream(self) -> SourceOptions:
        """Return these options with the defaults of a stream. Raises ``ConfigError`` for options that only a batch supports."""
        hint = "trigger(availableNow=True) ends at the current end of the logs"
        _refuse("endingOffsets", self.ending_offsets, "a stream", hint)
        if self.ending_times is not None:
            _refuse(self.ending_times.option, self.ending_times, "a stream", hint)
        _refuse("planOnce", self.plan_once, "a stream", "remove it: a stream plans each micro-batch once")
        return dataclasses.replace(self, starting_offsets=self.starting_offsets or OffsetSpec(LATEST))


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a data source, or of a table in Spark's catalog, under lower-case names.

    Spark gives a table's options with the prefix ``option.``, and adds the same options without the prefix, and properties of the
    table. Of the names without the prefix, only those in ``ADDED_BY_SPARK`` are returned.
    """
    lowered = {name.lower(): value for name, value in given.items()}
    of_table = {name.removeprefix(TABLE_PREFIX): value for name, value in lowered.items() if name.startswith(TABLE_PREFIX)}
    if not of_table:
        return lowered
    return {name: value for name, value in lowered.items() if name in ADDED_BY_SPARK} | of_table


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse a data source's options. Names are case-insensitive. Raises ``ConfigError``."""
    ours: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered.startswith(CLIENT_PREFIX):
            client[setting_of(name)] = value
        elif lowered in _BY_LOWER_NAME:
            ours[lowered] = value
        else:
            _check_unknown(name)
    if not client.get("bootstrap.servers", "").strip():
        example = f'for example .option("{BOOTSTRAP_SERVERS}", "localhost:9092")'
        raise ConfigError(f"option {BOOTSTRAP_SERVERS} is missing", hint=example)
    parsed = {option.field: option.parse(option.name, ours[key]) for key, option in _BY_LOWER_NAME.items() if key in ours}
    group = client.pop("group.id", None)
    if group is not None:
        _merge_group_id(parsed, _name("kafka.group.id", group))
    client = check_client_settings(without_ignored(client))
    _check_pairs(parsed)
    _choose_times(parsed)
    return SourceOptions(subscription=_topic_selection(parsed), client=tuple(sorted(client.items())), **parsed)


def planner_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the planner process needs: those of the cluster, its topics and offsets."""
    lowered = {name.lower(): value for name, value in given.items()}
    return {name: value for name, value in sorted(lowered.items()) if name in _PLANNER_OPTIONS or name.startswith(CLIENT_PREFIX)}


def _check_pairs(parsed: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for options that exclude each other, or that need another one."""
    for least, most in (("minPartitions", "maxPartitions"), ("minOffsetsPerTrigger", "maxOffsetsPerTrigger")):
        low, high = (parsed.get(_BY_LOWER_NAME[name.lower()].field) for name in (least, most))
        if low is not None and high is not None and high < low:
            raise ConfigError(f"{least} ({low}) is greater than {most} ({high})")
    if "max_records" in parsed and "max_partitions" in parsed:
        raise ConfigError("maxRecordsPerPartition and maxPartitions exclude each other", hint="set only one of them")
    starting = parsed.get("starting_offsets")
    if starting is not None and starting.of_group and parsed.get("group_id") is None:
        raise ConfigError("startingOffsets begins at the committed offsets of a group, and there is none", hint="set groupId")


def _choose_times(parsed: dict[str, Any]) -> None:
    """Replace the four options with timestamps by the one for each end that Spark's connector would use: a single timestamp
    before those by partition, and both before offsets."""
    for end in ("starting", "ending"):
        by_partition = parsed.pop(f"{end}_by_partition", None)
        times = parsed.pop(f"{end}_everywhere", None) or by_partition
        if times is not None:
            parsed[f"{end}_times"] = times
            if parsed.pop(f"{end}_offsets", None) is not None or (by_partition is not None and times is not by_partition):
                log.warning(
                    "option %s takes precedence over the other options for the %s of the query",
                    times.option,
                    end.removesuffix("ing"),
                )


class Option(NamedTuple):
    """One row of the table: the documented name, the field of ``SourceOptions``, and the parser of the value."""

    name: str
    field: str
    parse: Callable[[str, str], Any]


INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, which no pattern selects; ``subscribe`` may name them."""


def parse_boolean(name: str, text: str) -> bool:
    """Parse the value of an option. Raises ``ConfigError``."""
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {name} must be true or false, not {text!r}")
    return text.strip().lower() == "true"


def _positive(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS and int(digits) > 0):
        raise ConfigError(f"option {name} must be a positive integer of at most {MAX_DIGITS} digits, not {text[:40]!r}")
    return int(digits)


def _seconds(name: str, text: str) -> float:
    return _positive(name, text) / 1000


_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _delay(name: str, text: str) -> float:
    """Seconds in a duration as Spark writes it, such as ``15m``; a number alone is milliseconds."""
    digits, unit = (found := text.strip().lower()).rstrip("abcdefghijklmnopqrstuvwxyz"), ""
    unit = found[len(digits) :] or "ms"
    if unit not in _UNITS or not digits.isdigit() or not digits.isascii() or len(digits) > 9:
        raise ConfigError(f"option {name} must be a duration such as 15m, 30s or 500ms, not {text[:40]!r}")
    return int(digits) * _UNITS[unit] / 1000


def _strategy(name: str, text: str) -> str:
    if text.strip().lower() not in (ERROR, AT_END):
        raise ConfigError(f"option {name} must be error or latest, not {text[:40]!r}")
    return text.strip().lower()


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
        _compiled(_name(name, text))
    except ConfigError as error:
        raise ConfigError(f"option {name}: {error.args[0]}", hint=error.hint) from None
    return text


_compiled = functools.lru_cache(maxsize=64)(compile_java_pattern)


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
    Option("startingTimestamp", "starting_everywhere", lambda name, text: parse_timestamp(text, name)),
    Option("startingOffsetsByTimestamp", "starting_by_partition", lambda name, text: parse_timestamps(text, name)),
    Option("startingOffsetsByTimestampStrategy", "starting_strategy", _strategy),
    Option("endingTimestamp", "ending_everywhere", lambda name, text: parse_timestamp(text, name)),
    Option("endingOffsetsByTimestamp", "ending_by_partition", lambda name, text: parse_timestamps(text, name)),
    Option("maxOffsetsPerTrigger", "max_offsets_per_trigger", _positive),
    Option("minOffsetsPerTrigger", "min_offsets_per_trigger", _positive),
    Option("maxTriggerDelay", "max_trigger_delay", _delay),
    Option("minPartitions", "min_partitions", _positive),
    Option("maxPartitions", "max_partitions", _positive),
    Option("maxRecordsPerPartition", "max_records", _positive),
    Option("failOnDataLoss", "fail_on_data_loss", parse_boolean),
    Option("includeHeaders", "include_headers", parse_boolean),
    Option("planOnce", "plan_once", parse_boolean),
    Option("groupId", "group_id", _name),
    Option("kafkaConsumer.pollTimeoutMs", "poll_timeout", _seconds),
)
"""All options except ``kafka.*``."""

IGNORED_OPTIONS = {
    "fetchOffset.numRetries": "kafka.default.api.timeout.ms bounds how long a planner tries",
    "fetchOffset.retryIntervalMs": "kafka.default.api.timeout.ms bounds how long a planner tries",
    "groupIdPrefix": "reading needs no group; set groupId to commit progress to one",
}
"""Options of Spark's own connector that have no effect here -> the reason, or an alternative."""

ADDED_BY_SPARK = frozenset(
    {
        "path", "paths", "checkpointlocation", "queryname", "outputmode",
        "owner", "provider", "comment", "location", "external", "is_managed_location", "collation", "table_type",
    }
)  # fmt: skip
"""Options that Spark itself adds; those of the second row for a table of its catalog."""

TABLE_PREFIX = "option."
"""The prefix of a table's options in Spark's catalog."""

_PLANNER_OPTIONS = frozenset(
    {
        "assign", "subscribe", "subscribepattern", "failondataloss", "groupid", "startingoffsets", "endingoffsets",
        "startingtimestamp", "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "endingtimestamp",
        "endingoffsetsbytimestamp",
    }
)  # fmt: skip
_BY_LOWER_NAME = {option.name.lower(): option for option in OPTIONS}
_IGNORED_BY_LOWER_NAME = {name.lower(): name for name in IGNORED_OPTIONS}
_SIMILARITY = 0.75
"""An unknown option with a similarity (``difflib``, 0 to 1) of at least this to a known one counts as a misspelling."""


def _check_unknown(name: str) -> None:
    """Raise ``ConfigError`` for a misspelled option; log a warning for any other that Spark did not add."""
    lowered = name.lower()
    if lowered in ADDED_BY_SPARK:
        return
    if lowered in _IGNORED_BY_LOWER_NAME:
        known = _IGNORED_BY_LOWER_NAME[lowered]
        log.warning("option %s of Spark's Kafka connector has no effect: %s", known, IGNORED_OPTIONS[known])
        return
    check_spelling(name, {option.name.lower(): option.name for option in OPTIONS} | _IGNORED_BY_LOWER_NAME)


def check_spelling(name: str, known: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if a name resembles a ``known`` one (lower case -> as documented); otherwise log a warning."""
    names = {**known, BOOTSTRAP_SERVERS: BOOTSTRAP_SERVERS}
    if near := difflib.get_close_matches(name.lower(), names, n=1, cutoff=_SIMILARITY):
        raise ConfigError(f"unknown option {name!r}", hint=f"did you mean {names[near[0]]}?")
    log.warning("option %r is not an option of format('ottla') and has no effect", name)


def _merge_group_id(parsed: dict[str, Any], group: str) -> None:
    """Treat ``kafka.group.id`` as an alias of ``groupId``. Raises ``ConfigError`` if they differ."""
    if parsed.setdefault("group_id", group) != group:
        raise ConfigError(f"groupId is {parsed['group_id']!r} and kafka.group.id is {group!r}: set only one of them")


def _topic_selection(parsed: dict[str, Any]) -> TopicSelection:
    """Remove ``assign``, ``subscribe`` and ``subscribePattern`` from ``parsed``, which must have exactly one of them."""
    names = {option.field: option.name for option in OPTIONS[:3]}
    given = {field: parsed.pop(field) for field in names if field in parsed}
    if len(given) != 1:
        found = "none is" if not given else f"{' and '.join(names[field] for field in given)} are"
        raise ConfigError(f"exactly one of the options assign, subscribe and subscribePattern must be set, and {found}")
    return TopicSelection(**given)


def _refuse(name: str, value: Any, what: str, hint: str) -> None:
    if value is not None:
        raise ConfigError(f"option {name} has no effect for {what}", hint=hint)
