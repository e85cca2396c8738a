"""The settings of a client: the one place that knows their names, types, defaults and bounds, and that parses them.

Owns the frozen dataclasses ``ClientConfig``, ``ConsumerConfig`` and ``AdminConfig``; each field is one row of the table of
settings. Must not know who uses a setting. Invariant: a config that exists is valid; nothing else in the package parses a
setting's name.

A setting goes by Kafka's own name with dots (``request.timeout.ms``) or with underscores (``request_timeout_ms``), both in
milliseconds, and, for durations, by the Pythonic name without the suffix (``request_timeout``), in seconds or as
``timedelta``. Source of names and defaults: the consumer and admin configurations of Apache Kafka 4.3.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Self

from ottla.errors import ConfigError
from ottla.types import IsolationLevel

Deserializer = Callable[[bytes | None], Any]
"""Makes a user's value of the bytes of a key or a value; called with ``None`` for a null, as Kafka's own are."""

_INT_MAX = 0x7FFFFFFF
_LONG_MAX = 0x7FFFFFFFFFFFFFFF


class OttlaConfigWarning(UserWarning):
    """A setting was given that has no effect here."""


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


def _row(default: Any, parse: Callable[[Any], Any], **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(parse, **more)})


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            bounds = f"from {low} to {high}" if high < _INT_MAX else f"of at least {low}"
            raise ValueError(f"a whole number {bounds}")
        return value

    return parse


def _count(default: int, low: int = 0, high: int = _INT_MAX) -> Any:
    return _row(default, _integer(low, high))


def _milliseconds(default: int, low: int = 0, high: int = _INT_MAX, **more: Any) -> Any:
    return _row(default, _integer(low, high), duration=True, **more)


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a string that is not empty, or leave it out")
    return value


def _instance_id(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value) or value in (".", ".."):
        raise ValueError("up to 249 letters, digits, dots, underscores and hyphens")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        for choice in choices:
            if isinstance(value, str) and value.strip().lower() == choice.lower():
                return choice
        raise ValueError(f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else f"only {choices[0]}")

    return parse


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, Iterable):
        return tuple(value)
    raise ValueError("a list, or a string with commas")


_ASSIGNOR_CLASSES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
"""Java's names of the assignors, so that configurations paste in."""


def _assignors(value: Any) -> tuple[str, ...]:
    names = tuple(_ASSIGNOR_CLASSES.get(item, item) for item in _items(value))
    if not names or len(set(names)) != len(names) or not set(names) <= {"range", "roundrobin"}:
        raise ValueError("a list of different assignors out of range and roundrobin")
    return names


def _callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError("a callable that takes bytes (Java classes can not be used here)")
    return value


def _isolation(value: Any) -> IsolationLevel:
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[_one_of("read_uncommitted", "read_committed")(value).upper()]


def _servers(value: Any) -> tuple[HostPort, ...]:
    """Raises ``ValueError`` for an empty list, a missing or impossible port."""
    servers = tuple(dict.fromkeys(_server(item) for item in _items(value)))
    if not servers:
        raise ValueError("at least one HOST:PORT")
    return servers


