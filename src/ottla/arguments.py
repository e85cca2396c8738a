"""What a user may write for a partition, an offset, a time or a name, and what becomes of it.

Owns the forms that arguments of public calls may take. Must not know what a call does with them. Invariant: what cannot be meant is
refused here, at the call, with the name of the argument, what was given and what was expected: a value of the wrong type by a
``TypeError``, another by a ``ConfigError``, which is a ``ValueError``.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ottla.config.rows import is_utf8
from ottla.errors import ConfigError
from ottla.types import GroupMembershipOperation, IsolationLevel, OffsetAndMetadata, TopicPartition

Timeout = float | timedelta | None
"""Seconds, or a ``timedelta``; ``None`` is ``default_api_timeout``."""

Partitions = TopicPartition | Iterable[TopicPartition]
"""A partition, or a collection of them such as ``consumer.assignment()``."""

Offset = int | OffsetAndMetadata
"""The next offset to read, alone or with what is kept beside it."""

LONGEST_POLL = 300_000
"""Milliseconds. Who waits longer in one ``poll()`` has most likely given milliseconds for seconds, as other clients take them."""

V = TypeVar("V")

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_OF_PATTERNS = frozenset("^$*+?()[]{}|\\")
"""What stands in regular expressions and never in the name of a topic."""


def _wrong(what: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{what} is {expected}, not {value!r}")


# -- plain values ---------------------------------------------------------------------------------------------------------


def milliseconds(timeout: Timeout, default: int, what: str = "timeout") -> int:
    """Whole milliseconds of a duration; ``default`` for ``None``."""
    if timeout is None:
        return default
    return duration(timeout, what)


def duration(value: float | timedelta, what: str = "timeout") -> int:
    """Whole milliseconds of a duration that must be given."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _wrong(what, "a number of seconds, or a timedelta", value)
    if not seconds >= 0:
        raise ConfigError(f"{what} is {'negative' if seconds < 0 else 'no number'}: {value}")
    return round(min(seconds, 10**9) * 1000)


def integer(value: object, what: str, low: int = 0, high: int = _INT64) -> int:
    """A whole number within these bounds."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(what, "a whole number", value)
    number = operator.index(value)
    if number < 0 <= low:
        raise ConfigError(f"{what} is negative: {number}")
    if not low <= number <= high:
        bounds = f"of at least {low}" if high == _INT64 and number <= high else f"from {low} to {high}"
        raise ConfigError(f"{what} is a whole number {bounds}, not {number}")
    return number


def boolean(value: object, what: str) -> bool:
    """True or False, and nothing that only counts as one of them."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def string(value: object, what: str) -> str:
    """A string that can be sent, which may be empty. Those with lone surrogates, as of a file name that is not UTF-8, cannot."""
    if not isinstance(value, str):
        raise _wrong(what, "a string", value)
    if not is_utf8(value):
        raise ConfigError(f"{what} is a string that UTF-8 can encode, not {value!r}")
    return value


def text(value: object, what: str) -> str:
    """A string that is not empty."""
    if not string(value, what):
        raise ConfigError(f"{what} is empty")
    return str(value)


def optional_text(value: object, what: str) -> str | None:
    """The same, or ``None``."""
    return None if value is None else text(value, what)


def path(value: object, what: str) -> Path:
    """Where a file or a folder is. An empty string would be the current folder, which nobody means by it."""
    found = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise _wrong(what, "a path", value)
    if not found:
        raise ConfigError(f"{what} is empty")
    return Path(found)


def one_of(value: object, choices: Collection[str], what: str) -> str:
    """One of these strings."""
    if text(value, what) not in choices:
        raise ConfigError(f"{what} is one of {', '.join(map(repr, choices))}, not {value!r}")
    return str(value)


