"""The table of all settings of the broker, its topics and its groups, by Kafka's names.

Owns names, types, defaults, bounds and descriptions. Must not know the use of a setting. Invariant: a setting in this table has
an effect, or its description says why it has none; other settings are refused, and the error has the nearest name. Topics have
all settings that they have in Kafka.

The table is the fields of three frozen dataclasses, so that the rest of the broker reads typed attributes. Source: "Broker
Configs" and "Topic Configs" in Kafka's documentation; defaults and bounds are those of Apache Kafka 4.3.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.broker.setting import INT_MAX, LONG_MAX, LONG_MIN, ConfigType, Setting, setting as _setting
from ottla.broker.topic_config import CODECS, POLICIES, TopicConfig
from ottla.errors import ConfigError

_MIB = 1 << 20
_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a broker. Times in milliseconds, sizes in bytes, unless the name says otherwise."""

    node_id: int = _setting(
        "node.id",
        1,
        "The number of this broker in its cluster. With ZooKeeper, a broker without one gets a new one, from 1001 on.",
        maximum=INT_MAX,
    )
    advertised_listeners: str = _setting(
        "advertised.listeners",
        "",
        "The address that clients connect to, as PLAINTEXT://host:port; empty: the address on which the broker listens.",
        kind=ConfigType.LIST,
    )
    zookeeper_connect: str = _setting(
        "zookeeper.connect",
        "",
        "The ZooKeeper of the cluster, as host:port,host:port/chroot; empty: this broker is its whole cluster.",
    )
    zookeeper_session_timeout_ms: int = _setting(
        "zookeeper.session.timeout.ms",
        18_000,
        "How long a broker that was killed, or is cut off, stays registered in ZooKeeper.",
        minimum=100,
        maximum=INT_MAX,
    )
    zookeeper_connection_timeout_ms: int = _setting(
        "zookeeper.connection.timeout.ms",
        18_000,
        "How long a start waits for ZooKeeper, and a change of topics for its answer.",
        minimum=100,
        maximum=INT_MAX,
    )
    num_partitions: int = _setting(
        "num.partitions", 1, "Partitions of a topic that is created without a number.", minimum=1, maximum=10_000
    )
    auto_create_topics_enable: bool = _setting("auto.create.topics.enable", True, "Whether requesting an unknown topic creates it.")
    delete_topic_enable: bool = _setting("delete.topic.enable", True, "Whether topics can be deleted.")
    message_max_bytes: int = _setting("message.max.bytes", 1_048_588, "The largest record batch.", maximum=INT_MAX, dynamic=True)
    fetch_max_bytes: int = _setting("fetch.max.bytes", 57_671_680, "The largest answer to a fetch.", minimum=1024, maximum=INT_MAX)
    max_incremental_fetch_session_cache_slots: int = _setting(
        "max.incremental.fetch.session.cache.slots", 1000, "The maximum number of fetch sessions.", maximum=INT_MAX
    )
    socket_request_max_bytes: int = _setting(
        "socket.request.max.bytes", 104_857_600, "The largest request.", minimum=1, maximum=INT_MAX
    )
    connections_max_idle_ms: int = _setting(
        "connections.max.idle.ms", 600_000, "A connection without traffic for this long is closed.", minimum=1
    )
    log_segment_bytes: int = _setting(
        "log.segment.bytes", 1 << 30, "Size at which a log starts a new segment.", minimum=_MIB, maximum=INT_MAX, dynamic=True
    )
    log_roll_ms: int = _setting("log.roll.ms", 7 * _DAY, "Age at which a log starts a new segment.", minimum=1, dynamic=True)
    log_roll_jitter_ms: int = _setting(
        "log.roll.jitter.ms", 0, "By how much that age may be less, so that not all logs roll at once.", dynamic=True
    )
    log_retention_ms: int = _setting(
        "log.retention.ms", 7 * _DAY, "Age after which segments are deleted; -1: never.", minimum=-1, dynamic=True
    )
    log_retention_bytes: int = _setting(
        "log.retention.bytes", -1, "Size above which old segments are deleted; below 0: never.", minimum=LONG_MIN, dynamic=True
    )
    log_retention_check_interval_ms: int = _setting(
        "log.retention.check.interval.ms", 300_000, "How often retention checks the logs.", minimum=1
    )
    log_segment_delete_delay_ms: int = _setting(
        "log.segment.delete.delay.ms", 60_000, "How long a dropped file stays on disk as .deleted.", dynamic=True
    )
    log_index_interval_bytes: int = _setting(
        "log.index.interval.bytes", 4096, "Bytes of log between two index entries.", maximum=INT_MAX, dynamic=True
    )
    log_index_size_max_bytes: int = _setting(
        "log.index.size.max.bytes",
        10_485_760,
        "Size of an index at which a new segment is started.",
        minimum=4,
        maximum=INT_MAX,
        dynamic=True,
    )
    log_cleanup_policy: str = _setting(
        "log.cleanup.policy",
        "delete",
        "What happens to old records: delete, compact, both (delete,compact) or nothing.",
        choices=POLICIES,
        kind=ConfigType.LIST,
        dynamic=True,
    )
    log_cleaner_backoff_ms: int = _setting(
        "log.cleaner.backoff.ms", 15_000, "How often compacted logs are checked.", minimum=1, dynamic=True
    )
    log_cleaner_dedupe_buffer_size: int = _setting(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "Memory for the keys of one cleaning; a longer log is cleaned in several.",
        minimum=_MIB,
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = _setting(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of a compacted log that must be new before it is cleaned again.",
        maximum=1,
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms: int = _setting(
        "log.cleaner.min.compaction.lag.ms", 0, "Younger records are not compacted away.", dynamic=True
    )
    log_cleaner_max_compaction_lag_ms: int = _setting(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, "Older records are compacted at the next check.", minimum=1, dynamic=True
    )
    log_cleaner_delete_retention_ms: int = _setting(
        "log.cleaner.delete.retention.ms", _DAY, "How long a tombstone is kept after it was first compacted.", dynamic=True
    )
    compression_type: str = _setting(
        "compression.type", "producer", "How batches are stored; producer: as sent.", choices=CODECS, dynamic=True
    )
    compression_gzip_level: int = _setting(
        "compression.gzip.level",
        -1,
        "Level of gzip when the broker compresses; -1: the library's default.",
        minimum=1,
        maximum=9,
        also=-1,
        dynamic=True,
    )
    compression_lz4_level: int = _setting(
        "compression.lz4.level", 9, "Level of lz4 when the broker compresses.", minimum=1, maximum=17, dynamic=True
    )
    compression_zstd_level: int = _setting(
        "compression.zstd.level", 3, "Level of zstd when the broker compresses.", minimum=-131_072, maximum=22, dynamic=True
    )
    log_message_timestamp_type: str = _setting(
        "log.message.timestamp.type",
        "CreateTime",
        "Whether producers or the broker set the timestamps of records.",
        choices=("CreateTime", "LogAppendTime"),
        dynamic=True,
    )
    log_message_timestamp_after_max_ms: int = _setting(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's timestamp may be ahead of the broker's clock.",
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = _setting(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
        dynamic=True,
    )
    log_flush_interval_messages: int = _setting(
        "log.flush.interval.messages",
        LONG_MAX,
        "Records after which a log is forced to disk before they are acknowledged.",
        minimum=1,
        dynamic=True,
    )
    log_flush_interval_ms: int = _setting(
        "log.flush.interval.ms",
        LONG_MAX,
        "Milliseconds that a record may wait until its log is forced to disk; no request waits for that.",
        dynamic=True,
    )
    log_flush_offset_checkpoint_interval_ms: int = _setting(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often the offsets up to which logs are safe on disk are recorded.",
        minimum=1,
        maximum=INT_MAX,
    )
    min_insync_replicas: int = _setting(
        "min.insync.replicas",
        1,
        "Replicas that must have what acks=all writes. There is one, which is enough, as in Kafka.",
        minimum=1,
        maximum=INT_MAX,
        dynamic=True,
    )
    producer_id_expiration_ms: int = _setting(
        "producer.id.expiration.ms",
        _DAY,
        "How long an idle idempotent producer is kept.",
        minimum=1,
        maximum=INT_MAX,
        dynamic=True,
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms",
        6_000,
        "The shortest session a member of a classic or central group may ask for.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_max_session_timeout_ms: int = _setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "The longest session a member of a classic or central group may ask for.",
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
    group_consumer_session_timeout_ms: int = _setting(
        "group.consumer.session.timeout.ms",
        45_000,
        "How long a member of a consumer group may be silent.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_min_session_timeout_ms: int = _setting(
        "group.consumer.min.session.timeout.ms",
        1_000,
        "The shortest session that can be set on a consumer group (Kafka's default is 45000).",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_max_session_timeout_ms: int = _setting(
        "group.consumer.max.session.timeout.ms",
        60_000,
        "The longest session that can be set on a consumer group.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_heartbeat_interval_ms: int = _setting(
        "group.consumer.heartbeat.interval.ms",
        1_000,
        "How often members of a consumer group send heartbeats, and learn what has changed (Kafka's default is 5000).",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_min_heartbeat_interval_ms: int = _setting(
        "group.consumer.min.heartbeat.interval.ms",
        100,
        "The shortest heartbeat interval that can be set on a consumer group (Kafka's default is 5000).",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_max_heartbeat_interval_ms: int = _setting(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The longest heartbeat interval that can be set on a consumer group.",
        minimum=1,
        maximum=INT_MAX,
    )
    group_consumer_max_size: int = _setting(
        "group.consumer.max.size", INT_MAX, "Members that a consumer group may have.", minimum=1, maximum=INT_MAX
    )
    group_consumer_migration_policy: str = _setting(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether groups with members may change between the classic and the consumer protocol.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        any_case=True,
    )
    group_consumer_assignors: str = _setting(
        "group.consumer.assignors", "uniform,range", "Assignors of consumer groups, the default first.", kind=ConfigType.LIST
    )
    group_consumer_client_assignors_enable: bool = _setting(
        "group.consumer.client.assignors.enable",
        False,
        "Whether members of consumer groups may compute the assignment themselves (only in Ottla).",
    )
    group_consumer_assignment_interval_ms: int = _setting(
        "group.consumer.assignment.interval.ms",
        0,
        "The minimum time between two assignments of a consumer group (Kafka's default is 1000).",
        maximum=INT_MAX,
        dynamic=True,
    )
    group_consumer_min_assignment_interval_ms: int = _setting(
        "group.consumer.min.assignment.interval.ms",
        0,
        "The shortest assignment interval of a consumer group.",
        maximum=INT_MAX,
    )
    group_consumer_max_assignment_interval_ms: int = _setting(
        "group.consumer.max.assignment.interval.ms",
        15_000,
        "The longest assignment interval of a consumer group.",
        maximum=INT_MAX,
    )
    group_consumer_regex_refresh_interval_ms: int = _setting(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "How often regular expressions of consumer groups are matched again even if no topic was created or deleted.",
        minimum=10_000,
        maximum=INT_MAX,
    )
    offset_metadata_max_bytes: int = _setting(
        "offset.metadata.max.bytes", 4096, "The maximum size of the metadata of a committed offset.", maximum=INT_MAX
    )
    offsets_retention_minutes: int = _setting(
        "offsets.retention.minutes", 10_080, "How long an unused committed offset is kept.", minimum=1, maximum=INT_MAX
    )
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms", 600_000, "How often expired offsets are searched for.", minimum=1
    )
    offsets_topic_num_partitions: int = _setting(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets; fixed once it exists.", minimum=1, maximum=10_000
    )
    offsets_topic_segment_bytes: int = _setting(
        "offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", minimum=_MIB, maximum=INT_MAX
    )
    transaction_max_timeout_ms: int = _setting(
        "transaction.max.timeout.ms", 900_000, "The longest transaction a producer may ask for.", minimum=1, maximum=INT_MAX
    )
    transactional_id_expiration_ms: int = _setting(
        "transactional.id.expiration.ms",
        604_800_000,
        "How long an unused transactional id is kept.",
        minimum=1,
        maximum=INT_MAX,
    )
    transaction_state_log_num_partitions: int = _setting(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state; fixed once it exists.",
        minimum=1,
        maximum=10_000,
    )
    transaction_state_log_segment_bytes: int = _setting(
        "transaction.state.log.segment.bytes", 104_857_600, "Segment size of __transaction_state.", minimum=_MIB, maximum=INT_MAX
    )
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    """The names of the settings that the broker was started with, even if they equal the defaults."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of one consumer group. Defaults and bounds are the broker's settings."""

    consumer_session_timeout_ms: int = _setting(
        "consumer.session.timeout.ms",
        45_000,
        "How long a member may be silent.",
        minimum=1,
        maximum=INT_MAX,
        broker="group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms: int = _setting(
        "consumer.heartbeat.interval.ms",
        1_000,
        "How often members send heartbeats.",
        minimum=1,
        maximum=INT_MAX,
        broker="group.consumer.heartbeat.interval.ms",
    )
    consumer_assignment_interval_ms: int = _setting(
        "consumer.assignment.interval.ms",
        0,
        "The minimum time between two assignments.",
        maximum=INT_MAX,
        broker="group.consumer.assignment.interval.ms",
    )


def _table(cls: type[Any]) -> dict[str, tuple[str, Setting]]:
    rows = [(field.name, field.metadata["setting"]) for field in dataclasses.fields(cls) if "setting" in field.metadata]
    return {setting.name: (attribute, setting) for attribute, setting in rows}


BROKER_SETTINGS = _table(BrokerConfig)
TOPIC_SETTINGS = _table(TopicConfig)
GROUP_SETTINGS = _table(GroupSettings)
"""Kafka's name -> (attribute, setting)."""

CLUSTER_WIDE: Mapping[str, str] = {"min.insync.replicas": "1"}
"""Settings that a new cluster stores for all its brokers, with their values. They can be changed only for all brokers, and never
deleted: Kafka's controllers use them to track the replicas that may become leaders (KIP-966)."""


def broker_config(settings: Mapping[str, object]) -> BrokerConfig:
    """Return the settings of a broker. Raises ``ConfigError`` for unknown names, and for invalid or contradictory values."""
    return _check_consistency(BrokerConfig(**_parsed(settings, BROKER_SETTINGS, "broker"), given=frozenset(settings)))


def _check_consistency(config: BrokerConfig) -> BrokerConfig:
    for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
        value, least, most = (
            getattr(config, BROKER_SETTINGS[f"group.consumer.{bound}{name}"][0]) for bound in ("", "min.", "max.")
        )
        if not least <= value <= most:
            raise ConfigError(
                f"group.consumer.{name}={value} does not lie between {least} and {most}",
                hint=f"these are group.consumer.min.{name} and group.consumer.max.{name}",
            )
    if config.group_consumer_heartbeat_interval_ms >= config.group_consumer_session_timeout_ms:
        raise ConfigError(
            f"group.consumer.heartbeat.interval.ms={config.group_consumer_heartbeat_interval_ms} must be less than"
            f" group.consumer.session.timeout.ms={config.group_consumer_session_timeout_ms}"
        )
    return config


def topic_config(overrides: Mapping[str, object], broker: BrokerConfig) -> TopicConfig:
    """Return the settings of a topic: its own ones, otherwise the broker's. Raises ``ConfigError`` as ``broker_config`` does."""
    values: dict[str, Any] = {
        attribute: getattr(broker, BROKER_SETTINGS[setting.broker_name][0])
        for attribute, setting in TOPIC_SETTINGS.values()
        if setting.broker_name is not None
    }
    config = TopicConfig(**{**values, **_parsed(overrides, TOPIC_SETTINGS, "topic")})
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is more than "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    return config


def group_settings(overrides: Mapping[str, object], broker: BrokerConfig) -> dict[str, int]:
    """Return the settings of a group. Raises ``ConfigError`` as ``broker_config`` does, and for a value outside its bounds."""
    parsed = _parsed(overrides, GROUP_SETTINGS, "group")
    values: dict[str, int] = {}
    for name in overrides:
        values[name] = value = parsed[GROUP_SETTINGS[name][0]]
        for bound, beyond in (("min", value < group_bound(name, "min", broker)), ("max", value > group_bound(name, "max", broker))):
            if beyond:
                raise ConfigError(
                    f"{name}={value}: group.{name.replace('.', f'.{bound}.', 1)} is {group_bound(name, bound, broker)}"
                )
    return values


def group_bound(name: str, bound: str, broker: BrokerConfig) -> int:
    """The smallest ("min") or largest ("max") value that the broker lets a group have of a setting."""
    attribute, _ = BROKER_SETTINGS[f"group.{name.replace('.', f'.{bound}.', 1)}"]
    value: int = getattr(broker, attribute)
    return value


def with_changes(config: BrokerConfig, settings: Mapping[str, object]) -> BrokerConfig:
    """Return ``config`` with other settings changed. Raises ``ConfigError`` as ``broker_config`` does."""
    return _check_consistency(dataclasses.replace(config, **_parsed(settings, BROKER_SETTINGS, "broker")))


def _parsed(given: Mapping[str, object], table: Mapping[str, tuple[str, Setting]], what: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in table:
            raise ConfigError(f"Unknown {what} config name: {name}", hint=_hint(name, table))
        attribute, setting = table[name]
        values[attribute] = setting.parse(value)
    return values


def _hint(name: str, known: Iterable[str]) -> str:
    of_topic = TOPIC_SETTINGS.get(name)
    if of_topic is not None and of_topic[1].broker_name is not None:
        return f"that is a topic's setting; the broker's default for it is {of_topic[1].broker_name}"
    if known is BROKER_SETTINGS and name.lower() in _ELSEWHERE:
        return _ELSEWHERE[name.lower()]
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "docs/broker.md lists the supported ones"


_PLACE = "give Broker its address: Broker(host=..., port=...)"
_FOLDER = "give Broker its folder: Broker(data_dir=...)"
_ALONE = "there is no controller here: leave it out"
_ELSEWHERE: Mapping[str, str] = {
    "listeners": _PLACE,
    "host.name": _PLACE,
    "port": _PLACE,
    "host": _PLACE,
    "log.dir": _FOLDER,
    "log.dirs": _FOLDER,
    "data_dir": _FOLDER,
    "broker.id": "it is called node.id here",
    "process.roles": _ALONE,
    "controller.quorum.voters": _ALONE,
    "controller.quorum.bootstrap.servers": _ALONE,
    "controller.listener.names": _ALONE,
}
"""Settings of Kafka's ``server.properties`` that ``settings`` does not accept -> what to do instead."""