def _server(item: Any) -> HostPort:
    found = re.fullmatch(r"(?:PLAINTEXT://)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]/\s]+)):(?P<port>\d+)", str(item).strip(), re.I)
    if found is None:
        raise ValueError(f"HOST:PORT, or [IPV6]:PORT, separated by commas; {str(item).strip()!r} is neither")
    port = int(found["port"])
    if not 0 < port < 65536:
        raise ValueError(f"a port from 1 to 65535 in {str(item).strip()!r}")
    return HostPort(found["ipv6"] or found["host"], port)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What every client has to know. Durations are milliseconds."""

    bootstrap_servers: tuple[HostPort, ...] = _row((), _servers)
    client_id: str = _row("ottla", _text)
    security_protocol: str = _row("PLAINTEXT", _one_of("PLAINTEXT"))
    client_dns_lookup: str = _row("use_all_dns_ips", _one_of("use_all_dns_ips"))
    request_timeout_ms: int = _milliseconds(30_000, 1)
    default_api_timeout_ms: int = _milliseconds(60_000)
    retry_backoff_ms: int = _milliseconds(100)
    retry_backoff_max_ms: int = _milliseconds(1_000)
    reconnect_backoff_ms: int = _milliseconds(50)
    reconnect_backoff_max_ms: int = _milliseconds(1_000)
    socket_connection_setup_timeout_ms: int = _milliseconds(10_000, 1)
    socket_connection_setup_timeout_max_ms: int = _milliseconds(30_000, 1)
    connections_max_idle_ms: int = _milliseconds(540_000, -1)
    """-1: never."""
    metadata_max_age_ms: int = _milliseconds(300_000)
    metadata_recovery_strategy: str = _row("rebootstrap", _one_of("rebootstrap", "none"))
    metadata_recovery_rebootstrap_trigger_ms: int = _milliseconds(300_000)
    send_buffer_bytes: int = _count(-1, -1)
    """-1: what the operating system thinks best."""
    receive_buffer_bytes: int = _count(-1, -1)
    """-1: what the operating system thinks best."""

    @classmethod
    def parse(cls, settings: Mapping[str, Any] | None = None, /, **keywords: Any) -> Self:
        """A config from a mapping and keywords, in any of the spellings; raises ``ConfigError``.

        A value of ``None`` is as good as none given. Settings that the chosen group protocol ignores cause one warning.
        """
        given: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for spelling, value in (*(settings or {}).items(), *keywords.items()):
            name, in_seconds = _field_of(cls, spelling)
            if name in spelled:
                raise ConfigError(f"{_dotted(name)} is given twice, as {spelled[name]} and as {spelling}: give one of them")
            spelled[name] = spelling
            if value is not None:
                given[name] = _read(_table(cls)[name], spelling, value, in_seconds)
        config = cls(**{**cls._implied(given), **given})
        config._check(frozenset(given))
        return config

    @classmethod
    def _implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Defaults that depend on what was given."""
        return {}

    def _check(self, given: frozenset[str]) -> None:
        """Rules between settings; ``given`` are the fields that were set by the user."""
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing", hint='for example bootstrap_servers="localhost:9092"')
        if self.request_timeout_ms > self.default_api_timeout_ms and "default_api_timeout_ms" in given:
            below = f"below request.timeout.ms, which is {self.request_timeout_ms}"
            raise ConfigError(f"default.api.timeout.ms is {self.default_api_timeout_ms}, {below}")


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ClientConfig):
    """What ``Admin`` takes: the common settings and nothing more."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What ``Consumer`` takes."""

    group_id: str | None = _row(None, _name)
    group_instance_id: str | None = _row(None, _instance_id)
    group_protocol: str = _row("auto", _one_of("auto", "classic"))
    session_timeout_ms: int = _milliseconds(45_000, 1, protocols=frozenset({"classic"}))
    heartbeat_interval_ms: int = _milliseconds(3_000, 1, protocols=frozenset({"classic"}))
    partition_assignment_strategy: tuple[str, ...] = _row(("range",), _assignors, protocols=frozenset({"classic"}))
    group_remote_assignor: str | None = _row(None, _name, protocols=frozenset({"consumer"}))
    max_poll_records: int = _count(500, 1)
    max_poll_interval_ms: int = _milliseconds(300_000, 1)
    enable_auto_commit: bool = _row(True, _boolean)
    """Off where there is no group."""
    auto_commit_interval_ms: int = _milliseconds(5_000)
    auto_offset_reset: str = _row("latest", _one_of("earliest", "latest", "none"))
    allow_auto_create_topics: bool = _row(True, _boolean)
    isolation_level: IsolationLevel = _row(IsolationLevel.READ_UNCOMMITTED, _isolation)  # noqa: RUF009 - a field
    fetch_min_bytes: int = _count(1)
    fetch_max_bytes: int = _count(52_428_800)
    fetch_max_wait_ms: int = _milliseconds(500)
    max_partition_fetch_bytes: int = _count(1_048_576)
    check_crcs: bool = _row(True, _boolean)
    key_deserializer: Deserializer | None = _row(None, _callable)  # noqa: RUF009 - a field
    value_deserializer: Deserializer | None = _row(None, _callable)  # noqa: RUF009 - a field

    @classmethod
    def _implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {} if "group_id" in given else {"enable_auto_commit": False}

    def _check(self, given: frozenset[str]) -> None:
        super()._check(given)
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            above = f"it must be below session.timeout.ms, which is {self.session_timeout_ms}"
            raise ConfigError(f"heartbeat.interval.ms is {self.heartbeat_interval_ms}: {above}")
        if self.group_id is None and self.enable_auto_commit:
            raise ConfigError("enable.auto.commit needs a group", hint="set group_id, or leave enable_auto_commit out")
        self._warn_of_ignored(given)

    def _warn_of_ignored(self, given: frozenset[str]) -> None:
        if self.group_protocol == "auto":
            return
        table = _table(type(self))
        ignored = [name for name in sorted(given) if self.group_protocol not in (table[name].protocols or {self.group_protocol})]
        if ignored:
            listed = ", ".join(map(_dotted, ignored))
            message = f"group.protocol={self.group_protocol} ignores {listed}"
            warnings.warn(message, OttlaConfigWarning, stacklevel=5)


