"""The rows of the table of settings, and the parsers of their values.

Owns ``Setting`` and one parser for each kind of value. Must not know the settings. Invariant: a parser returns a valid value, or
raises ``ValueError`` with the expected one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from ottla.types import IsolationLevel, as_integer, as_plain_string, is_utf8, short_repr

INT_MAX = 0x7FFFFFFF
_INT16_MAX = 0x7FFF


class HostPort(NamedTuple):
    """One bootstrap server, as it was given."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings."""

    parse: Callable[[Any], Any]
    """Returns the parsed value; raises ``ValueError`` with the expected one."""
    duration: bool = False
    protocols: frozenset[str] | None = None
    """The group protocols that use it; ``None``: all."""
    secret: bool = False
    """Whether the value must not appear in any text."""
    aliases: tuple[str, ...] = ()
    """Other names with dots: those of librdkafka, where they differ."""
    accepts: str | None = None
    """The type of the values that may be given, for type checkers; ``None``: the type of the field, or its choices."""


def row(default: Any, parse: Callable[[Any], Any], *, secret: bool = False, **more: Any) -> Any:
    setting = Setting(parse, secret=secret, **more)
    return dataclasses.field(default=default, repr=not secret, metadata={"setting": setting})


def integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,20}\s*", value):
            value = int(value)
        number = as_integer(value)
        if number is None or not low <= number <= high:
            too_large = number is not None and number > high
            bounds = f"from {low} to {high}" if high < INT_MAX or too_large else f"of at least {low}"
            raise ValueError(f"a whole number {bounds}")
        return number

    return parse


def count(default: int | None, low: int = 0, high: int = INT_MAX) -> Any:
    return row(default, integer(low, high))


def milliseconds(default: int, low: int = 0, high: int = INT_MAX, **more: Any) -> Any:
    return row(default, integer(low, high), duration=True, **more)


