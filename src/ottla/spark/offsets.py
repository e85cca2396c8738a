"""Offsets of options and of Spark's checkpoint, as dictionaries and as JSON.

Owns the conversion to and from ``{"topic": {"0": 23}}``, the format of Spark's own Kafka connector, and Ottla's extensions of it:
the start of the first batch, and the ids of the topics (``StreamOffset``). Must not know where offsets come from. Invariant: equal
offsets have equal JSON, byte for byte, because Spark compares offsets as strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.errors import ConfigError
from ottla.types import TopicPartition, short_list

Offsets = Mapping[TopicPartition, int]
"""Partition -> offset of the next record to read."""

TopicIds = Mapping[str, str]
"""Topic -> id, as Kafka's tools print it."""

EARLIEST, LATEST = -2, -1
"""The two ends of a partition in JSON, as in the protocol's ListOffsets request."""

GROUP_PREFIX = "group:"
"""The prefix of a starting point at the committed offsets of a group."""

NAMED = 10
"""The most partitions or topics that an error names."""

MAX_DIGITS = 18
"""Every number of so many digits fits into a signed 64-bit integer, Spark's ``Long``."""

FIRST_START = "$from"
"""The key of the first batch's start in the JSON of its end. It cannot be a topic: ``$`` is not legal in topic names."""

TOPIC_IDS = "$topics"
"""The key of the ids of the topics, as Kafka's tools print them."""

CORES = "$cores"
"""The key of the number of cores for which the batch before the offset was planned."""

OWN_KEYS = frozenset({FIRST_START, TOPIC_IDS, CORES})
"""The keys that Spark's own connector does not know, and refuses."""


@dataclass(frozen=True)
class OffsetSpec:
    """A value of ``startingOffsets`` or ``endingOffsets``: one position for all partitions, or one for each.

    ``everywhere`` is ``EARLIEST`` or ``LATEST``, or ``None`` if ``partitions`` has the positions, which may be these two numbers as
    well. ``of_group``: the group's committed offsets come first, and ``everywhere`` is for partitions without one.
    """

    everywhere: int | None = None
    partitions: Offsets = field(default_factory=dict)
    of_group: bool = False

    def mentions(self, point: int) -> bool:
        """Whether any partition has the position ``point`` (``EARLIEST`` or ``LATEST``)."""
        return self.everywhere == point or point in self.partitions.values()

    def unresolved(self, partitions: Iterable[TopicPartition], point: int) -> list[TopicPartition]:
        """Return the partitions with the position ``point``, whose offsets only the cluster knows."""
        return [tp for tp in partitions if self.partitions.get(tp, self.everywhere) == point]

    def resolve(self, partitions: Iterable[TopicPartition], earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
        """Return the offset of each partition. ``earliest`` and ``latest`` must have the partitions that ``unresolved`` returns."""
        ends = {EARLIEST: earliest, LATEST: latest}
        points = ((tp, self.partitions.get(tp, self.everywhere)) for tp in partitions)
        return {tp: ends[point][tp] if point in ends else point for tp, point in points if point is not None}

    def check_covers(self, option: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise ``ConfigError`` if the offsets per partition are not for exactly the partitions to read."""
        if self.everywhere is None:
            ends = "-1 stands for latest" if option == "endingOffsets" else "-2 stands for earliest, -1 for latest"
            _check_covers(option, "offset", self.partitions, partitions, f"an offset for every partition that is read: {ends}")


@dataclass(frozen=True)
class TimestampSpec:
    """The timestamp (ms) of ``option`` for all partitions, or one for each of them."""

    option: str
    everywhere: int | None = None
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)

    def times(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the timestamp of each partition. Raises ``ConfigError`` if they are not for exactly these partitions."""
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        hint = "a timestamp for every partition that is read, in milliseconds"
        _check_covers(self.option, "timestamp", self.partitions, partitions, hint)
        return dict(self.partitions)


def _check_covers(option: str, what: str, given: Offsets, partitions: Iterable[TopicPartition], needed: str) -> None:
    wanted = set(partitions)
    if missing := sorted(wanted - given.keys()):
        raise ConfigError(f"{option} names no {what} for {short_list(missing, NAMED)}", hint=f"give {needed}")
    if surplus := sorted(given.keys() - wanted):
        raise ConfigError(f"{option} names {short_list(surplus, NAMED)}, which is not read or does not exist")


@dataclass(frozen=True)
class StreamOffset:
    """The positions of a stream.

    The end of a stream's first batch also contains the start of that batch (``first_start``). Otherwise records would be lost:

    1. ``initialOffset()`` returns the current ``latest``. Spark does not store it.
    2. The first batch fails, or the query is restarted in it. Spark has stored only the end of the batch.
    3. Spark calls ``initialOffset()`` again and plans the stored batch from there; ``latest`` is a later offset by then.

    ``topic_ids`` tells a topic from one that is created later under its name, with offsets from 0 on. It lacks the topics of
    a cluster without ids (Kafka before 2.8), and all in an offset that Spark's own connector or an earlier Ottla has stored.

    ``cores`` makes the tasks of a repeated batch the same on a driver with other hardware. A sink that writes exactly once relies
    on that.
    """

    positions: Offsets
    first_start: Offsets | None = None
    topic_ids: TopicIds = field(default_factory=dict)
    cores: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the dictionary that Spark stores as JSON."""
        stored: dict[str, Any] = dict(to_json(self.positions))
        if self.first_start is not None:
            stored[FIRST_START] = to_json(self.first_start)
        if ids := {topic: self.topic_ids[topic] for topic in stored if topic in self.topic_ids}:
            stored[TOPIC_IDS] = ids
        if self.cores is not None:
            stored[CORES] = self.cores
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """Decode the JSON of ``to_json`` or of Spark's own connector. Raises ``ConfigError`` for anything else."""
        topics = {key: value for key, value in stored.items() if key not in OWN_KEYS}
        first, ids = stored.get(FIRST_START), stored.get(TOPIC_IDS, {})
        if not isinstance(ids, Mapping) or not all(isinstance(topic_id, str) for topic_id in ids.values()):
            raise ConfigError(f"{TOPIC_IDS} in the checkpoint must map topics to ids, not {ids!r}")
        cores = stored.get(CORES)
        if cores is not None and not (isinstance(cores, int) and not isinstance(cores, bool) and cores > 0):
            raise ConfigError(f"{CORES} in the checkpoint must be a positive number, not {cores!r}")
        starts = None if first is None else from_json(first, "the checkpoint")
        return cls(from_json(topics, "the checkpoint"), starts, dict(ids), cores)

    @classmethod
    def parse(cls, text: str) -> StreamOffset | None:
        """Decode the text of an offset that Spark shows or stores; ``None`` for one that is not of a Kafka source."""
        try:
            stored = json.loads(text)
            return cls.from_json(stored) if isinstance(stored, dict) else None
        except (ValueError, ConfigError):
            return None

    def recreated(self, later: TopicIds) -> set[str]:
        """The topics that have other ids in ``later``."""
        return {topic for topic, topic_id in self.topic_ids.items() if later.get(topic, topic_id) != topic_id}


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Encode as ``{"topic": {"0": 23}}``, with topics and partitions in ascending order."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def from_json(topics: Any, origin: str) -> dict[TopicPartition, int]:
    """Decode ``{"topic": {"0": 23}}``. ``origin`` is the name of its source in a ``ConfigError``."""
    example = f'{origin} must look like {{"topic": {{"0": 23, "1": -2}}}}'
    if not isinstance(topics, Mapping):
        raise ConfigError(f"{example}, not {topics!r}")
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, Mapping):
            raise ConfigError(f"{example}, but topic {topic!r} has {partitions!r}")
        for partition, offset in partitions.items():
            number = parse_partition(partition)
            if number is None:
                raise ConfigError(f"{example}: {partition!r} of topic {topic!r} is not a partition number")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ConfigError(f"{example}: {offset!r} for {topic}-{number} is not an offset, -2 (earliest) or -1 (latest)")
            tp = TopicPartition(str(topic), number)
            if tp in offsets:  # "0" and "00"
                raise ConfigError(f"{origin} has {tp} twice", hint="give each partition once")
            offsets[tp] = offset
    return offsets


def parse_partition(text: Any) -> int | None:
    """Return the partition number in ``text``, or ``None`` if it is not one."""
    digits = str(text)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 11 and not isinstance(text, bool) else None


def parse_json(text: str, origin: str, example: str, *, wrong: str = "not JSON") -> Any:
    """Decode JSON in an option. Raises ``ConfigError`` with the position of a syntax error and a valid ``example``.

    A duplicate name in an object raises as well: Python keeps the last one, so the query would read less than the option says.
    """
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, origin))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{origin} is {wrong}: {error.msg} at character {error.pos + 1} of {text!r}", hint=f"for example {example}"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of more than 4300 digits; a thousand brackets
        raise ConfigError(f"{origin} is {wrong}: {error}", hint=f"for example {example}") from None


