"""The settings of a client: their names, types, defaults, bounds and parsing.

Owns the frozen dataclasses ``ClientConfig``, ``ConsumerConfig`` and ``AdminConfig``; each field is one row of the table of
settings. ``ProducerConfig`` is in ``ottla.config.producer``, so that a program that only reads does not import it. Must not know
the use of a setting. Invariant: every config is valid; no other package parses the name of a setting.

A setting has Kafka's name with dots (``request.timeout.ms``) or with underscores (``request_timeout_ms``), both in
milliseconds, and, for durations, also the Pythonic name without the suffix (``request_timeout``), in seconds or as a
``timedelta``. Source of names and defaults: the consumer and admin configurations of Apache Kafka 4.3.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from ottla.config.old_consumer import DEFAULTS, STRATEGIES, WORDS, session_warning
from ottla.config.rows import (
    INT_MAX,
    HostPort,
    Setting,
    a_callable,
    assignors,
    assignors_or_none,
    boolean,
    count,
    instance_id,
    integer,
    is_legal_name,
    isolation,
    milliseconds,
    name,
    offset_reset,
    one_of,
    row,
    servers,
    short_text,
    text,
    zookeeper_servers,
)
from ottla.config.security import SecurityConfig, TokenProvider
from ottla.config.spelling import dotted, field_of, read, table
from ottla.errors import ConfigError
from ottla.types import IsolationLevel, short_repr

Deserializer = Callable[..., Any]
"""Converts the bytes of a key or value to a user's value; called with ``None`` for nulls only if ``deserialize_nulls`` is set."""


ASSIGNORS = "Assignor | Iterable[Assignor]"
"""The type for type checkers: a name, a user's assignor or its class, or several of them."""


ZOOKEEPER = frozenset({"zookeeper"})
"""The group protocol of Kafka 0.8."""

RESERVED_GROUPS = frozenset({"coordinator", "groups"})
"""Names of nodes below ``/consumers`` that are no groups of the central coordinator."""


class OttlaConfigWarning(UserWarning):
    """A setting has no effect here, or not the expected one."""


def warn(message: str) -> None:
    """Warn at the line outside this package that creates the client."""
    package, level = __name__.partition(".")[0], 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, OttlaConfigWarning, stacklevel=level)


