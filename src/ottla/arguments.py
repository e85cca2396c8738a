"""Checks and converts the arguments of public calls: partitions, offsets, times, names.

Owns the forms that an argument may have. Must not know what a call does with it. Each function returns the converted value of one
argument; ``what`` is the argument's name for the error. Invariant: an invalid argument raises here, at the call, with its name, its
value and the expected form: a ``TypeError`` for a value of the wrong type, otherwise a ``ConfigError``, which is a ``ValueError``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from ottla.assignors import ConsumerPartitionAssignor, PartitionAssignor
from ottla.client.admin.results import ProducerState
from ottla.client.produce.transactions.prepared import Prepared
from ottla.errors import ConfigError
from ottla.types import (
    MOST_STREAMS,
    GroupMembershipOperation,
    IsolationLevel,
    OffsetAndMetadata,
    TopicPartition,
    as_integer,
    as_plain_string,
    is_utf8,
    short_repr,
)

Timeout = float | timedelta | None
"""Seconds, or a ``timedelta``; ``None`` is ``default_api_timeout``."""

Partitions = TopicPartition | Iterable[TopicPartition]
"""A partition, or a collection of them such as ``consumer.assignment()``."""

Offset = int | OffsetAndMetadata
"""The next offset to read, alone or with metadata."""

LONGEST_POLL = 300_000
"""Milliseconds. A longer ``poll()`` is most likely a mistake: other clients take milliseconds, Ottla takes seconds."""

V = TypeVar("V")

_MAX_SECONDS = 10**9
"""Longer durations are shortened to this: thirty years."""

_INT16, _INT32, _INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1
_PATTERN_CHARACTERS = frozenset("^$*+?()[]{}|\\")
"""Characters of regular expressions that no topic name has."""


def _wrong(what: str, expected: str, value: object) -> TypeError:
    kind = type(value)
    # Other clients have classes of the same names, such as OffsetAndMetadata: the message names the module of such a class.
    is_namesake = kind.__module__.partition(".")[0] not in ("builtins", "ottla") and kind.__name__ in expected
    origin = f"a {kind.__module__}.{kind.__name__}: " if is_namesake else ""
    return TypeError(f"{what} must be {expected}, not {origin}{short_repr(value)}")


# -- plain values ---------------------------------------------------------------------------------------------------------


def milliseconds(timeout: Timeout, default: int, what: str = "timeout") -> int:
    """A duration in whole milliseconds; ``default`` (milliseconds) for ``None``."""
    if timeout is None:
        return default
    return duration(timeout, what)


def duration(value: float | timedelta, what: str = "timeout") -> int:
    """A duration in whole milliseconds; ``None`` is an error."""
    if type(value) is float and 0 <= value <= _MAX_SECONDS:  # the fast path, for nearly every poll
        return round(value * 1000)
    seconds = _seconds(value)
    if seconds is None:
        raise _wrong(what, "a number of seconds or a timedelta", value)
    if not seconds >= 0:
        raise ConfigError(f"{what} is {'negative' if seconds < 0 else 'not a number'}: {short_repr(value)}")
    return round(min(seconds, _MAX_SECONDS) * 1000)


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    try:
        return float(value) if hasattr(type(value), "__float__") else None  # such as a NumPy scalar or a Decimal
    except (TypeError, ValueError):  # such as an array with several elements
        return None


def integer(value: object, what: str, low: int = 0, high: int = _INT64) -> int:
    """A whole number from ``low`` to ``high``."""
    number = as_integer(value)
    if number is None:
        raise _wrong(what, "a whole number", value)
    if number < 0 <= low:
        raise ConfigError(f"{what} is negative: {number}")
    if not low <= number <= high:
        bounds = f"of at least {low}" if high == _INT64 and number <= high else f"from {low} to {high}"
        raise ConfigError(f"{what} must be a whole number {bounds}, not {number}")
    return number


def boolean(value: object, what: str) -> bool:
    """``True`` or ``False``. Other values are errors, even if they have a truth value."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def string(value: object, what: str) -> str:
    """A string that UTF-8 can encode, possibly empty. It cannot encode lone surrogates, as in a file name that is not UTF-8."""
    if not isinstance(value, str):
        raise _wrong(what, "a string", value)
    if not is_utf8(value):
        raise ConfigError(f"{what} must be a string that UTF-8 can encode, not {short_repr(value)}")
    return as_plain_string(value)


def text(value: object, what: str) -> str:
    """A string that is not empty."""
    result = string(value, what)
    if not result:
        raise ConfigError(f"{what} is empty")
    return result


def optional_text(value: object, what: str) -> str | None:
    """A string that is not empty, or ``None``."""
    return None if value is None else text(value, what)


