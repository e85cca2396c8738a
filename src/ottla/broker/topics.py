"""All topics: names, ids, partition counts and settings, and the rules for new and changed ones.

Owns the image of the topics and the checks of CreateTopics, CreatePartitions and AlterConfigs. Must not know logs or requests.
Invariant: names and ids are unique, and no two names differ only in ``.`` and ``_``, since they would collide in metric names.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ottla.broker.config import TOPIC_SETTINGS, BrokerConfig, topic_config
from ottla.broker.ports import StoredTopic
from ottla.broker.topic_config import NO_CLEANUP, TopicConfig
from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode

OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
INTERNAL_TOPICS = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
MAX_NEW_PARTITIONS = 10_000
"""The maximum number of partitions of a new topic, as in Kafka."""

_CONFIGS_KEPT = 1024
"""The number of different topic settings that are cached, so that topics with the same settings share them."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. ``overrides``: its own settings; ``config``: all settings in effect."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    config: TopicConfig
    overrides: Mapping[str, str]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Stored settings that this release does not support. They are preserved for a release that does."""
    settings_unknown: bool = False
    """Whether some of its settings are lost. Then nothing in it is deleted or compacted until settings are set."""
    replicas: tuple[int, ...] = ()
    """The broker of each partition, as ZooKeeper says; empty without ZooKeeper: this broker has all."""

    @property
    def internal(self) -> bool:
        """Whether it is one of the coordinators' topics."""
        return self.name in INTERNAL_TOPICS

    @property
    def partitions(self) -> range:
        """The partition numbers."""
        return range(self.partition_count)

    def stored(self) -> StoredTopic:
        """Return the topic as it is stored."""
        configs = {**self.unsupported, **self.overrides}
        return StoredTopic(self.name, self.topic_id, self.partition_count, configs, self.settings_unknown)


class Topics:
    """All topics by name and by id."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._config_of = _configs_under(config)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._alike: dict[str, str] = {}
        """The names of topics, by the name with ``_`` for every ``.``: two topics with the same form would collide."""
        self._version = 0

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        """The topic of a name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: uuid.UUID | None) -> Topic | None:
        """The topic of an id."""
        return self._by_id.get(topic_id) if topic_id is not None else None

    def topic_id(self, name: str) -> uuid.UUID | None:
        """For the coordinator: the id of a name."""
        topic = self._by_name.get(name)
        return topic.topic_id if topic is not None else None

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """For the coordinator: the name of an id."""
        topic = self._by_id.get(topic_id)
        return topic.name if topic is not None else None

    def partition_count(self, name: str) -> int | None:
        """For the coordinator: how many partitions a topic has."""
        topic = self._by_name.get(name)
        return topic.partition_count if topic is not None else None

    def names(self) -> Collection[str]:
        """For the coordinator: the names of all topics."""
        return self._by_name.keys()

    @property
    def version(self) -> int:
        """For the coordinator: grows whenever a topic is created, is deleted or gets more partitions."""
        return self._version

    def add(self, stored: StoredTopic) -> Topic:
        """Add a stored or new topic to the image. Raises what ``of_stored`` raises."""
        return self.put(self.of_stored(stored))

    def of_stored(self, stored: StoredTopic, replicas: tuple[int, ...] = ()) -> Topic:
        """Return a stored or new topic under the settings of the broker; the image stays as it is.

        If a value is not supported by this release, the settings count as unknown, except those of an internal topic. Raises
        ``ConfigError`` if the topic's settings and the broker's contradict each other.
        """
        internal = internal_configs(stored.name, self._config)
        values = {name: value for name, value in stored.configs.items() if _is_valid(name, value)}
        overrides = {**internal, **values}
        unsupported = {name: value for name, value in stored.configs.items() if name not in values}
        unknown = not internal and (stored.settings_unknown or any(name in TOPIC_SETTINGS for name in unsupported))
        try:
            config = self._config_of(overrides, unknown)
        except ConfigError as error:
            raise ConfigError(
                f"topic {stored.name}: {error}", hint="start the broker with other settings, and change those of the topic"
            ) from error
        partitions = stored.partitions
        if stored.settings_unknown and internal:  # the folders show only the partitions that were written to
            partitions = max(partitions, _internal_partitions(stored.name, self._config))
        return Topic(stored.name, stored.topic_id, partitions, config, overrides, unsupported, unknown, replicas)

    def put(self, topic: Topic) -> Topic:
        """Add a topic to the image, or replace the one with its id."""
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
        self._alike[alike_name(topic.name)] = topic.name
        self._version += 1
        return topic

    def altered(self, topic: Topic, overrides: Mapping[str, str]) -> Topic:
        """Return the topic with other settings, which count as known. Raises ``ApiError``: INVALID_CONFIG."""
        try:
            overrides = {**internal_configs(topic.name, self._config), **overrides}
            unsupported = {name: value for name, value in topic.unsupported.items() if name not in TOPIC_SETTINGS}
            config = self._config_of(overrides, False)
            return replace(topic, config=config, overrides=overrides, unsupported=unsupported, settings_unknown=False)
        except ConfigError as error:
            raise ApiError(ErrorCode.invalid_config, str(error)) from error

    def with_partitions(self, topic: Topic, partitions: int) -> Topic:
        """Return the topic with more partitions. Raises ``ApiError``: INVALID_PARTITIONS if they are not more, POLICY_VIOLATION if
        they are too many, INVALID_REQUEST if the topic is the broker's own."""
        count = topic.partition_count
        if topic.internal:
            # The hash of a group or a transactional id, modulo this number, determines the partition of its records. Kafka 4.3.1
            # allows the change and uses the old number until its next start, which did not find the offsets of 28 of 30 groups.
            raise ApiError(
                ErrorCode.invalid_request,
                f"Topic '{topic.name}' keeps its {count} partition(s): groups and transactions would not be found in others.",
            )
        if partitions == count:
            raise ApiError(ErrorCode.invalid_partitions, f"Topic already has {count} partition(s).")
        if partitions < count:
            raise ApiError(
                ErrorCode.invalid_partitions,
                f"The topic {topic.name} currently has {count} partition(s); {partitions} would not be an increase.",
            )
        if partitions > MAX_NEW_PARTITIONS:
            raise ApiError(ErrorCode.policy_violation, f"{partitions} partitions: a topic may have {MAX_NEW_PARTITIONS} at most.")
        return replace(topic, partition_count=partitions)

    def reconfigured(self, config: BrokerConfig) -> list[Topic]:
        """Return all topics under other settings of the broker. Raises ``ConfigError`` if the settings contradict each other."""
        config_of = _configs_under(config)
        return [replace(topic, config=config_of(topic.overrides, topic.settings_unknown)) for topic in self]

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply other settings of the broker, which ``reconfigured`` has accepted."""
        topics = self.reconfigured(config)
        self._config, self._config_of = config, _configs_under(config)
        for topic in topics:
            self.put(topic)

    def remove(self, topic: Topic) -> None:
        """Remove a topic from the image."""
        del self._by_name[topic.name]
        with_id = self._by_id.get(topic.topic_id)
        if with_id is not None and with_id.name == topic.name:  # a data directory may have two topics with one id
            del self._by_id[topic.topic_id]
        if self._alike.get(alike_name(topic.name)) == topic.name:
            del self._alike[alike_name(topic.name)]
        self._version += 1

    def check_unused(self, name: str) -> None:
        """Raise ``ApiError`` if no topic with this name can be created."""
        check_name(name)
        if name in self._by_name:
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        alike = self._alike.get(alike_name(name))
        if alike is not None:
            raise ApiError(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {alike}")

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Raise ``ApiError`` if a topic cannot be created."""
        self.check_unused(name)
        if partitions <= 0:
            raise ApiError(
                ErrorCode.invalid_partitions, f"Number of partitions was set to an invalid non-positive value: {partitions}."
            )
        if partitions > MAX_NEW_PARTITIONS:
            raise ApiError(
                ErrorCode.policy_violation, f"{partitions} partitions: a topic may be created with {MAX_NEW_PARTITIONS} at most."
            )
        try:
            self._config_of(configs, False)
        except ConfigError as error:
            raise ApiError(ErrorCode.invalid_config, str(error)) from error


