"""Offsets as Spark keeps them: plain dictionaries here, JSON in options and in the checkpoint.

Owns both directions of ``{"topic": {"0": 23}}``, which is the form of Spark's own Kafka connector, and the one addition that
closes the hole of the first batch (``StreamOffset``). Must not know where offsets come from. Invariant: equal offsets have
equal JSON, byte for byte, because Spark compares offsets as strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.errors import ConfigError
from ottla.types import TopicPartition

Offsets = Mapping[TopicPartition, int]
"""Partition -> offset of the next record to read."""

EARLIEST, LATEST = -2, -1
"""How JSON spells the two ends of a partition: the numbers of the protocol's ListOffsets request."""

FIRST_START = "$from"
"""Key of the first start inside the first end. No topic can have this name: ``$`` is not legal in one."""


@dataclass(frozen=True)
class OffsetSpec:
    """Where to begin or end, before a cluster was asked: one point for all partitions, or one for each.

    ``everywhere`` is ``EARLIEST`` or ``LATEST``, or ``None`` where ``partitions`` says it partition by partition; there, too,
    the two numbers stand for the ends.
    """

    everywhere: int | None = None
    partitions: Offsets = field(default_factory=dict)

    def mentions(self, point: int) -> bool:
        """Whether ``point`` (``EARLIEST`` or ``LATEST``) is asked for anywhere."""
        return self.everywhere == point or point in self.partitions.values()

    def unresolved(self, partitions: Iterable[TopicPartition], point: int) -> list[TopicPartition]:
        """The partitions for which the cluster must be asked where ``point`` is."""
        return [tp for tp in partitions if self.partitions.get(tp, self.everywhere) == point]

    def resolve(self, partitions: Iterable[TopicPartition], earliest: Offsets, latest: Offsets) -> dict[TopicPartition, int]:
        """The offsets themselves; ``earliest`` and ``latest`` hold at least what ``unresolved`` named."""
        ends = {EARLIEST: earliest, LATEST: latest}
        points = ((tp, self.partitions.get(tp, self.everywhere)) for tp in partitions)
        return {tp: ends[point][tp] if point in ends else point for tp, point in points if point is not None}

    def check_covers(self, option: str, partitions: Iterable[TopicPartition]) -> None:
        """Raise ``ConfigError`` unless offsets given one by one are given for exactly the partitions that will be read."""
        if self.everywhere is not None:
            return
        wanted = set(partitions)
        ends = "-1 stands for latest" if option == "endingOffsets" else "-2 stands for earliest, -1 for latest"
        if missing := sorted(wanted - self.partitions.keys()):
            raise ConfigError(
                f"{option} names no offset for {_listed(missing)}",
                hint=f"name every partition that is read: {ends}",
            )
        if surplus := sorted(self.partitions.keys() - wanted):
            raise ConfigError(f"{option} names {_listed(surplus)}, which is not read or does not exist")


@dataclass(frozen=True)
class StreamOffset:
    """A point of a stream: a position in each partition.

    The end of a stream's first batch also carries where that batch began. Spark asks for the initial offset again when a
    first batch has failed, does not store it, and ``latest`` has moved on by then: without this, what lies between would be lost.
    """

    positions: Offsets
    first_start: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        """The dictionary whose JSON Spark stores."""
        return to_json(self.positions) | ({} if self.first_start is None else {FIRST_START: to_json(self.first_start)})

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StreamOffset:
        """What ``to_json`` wrote, or Spark's own connector did; raises ``ConfigError`` for anything else."""
        topics = {key: value for key, value in stored.items() if key != FIRST_START}
        first = stored.get(FIRST_START)
        return cls(from_json(topics, "the checkpoint"), None if first is None else from_json(first, "the checkpoint"))


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """``{"topic": {"0": 23}}``, topics and partitions in ascending order."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def from_json(topics: Any, origin: str) -> dict[TopicPartition, int]:
    """The offsets of ``{"topic": {"0": 23}}``; ``origin`` tells the reader of a ``ConfigError`` where to look."""
    example = f'{origin} must look like {{"topic": {{"0": 23, "1": -2}}}}'
    if not isinstance(topics, Mapping):
        raise ConfigError(f"{example}, not {topics!r}")
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, Mapping):
            raise ConfigError(f"{example}: found {partitions!r} for topic {topic!r}")
        for partition, offset in partitions.items():
            number = parse_partition(partition)
            if number is None:
                raise ConfigError(f"{example}: {partition!r} of topic {topic!r} is not a partition number")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                raise ConfigError(f"{example}: {offset!r} for {topic}-{number} is not an offset, -2 (earliest) or -1 (latest)")
            tp = TopicPartition(str(topic), number)
            if tp in offsets:  # "0" and "00"
                raise ConfigError(f"{origin} names {tp} twice", hint="name each partition once")
            offsets[tp] = offset
    return offsets


def parse_partition(text: Any) -> int | None:
    """A partition number, or ``None`` for what is not one."""
    digits = str(text)
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 11 and not isinstance(text, bool) else None


def parse_json(text: str, origin: str, example: str, *, wrong: str = "not JSON") -> Any:
    """Decode JSON in an option, or raise ``ConfigError`` that shows where it is broken and a good ``example``.

    A name that is given twice in one object is refused: Python would take the last one, and read less than was asked for.
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
        raise ConfigError(f"{origin} names {twice!r} twice", hint="name each topic and each partition once")
    return named


def parse_spec(text: str, origin: str) -> OffsetSpec:
    """``earliest``, ``latest`` or JSON, as ``startingOffsets`` and ``endingOffsets`` take it."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return OffsetSpec(EARLIEST if word == "earliest" else LATEST)
    example = 'earliest, latest or {"topic": {"0": 23, "1": -2}}'
    return OffsetSpec(None, from_json(parse_json(text, origin, example, wrong="neither a known word nor JSON"), origin))


def _listed(partitions: list[TopicPartition], most: int = 10) -> str:
    shown = ", ".join(map(str, partitions[:most]))
    return f"{shown} and {len(partitions) - most} more" if len(partitions) > most else shown
