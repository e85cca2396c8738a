"""What a user may write for a partition, an offset or a time, and what becomes of it.

Owns the forms that arguments of a consumer's calls may take. Must not know what a call does with them. Invariant: what can not be
meant is refused here, with what was given and what was expected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any

from ottla.errors import ConfigError
from ottla.types import GroupMembershipOperation, OffsetAndMetadata, TopicPartition

Timeout = float | timedelta | None
"""Seconds, or a ``timedelta``; ``None`` is ``default_api_timeout``."""

Partitions = TopicPartition | Collection[TopicPartition]
"""A partition, or a collection of them such as ``consumer.assignment()``."""

_INT32_MAX = 2**31 - 1

Offset = int | OffsetAndMetadata
"""The next offset to read, alone or with what is kept beside it."""


def milliseconds(timeout: Timeout, default: int) -> int:
    """Whole milliseconds; ``default`` for ``None``."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"a timeout is seconds, or a timedelta, not {timeout!r}")
    if not seconds >= 0:
        raise ValueError(f"the timeout is {'negative' if seconds < 0 else 'no number'}: {timeout}")
    return round(min(seconds, 10**9) * 1000)


def group_membership(value: object) -> GroupMembershipOperation:
    """What becomes of the member: an operation, or its name."""
    try:
        return GroupMembershipOperation(str(value).lower())
    except ValueError:
        known = ", ".join(map(repr, map(str, GroupMembershipOperation)))
        raise ValueError(f"group_membership={value!r} is none of {known}") from None


def topics(names: Iterable[str], pattern: str | None) -> frozenset[str]:
    """What is subscribed to by name; a pattern takes the place of names."""
    if isinstance(names, str):
        raise TypeError(f"subscribe() takes a collection of topics: subscribe([{names!r}])")
    wanted = frozenset(names)
    for name in wanted:
        topic(name)
    if pattern is not None and not isinstance(pattern, str):
        raise TypeError(f"pattern is a string, not {pattern!r}")
    if wanted and pattern is not None:
        raise ConfigError("subscribe() takes topics or a pattern, not both: subscribe(topics) or subscribe(pattern=...)")
    return wanted


def topic(name: object) -> str:
    """The name of a topic."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is a string, not {name!r}")
    if not name:
        raise ValueError("the name of a topic is empty")
    return name


def callback(value: object, what: str) -> None:
    """What is to be called later must be callable now."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} is called, so it has to be callable: {value!r}")


def partition(value: object) -> TopicPartition:
    """One partition, given as one or as a pair."""
    match value:
        case (str(name), int(number)) if not isinstance(number, bool):
            if number < 0:
                raise ValueError(f"the number of a partition is negative: {number} of {name}")
            return TopicPartition(topic(name), number)
    raise TypeError(f"a TopicPartition is expected, not {value!r}")


def partitions(given: tuple[Partitions, ...]) -> list[TopicPartition]:
    """Partitions that were given one by one, as a collection, or both."""
    found: list[TopicPartition] = []
    for one in given:
        match one:
            case (str(), _):
                found.append(partition(one))
            case str():
                partition(one)
            case Iterable():
                found += map(partition, one)
            case _:
                partition(one)
    return found


def position(value: Offset) -> OffsetAndMetadata:
    """A position, given as one or as a number."""
    found = OffsetAndMetadata(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(found, OffsetAndMetadata) or not isinstance(found.offset, int):
        raise TypeError(f"an offset is a whole number or an OffsetAndMetadata, not {value!r}")
    if found.offset < 0:
        raise ValueError(f"the offset is negative: {found.offset}")
    return found._replace(leader_epoch=leader_epoch(found.leader_epoch))


def leader_epoch(value: object) -> int | None:
    """The leader epoch of a position. A negative one says that none is known, as in Kafka."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a leader epoch is a whole number or None, not {value!r}")
    if value > _INT32_MAX:
        raise ValueError(f"the leader epoch is above {_INT32_MAX}, the largest that Kafka can keep: {value}")
    return value if value >= 0 else None


def offsets(given: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Positions by partition; ``None`` stays ``None``: all that was handed out."""
    return None if given is None else {partition(tp): position(offset) for tp, offset in _mapping(given, "offsets").items()}


def timestamps(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition."""
    times = {partition(tp): timestamp for tp, timestamp in _mapping(given, "times").items()}
    for tp, timestamp in times.items():
        if not isinstance(timestamp, int) or isinstance(timestamp, bool):
            raise TypeError(f"a time is whole milliseconds since 1970, not {timestamp!r} of {tp}")
        if timestamp < 0:
            raise ValueError(f"the timestamp of {tp} is negative: see beginning_offsets() and end_offsets()")
    return times


def _mapping(given: object, what: str) -> Mapping[TopicPartition, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} are given by partition, as {{TopicPartition('orders', 0): ...}}, not {given!r}")
    return given
