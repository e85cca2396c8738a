"""The accepted forms of a partition, an offset, a time or a name, and their conversion.

Owns the forms that arguments of public calls may take. Must not know what a call does with them. Invariant: an invalid argument is
refused here, at the call, with its name, its value and what was expected: a value of the wrong type by a ``TypeError``, any other
by a ``ConfigError``, which is a ``ValueError``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ottla.assignors import ConsumerPartitionAssignor, PartitionAssignor
from ottla.errors import ConfigError
from ottla.types import GroupMembershipOperation, IsolationLevel, OffsetAndMetadata, TopicPartition, is_utf8, plain, shown, whole

Timeout = float | timedelta | None
"""Seconds, or a ``timedelta``; ``None`` is ``default_api_timeout``."""

Partitions = TopicPartition | Iterable[TopicPartition]
"""A partition, or a collection of them such as ``consumer.assignment()``."""

Offset = int | OffsetAndMetadata
"""The next offset to read, alone or with metadata."""

LONGEST_POLL = 300_000
"""Milliseconds. A longer ``poll()`` is most likely a mistake: other clients take milliseconds, Ottla takes seconds."""

V = TypeVar("V")

_MOST_SECONDS = 10**9
"""Thirty years: as good as for ever."""

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
_OF_PATTERNS = frozenset("^$*+?()[]{}|\\")
"""Characters of regular expressions that no topic name has."""


def _wrong(what: str, expected: str, value: object) -> TypeError:
    kind = type(value)
    # Other clients have an OffsetAndMetadata, too.
    namesake = kind.__module__.partition(".")[0] not in ("builtins", "ottla") and kind.__name__ in expected
    return TypeError(f"{what} is {expected}, not {f'the {kind.__name__} of {kind.__module__} ' if namesake else ''}{shown(value)}")


# -- plain values ---------------------------------------------------------------------------------------------------------


def milliseconds(timeout: Timeout, default: int, what: str = "timeout") -> int:
    """Whole milliseconds of a duration; ``default`` for ``None``."""
    if timeout is None:
        return default
    return duration(timeout, what)


def duration(value: float | timedelta, what: str = "timeout") -> int:
    """Whole milliseconds of a duration that must be given."""
    if type(value) is float and 0 <= value <= _MOST_SECONDS:  # as nearly every poll has it
        return round(value * 1000)
    seconds = _seconds(value)
    if seconds is None:
        raise _wrong(what, "a number of seconds, or a timedelta", value)
    if not seconds >= 0:
        raise ConfigError(f"{what} is {'negative' if seconds < 0 else 'no number'}: {shown(value)}")
    return round(min(seconds, _MOST_SECONDS) * 1000)


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return float(value) if hasattr(type(value), "__float__") else None  # a number of another library
    except (TypeError, ValueError):  # an array of several
        return None


def integer(value: object, what: str, low: int = 0, high: int = _INT64) -> int:
    """A whole number within these bounds."""
    number = whole(value)
    if number is None:
        raise _wrong(what, "a whole number", value)
    if number < 0 <= low:
        raise ConfigError(f"{what} is negative: {number}")
    if not low <= number <= high:
        bounds = f"of at least {low}" if high == _INT64 and number <= high else f"from {low} to {high}"
        raise ConfigError(f"{what} is a whole number {bounds}, not {number}")
    return number


def boolean(value: object, what: str) -> bool:
    """True or False, and no other value that only counts as one of them."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def string(value: object, what: str) -> str:
    """A string that can be sent, possibly empty. Strings with lone surrogates, as from a file name that is not UTF-8, cannot."""
    if not isinstance(value, str):
        raise _wrong(what, "a string", value)
    if not is_utf8(value):
        raise ConfigError(f"{what} is a string that UTF-8 can encode, not {shown(value)}")
    return plain(value)


def text(value: object, what: str) -> str:
    """A string that is not empty."""
    found = string(value, what)
    if not found:
        raise ConfigError(f"{what} is empty")
    return found


def optional_text(value: object, what: str) -> str | None:
    """The same, or ``None``."""
    return None if value is None else text(value, what)


def path(value: object, what: str) -> Path:
    """The path of a file or a folder. An empty string would be the current folder, which is hardly intended."""
    found = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise _wrong(what, "a path", value)
    if not found:
        raise ConfigError(f"{what} is empty")
    if "\0" in found:
        raise ConfigError(f"{what} has a null byte: {shown(found)}")
    return Path(found)


def one_of(value: object, choices: Collection[str], what: str) -> str:
    """One of these strings."""
    found = text(value, what)
    if found not in choices:
        raise ConfigError(f"{what} is one of {', '.join(map(repr, choices))}, not {shown(value)}")
    return found