def _mapping(cls: type[ClientConfig], settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the given settings. Raises ``ConfigError`` for what is none, such as a topic."""
    if settings is None:
        return {}
    if isinstance(settings, Mapping):
        return settings
    elsewhere = {"ConsumerConfig": "; topics go to subscribe()", "ProducerConfig": "; topics go to send()"}.get(cls.__name__, "")
    hint = f'for example bootstrap_servers="localhost:9092"{elsewhere}'
    raise ConfigError(f"settings must be a mapping or keywords, not {short_repr(settings)}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """The settings of every client. Durations are milliseconds."""

    bootstrap_servers: tuple[HostPort, ...] = row((), servers, accepts="str | Iterable[str]")
    """The brokers to connect to first, ``HOST:PORT`` separated by commas, or a list. They name the other brokers."""
    client_id: str = row("ottla", short_text)
    """The name of this client in the logs of brokers and in the ids of members. Kafka's default is empty."""
    client_dns_lookup: str = row("use_all_dns_ips", one_of("use_all_dns_ips"))
    """The client tries every address of a name."""
    request_timeout_ms: int = milliseconds(30_000, 1)
    """How long one request may take."""
    retry_backoff_ms: int = milliseconds(100)
    """The first pause before a request is retried; each later one is longer."""
    retry_backoff_max_ms: int = milliseconds(1_000)
    """The longest of those pauses."""
    reconnect_backoff_ms: int = milliseconds(50)
    """The first pause before the client reconnects to a broker."""
    reconnect_backoff_max_ms: int = milliseconds(1_000)
    """The longest of those pauses."""
    socket_connection_setup_timeout_ms: int = milliseconds(10_000, 1)
    """How long the first attempt to connect may take."""
    socket_connection_setup_timeout_max_ms: int = milliseconds(30_000, 1)
    """The maximum of that time, which grows with each failure."""
    connections_max_idle_ms: int = milliseconds(540_000, -1)
    """A connection that was not used for this long is closed; -1: never."""
    metadata_max_age_ms: int = milliseconds(300_000)
    """How often the client refreshes its view of the cluster: a new topic of a pattern is found after this time at the latest."""
    metadata_recovery_strategy: str = row("rebootstrap", one_of("rebootstrap", "none"))
    """Whether to go back to ``bootstrap.servers`` when no known broker can be reached (KIP-899, KIP-1102)."""
    metadata_recovery_rebootstrap_trigger_ms: int = milliseconds(300_000)
    """How long no broker must be reachable before that."""
    send_buffer_bytes: int = count(-1, -1)
    """The size of a socket's send buffer; -1: the operating system's default."""
    receive_buffer_bytes: int = count(-1, -1)
    """The size of a socket's receive buffer; -1: the operating system's default."""
    given: frozenset[str] = dataclasses.field(default=frozenset(), repr=False, compare=False)
    """The fields that the user has set; not a setting."""

    @classmethod
    def parse(cls, settings: Mapping[str, Any] | None = None, /, **keywords: Any) -> Self:
        """A config from a mapping and keywords, in any of the spellings; raises ``ConfigError``.

        A value of ``None`` means the default. Settings that the chosen group protocol ignores cause one warning.
        """
        settings = _mapping(cls, settings)
        given: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        is_old = cls._means_zookeeper({**settings, **keywords})
        for spelling, value in (*settings.items(), *keywords.items()):
            name, in_seconds = field_of(cls, spelling, _configs, is_old)
            if value is None:
                continue
            if name in spelled:
                raise ConfigError(f"{dotted(name)} is given twice, as {spelled[name]} and as {spelling}: give one of them")
            spelled[name] = spelling
            word = WORDS.get((name, value)) if is_old and isinstance(value, str) else None
            given[name] = read(table(cls)[name], spelling, word or value, in_seconds)
        config = cls(**{**cls._implied(given), **given}, given=frozenset(given))
        config._check(frozenset(given))
        return config

    @classmethod
    def _means_zookeeper(cls, settings: Mapping[str, Any]) -> bool:
        """Whether the settings, as they were spelled, are those of a group of Kafka 0.8."""
        del settings
        return False

    @classmethod
    def _implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Values that follow from what was given."""
        return cls.of_jaas(given)

    @property
    def _needs_bootstrap_servers(self) -> bool:
        return True

    def _check(self, given: frozenset[str]) -> None:
        """Check rules between settings; ``given`` are the fields that the user has set."""
        if self._needs_bootstrap_servers and not self.bootstrap_servers:
            raise ConfigError("bootstrap.servers is missing", hint='for example bootstrap_servers="localhost:9092"')
        if ignored := self.check_security(given):
            warn(f"security.protocol={self.security_protocol} ignores {', '.join(map(dotted, ignored))}")


@dataclass(frozen=True, kw_only=True)
class ApiConfig(ClientConfig):
    """The settings of clients whose calls have a timeout by default: all but ``Producer``."""

    default_api_timeout_ms: int = milliseconds(60_000)
    """How long a call without a ``timeout`` may take."""

    def _check(self, given: frozenset[str]) -> None:
        super()._check(given)
        if self.request_timeout_ms > self.default_api_timeout_ms and "default_api_timeout_ms" in given:
            below = f"below request.timeout.ms, which is {self.request_timeout_ms}"
            raise ConfigError(f"default.api.timeout.ms is {self.default_api_timeout_ms}, {below}")


@dataclass(frozen=True, kw_only=True)
class AdminConfig(ApiConfig):
    """The settings of ``Admin``: only the common ones."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ApiConfig):
    """The settings of ``Consumer``."""

    group_id: str | None = row(None, name)
    """The group for ``subscribe()`` and ``commit()``. None: only ``assign()`` works."""
    group_instance_id: str | None = row(None, instance_id, protocols=frozenset({"classic", "consumer"}))
    """Makes this a static member (KIP-345): a restart within the session causes no rebalance. Each member needs its own id."""
    group_protocol: str = row("auto", one_of("auto", "consumer", "classic", "zookeeper", "central"))
    """Which group protocol is used; ``auto`` chooses ``consumer`` or ``classic``, by what the cluster and the group support.
    ``zookeeper`` is that of Kafka 0.8, and the default where ``zookeeper.connect`` is set and ``bootstrap.servers`` is not.
    ``central`` is Kafka's draft of a coordinator for such groups, which Ottla's brokers with ZooKeeper have."""
    session_timeout_ms: int = milliseconds(45_000, 1, protocols=frozenset({"classic", "central"}))
    """The coordinator removes a member after this time without a heartbeat, in ``central`` groups without an answer to a ping. In
    ``consumer`` groups it is a broker setting."""
    heartbeat_interval_ms: int = milliseconds(3_000, 1, protocols=frozenset({"classic"}))
    """How often heartbeats are sent; below the session timeout. In ``consumer`` groups it is a broker setting."""
    partition_assignment_strategy: tuple[Any, ...] = row(
        ("range", "cooperative-sticky"), assignors, protocols=frozenset({"classic", "zookeeper", "central"}), accepts=ASSIGNORS
    )
    """How partitions are assigned, the preferred assignor first: names, and ``ottla.assignors.ConsumerPartitionAssignor``s. In a
    ``zookeeper`` or ``central`` group: ``range``, the default there, or ``roundrobin``, the same for all members."""
    group_remote_assignor: str | None = row(None, name, protocols=frozenset({"consumer"}))
    """Which of the broker's assignors to use."""
    group_client_assignors: tuple[Any, ...] = row((), assignors_or_none, protocols=frozenset({"consumer"}), accepts=ASSIGNORS)
    """Assignors that the members run themselves, the preferred one first: names, and
    ``ottla.assignors.ConsumerPartitionAssignor``s. Only Ottla's broker supports them: see
    [client-side assignors](client-assignors.md)."""
    max_poll_records: int = count(500, 1)
    """How many records a ``poll()`` returns at most. It does not change what is fetched."""
    max_poll_interval_ms: int = milliseconds(300_000, 1)
    """The only deadline of your code: how long it may take between two polls, and how long a rebalance waits for it. In a
    classic group it is never shorter than ``session.timeout.ms`` (KIP-62). See [long jobs](consumer.md#long-jobs)."""
    enable_auto_commit: bool = row(True, boolean)
    """Whether polls regularly commit the records that previous polls returned. Off without a group."""
    auto_commit_interval_ms: int = milliseconds(5_000)
    """How often that happens."""
    auto_offset_reset: str | timedelta = row("latest", offset_reset)  # noqa: RUF009 - a field
    """Where to start without a committed position: ``earliest``, ``latest``, ``none`` (an error), ``by_duration:`` with an
    ISO 8601 duration (KIP-1106), or a ``timedelta``."""
    allow_auto_create_topics: bool = row(True, boolean)
    """Whether requesting a topic may create it, where brokers allow that."""
    exclude_internal_topics: bool = row(True, boolean)
    """Whether patterns skip the cluster's internal topics."""
    isolation_level: IsolationLevel = row(  # noqa: RUF009 - a field
        IsolationLevel.READ_UNCOMMITTED, isolation, accepts='IsolationLevel | Literal["read_uncommitted", "read_committed"]'
    )
    """Whether records of open and aborted transactions are left out (``read_committed``)."""
    fetch_min_bytes: int = count(1)
    """A broker answers when it has this many bytes, or after ``fetch.max.wait.ms``."""
    fetch_max_bytes: int = count(52_428_800)
    """The maximum size of one answer of a broker; a single larger batch is delivered nevertheless."""
    fetch_buffer_bytes: int = count(67_108_864, 1)
    """How much may be fetched and not yet consumed, over all brokers and partitions; counted as fetched, that is compressed."""
    fetch_max_wait_ms: int = milliseconds(500)
    """How long a broker may wait for ``fetch.min.bytes``."""
    max_partition_fetch_bytes: int | None = count(None)
    """The maximum size of one partition in an answer; a single larger batch is delivered nevertheless. None: 8 MiB shared among
    the partitions of one request, but at least 1 MiB each."""
    client_rack: str = row("", text)
    """The rack of this consumer: partitions are fetched from a replica in the same rack where there is one (KIP-392)."""
    check_crcs: bool = row(True, boolean)
    """Whether checksums of batches are verified. It costs almost nothing."""
    key_deserializer: Deserializer | None = row(None, a_callable)  # noqa: RUF009 - a field
    """A callable that gets the bytes of a key when ``record.key`` is first accessed. None: keys are bytes."""
    value_deserializer: Deserializer | None = row(None, a_callable)  # noqa: RUF009 - a field
    """The same for ``record.value``."""
    deserialize_nulls: bool = row(False, boolean)
    """Whether deserializers are also called for null keys and values, with ``None``. Otherwise ``record.key`` and
    ``record.value`` are ``None`` for them, as with Kafka's own consumer."""

    queued_max_message_chunks: int = count(2, 1)
    """How many fetched parts of a partition's log each iterator of ``streams()`` holds at most; then its partitions are paused."""
    consumer_timeout_ms: int = milliseconds(-1, -1)
    """How long an iterator of ``streams()`` waits for a record before it raises; -1: forever."""
    zookeeper_connect: str | None = row(None, zookeeper_servers, protocols=ZOOKEEPER)
    """The servers of ZooKeeper, and the node below which Kafka's nodes are (chroot) if that is not the root. Brokers are found
    there; ``bootstrap.servers`` may name more."""
    zookeeper_session_timeout_ms: int = milliseconds(6_000, 1, protocols=ZOOKEEPER)
    """The other members get the partitions of a member that ZooKeeper has not heard of for this long."""
    zookeeper_connection_timeout_ms: int = milliseconds(6_000, 1, protocols=ZOOKEEPER)
    """How long connecting to ZooKeeper may take. The default is ``zookeeper.session.timeout.ms``."""
    zookeeper_sync_time_ms: int = milliseconds(2_000, protocols=ZOOKEEPER)
    """How far a follower of ZooKeeper may be behind the leader. It is the default of ``rebalance.backoff.ms``."""
    rebalance_max_retries: int = row(4, integer(1, INT_MAX), protocols=ZOOKEEPER)
    """How often a rebalance tries to become the owner of all its partitions before ``poll()`` raises."""
    rebalance_backoff_ms: int = milliseconds(2_000, protocols=ZOOKEEPER)
    """The longest pause between two of these attempts. The default is ``zookeeper.sync.time.ms``."""
    consumer_id: str | None = row(None, instance_id, protocols=ZOOKEEPER | {"central"})
    """Part of the member's id, in place of the host, the time and a random number. Each member needs its own."""
    offsets_storage: str = row("zookeeper", one_of("zookeeper", "kafka"), protocols=ZOOKEEPER)
    """Where offsets are committed: in ZooKeeper, or in Kafka as in the other group protocols."""
    dual_commit_enabled: bool = row(False, boolean, protocols=ZOOKEEPER)
    """Whether offsets that are committed in Kafka are also written to ZooKeeper; the larger one counts. The default is true with
    ``offsets.storage=kafka``."""

    @classmethod
    def _means_zookeeper(cls, settings: Mapping[str, Any]) -> bool:
        def given(field: str) -> Any:
            return settings.get(field) if settings.get(field) is not None else settings.get(dotted(field))

        protocol = given("group_protocol")
        if protocol is None:
            return given("zookeeper_connect") is not None and given("bootstrap_servers") is None
        return isinstance(protocol, str) and protocol.strip().lower() == "zookeeper"

    @classmethod
    def _implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        implied = {**super()._implied(given), **({} if "group_id" in given else {"enable_auto_commit": False})}
        if given.get("group_protocol") == "central":
            implied["partition_assignment_strategy"] = STRATEGIES[:1]
        return {**implied, **cls._implied_by_zookeeper(given)} if cls._means_zookeeper(given) else implied

    @classmethod
    def _implied_by_zookeeper(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        implied: dict[str, Any] = {"group_protocol": "zookeeper", **DEFAULTS}
        implied["dual_commit_enabled"] = given.get("offsets_storage") == "kafka"
        others = {
            "client_id": "group_id",  # as 0.8: brokers' quotas for this client id still apply
            "zookeeper_connection_timeout_ms": "zookeeper_session_timeout_ms",
            "rebalance_backoff_ms": "zookeeper_sync_time_ms",
        }
        return {**implied, **{field: given[other] for field, other in others.items() if other in given}}

    @property
    def _needs_bootstrap_servers(self) -> bool:
        return self.group_protocol != "zookeeper"

    def _check(self, given: frozenset[str]) -> None:
        super()._check(given)
        if self.heartbeat_interval_ms >= self.session_timeout_ms and self.group_protocol != "central":
            above = f"it must be below session.timeout.ms, which is {self.session_timeout_ms}"
            raise ConfigError(f"heartbeat.interval.ms is {self.heartbeat_interval_ms}: {above}")
        if self.group_id is None and self.enable_auto_commit:
            raise ConfigError("enable.auto.commit needs a group", hint="set group_id, or remove enable_auto_commit")
        if self.group_protocol == "zookeeper":
            self._check_zookeeper()
        if self.group_protocol in ("zookeeper", "central"):
            _check_group_in_zookeeper(self)
        self._warn_of_ignored()
        if self.group_id is not None and self.means_classic and (warning := self.poll_interval_warning) is not None:
            warn(warning)

    def _check_zookeeper(self) -> None:
        if self.zookeeper_connect is None:
            raise ConfigError(
                "group.protocol=zookeeper needs zookeeper.connect", hint='for example zookeeper_connect="localhost:2181"'
            )
        if (warning := session_warning(self.zookeeper_session_timeout_ms)) is not None:
            warn(warning)
        if self.offsets_storage == "zookeeper" and self.dual_commit_enabled:
            warn("offsets.storage=zookeeper ignores dual.commit.enabled: it is for offsets.storage=kafka")

    def poll_interval(self, protocol: str) -> int:
        """How long the application may take between two polls (ms), in a group of this protocol.

        In a classic group it is at least the session timeout. Before KIP-62 that was the only deadline, so programs raised it for
        slow work, and they still work.
        """
        return max(self.max_poll_interval_ms, self.session_timeout_ms) if protocol == "classic" else self.max_poll_interval_ms

    @property
    def means_classic(self) -> bool:
        """Whether the settings select a classic group, whatever the cluster offers; with ``auto`` it may still be chosen later.

        With ``auto``, assignors that are set only for classic groups select one; assignors for both protocols select none.
        """
        if self.group_protocol == "auto":
            return "partition_assignment_strategy" in self.given and not self.group_client_assignors
        return self.group_protocol == "classic"

    @property
    def poll_interval_warning(self) -> str | None:
        """The warning for a member of a classic group whose ``max.poll.interval.ms`` is below the session timeout."""
        if self.max_poll_interval_ms >= self.session_timeout_ms:
            return None
        return (
            f"max.poll.interval.ms is {self.max_poll_interval_ms}, below session.timeout.ms, which is {self.session_timeout_ms}:"
            " in a classic group the longer of the two counts. Raise the one or lower the other"
        )

    def ignored_by(self, protocol: str) -> list[str]:
        """The given settings that a group protocol ignores."""
        rows = table(type(self))
        return [dotted(name) for name in sorted(self.given) if protocol not in (rows[name].protocols or {protocol})]

    def _warn_of_ignored(self) -> None:
        chosen_from = ("classic", "consumer") if self.group_protocol == "auto" else (self.group_protocol,)
        ignored = sorted(set.intersection(*(set(self.ignored_by(protocol)) for protocol in chosen_from)))
        if ignored:
            warn(f"group.protocol={self.group_protocol} ignores {', '.join(ignored)}")


def _check_group_in_zookeeper(config: ConsumerConfig) -> None:
    """Check what is stored in ZooKeeper, or computed from it: the name of the group, and its assignor."""
    if config.group_id is not None and not is_legal_name(config.group_id):
        allowed = "up to 249 letters, digits, dots, underscores and hyphens, and not of '.' or '..' alone"
        raise ConfigError(f"group.id={short_repr(config.group_id)}: in a {config.group_protocol} group it consists of {allowed}")
    if config.group_protocol == "central" and config.group_id in RESERVED_GROUPS:
        raise ConfigError(f"group.id={config.group_id}: in ZooKeeper this is not the node of a group", hint="choose another name")
    strategy = config.partition_assignment_strategy
    if len(strategy) != 1 or strategy[0] not in STRATEGIES:
        listed = ", ".join(item if isinstance(item, str) else short_repr(item) for item in strategy)
        expected = f"expected one of {' and '.join(STRATEGIES)}, the same for all members"
        raise ConfigError(f"partition.assignment.strategy is {listed}: in a {config.group_protocol} group {expected}")


def _configs() -> tuple[type[ClientConfig], ...]:
    """Return the configs whose settings an error may name."""
    from ottla.config.producer import ProducerConfig

    return ConsumerConfig, ProducerConfig, AdminConfig


__all__ = [
    "AdminConfig",
    "ApiConfig",
    "ClientConfig",
    "ConsumerConfig",
    "Deserializer",
    "HostPort",
    "OttlaConfigWarning",
    "SecurityConfig",
    "Setting",
    "TokenProvider",
]