def _object(pairs: list[tuple[str, Any]], origin: str) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        twice = next(name for at, (name, _) in enumerate(pairs) if name in dict(pairs[:at]))
        raise ConfigError(f"{origin} has {twice!r} twice", hint="give each topic and each partition once")
    return named


def parse_spec(text: str, origin: str) -> OffsetSpec:
    """Parse a value of ``startingOffsets`` or ``endingOffsets``: ``earliest``, ``latest`` or JSON, and for the first one
    ``group:earliest`` and ``group:latest``."""
    word = text.strip().lower()
    of_group = origin == "startingOffsets" and word.startswith(GROUP_PREFIX)
    word = word.removeprefix(GROUP_PREFIX) if of_group else word
    if word in ("earliest", "latest"):
        return OffsetSpec(EARLIEST if word == "earliest" else LATEST, of_group=of_group)
    if of_group:
        raise ConfigError(f"{origin} must be group:earliest or group:latest, not {text!r}")
    example = 'earliest, latest or {"topic": {"0": 23, "1": -2}}'
    return OffsetSpec(None, from_json(parse_json(text, origin, example, wrong="neither a known word nor JSON"), origin))


def parse_timestamp(text: str, origin: str) -> TimestampSpec:
    """Parse milliseconds since 1970."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
        raise ConfigError(f"{origin} must be milliseconds since 1970, not {text[:40]!r}", hint="for example 1700000000000")
    return TimestampSpec(origin, int(digits))


def parse_timestamps(text: str, origin: str) -> TimestampSpec:
    """Parse the JSON of a timestamp for each partition."""
    example = '{"topic": {"0": 1700000000000, "1": 1700000000000}}'
    times = from_json(parse_json(text, origin, example), origin)
    if negative := sorted(tp for tp, time in times.items() if time < 0):
        raise ConfigError(f"{origin}: the timestamp for {negative[0]} is {times[negative[0]]}", hint=f"for example {example}")
    return TimestampSpec(origin, None, times)