def callback(value: object, what: str) -> None:
    """What is to be called later must be callable now."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} is called, so it has to be callable: {value!r}")


def group_membership(value: object) -> GroupMembershipOperation:
    """What becomes of the member: an operation, or its name."""
    return GroupMembershipOperation(_member(value, GroupMembershipOperation, "group_membership"))


def isolation_level(value: object) -> IsolationLevel:
    """A level, or its name."""
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[_member(value, [level.name.lower() for level in IsolationLevel], "isolation_level").upper()]


def _member(value: object, names: Iterable[str], what: str) -> str:
    known = list(map(str, names))
    if not isinstance(value, str) or value.lower() not in known:
        raise ConfigError(f"{what}={value!r} is none of {', '.join(map(repr, known))}")
    return value.lower()


# -- collections ----------------------------------------------------------------------------------------------------------


def names(values: Iterable[str], what: str) -> list[str]:
    """Strings, each once. One string alone is a mistake: its letters are strings as well."""
    if isinstance(values, str):
        raise TypeError(f"{what} is a collection of strings, not the string {values!r}: [{values!r}]")
    return list(dict.fromkeys(text(value, f"each of {what}") for value in _iterable(values, "a collection of strings", what)))


def integers(values: Iterable[int], what: str) -> list[int]:
    """Whole numbers from 0 on."""
    return [integer(value, f"each of {what}", 0, _INT32) for value in _iterable(values, "a collection of whole numbers", what)]


def counts(given: Mapping[str, int], what: str, *, broker_may_choose: bool = False) -> dict[str, int]:
    """Numbers of partitions by the name of a topic; -1 where the broker may choose."""
    found: dict[str, int] = {}
    for name, value in _items(given, "a mapping as {'orders': 3}", what):
        where = f"{what}[{text(name, f'each name in {what}')!r}]"
        found[name] = -1 if broker_may_choose and value == -1 else integer(value, where, 1, _INT32)
    return found


def settings(given: Mapping[str, str | None] | None, what: str, *, may_be_none: bool = False) -> dict[str, str | None]:
    """Values of settings by name, as the protocol takes them: strings, and ``None`` where that means something."""
    found: dict[str, str | None] = {}
    for name, value in _items({} if given is None else given, "a mapping as {'retention.ms': '60000'}", what):
        text(name, f"each name in {what}")
        if not isinstance(value, str) and not (value is None and may_be_none):
            raise _wrong(f"{what}[{name!r}]", "a string or None" if may_be_none else "a string", value)
        found[name] = None if value is None else string(value, f"{what}[{name!r}]")
    return found


def mapping(given: Mapping[str, V], what: str) -> dict[str, V]:
    """Anything by name."""
    return {text(name, f"each name in {what}"): value for name, value in _items(given, "a mapping", what)}


def _iterable(values: Any, expected: str, what: str) -> Iterable[Any]:
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise _wrong(what, expected, values)
    return values


def _items(given: Any, expected: str, what: str) -> Iterable[tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        raise _wrong(what, expected, given)
    return given.items()


# -- topics, partitions and positions -------------------------------------------------------------------------------------


def topic(value: object) -> str:
    """The name of a topic."""
    return text(value, "topic")


def topics(given: Iterable[str], pattern: str | None) -> frozenset[str]:
    """What is subscribed to by name; a pattern takes the place of names."""
    if isinstance(given, str):
        raise TypeError(f"subscribe() takes a collection of topics: subscribe([{given!r}])")
    wanted = frozenset(names(given, "topics"))
    for name in wanted:
        if _OF_PATTERNS.intersection(name):
            meant = name.removeprefix("^").removesuffix("$")
            raise ConfigError(f"topics: {name!r} is no name of a topic; a regular expression is subscribe(pattern={meant!r})")
    if pattern is not None:
        string(pattern, "pattern")
    if wanted and pattern is not None:
        raise ConfigError("subscribe() takes topics or a pattern, not both: subscribe(topics) or subscribe(pattern=...)")
    return wanted


def partition(value: object, what: str = "partition") -> TopicPartition:
    """One partition, given as one or as a pair."""
    match value:
        case (str(name), number) if hasattr(number, "__index__") and not isinstance(number, bool):
            return TopicPartition(text(name, f"the topic of {what}"), integer(number, f"{what}, {value!r},", 0, _INT32))
    raise _wrong(what, "a TopicPartition", value)


def partitions(given: Iterable[Partitions], what: str = "partitions") -> list[TopicPartition]:
    """Partitions that were given one by one, as a collection, or both."""
    found: list[TopicPartition] = []
    for one in given:
        match one:
            case (str(), _):
                found.append(partition(one, what))
            case str() | bytes():
                raise _wrong(what, "a TopicPartition or a collection of them", one)
            case Iterable():
                found += [partition(each, f"each of {what}") for each in one]
            case _:
                raise _wrong(what, "a TopicPartition or a collection of them", one)
    return found


def position(value: Offset, what: str = "offset") -> OffsetAndMetadata:
    """A position, given as one or as a number."""
    if not isinstance(value, OffsetAndMetadata):
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _wrong(what, "a whole number or an OffsetAndMetadata", value)
        return OffsetAndMetadata(integer(value, what))
    string(value.metadata, f"the metadata of {what}")
    epoch = _leader_epoch(value.leader_epoch, f"the leader epoch of {what}")
    return OffsetAndMetadata(integer(value.offset, what), value.metadata, epoch)


def _leader_epoch(value: object, what: str) -> int | None:
    """The leader epoch of a position. A negative one says that none is known, as in Kafka."""
    epoch = None if value is None else integer(value, what, -_INT32 - 1, _INT32)
    return None if epoch is None or epoch < 0 else epoch


_BY_PARTITION = "a mapping by partition, as {TopicPartition('orders', 0): 5}"


def positions(given: Mapping[TopicPartition, Offset], what: str = "offsets") -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions by partition."""
    return {partition(tp, f"each key of {what}"): position(one, f"{what}[{tp}]") for tp, one in _items(given, _BY_PARTITION, what)}


def offsets(given: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Positions by partition; ``None`` stays ``None``: all that was handed out."""
    return None if given is None else positions(given)


def timestamps(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition."""
    advice = "see beginning_offsets() and end_offsets() for those of no time"
    return {
        partition(tp, "each key of timestamps"): _time(value, f"timestamps[{tp}]", advice)
        for tp, value in _items(given, _BY_PARTITION, "timestamps")
    }


def times(given: Mapping[TopicPartition, int | str], words: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition, or one of these words."""
    advice = f"or {' or '.join(map(repr, words))}"
    return {
        partition(tp, "each key of times"): words[value]
        if isinstance(value, str) and value in words
        else _time(value, f"times[{tp}]", advice)
        for tp, value in _items(given, _BY_PARTITION, "times")
    }


def _time(value: object, what: str, advice: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(what, f"whole milliseconds since 1970 ({advice})", value)
    if operator.index(value) < 0:
        raise ConfigError(f"{what} is negative ({advice})")
    return integer(value, what)


def ends(given: Mapping[TopicPartition, int | str], latest: int) -> dict[TopicPartition, int]:
    """Offsets by partition, or ``"latest"``."""
    return {
        partition(tp, "each key of offsets"): latest
        if isinstance(offset, str) and offset == "latest"
        else _end(offset, f"offsets[{tp}]")
        for tp, offset in _items(given, _BY_PARTITION, "offsets")
    }


def _end(value: object, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(what, "a whole number or 'latest'", value)
    return integer(value, what)