def callback(value: object, what: str) -> None:
    """A callback must be callable."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} must be callable, not {shown(value)}")


def group_membership(value: object) -> GroupMembershipOperation:
    """Whether the member leaves: an operation, or its name."""
    return GroupMembershipOperation(_member(value, GroupMembershipOperation, "group_membership"))


def isolation_level(value: object) -> IsolationLevel:
    """A level, or its name."""
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[_member(value, [level.name.lower() for level in IsolationLevel], "isolation_level").upper()]


def _member(value: object, names: Iterable[str], what: str) -> str:
    known = list(map(str, names))
    if not isinstance(value, str) or value.lower() not in known:
        raise ConfigError(f"{what}={shown(value)} is none of {', '.join(map(repr, known))}")
    return value.lower()


# -- collections ----------------------------------------------------------------------------------------------------------


def names(values: Iterable[str], what: str) -> list[str]:
    """Strings, each once. One string alone is a mistake: its letters are strings as well."""
    if isinstance(values, str):
        raise TypeError(f"{what} is a collection of strings, not the string {shown(values)}: [{shown(values)}]")
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


def server_assignors(given: Mapping[str, PartitionAssignor] | None, what: str = "assignors") -> dict[str, PartitionAssignor]:
    """Assignors of a broker, by the names that members ask for."""
    found = mapping({} if given is None else given, what)
    for name, assignor in found.items():
        if "," in name or name != name.strip():
            raise ConfigError(f"{what}: {shown(name)} cannot be used in group.consumer.assignors, which separates names by commas")
        _check_server_assignor(assignor, f"{what}[{name!r}]")
    return found


def _check_server_assignor(assignor: object, what: str) -> None:
    kind = assignor if isinstance(assignor, type) else type(assignor)
    if issubclass(kind, ConsumerPartitionAssignor):
        hint = "give it to the consumers, as group_client_assignors or partition_assignment_strategy"
        raise ConfigError(f"{what} is an assignor that members run, not the broker: {shown(assignor)}", hint=hint)
    hint = "it is called with a GroupSpec, and returns for each member id its partitions by topic id"
    if not callable(assignor):
        raise ConfigError(f"{what} is a function, not {shown(assignor)}", hint=hint)
    if inspect.iscoroutinefunction(assignor):
        raise ConfigError(f"{what} is a coroutine function, which the broker does not await: {shown(assignor)}", hint=hint)
    try:
        inspect.signature(assignor).bind(None)
    except TypeError:
        raise ConfigError(f"{what} does not take one argument: {shown(assignor)}", hint=hint) from None
    except ValueError:  # a function of C tells nothing
        pass


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
    """The topics of a subscription by name; none with a pattern."""
    if isinstance(given, str):
        raise TypeError(f"subscribe() takes a collection of topics: subscribe([{shown(given)}])")
    wanted = frozenset(names(given, "topics"))
    for name in wanted:
        if _OF_PATTERNS.intersection(name):
            meant = name.removeprefix("^").removesuffix("$")
            raise ConfigError(f"topics: {name!r} is not a topic name; for a regular expression call subscribe(pattern={meant!r})")
    if hasattr(pattern, "pattern"):
        raise TypeError(f"pattern is a string, not {shown(pattern)}: pass its .pattern")
    if pattern is not None:
        text(pattern, "pattern")
    if wanted and pattern is not None:
        raise ConfigError("subscribe() takes topics or a pattern, not both: subscribe(topics) or subscribe(pattern=...)")
    return wanted


def partition(value: object, what: str = "partition") -> TopicPartition:
    """One partition, given as one or as a pair."""
    match value:
        case (str(name), number) if whole(number) is not None:
            return TopicPartition(text(name, f"the topic of {what}"), integer(number, f"{what}, {shown(value)},", 0, _INT32))
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
    """A position, given as an object or as a number."""
    if not isinstance(value, OffsetAndMetadata):
        if whole(value) is None:
            raise _wrong(what, "a whole number or an OffsetAndMetadata", value)
        return OffsetAndMetadata(integer(value, what))
    string(value.metadata, f"the metadata of {what}")
    epoch = _leader_epoch(value.leader_epoch, f"the leader epoch of {what}")
    return OffsetAndMetadata(integer(value.offset, what), value.metadata, epoch)


def _leader_epoch(value: object, what: str) -> int | None:
    """The leader epoch of a position. A negative one means that it is unknown, as in Kafka."""
    epoch = None if value is None else integer(value, what, -_INT32 - 1, _INT32)
    return None if epoch is None or epoch < 0 else epoch


_BY_PARTITION = "a mapping by partition, as {TopicPartition('orders', 0): 5}"


def positions(given: Mapping[TopicPartition, Offset], what: str = "offsets") -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions by partition."""
    return {partition(tp, f"each key of {what}"): position(one, f"{what}[{tp}]") for tp, one in _items(given, _BY_PARTITION, what)}


def offsets(given: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Positions by partition; ``None`` stays ``None``: all returned records."""
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
    number = whole(value)
    if number is None:
        raise _wrong(what, f"whole milliseconds since 1970, as int(moment.timestamp() * 1000) ({advice})", value)
    if number < 0:
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
    if whole(value) is None:
        raise _wrong(what, "a whole number or 'latest'", value)
    return integer(value, what)
