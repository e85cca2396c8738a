"""What a row of the table of settings is, and how the values of settings are read.

Owns ``Setting`` and one parser for each kind of value. Must not know which settings there are. Invariant: a parser gives a value
that can be used as it is, or raises ``ValueError`` with what was expected.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from ottla.types import IsolationLevel

_INT_MAX = 0x7FFFFFFF
_INT16_MAX = 0x7FFF


class HostPort(NamedTuple):
    """One bootstrap server, as it was given."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: how a value is read, and whom it concerns."""

    parse: Callable[[Any], Any]
    """Raises ``ValueError`` with what was expected."""
    duration: bool = False
    protocols: frozenset[str] | None = None
    """The group protocols that heed it; ``None``: all."""
    secret: bool = False
    """Not to be shown to anybody."""
    aliases: tuple[str, ...] = ()
    """Other names with dots: those of librdkafka, where they differ."""
    accepts: str | None = None
    """The type of the values that may be given, for type checkers; ``None``: that of the field, or the choices that there are."""


def row(default: Any, parse: Callable[[Any], Any], *, secret: bool = False, **more: Any) -> Any:
    setting = Setting(parse, secret=secret, **more)
    return dataclasses.field(default=default, repr=not secret, metadata={"setting": setting})


def integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            bounds = f"from {low} to {high}" if high < _INT_MAX else f"of at least {low}"
            raise ValueError(f"a whole number {bounds}")
        return value

    return parse


def count(default: int | None, low: int = 0, high: int = _INT_MAX) -> Any:
    return row(default, integer(low, high))


def milliseconds(default: int, low: int = 0, high: int = _INT_MAX, **more: Any) -> Any:
    return row(default, integer(low, high), duration=True, **more)


def boolean(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def is_utf8(value: str) -> bool:
    """Whether UTF-8 can encode a string. It cannot encode lone surrogates, which Python has for bytes that are no text."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    if not is_utf8(value):
        raise ValueError("a string that UTF-8 can encode")
    return value


def not_empty(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a string that is not empty, or leave it out")
    return text(value)


def short_text(value: Any) -> str:
    """What stands in the header of each request, where its length has 16 bits."""
    if not isinstance(value, str) or len(text(value).encode()) > _INT16_MAX:
        raise ValueError(f"a string of at most {_INT16_MAX} bytes")
    return value


def instance_id(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value) or value in (".", ".."):
        raise ValueError("up to 249 letters, digits, dots, underscores and hyphens")
    return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """Reads one of several words, however its letters are."""

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
    if isinstance(value, Iterable):
        return tuple(value)
    raise ValueError("a list, or a string with commas")


_ASSIGNOR_CLASSES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""Java's names of the assignors, so that configurations paste in."""


def assignors(value: Any) -> tuple[Any, ...]:
    """Names, and assignors of the user's own: a class has its instance made here, so that each consumer has one of its own."""
    given = (value,) if isinstance(value, type) or hasattr(value, "assign") else items(value)
    found = tuple(_ASSIGNOR_CLASSES.get(item, item) if isinstance(item, str) else item for item in given)
    names = [item for item in found if isinstance(item, str)]
    if not found or len(set(names)) != len(names) or not set(names) <= set(_ASSIGNOR_CLASSES.values()):
        known = ", ".join(_ASSIGNOR_CLASSES.values())
        raise ValueError(f"a list of different assignors out of {known}, and assignors of your own as classes or instances")
    return tuple(item() if isinstance(item, type) else item for item in found)


def assignors_or_none(value: Any) -> tuple[Any, ...]:
    """The same, where there may be none at all."""
    return () if value in ((), [], "") else assignors(value)


_DURATION = re.compile(r"\+?P(?:\+?(\d+)D)?(?:T(?=[\d+])(?:\+?(\d+)H)?(?:\+?(\d+)M)?(?:\+?(\d+(?:[.,]\d+)?)S)?)?", re.I)
"""As Java reads the durations of ISO 8601: days, hours, minutes and seconds."""


def offset_reset(value: Any) -> str | timedelta:
    """Where to begin: a word, or how long ago (KIP-1106)."""
    if isinstance(value, timedelta) and value >= timedelta(0):
        return value
    policy, _, duration = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    if policy.lower() in ("earliest", "latest", "none") and not duration:
        return policy.lower()
    found = _DURATION.fullmatch(duration) if policy.lower() == "by_duration" else None
    if found is None or not any(found.groups()):
        raise ValueError("earliest, latest, none, or by_duration: and a duration of ISO 8601 such as by_duration:PT1H30M")
    days, hours, minutes, seconds = (float(part.replace(",", ".")) if part else 0.0 for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise ValueError(f"a duration of at most {timedelta.max.days} days") from None


def a_callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable that takes bytes (Java classes can not be used here)")
    return value


def isolation(value: Any) -> IsolationLevel:
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[one_of("read_uncommitted", "read_committed")(value).upper()]


def servers(value: Any) -> tuple[HostPort, ...]:
    """Raises ``ValueError`` for an empty list, a missing or impossible port."""
    servers = tuple(dict.fromkeys(_server(item) for item in items(value)))
    if not servers:
        raise ValueError("at least one HOST:PORT")
    return servers


def _server(item: Any) -> HostPort:
    found = re.fullmatch(
        r"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d+)", str(item).strip(), re.I
    )
    if found is None:
        raise ValueError(f"HOST:PORT, or [IPV6]:PORT, separated by commas; {str(item).strip()!r} is neither")
    port = int(found["port"])
    if not 0 < port < 65536:
        raise ValueError(f"a port from 1 to 65535 in {str(item).strip()!r}")
    return HostPort(found["ipv6"] or found["host"], port)
