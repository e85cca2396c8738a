"""The one table of the settings that the broker honours, by Kafka's own names: of the broker, and of each topic.

Owns names, types, defaults, bounds and descriptions. Must not know who uses a setting. Invariant: a setting in this table has
an effect, and one that is not in it is refused, with the nearest name that is.

The table is the fields of two frozen dataclasses, so that the rest of the broker reads typed attributes. Source: "Broker
Configs" and "Topic Configs" in Kafka's documentation; defaults and bounds are those of Apache Kafka 4.3.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.errors import ConfigError

INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
_MIB = 1 << 20
_DAY = 86_400_000

Value = bool | int | str


class Kind(enum.IntEnum):
    """Types of settings; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class Setting(NamedTuple):
    """One row of the table. ``broker_name`` is where a topic's setting takes its default from."""

    name: str
    kind: Kind
    default: Value
    doc: str
    minimum: int
    maximum: int
    choices: tuple[str, ...]
    broker_name: str | None

    def parse(self, value: object) -> Value:
        """``value``, or its text, as this setting's type; raises ``ConfigError`` where it is not one or out of bounds."""
        match self.kind:
            case Kind.BOOLEAN:
                return self._boolean(value)
            case Kind.INT | Kind.LONG:
                return self._number(value)
        text = str(value).strip()
        if self.choices and text not in self.choices:
            raise ConfigError(f"{self.name}={value!r} is not supported, only {' or '.join(self.choices)}")
        return text

    def text(self, value: Value) -> str:
        """A value as Kafka prints it."""
        return str(value).lower() if self.kind is Kind.BOOLEAN else str(value)

    def _boolean(self, value: object) -> bool:
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise ConfigError(f"{self.name}={value!r} must be true or false")
        return text == "true"

    def _number(self, value: object) -> int:
        try:
            number = int(str(value).strip())
        except ValueError:
            raise ConfigError(f"{self.name}={value!r} must be a whole number") from None
        if not self.minimum <= number <= self.maximum:
            raise ConfigError(f"{self.name}={number} must lie between {self.minimum} and {self.maximum}")
        return number


_KINDS: Mapping[type, Kind] = {bool: Kind.BOOLEAN, int: Kind.LONG, str: Kind.STRING}