_KNOWN_TO_KAFKA = frozenset({
    "client.rack", "exclude.internal.topics", "interceptor.classes", "metric.reporters", "metrics.num.samples",
    "metrics.sample.window.ms", "metrics.recording.level", "enable.metrics.push", "config.providers", "security.providers",
})  # fmt: skip
"""Settings of Kafka's consumer that are not honoured here; all of ``ssl.*`` and ``sasl.*`` besides."""


def _table(cls: type[ClientConfig]) -> Mapping[str, Setting]:
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(cls)}


def _spellings(cls: type[ClientConfig]) -> Mapping[str, tuple[str, bool]]:
    """Every accepted spelling -> (field, whether the value is in seconds)."""
    spellings: dict[str, tuple[str, bool]] = {}
    for name, setting in _table(cls).items():
        spellings[name] = spellings[_dotted(name)] = (name, False)
        if setting.duration:
            spellings[name.removesuffix("_ms")] = (name, True)
    return spellings


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def _field_of(cls: type[ClientConfig], spelling: str) -> tuple[str, bool]:
    spellings = _spellings(cls)
    if spelling in spellings:
        return spellings[spelling]
    dotted = _dotted(str(spelling))
    if dotted in _KNOWN_TO_KAFKA or dotted.startswith(("ssl.", "sasl.")):
        raise ConfigError(f"{spelling} is a setting of Kafka's clients that Ottla does not honour", hint="leave it out")
    owner = next((other for other in (ConsumerConfig, AdminConfig) if spelling in _spellings(other)), None)
    if owner is not None:
        raise ConfigError(
            f"{spelling} is a setting of {owner.__name__.removesuffix('Config')}, not of {cls.__name__.removesuffix('Config')}"
        )
    candidates = [item for item in spellings if ("." in item) == ("." in str(spelling))]
    near = difflib.get_close_matches(str(spelling), candidates, n=1, cutoff=0.5)
    raise ConfigError(f"unknown setting {spelling!r}", hint=f"did you mean {near[0]}?" if near else None)


def _read(setting: Setting, spelling: str, value: Any, in_seconds: bool) -> Any:
    try:
        return setting.parse(_to_milliseconds(value, in_seconds) if setting.duration else value)
    except ValueError as error:
        unit = (" in seconds, or a timedelta" if in_seconds else " of milliseconds") if setting.duration else ""
        expected = "a number" if in_seconds else str(error)
        limits = f" (in milliseconds {error})" if in_seconds else ""
        raise ConfigError(f"{spelling}={value!r}: expected {expected}{unit}{limits}") from None


def _to_milliseconds(value: Any, in_seconds: bool) -> Any:
    """A duration in whole milliseconds; what can not be one is left for the setting's own check to refuse."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if not in_seconds or isinstance(value, bool):
        return value
    try:
        return round(float(value) * 1000)
    except (TypeError, ValueError, OverflowError):
        return value
