"""What a user may write for a partition, an offset or a time, and what becomes of it.

Owns the forms that arguments of a consumer's calls may take. Must not know what a call does with them. Invariant: what can not be
meant is refused here, with what was given and what was expected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from ottla.errors import ConfigError
from ottla.types import GroupMembershipOperation, OffsetAndMetadata, TopicPartition

Timeout = float | timedelta | None
"""Seconds, or a ``timedelta``; ``None`` is ``default_api_timeout``."""

Partitions = TopicPartition | Collection[TopicPartition]
"""A partition, or a collection of them such as ``consumer.assignment()``."""

Offset = int | OffsetAndMetadata
"""The next offset to read, alone or with what is kept beside it."""


def milliseconds(timeout: Timeout, default: int) -> int:
    """Whole milliseconds; ``default`` for ``None``."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds < 0:
        raise ValueError(f"the timeout is negative: {timeout}")
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
    if wanted and pattern is not None:
        raise ConfigError("subscribe() takes topics or a pattern, not both: subscribe(topics) or subscribe(pattern=...)")
    return wanted


def partition(value: object) -> TopicPartition:
    """One partition, given as one or as a pair."""
    match value:
        case (str(topic), int(number)):
            return TopicPartition(topic, number)
    raise TypeError(f"a TopicPartition is expected, not {value!r}")


def partitions(given: tuple[Partitions, ...]) -> list[TopicPartition]:
    """Partitions that were given one by one, as a collection, or both."""
    found: list[TopicPartition] = []
    for one in given:
        match one:
            case (str(), _):
                found.append(partition(one))
            case _:
                found += map(partition, one)
    return found


def position(value: Offset) -> OffsetAndMetadata:
    """A position, given as one or as a number."""
    found = OffsetAndMetadata(value) if isinstance(value, int) else value
    if found.offset < 0:
        raise ValueError(f"the offset is negative: {found.offset}")
    return found


def offsets(given: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Positions by partition; ``None`` stays ``None``: all that was handed out."""
    return None if given is None else {partition(tp): position(offset) for tp, offset in given.items()}


def timestamps(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition."""
    if any(timestamp < 0 for timestamp in given.values()):
        raise ValueError("a timestamp is negative: see beginning_offsets() and end_offsets()")
    return {partition(tp): timestamp for tp, timestamp in given.items()}