def _setting(
    name: str,
    default: Value,
    doc: str,
    *,
    minimum: int = 0,
    maximum: int = LONG_MAX,
    choices: tuple[str, ...] = (),
    kind: Kind | None = None,
    broker: str | None = None,
) -> Any:
    kind = _KINDS[type(default)] if kind is None else kind
    if kind is Kind.LONG and maximum <= INT_MAX:
        kind = Kind.INT
    return dataclasses.field(
        default=default, metadata={"setting": Setting(name, kind, default, doc, minimum, maximum, choices, broker)}
    )


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a broker. Times in milliseconds, sizes in bytes, unless the name says otherwise."""

    node_id: int = _setting("node.id", 1, "The number of this broker in its cluster of one.", maximum=INT_MAX)
    advertised_listeners: str = _setting(
        "advertised.listeners", "", "What clients are told to connect to, as PLAINTEXT://host:port; empty: where it listens."
    )
    num_partitions: int = _setting(
        "num.partitions", 1, "Partitions of a topic that does not say how many.", minimum=1, maximum=10_000
    )
    auto_create_topics_enable: bool = _setting("auto.create.topics.enable", True, "Whether asking for an unknown topic creates it.")
    delete_topic_enable: bool = _setting("delete.topic.enable", True, "Whether topics can be deleted.")
    message_max_bytes: int = _setting("message.max.bytes", 1_048_588, "The largest record batch.", maximum=INT_MAX)
    fetch_max_bytes: int = _setting("fetch.max.bytes", 57_671_680, "The largest answer to a fetch.", minimum=1024, maximum=INT_MAX)
    socket_request_max_bytes: int = _setting(
        "socket.request.max.bytes", 104_857_600, "The largest request.", minimum=1, maximum=INT_MAX
    )
    connections_max_idle_ms: int = _setting(
        "connections.max.idle.ms", 600_000, "A connection without traffic for so long is closed.", minimum=1
    )
    log_segment_bytes: int = _setting(
        "log.segment.bytes", 1 << 30, "Size at which a log starts a new segment.", minimum=_MIB, maximum=INT_MAX
    )
    log_roll_ms: int = _setting("log.roll.ms", 7 * _DAY, "Age at which a log starts a new segment.", minimum=1)
    log_retention_ms: int = _setting("log.retention.ms", 7 * _DAY, "Age after which segments go; -1: never.", minimum=-1)
    log_retention_bytes: int = _setting("log.retention.bytes", -1, "Size above which old segments go; -1: never.", minimum=-1)
    log_retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms", 300_000, "How often logs are searched for what may go.", minimum=1
    )
    log_segment_delete_delay_ms: int = _setting(
        "log.segment.delete.delay.ms", 60_000, "How long a file that was given up stays on disk as .deleted."
    )
    log_index_interval_bytes: int = _setting(
        "log.index.interval.bytes", 4096, "Bytes of log between two index entries.", maximum=INT_MAX
    )
    log_index_size_max_bytes: int = _setting(
        "log.index.size.max.bytes", 10_485_760, "Size of an index at which a new segment is started.", minimum=4, maximum=INT_MAX
    )
    log_message_timestamp_type: str = _setting(
        "log.message.timestamp.type", "CreateTime", "Who stamps records.", choices=("CreateTime", "LogAppendTime")
    )
    log_message_timestamp_after_max_ms: int = _setting(
        "log.message.timestamp.after.max.ms", 3_600_000, "How far ahead of the broker's clock a record may be stamped."
    )
    log_flush_interval_messages: int = _setting(
        "log.flush.interval.messages",
        LONG_MAX,
        "Records after which a log is forced to disk before they are acknowledged.",
        minimum=1,
    )
    log_flush_offset_checkpoint_interval_ms: int = _setting(
        "log.flush.offset.checkpoint.interval.ms", 60_000, "How often it is noted up to where logs are safe on disk.", minimum=1
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms", _DAY, "How long an idle idempotent producer is remembered.", minimum=1, maximum=INT_MAX
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms",
        6_000,
        "The shortest session a member of a classic group may ask for.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_max_session_timeout_ms: int = _setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "The longest session a member of a classic group may ask for.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms",
        0,
        "How long an empty group waits for more members before its first round (Kafka's default is 3000).",
        maximum=INT_MAX,
    )
    group_max_size: int = _setting("group.max.size", INT_MAX, "Members that a group may have.", minimum=1, maximum=INT_MAX)
    offset_metadata_max_bytes: int = _setting(
        "offset.metadata.max.bytes", 4096, "The largest note with a committed offset.", maximum=INT_MAX
    )
    offsets_topic_num_partitions: int = _setting(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets; fixed once it exists.", minimum=1, maximum=10_000
    )
    offsets_topic_segment_bytes: int = _setting(
        "offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", minimum=_MIB, maximum=INT_MAX
    )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic; what a topic does not set is taken from the broker."""

    cleanup_policy: str = _setting("cleanup.policy", "delete", "What happens to old records.", choices=("delete",), kind=Kind.LIST)
    compression_type: str = _setting("compression.type", "producer", "Batches stay as they were compressed.", choices=("producer",))
    segment_bytes: int = _setting(
        "segment.bytes", 1 << 30, "Size of a segment.", minimum=_MIB, maximum=INT_MAX, broker="log.segment.bytes"
    )
    segment_ms: int = _setting("segment.ms", 7 * _DAY, "Age of a segment.", minimum=1, broker="log.roll.ms")
    retention_ms: int = _setting("retention.ms", 7 * _DAY, "Age after which segments go.", minimum=-1, broker="log.retention.ms")
    retention_bytes: int = _setting(
        "retention.bytes", -1, "Size of a partition above which segments go.", minimum=-1, broker="log.retention.bytes"
    )
    file_delete_delay_ms: int = _setting(
        "file.delete.delay.ms", 60_000, "How long deleted files stay on disk.", broker="log.segment.delete.delay.ms"
    )
    index_interval_bytes: int = _setting(
        "index.interval.bytes", 4096, "Bytes between index entries.", maximum=INT_MAX, broker="log.index.interval.bytes"
    )
    segment_index_bytes: int = _setting(
        "segment.index.bytes", 10_485_760, "Size of an index.", minimum=4, maximum=INT_MAX, broker="log.index.size.max.bytes"
    )
    max_message_bytes: int = _setting(
        "max.message.bytes", 1_048_588, "The largest record batch.", maximum=INT_MAX, broker="message.max.bytes"
    )
    message_timestamp_type: str = _setting(
        "message.timestamp.type",
        "CreateTime",
        "Who stamps records.",
        choices=("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
    )
    message_timestamp_after_max_ms: int = _setting(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead a record may be stamped.",
        broker="log.message.timestamp.after.max.ms",
    )
    flush_messages: int = _setting(
        "flush.messages",
        LONG_MAX,
        "Records after which the log is forced to disk.",
        minimum=1,
        broker="log.flush.interval.messages",
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas", 1, "Replicas that must have a record: there is one.", minimum=1, maximum=1
    )


def _table(cls: type[Any]) -> dict[str, tuple[str, Setting]]:
    return {field.metadata["setting"].name: (field.name, field.metadata["setting"]) for field in dataclasses.fields(cls)}


BROKER_SETTINGS = _table(BrokerConfig)
TOPIC_SETTINGS = _table(TopicConfig)
"""Kafka's name -> (attribute, setting)."""


def broker_config(settings: Mapping[str, object]) -> BrokerConfig:
    """The broker's settings from Kafka's names; raises ``ConfigError`` for an unknown name or a bad value."""
    return BrokerConfig(**_parsed(settings, BROKER_SETTINGS, "broker"))


def topic_config(overrides: Mapping[str, object], broker: BrokerConfig) -> TopicConfig:
    """A topic's settings: its own over the broker's. Raises ``ConfigError`` as ``broker_config`` does."""
    values: dict[str, Any] = {
        attribute: getattr(broker, BROKER_SETTINGS[setting.broker_name][0])
        for attribute, setting in TOPIC_SETTINGS.values()
        if setting.broker_name is not None
    }
    return TopicConfig(**{**values, **_parsed(overrides, TOPIC_SETTINGS, "topic")})


def _parsed(given: Mapping[str, object], table: Mapping[str, tuple[str, Setting]], what: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in table:
            raise ConfigError(f"unknown {what} setting {name!r}", hint=_hint(name, table))
        attribute, setting = table[name]
        values[attribute] = setting.parse(value)
    return values


def _hint(name: str, known: Iterable[str]) -> str:
    of_topic = TOPIC_SETTINGS.get(name)
    if of_topic is not None and of_topic[1].broker_name is not None:
        return f"that is a topic's setting; the broker's default for it is {of_topic[1].broker_name}"
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "docs/broker.md lists those that are honoured"