def check_name(name: str) -> None:
    """Raise ``ApiError`` if a name is not valid for a topic."""
    if name in (".", "..") or _LEGAL.fullmatch(name) is None:
        raise ApiError(
            ErrorCode.invalid_topic_exception,
            f"Topic name {name[:260]!r} is illegal: 1 to 249 of the ASCII letters, digits, '.', '_' and '-', but not '.' or '..'.",
        )


def alike_name(name: str) -> str:
    """The form of a topic name in the names of metrics, which must be unique."""
    return name.replace(".", "_")


def _configs_under(broker: BrokerConfig) -> Callable[[Mapping[str, str], bool], TopicConfig]:
    """``topic_config`` with these settings of the broker; equal topic settings give the same object. Nothing is cleaned up if
    settings are unknown (True)."""

    @lru_cache(_CONFIGS_KEPT)
    def config_of(overrides: tuple[tuple[str, str], ...], unknown: bool) -> TopicConfig:
        config = topic_config(dict(overrides), broker)
        return replace(config, cleanup_policy=NO_CLEANUP) if unknown else config

    return lambda overrides, unknown: config_of(tuple(sorted(overrides.items())), unknown)


def _is_valid(name: str, value: str) -> bool:
    """Whether this release supports a topic's setting."""
    return name in TOPIC_SETTINGS and TOPIC_SETTINGS[name][1].accepts(value)


def _internal_partitions(name: str, broker: BrokerConfig) -> int:
    return broker.offsets_topic_num_partitions if name == OFFSETS_TOPIC else broker.transaction_state_log_num_partitions


def internal_configs(name: str, broker: BrokerConfig) -> dict[str, str]:
    """Return the settings of a new internal topic, whatever the broker's defaults for others."""
    segment_bytes = {
        OFFSETS_TOPIC: broker.offsets_topic_segment_bytes,
        TRANSACTIONS_TOPIC: broker.transaction_state_log_segment_bytes,
    }
    if name not in segment_bytes:
        return {}
    return {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(segment_bytes[name])}