def boolean(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    if not is_utf8(value):
        raise ValueError("a string that UTF-8 can encode")
    return as_plain_string(value)


def not_empty(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a non-empty string, or leave it out")
    return text(value)


def name(value: Any) -> str:
    """A name on the wire, where its length may have 16 bits."""
    parsed = not_empty(value)
    if len(parsed.encode()) > _INT16_MAX:
        raise ValueError(f"a string of at most {_INT16_MAX} bytes")
    return parsed


def short_text(value: Any) -> str:
    """A string in the header of each request, where its length has 16 bits."""
    if not isinstance(value, str) or len(text(value).encode()) > _INT16_MAX:
        raise ValueError(f"a string of at most {_INT16_MAX} bytes")
    return as_plain_string(value)


def is_legal_name(value: str) -> bool:
    """Whether Kafka allows this as the name of a topic, or in 0.8 of a group."""
    return re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value) is not None and value not in (".", "..")


def instance_id(value: Any) -> str:
    if not isinstance(value, str) or not is_legal_name(value):
        raise ValueError("up to 249 letters, digits, dots, underscores and hyphens")
    return as_plain_string(value)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Parses one of several words, in any case."""

    choices: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        for choice in self.choices:
            if isinstance(value, str) and value.strip().lower() == choice.lower():
                return choice
        first, last = ", ".join(self.choices[:-1]), self.choices[-1]
        raise ValueError(f"{first} or {last}" if first else f"only {last}")


def one_of(*choices: str) -> OneOf:
    return OneOf(choices)


def items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview | Mapping):
        return tuple(value)
    raise ValueError("a list, or a string with commas")


def texts(value: Any) -> tuple[str, ...]:
    """Strings, in a list or separated by commas."""
    strings = items(value)
    if not all(isinstance(item, str) for item in strings):
        raise ValueError("a list of strings, or a string with commas")
    return strings


_ASSIGNOR_CLASSES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""Java's names of the assignors, so that Java configurations work."""


def assignors(value: Any) -> tuple[Any, ...]:
    """Names, and the user's own assignors: a class is instantiated here, so that each consumer has its own instance."""
    alone = isinstance(value, type) or hasattr(value, "assign") or callable(value)
    try:
        given = (value,) if alone else items(value)
    except ValueError:
        given = ()
    named = tuple(_ASSIGNOR_CLASSES.get(item, item) if isinstance(item, str) else item for item in given)
    names = [item for item in named if isinstance(item, str)]
    if not named or len(set(names)) != len(names) or not set(names) <= set(_ASSIGNOR_CLASSES.values()):
        known = ", ".join(_ASSIGNOR_CLASSES.values())
        raise ValueError(f"a list of different assignors out of {known}, and assignors of your own as classes or instances")
    return tuple(_instance(item) if isinstance(item, type) else item for item in named)


def _instance(kind: type[Any]) -> Any:
    try:
        return kind()
    except Exception as error:  # its __init__ needs arguments, or fails; or it has no assign()
        raise ValueError(f"an instance of {kind.__name__}, since {kind.__name__}() raises: {error!r}") from error


def assignors_or_none(value: Any) -> tuple[Any, ...]:
    """Assignors as above, or an empty list."""
    return () if value in ((), [], "") else assignors(value)


_DURATION = re.compile(r"\+?P(?:\+?(\d+)D)?(?:T(?=[\d+])(?:\+?(\d+)H)?(?:\+?(\d+)M)?(?:\+?(\d+(?:[.,]\d+)?)S)?)?", re.I)
"""ISO 8601 durations as Java parses them: days, hours, minutes and seconds."""


_WORDS_OF_LIBRDKAFKA = {"smallest": "earliest", "beginning": "earliest", "largest": "latest", "end": "latest", "error": "none"}


def offset_reset(value: Any) -> str | timedelta:
    """Where to start: a word, or how long ago (KIP-1106)."""
    if isinstance(value, timedelta) and value >= timedelta(0):
        return value
    policy, _, duration = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    if policy.lower() in ("earliest", "latest", "none") and not duration:
        return policy.lower()
    if policy.lower() in _WORDS_OF_LIBRDKAFKA:
        raise ValueError(_WORDS_OF_LIBRDKAFKA[policy.lower()])
    match = _DURATION.fullmatch(duration) if policy.lower() == "by_duration" else None
    if match is None or not any(match.groups()):
        raise ValueError("earliest, latest, none, or by_duration: and an ISO 8601 duration such as by_duration:PT1H30M")
    days, hours, minutes, seconds = (float(part.replace(",", ".")) if part else 0.0 for part in match.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise ValueError(f"a duration of at most {timedelta.max.days} days") from None


def a_callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable that takes bytes (Java classes cannot be used here)")
    return value


def isolation(value: Any) -> IsolationLevel:
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[one_of("read_uncommitted", "read_committed")(value).upper()]


def servers(value: Any) -> tuple[HostPort, ...]:
    """Bootstrap servers. Raises ``ValueError`` for an empty list, and for a missing or invalid port."""
    try:
        given = texts(value)
    except ValueError:
        raise ValueError("HOST:PORT as a string, or a list of such strings") from None
    servers = tuple(dict.fromkeys(_server(server) for item in given for server in items(item)))
    if not servers:
        raise ValueError("at least one HOST:PORT")
    return servers


_SERVER = re.compile(
    r"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:\[(?P<ipv6>[^\]\0]+)\]|(?P<host>[^:\[\]/\s\0]+)):(?P<port>\d{1,9})", re.I
)


def _server(item: str) -> HostPort:
    match = _SERVER.fullmatch(item)
    if match is None:
        raise ValueError(f"HOST:PORT, or [IPV6]:PORT, separated by commas; {short_repr(item)} is neither")
    port = int(match["port"])
    if not 0 < port < 65536:
        raise ValueError(f"a port from 1 to 65535 in {short_repr(item)}")
    return HostPort(match["ipv6"] or match["host"], port)


_CHROOT = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/,\x00-\x20\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)*")
"""A path of ZooKeeper, or nothing; without a comma or a space, which are most likely a server after the chroot."""

_ZOOKEEPER_PORT = 2181


def zookeeper_servers(value: Any) -> str:
    """ZooKeeper's connect string, without spaces: ``HOST:PORT,HOST:PORT/CHROOT``.

    A server without a port has ZooKeeper's own. Raises ``ValueError`` that names the server or the chroot that is wrong.
    """
    expected = "HOST:PORT, more servers after commas, and at the end a chroot such as /kafka if there is one"
    if not isinstance(value, str) or not value.strip():
        raise ValueError(expected)
    given, slash, rest = as_plain_string(value).strip().partition("/")
    chroot = (slash + rest).removesuffix("/") if rest == "" else slash + rest
    if not _CHROOT.fullmatch(chroot):
        once = "; it is written once, after the last server" if "," in chroot else ""
        raise ValueError(f"{expected}; {short_repr(chroot)} is not a path of ZooKeeper{once}")
    servers = []
    for item in (part.strip() for part in given.split(",")):
        try:
            servers.append(_server(item if ":" in item.rpartition("]")[2] else f"{item}:{_ZOOKEEPER_PORT}"))
        except ValueError:
            raise ValueError(f"{expected}; {short_repr(item)} is not a server") from None
    return ",".join(map(str, servers)) + chroot