def path(value: object, what: str) -> Path:
    """The path of a file or a folder. An empty string is an error: it would mean the current folder."""
    result = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(result, str):
        raise _wrong(what, "a path", value)
    if not result:
        raise ConfigError(f"{what} is empty")
    if "\0" in result:
        raise ConfigError(f"{what} has a null byte: {short_repr(result)}")
    return Path(result)


def one_of(value: object, choices: Collection[str], what: str) -> str:
    """One of these strings."""
    result = text(value, what)
    if result not in choices:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, choices))}, not {short_repr(value)}")
    return result


def callback(value: object, what: str) -> None:
    """Check that a callback is callable or ``None``."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} must be callable, not {short_repr(value)}")


def group_membership(value: object) -> GroupMembershipOperation:
    """A ``GroupMembershipOperation``, given as such or by name."""
    return GroupMembershipOperation(_member(value, GroupMembershipOperation, "group_membership"))


def isolation_level(value: object) -> IsolationLevel:
    """An ``IsolationLevel``, given as such or by name."""
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[_member(value, [level.name.lower() for level in IsolationLevel], "isolation_level").upper()]


def _member(value: object, names: Iterable[str], what: str) -> str:
    lower = list(map(str, names))
    if not isinstance(value, str) or value.lower() not in lower:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, lower))}, not {short_repr(value)}")
    return value.lower()


# -- collections ----------------------------------------------------------------------------------------------------------


def names(values: Iterable[str], what: str) -> list[str]:
    """A list of distinct strings. A single string is an error, although it is an iterable of strings."""
    if isinstance(values, str):
        raise TypeError(f"{what} must be a collection of strings, not the string {short_repr(values)}: pass [{short_repr(values)}]")
    return list(dict.fromkeys(text(value, f"each of {what}") for value in _iterable(values, "a collection of strings", what)))


def integers(values: Iterable[int], what: str) -> list[int]:
    """A list of whole numbers, each 0 or more."""
    return [integer(value, f"each of {what}", 0, _INT32) for value in _iterable(values, "a collection of whole numbers", what)]


def producer_ids(values: Iterable[int]) -> list[int]:
    """A list of producer ids."""
    what = "producer_ids"
    return [integer(value, f"each of {what}") for value in _iterable(values, "a collection of whole numbers", what)]


def counts(given: Mapping[str, int], what: str, *, broker_may_choose: bool = False, most: int = _INT32) -> dict[str, int]:
    """Numbers of partitions or streams by topic name; -1 is accepted with ``broker_may_choose``."""
    result: dict[str, int] = {}
    for name, value in _items(given, "a mapping such as {'orders': 3}", what):
        where = f"{what}[{text(name, f'each name in {what}')!r}]"
        result[name] = -1 if broker_may_choose and value == -1 else integer(value, where, 1, most)
    return result


def settings(given: Mapping[str, str | None] | None, what: str, *, may_be_none: bool = False) -> dict[str, str | None]:
    """String values of settings by name; ``None`` is a value if ``may_be_none``."""
    result: dict[str, str | None] = {}
    for name, value in _items({} if given is None else given, "a mapping such as {'retention.ms': '60000'}", what):
        text(name, f"each name in {what}")
        if not isinstance(value, str) and not (value is None and may_be_none):
            raise _wrong(f"{what}[{name!r}]", "a string or None" if may_be_none else "a string", value)
        result[name] = None if value is None else string(value, f"{what}[{name!r}]")
    return result


def mapping(given: Mapping[str, V], what: str) -> dict[str, V]:
    """A mapping with names as keys and any values."""
    return {text(name, f"each name in {what}"): value for name, value in _items(given, "a mapping", what)}


def server_assignors(given: Mapping[str, PartitionAssignor] | None, what: str = "assignors") -> dict[str, PartitionAssignor]:
    """Assignors that a broker runs, by the names that its members select them with."""
    result = mapping({} if given is None else given, what)
    for name, assignor in result.items():
        if "," in name or name != name.strip():
            hint = "group.consumer.assignors separates names by commas"
            raise ConfigError(f"{what}: {short_repr(name)} cannot be the name of an assignor", hint=hint)
        _check_server_assignor(assignor, f"{what}[{name!r}]")
    return result


def _check_server_assignor(assignor: object, what: str) -> None:
    kind = assignor if isinstance(assignor, type) else type(assignor)
    if issubclass(kind, ConsumerPartitionAssignor):
        hint = "give it to the consumers, as group_client_assignors or partition_assignment_strategy"
        raise ConfigError(f"{what} is an assignor for members, and a broker cannot run it: {short_repr(assignor)}", hint=hint)
    hint = "it is called with a GroupSpec, and returns for each member id its partitions by topic id"
    if not callable(assignor):
        raise ConfigError(f"{what} must be a function, not {short_repr(assignor)}", hint=hint)
    if inspect.iscoroutinefunction(assignor):
        raise ConfigError(f"{what} is a coroutine function, which the broker does not await: {short_repr(assignor)}", hint=hint)
    try:
        inspect.signature(assignor).bind(None)
    except TypeError:
        raise ConfigError(f"{what} must accept one argument: {short_repr(assignor)}", hint=hint) from None
    except ValueError:  # some functions written in C have no signature
        pass


def records(values: Iterable[Any]) -> Iterable[Any]:
    """Check that ``values`` are records for ``send_many``: no text or bytes, which are iterables as well, and no mapping."""
    expected = "an iterable of values, or of pairs (key, value)"
    if isinstance(values, bytearray | memoryview | Mapping):
        raise _wrong("records", expected, values)
    return _iterable(values, expected, "records")


def no_pair(item: tuple[Any, ...], index: int) -> ConfigError:
    """The error for a tuple in records that is not a pair."""
    return ConfigError(f"records[{index}] must be a value or a pair (key, value), not a tuple of {len(item)}: {short_repr(item)}")


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


def subscription(
    given: Iterable[str], pattern: str | None, blacklist: str | None, group_protocol: str
) -> tuple[frozenset[str], str | None]:
    """The topic names of a subscription, or its pattern."""
    if blacklist is None:
        return topics(given, pattern), pattern
    if group_protocol != "zookeeper":
        hint = (
            "in another group, pass a pattern with a negative look-ahead, such as pattern='(?!internal-).*', or filter the topics"
        )
        raise ConfigError("subscribe(blacklist=...) is for zookeeper groups", hint=hint)
    if pattern is not None:
        raise ConfigError("subscribe() takes a pattern or a blacklist, not both")
    return topics(given, text(blacklist, "blacklist")), blacklist


def topics(given: Iterable[str], pattern: str | None) -> frozenset[str]:
    """The topic names of a subscription; empty if it has a pattern."""
    if isinstance(given, str):
        _check_topics([given])
        raise TypeError(f"subscribe() takes a collection of topics: subscribe([{short_repr(given)}])")
    wanted = frozenset(names(given, "topics"))
    _check_topics(wanted)
    if hasattr(pattern, "pattern"):
        raise TypeError(f"pattern must be a string, not {short_repr(pattern)}: pass its .pattern")
    if pattern is not None:
        text(pattern, "pattern")
    if wanted and pattern is not None:
        raise ConfigError("subscribe() takes topics or a pattern, not both: subscribe(topics) or subscribe(pattern=...)")
    return wanted


def _check_topics(wanted: Iterable[str]) -> None:
    for name in wanted:
        if _PATTERN_CHARACTERS.intersection(name):
            regex = name.removeprefix("^").removesuffix("$")
            raise ConfigError(f"topics: {name!r} is not a topic name; for a regular expression pass pattern={regex!r}")


def streams(
    topics: Mapping[str, int] | None, pattern: str | None, blacklist: str | None, number: int | None, group_protocol: str
) -> tuple[dict[str, int] | int, str | None]:
    """The numbers of streams by topic; or, with a pattern, the number of all streams, by default one, and the pattern."""
    common = 1 if number is None else integer(number, "n", 1, MOST_STREAMS)
    if topics is None:
        if pattern is None and blacklist is None:
            raise ConfigError("streams() takes topics or a pattern: streams({'orders': 4}) or streams(pattern='orders-.*', n=4)")
        _, regex = subscription((), pattern, blacklist, group_protocol)
        return common, regex
    if pattern is not None or blacklist is not None:
        raise ConfigError(
            "streams() takes topics or a pattern, not both: streams({'orders': 4}) or streams(pattern='orders-.*', n=4)"
        )
    if number is not None:
        raise ConfigError("n is for streams(pattern=..., n=4); topics have numbers of their own: streams({'orders': 4})")
    wanted = counts(topics, "topics", most=MOST_STREAMS)
    if not wanted:
        raise ConfigError("topics is empty: streams({'orders': 4}) returns four streams of the topic")
    _check_topics(wanted)
    return wanted, None


def partition(value: object, what: str = "partition") -> TopicPartition:
    """A partition, given as a ``TopicPartition`` or another tuple of topic and number."""
    match value:
        case (str(name), number) if as_integer(number) is not None:
            return TopicPartition(text(name, f"the topic of {what}"), integer(number, f"{what}, {short_repr(value)},", 0, _INT32))
    raise _wrong(what, "a TopicPartition", value)


def partitions(given: Iterable[Partitions], what: str = "partitions") -> list[TopicPartition]:
    """A list of partitions, given as single arguments, as collections, or both."""
    result: list[TopicPartition] = []
    for item in given:
        match item:
            case (str(), _):
                result.append(partition(item, what))
            case str() | bytes():
                raise _wrong(what, "a TopicPartition or a collection of them", item)
            case Iterable():
                result += [partition(each, f"each of {what}") for each in item]
            case _:
                raise _wrong(what, "a TopicPartition or a collection of them", item)
    return result


def position(value: Offset, what: str = "offset") -> OffsetAndMetadata:
    """A position, given as an ``OffsetAndMetadata`` or as an offset."""
    if not isinstance(value, OffsetAndMetadata):
        if as_integer(value) is None:
            raise _wrong(what, "a whole number or an OffsetAndMetadata", value)
        return OffsetAndMetadata(integer(value, what))
    string(value.metadata, f"the metadata of {what}")
    epoch = _leader_epoch(value.leader_epoch, f"the leader epoch of {what}")
    return OffsetAndMetadata(integer(value.offset, what), value.metadata, epoch)


def _leader_epoch(value: object, what: str) -> int | None:
    """The leader epoch of a position; ``None`` for a negative one, which in Kafka means that it is not known."""
    epoch = None if value is None else integer(value, what, -_INT32 - 1, _INT32)
    return None if epoch is None or epoch < 0 else epoch


_BY_PARTITION = "a mapping by partition, such as {TopicPartition('orders', 0): 5}"


def positions(given: Mapping[TopicPartition, Offset], what: str = "offsets") -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions by partition."""
    return {
        partition(tp, f"each key of {what}"): position(value, f"{what}[{tp}]") for tp, value in _items(given, _BY_PARTITION, what)
    }


