"""What a broker has: its settings, topics and logs, the ids that it gives out; and every change of them that outlasts the process.

Owns the stored catalog, the changes since the last look, and the simulated full disk of a scripted fault. Must
not know requests, groups or transactions. Invariant: what is stored and what holds are the same once a change has returned.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from ottla.broker.config import CLUSTER_WIDE, BrokerConfig, altered
from ottla.broker.effects import NodeEndpoint, Outbox, RunJob, Struck
from ottla.broker.faults.table import FaultTable
from ottla.broker.log import Appended, PartitionLog
from ottla.broker.logs import Logs
from ottla.broker.ports import CatalogChange, DiskUsage, Ids, Job, NextProducerId, Store, StoredSettings, StoredTopic, TopicDeleted
from ottla.broker.producers import ProducerIds
from ottla.broker.stored_settings import describe_damage, merged, split
from ottla.broker.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, Topic, Topics
from ottla.coordinator.api_error import ApiError
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode
from ottla.records import BatchHeader
from ottla.types import Now

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
    """See the module."""

    def __init__(self, config: BrokerConfig, endpoint: Endpoint, store: Store, ids: Ids) -> None:
        self.static_config = config
        self.config = config
        """The settings that hold: those it was started with, under what was set since."""
        self.settings = StoredSettings()
        self._not_honoured = StoredSettings()
        """What was stored and means nothing to this release: it is kept for one that knows it."""
        self.endpoint = endpoint
        self.node_id = config.node_id
        self.cluster_id = store.cluster_id
        self.log_dir = store.log_dir
        self.topics = Topics(config)
        self.outbox = Outbox()
        self.logs = Logs(store, self.outbox)
        self.producer_ids = ProducerIds(0, self._reserve_producer_ids)
        self.faults = FaultTable(self._name_of)
        self._store = store
        self._ids = ids
        self._of_coordinators = {
            OFFSETS_TOPIC: config.offsets_topic_num_partitions,
            TRANSACTIONS_TOPIC: config.transaction_state_log_num_partitions,
        }
        self._touched: dict[PartitionLog, None] = {}
        self._changed_topics: dict[str, None] = {}
        self._unsynced = self._syncing = self._sync_failed = False
        """Whether the catalog has changed since it was last forced to disk, whether that is in progress, and whether it failed."""
        self._complaint: str | None = None
        """Why the last change could not be stored."""

    def load(self, now: Now) -> list[str]:
        """Bring back settings, topics and logs; returns, in words, what was damaged and what follows from it.

        Raises ``ConfigError`` or ``OSError`` where the data cannot be used.
        """
        catalog = self._store.read_catalog()
        honoured, self._not_honoured = split(catalog.settings)
        self.settings = honoured._replace(cluster={**CLUSTER_WIDE, **honoured.cluster})
        try:
            self.config = altered(self.static_config, {**self.settings.cluster, **self.settings.broker})
        except ConfigError as error:
            raise ConfigError(
                f"a setting of the broker that is stored in the data directory cannot be used: {error}",
                hint="if another release of Ottla has stored it, start that release and delete the setting with kafka-configs; "
                "otherwise it contradicts a setting that the broker is started with",
            ) from error
        self.topics.reconfigure(self.config)
        for stored in catalog.topics:
            self._fix_partitions(stored, self.topics.add(stored))
        warnings = [*describe_damage(self.topics, self._not_honoured), *self.logs.load(self.topics, now)]
        seen = [producer_id for log in self.logs for producer_id in log.producers.known]
        self.producer_ids = ProducerIds(max([catalog.next_producer_id, *(one + 1 for one in seen)]), self._reserve_producer_ids)
        return warnings

    def take_changed_topics(self) -> dict[str, None]:
        """The topics that came, went or changed since the last call."""
        changed, self._changed_topics = self._changed_topics, {}
        return changed

    def begin_catalog_sync(self) -> None:
        """Request that the catalog be forced to disk, if it has changed."""
        if self._unsynced and not self._syncing:
            self._unsynced, self._syncing = False, True
            self.outbox.put(RunJob(SYNC_CATALOG, self._store.sync_catalog()))

    def close_catalog(self) -> list[Job]:
        """The job that forces the catalog to disk."""
        return [self._store.sync_catalog()] if self._unsynced or self._syncing or self._sync_failed else []

    def on_catalog_synced(self, outcome: object) -> None:
        """The catalog was forced to disk, or that failed. Changes made meanwhile are forced to disk the next time."""
        self._syncing = False
        self._sync_failed = isinstance(outcome, Exception)

    def retry_catalog_sync(self) -> None:
        """Retry what failed."""
        self._unsynced |= self._sync_failed

    def take_touched(self) -> dict[PartitionLog, None]:
        """The logs that changed since the last call and that requests may wait for."""
        touched, self._touched = self._touched, {}
        return touched

    @property
    def place(self) -> NodeEndpoint:
        """This broker as clients see it."""
        return NodeEndpoint(self.node_id, self.endpoint.host, self.endpoint.port)

    @property
    def is_crowded(self) -> bool:
        """Whether so many files are open that answers to fetches are read into memory."""
        return self._store.is_crowded

    def disk_usage(self) -> DiskUsage:
        """The disk that the logs are on. Raises ``OSError`` where it does not say."""
        return self._store.usage()

    def topic(self, name: str) -> Topic:
        """The topic of a name, or ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic:
        """The topic of an id, or ``ApiError``: UNKNOWN_TOPIC_ID."""
        topic = self.topics.by_id(topic_id)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}.")
        return topic

    def log(self, name: str, partition: int) -> PartitionLog:
        """The log of a partition by its topic's name, or ``ApiError``."""
        return self.log_of(self.topic(name), partition)

    def log_by_id(self, topic_id: uuid.UUID | None, partition: int) -> PartitionLog:
        """The log of a partition by its topic's id, or ``ApiError``."""
        return self.log_of(self.topic_by_id(topic_id), partition)

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> Appended:
        """Write a validated batch and remember to check the requests that wait for it; ``ApiError`` if the disk fails."""
        if self.faults.active and (fault := self.faults.full(log.topic_partition)) is not None:
            self.outbox.put(Struck(fault))
            raise log.failed(ErrorCode.kafka_storage_error, f"broker.faults let the disk of {log.topic_partition} be full.")
        try:
            appended = self.logs.append(log, batch, header, now)
        except OSError as error:
            raise log.failed(ErrorCode.kafka_storage_error, f"{log.topic_partition} could not be written to: {error}") from error
        self._touched[log] = None
        return appended

    def topic_or_new(self, name: str) -> Topic:
        """The topic of a name, created with the broker's defaults if need be; ``ApiError`` where it cannot be."""
        topic = self.topics.get(name)
        return topic if topic is not None else self.create_topic(name, self.partitions_of_new(name), {})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Make a topic that outlasts this process; ``ApiError`` where it cannot be."""
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
            log.start_at(offset)
            self._touched[log] = None

    def replace_topic(self, topic: Topic) -> None:
        """Let a topic have more partitions or other settings, at once; ``ApiError`` where that cannot be stored."""
        self._store_changes(topic.stored())
        self.topics.put(topic)
        self.logs.reconfigure([topic])
        self._changed_topics[topic.name] = None
        _warn_if_state_expires(topic)

    def alter_settings(self, settings: StoredSettings, validate_only: bool) -> None:
        """Let other settings of the broker and of groups hold, at once; ``ApiError`` where they cannot be or not be stored."""
        try:
            config = altered(self.static_config, {**settings.cluster, **settings.broker})
            changed = config != self.config  # otherwise only group settings have changed
            if changed:
                self.topics.reconfigured(config)
        except ConfigError as error:
            raise ApiError(ErrorCode.invalid_request, str(error)) from error
        if validate_only:
            return
        self._store_changes(merged(settings, self._not_honoured))
        self.settings, self.config = settings, config
        if changed:
            self.topics.reconfigure(config)
            self.logs.reconfigure(self.topics)

    def delete_topic(self, topic: Topic) -> None:
        """Forget a topic and give up its logs; ``ApiError`` where that cannot be stored."""
        self._store_changes(TopicDeleted(topic.name))
        self.topics.remove(topic)
        self._changed_topics[topic.name] = None
        self._touched.update(dict.fromkeys(self.logs.drop(topic)))

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition, or ``ApiError``: UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR if it is offline."""
        if not 0 <= partition < topic.partition_count:
            raise ApiError(
                ErrorCode.unknown_topic_or_partition,
                f"Topic '{topic.name}' has {topic.partition_count} partitions, no {partition}.",
            )
        log = self.logs.get(topic, partition)
        if log.offline is not None:
            raise ApiError(ErrorCode.kafka_storage_error, log.offline)
        return log

    def partitions_of_new(self, name: str, wanted: int | None = None) -> int:
        """How many partitions a new topic gets: ``wanted``, or the broker's default.

        The topics of the coordinators always have as many as the broker's settings say, since the coordinators have divided their
        groups and transactional ids among so many. Kafka 4.3.1 creates them as requested; with 3 partitions it then served 5 of 8
        groups and no transactional producer.
        """
        fixed = self._of_coordinators.get(name)
        if fixed is None:
            return self.config.num_partitions if wanted is None else wanted
        return fixed

    def _fix_partitions(self, stored: StoredTopic, topic: Topic) -> None:
        """Once the partition count of a coordinator's topic was lost and taken from the settings, it is stored: other settings at
        the next start may not change it."""
        if stored.settings_unknown and topic.internal:
            with suppress(OSError):  # the next start tries it again
                self._store.change_catalog(topic.stored())

    def _store_changes(self, *changes: CatalogChange) -> None:
        try:
            for change in changes:
                if isinstance(change, StoredTopic):
                    self.logs.forget_earlier(change.name, change.partitions)
            self._store.change_catalog(*changes)
        except OSError as error:
            if str(error) != self._complaint:  # one line, not one for each attempt; most clients are not told the reason
                log.error("a change of topics or settings could not be stored: %s", error)
            self._complaint = str(error)
            raise ApiError(ErrorCode.kafka_storage_error, f"The change could not be stored: {error}") from error
        self._complaint = None
        self._unsynced = True

    def _reserve_producer_ids(self, limit: int) -> None:
        self._store_changes(NextProducerId(limit))

    def _name_of(self, topic_id: uuid.UUID) -> str | None:
        topic = self.topics.by_id(topic_id)
        return topic.name if topic is not None else None


def _warn_if_state_expires(topic: Topic) -> None:
    """Kafka allows these settings, too."""
    if topic.internal and topic.config.expiring:
        policy = topic.config.cleanup_policy
        log.warning("%s has cleanup.policy=%s: what is in it expires, and the next start does not find it", topic.name, policy)
