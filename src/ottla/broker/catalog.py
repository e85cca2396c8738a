"""The broker's settings, topics, logs and producer ids, and all persistent changes to them.

Owns the stored catalog, the changes since the last step, and the simulated full disk of a scripted fault. Must not know requests,
groups or transactions. Invariant: when a change returns, the stored state equals the state in effect.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.cluster import Cluster, TopicRegistration
from ottla.broker.config import CLUSTER_WIDE, BrokerConfig, with_changes
from ottla.broker.effects import FaultStruck, NodeEndpoint, Outbox, RunJob
from ottla.broker.faults.table import FaultTable
from ottla.broker.log import LogAppendInfo, PartitionLog
from ottla.broker.log_manager import LogManager
from ottla.broker.ports import (
    CatalogChange,
    DiskJob,
    DiskUsage,
    Ids,
    NextProducerId,
    Store,
    StoredSettings,
    StoredTopic,
    TopicDeleted,
)
from ottla.broker.producer_state import ProducerIdManager
from ottla.broker.stored_settings import describe_damage, merge, split_supported
from ottla.broker.topic_changes import TopicChanges
from ottla.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic, Topics, check_name
from ottla.coordinator.effects import ApiError
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader
from ottla.types import Now, TopicPartition

SYNC_CATALOG = ("sync-catalog",)
"""The tag of the job that forces the catalog to disk."""

log = logging.getLogger("ottla.broker")


class Endpoint(NamedTuple):
    """The address that clients connect to."""

    host: str
    port: int

    @property
    def listener(self) -> str:
        """The value of ``advertised.listeners``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"PLAINTEXT://{host}:{self.port}"