def offsets(given: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """Positions by partition; ``None``, for the positions after all returned records, remains ``None``."""
    return None if given is None else positions(given)


def timestamps(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition."""
    advice = "for the first and the last offset see beginning_offsets() and end_offsets()"
    return {
        partition(tp, "each key of timestamps"): _time(value, f"timestamps[{tp}]", advice)
        for tp, value in _items(given, _BY_PARTITION, "timestamps")
    }


def times(given: Mapping[TopicPartition, int | str], words: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Times in milliseconds since 1970, by partition; each may also be one of ``words``, which stand for special values."""
    advice = f"or {' or '.join(map(repr, words))}"
    return {
        partition(tp, "each key of times"): words[value]
        if isinstance(value, str) and value in words
        else _time(value, f"times[{tp}]", advice)
        for tp, value in _items(given, _BY_PARTITION, "times")
    }


def _time(value: object, what: str, advice: str) -> int:
    number = as_integer(value)
    if number is None:
        raise _wrong(what, f"a whole number of milliseconds since 1970, such as int(moment.timestamp() * 1000) ({advice})", value)
    if number < 0:
        raise ConfigError(f"{what} is negative ({advice})")
    return integer(value, what)


def ends(given: Mapping[TopicPartition, int | str], latest: int) -> dict[TopicPartition, int]:
    """Offsets by partition; each may also be ``"latest"``, which becomes ``latest``."""
    return {
        partition(tp, "each key of offsets"): latest
        if isinstance(offset, str) and offset == "latest"
        else _end(offset, f"offsets[{tp}]")
        for tp, offset in _items(given, _BY_PARTITION, "offsets")
    }


def _end(value: object, what: str) -> int:
    if as_integer(value) is None:
        raise _wrong(what, "a whole number or 'latest'", value)
    return integer(value, what)


def prepared(given: Prepared | Iterable[Prepared]) -> list[Prepared]:
    """Distinct prepared transactions, given as one or as a collection."""
    if isinstance(given, Prepared):
        return [given]
    if isinstance(given, str | bytes):
        raise TypeError(f"prepared must be a Prepared, not text, {short_repr(given)}: pass Prepared.loads(text)")
    found = list(_iterable(given, "a Prepared or a collection of them", "prepared"))
    for one in found:
        if not isinstance(one, Prepared):
            raise _wrong("each of prepared", "a Prepared", one)
    return list(dict.fromkeys(found))


def producer_state(value: ProducerState) -> ProducerState:
    """A producer as the leader of a partition knows it. Those fields are checked that a request has."""
    if not isinstance(value, ProducerState):
        raise _wrong("producer", "a ProducerState of describe_producers()", value)
    integer(value.producer_id, "producer.producer_id")
    integer(value.producer_epoch, "producer.producer_epoch", 0, _INT16)
    if value.coordinator_epoch is not None:
        integer(value.coordinator_epoch, "producer.coordinator_epoch", 0, _INT32)
    return value