class BrokerCatalog:
    """The persistent state of one broker."""

    def __init__(self, config: BrokerConfig, endpoint: Endpoint, store: Store, ids: Ids) -> None:
        self.static_config = config
        self.config = config
        """The settings in effect: those given at start, overridden by those set since."""
        self.settings = StoredSettings()
        self._unsupported = StoredSettings()
        """Stored settings that this release does not support. They are preserved for a release that does."""
        self.endpoint = endpoint
        self.node_id = config.node_id
        self.cluster = Cluster(NodeEndpoint(config.node_id, *endpoint), is_alone=not config.zookeeper_connect)
        self.changes: TopicChanges
        """What carries out the changes that clients request. It is set before the broker starts."""
        self.cluster_id = store.cluster_id
        self.log_dir = store.log_dir
        self.topics = Topics(config)
        self.outbox = Outbox()
        self.logs = LogManager(store, self.outbox)
        self.producer_ids = ProducerIdManager(0, self._reserve_producer_ids)
        self.faults = FaultTable(self._topic_name)
        self._store = store
        self._ids = ids
        self._coordinator_partition_counts = {
            OFFSETS_TOPIC: config.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: config.transaction_state_log_num_partitions,
        }
        self._changed_logs: dict[PartitionLog, None] = {}
        self._changed_topics: dict[str, None] = {}
        self._unsynced = self._syncing = self._sync_failed = False
        """Whether the catalog has changes that are not forced to disk, whether a sync is in progress, and whether the last one
        failed."""
        self._last_error: str | None = None
        """Why the last change could not be stored."""

    def load(
        self, now: Now, registered: Sequence[TopicRegistration] | None = None, first_producer_id: int | None = None
    ) -> list[str]:
        """Load settings, topics and logs; return a message for each damage and its consequence.

        ``registered``: the topics in ZooKeeper; those that are not among them were deleted while the broker was down.
        ``first_producer_id``: the first of the producer ids that this process may assign; ``None``: this broker is the only one
        that assigns any, so what it has stored tells.

        Raises ``ConfigError`` or ``OSError`` if the data cannot be used.
        """
        catalog = self._store.read_catalog()
        honoured, self._unsupported = split_supported(catalog.settings)
        self.settings = honoured._replace(cluster={**CLUSTER_WIDE, **honoured.cluster})
        try:
            self.config = with_changes(self.static_config, {**self.settings.cluster, **self.settings.broker})
        except ConfigError as error:
            raise ConfigError(
                f"a setting of the broker that is stored in the data directory cannot be used: {error}",
                hint="if another release of Ottla has stored it, start that release and delete the setting with kafka-configs; "
                "otherwise it contradicts a setting that the broker is started with",
            ) from error
        self.topics.reconfigure(self.config)
        for stored in catalog.topics:
            topic = self.topics.add(stored)
            if registered is None:
                self._store_partition_count(stored, topic)
        if registered is not None:
            try:
                self._adopt(registered)
            except ApiError as error:
                raise OSError(error.message) from error
        loaded = self.logs.load(self.topics, now, self.cluster.is_mine)
        warnings = [*describe_damage(self.topics, self._unsupported), *loaded]
        if first_producer_id is None:
            seen = [producer_id + 1 for log in self.logs for producer_id in log.producers.entries]
            first_producer_id = max([catalog.next_producer_id, *seen])
        self.producer_ids = ProducerIdManager(first_producer_id, self._reserve_producer_ids)
        return warnings

    def _adopt(self, registered: Sequence[TopicRegistration]) -> None:
        """Make the topics those in ZooKeeper, before the logs are loaded. What may refuse the start comes first."""
        for registration in registered:
            self._check_not_fewer(registration)
        wanted = {registration.name: registration for registration in registered}
        deleted = [topic for topic in self.topics if topic.name not in wanted or wanted[topic.name].topic_id != topic.topic_id]
        new = [one for one in registered if (known := self.topics.get(one.name)) is None or known.topic_id != one.topic_id]
        # Before anything is stored. Otherwise: 1. A topic is deleted, and created again while this broker is down. 2. The start
        # stores the new topic, and is interrupted. 3. The next one takes the offsets of the old topic for those of the new one.
        self.logs.drop_checkpoints(
            {TopicPartition(topic.name, partition) for topic in deleted for partition in topic.partitions}
            | {TopicPartition(one.name, partition) for one in new for partition in range(len(one.replicas))}
        )
        for topic in deleted:
            log.warning("topic %s was deleted while this broker was down; its records are removed", topic.name)
            self.delete_topic(topic)
            self.logs.delete_folders(topic)  # no log is loaded yet
        for registration in registered:
            try:
                check_name(registration.name)
                self.apply_registration(registration)
            except ApiError as error:
                if error.code is not ErrorCode.invalid_topic_exception:
                    raise
                log.warning("a topic in ZooKeeper cannot be used: %s", error.message)
            except ConfigError as error:
                log.warning("the settings of a topic in ZooKeeper cannot be used: %s", error)
                self.apply_registration(self.with_last_known_configs(registration))

    def _check_not_fewer(self, registration: TopicRegistration) -> None:
        """Raise ``ConfigError`` if ZooKeeper has fewer partitions of a topic than the data directory: the folders of the others
        would be taken for strays."""
        known = self.topics.get(registration.name)
        count = len(registration.replicas)
        if known is None or known.topic_id != registration.topic_id or known.settings_unknown:
            return  # unknown after a loss of the catalog: then the count is a guess
        if count < known.partition_count:
            raise ConfigError(
                f"topic {known.name} has {known.partition_count} partitions in the data directory, and {count} in ZooKeeper",
                hint="ZooKeeper has an older state, or someone has changed the node of the topic: restore it",
            )

    def with_last_known_configs(self, registration: TopicRegistration) -> TopicRegistration:
        """Return a topic of ZooKeeper with the settings that it has here, or none if it is a new one."""
        known = self.topics.get(registration.name)
        is_same = known is not None and known.topic_id == registration.topic_id
        return registration._replace(configs=known.stored().configs if known is not None and is_same else {})

    def take_changed_topics(self) -> dict[str, None]:
        """Return the topics created, deleted or changed since the last call."""
        changed, self._changed_topics = self._changed_topics, {}
        return changed

    def begin_catalog_sync(self) -> None:
        """Request a sync of the catalog, if it has changed."""
        if self._unsynced and not self._syncing:
            self._unsynced, self._syncing = False, True
            self.outbox.put(RunJob(SYNC_CATALOG, self._store.sync_catalog()))

    def close_catalog(self) -> list[DiskJob]:
        """Return the job that forces the catalog to disk, if it is needed."""
        return [self._store.sync_catalog()] if self._unsynced or self._syncing or self._sync_failed else []

    def on_catalog_synced(self, outcome: object) -> None:
        """Handle the end of a sync. The next sync covers changes made meanwhile."""
        self._syncing = False
        self._sync_failed = isinstance(outcome, Exception)

    def retry_catalog_sync(self) -> None:
        """Let the next step repeat a failed sync."""
        self._unsynced |= self._sync_failed

    def take_changed_logs(self) -> dict[PartitionLog, None]:
        """Return the logs that changed since the last call; fetches may wait for them."""
        touched, self._changed_logs = self._changed_logs, {}
        return touched

    @property
    def has_too_many_open_files(self) -> bool:
        """Whether so many files are open that fetch responses are read into memory."""
        return self._store.has_too_many_open_files

    def disk_usage(self) -> DiskUsage:
        """Return the total and free space of the disk. Raises ``OSError``."""
        return self._store.usage()

    def topic(self, name: str) -> Topic:
        """Return the topic with this name. Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic:
        """Return the topic with this id. Raises ``ApiError``: UNKNOWN_TOPIC_ID."""
        topic = self.topics.by_id(topic_id)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}.")
        return topic

    def log(self, name: str, partition: int) -> PartitionLog:
        """Return the log of a partition by topic name. Raises ``ApiError``."""
        return self.log_of(self.topic(name), partition)

    def log_by_id(self, topic_id: uuid.UUID | None, partition: int) -> PartitionLog:
        """Return the log of a partition by topic id. Raises ``ApiError``."""
        return self.log_of(self.topic_by_id(topic_id), partition)

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> LogAppendInfo:
        """Append a validated batch and mark the log as changed, for fetches that wait for it. Raises ``ApiError`` if the disk
        fails."""
        if self.faults.active and (fault := self.faults.fail_append(log.topic_partition)) is not None:
            self.outbox.put(FaultStruck(fault))
            raise log.storage_error(
                ErrorCode.kafka_storage_error, f"broker.faults simulates a full disk for {log.topic_partition}."
            )
        try:
            appended = self.logs.append(log, batch, header, now)
        except OSError as error:
            raise log.storage_error(
                ErrorCode.kafka_storage_error, f"{log.topic_partition} could not be written to: {error}"
            ) from error
        self._changed_logs[log] = None
        return appended

    def get_or_create_topic(self, name: str) -> Topic:
        """Return the topic with this name, creating it with the broker's defaults if there is none. Raises ``ApiError``:
        LEADER_NOT_AVAILABLE while it is being created."""
        topic = self.topics.get(name)
        return topic if topic is not None else self.changes.create_missing(name)

    def leader_epoch(self, topic: Topic, partition: int) -> int:
        """Return the leader epoch of a partition, as far as it is known here."""
        if self.cluster.is_mine(topic, partition):
            return self.logs.leader_epoch(topic, partition)
        return self.cluster.leader_epoch_of_other(topic, partition)

    def apply_registration(self, registration: TopicRegistration) -> Topic:
        """Create or change a topic as ZooKeeper has it, and store it. Raises ``ApiError``, and ``ConfigError`` for settings that
        contradict those of the broker."""
        name, topic_id, replicas, configs = registration
        known = self.topics.get(name)
        if known is not None and known.topic_id != topic_id:
            self.delete_topic(known)
            known = None
        # Before it is stored: otherwise the next start would find the settings in the data directory, and be refused.
        topic = self.topics.of_stored(StoredTopic(name, topic_id, len(replicas), configs), replicas)
        if topic == known:
            return known
        if known is None or topic.stored() != known.stored():
            self._store_changes(topic.stored())
        self.cluster.note_change(known, self._put(topic))
        return topic

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic and store it. Raises ``ApiError``."""
        self.topics.check_new(name, partitions, configs)
        stored = StoredTopic(name, self._ids.new_uuid(), partitions, configs)
        self._store_changes(stored)
        self._changed_topics[name] = None
        topic = self.topics.add(stored)
        _warn_if_state_expires(topic)
        return topic

    def delete_records(self, log: PartitionLog, offset: int) -> None:
        """Make a log begin at ``offset``, unless it already begins later."""
        if offset > log.start_offset:
            log.increment_start_offset(offset)
            self._changed_logs[log] = None

    def replace_topic(self, topic: Topic) -> None:
        """Store and apply a topic's new partition count or settings. Raises ``ApiError``."""
        self._store_changes(topic.stored())
        self._put(topic)

    def _put(self, topic: Topic) -> Topic:
        """Apply a topic that is stored."""
        self.topics.put(topic)
        self.logs.reconfigure([topic])
        self._changed_topics[topic.name] = None
        _warn_if_state_expires(topic)
        return topic

    def alter_settings(self, settings: StoredSettings, validate_only: bool) -> None:
        """Validate, store and apply settings of the broker and of groups. Raises ``ApiError``."""
        try:
            config = with_changes(self.static_config, {**settings.cluster, **settings.broker})
            changed = config != self.config  # otherwise only group settings have changed
            if changed:
                self.topics.reconfigured(config)
        except ConfigError as error:
            raise ApiError(ErrorCode.invalid_request, str(error)) from error
        if validate_only:
            return
        self._store_changes(merge(settings, self._unsupported))
        self.settings, self.config = settings, config
        if changed:
            self.topics.reconfigure(config)
            self.logs.reconfigure(self.topics)

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its logs. Raises ``ApiError``."""
        self._store_changes(TopicDeleted(topic.name))
        self.topics.remove(topic)
        self.cluster.note_change(topic, None)
        self._changed_topics[topic.name] = None
        self._changed_logs.update(dict.fromkeys(self.logs.delete_logs(topic)))

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """Return the log of a partition. Raises ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if another broker
        has it, or KAFKA_STORAGE_ERROR if it is offline."""
        check_partition(topic, partition)
        if topic.replicas and (topic.replicas[partition] != self.node_id or self.cluster.is_displaced):
            raise ApiError(
                ErrorCode.not_leader_or_follower, f"{topic.name}-{partition} is led by broker {topic.replicas[partition]}."
            )
        log = self.logs.get(topic, partition)
        if log.offline is not None:
            raise ApiError(ErrorCode.kafka_storage_error, log.offline)
        return log

    def initial_partition_count(self, name: str, requested: int | None = None) -> int:
        """Return the partition count of a new topic: ``requested``, or the broker's default.

        The coordinators' topics always get the count in the broker's settings: the coordinators have already divided their groups
        and transactional ids among that many partitions. Kafka 4.3.1 creates them as requested; with 3 partitions it then served 5
        of 8 groups and no transactional producer.
        """
        fixed = self._coordinator_partition_counts.get(name)
        if fixed is None:
            return self.config.num_partitions if requested is None else requested
        return fixed

    def _store_partition_count(self, stored: StoredTopic, topic: Topic) -> None:
        """Store the partition count of a coordinator's topic that was lost and replaced by the setting, so that a different setting
        at the next start does not change it."""
        if stored.settings_unknown and topic.internal:
            with suppress(OSError):  # the next start retries
                self._store.change_catalog(topic.stored())

    def _store_changes(self, *changes: CatalogChange) -> None:
        try:
            for change in changes:
                if isinstance(change, StoredTopic):
                    self.logs.replace_outdated_checkpoints(change.name, change.partitions)
            self._store.change_catalog(*changes)
        except OSError as error:
            if str(error) != self._last_error:  # once, not for each attempt; most clients do not receive the reason
                log.error("a change of topics or settings could not be stored: %s", error)
            self._last_error = str(error)
            raise ApiError(ErrorCode.kafka_storage_error, f"The change could not be stored: {error}") from error
        self._last_error = None
        self._unsynced = True

    def _reserve_producer_ids(self, limit: int) -> None:
        self._store_changes(NextProducerId(limit))

    def _topic_name(self, topic_id: uuid.UUID) -> str | None:
        topic = self.topics.by_id(topic_id)
        return topic.name if topic is not None else None


def check_partition(topic: Topic, partition: int) -> None:
    """Raise ``ApiError`` if a topic has no such partition: UNKNOWN_TOPIC_OR_PARTITION."""
    if not 0 <= partition < topic.partition_count:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"Topic '{topic.name}' has {topic.partition_count} partition(s); there is no partition {partition}.",
        )


def _warn_if_state_expires(topic: Topic) -> None:
    """Warn of settings with which a coordinator's state expires. Kafka allows them too."""
    if topic.internal and topic.config.expiring:
        policy = topic.config.cleanup_policy
        log.warning(
            "%s has cleanup.policy=%s: its records expire, and the next start does not find them; set cleanup.policy=compact",
            topic.name,
            policy,
        )
