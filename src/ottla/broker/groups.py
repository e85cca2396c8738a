"""The group coordinator inside the broker: its appends go to ``__consumer_offsets``, what was appended comes back to it.

Owns the translation of the coordinator's effects into the broker's, and the batches of appends. Must not know what a group is.
Invariant: what groups decide in one turn of the event loop is written at its end, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_partitions import CoordinatorPartitions
from ottla.broker.effects import JobTag, NodeEndpoint, RequestContext, RunJob, TimerKey
from ottla.broker.group_log import read_groups
from ottla.broker.ports import Ids
from ottla.broker.state_log import StateLog
from ottla.broker.stored_settings import StoredGroupConfigs
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.consumer.regex import resolve_all
from ottla.coordinator.coordinator import GroupCoordinator, GroupCoordinatorEffect
from ottla.coordinator.effects import Append, ProducerStamp, ResolvedRegexes, ResolveRegexes
from ottla.coordinator.events import DurableEvent
from ottla.errors import ConfigError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import encode_batch
from ottla.types import Now, TopicPartition

OF_CLIENT_ASSIGNORS = {Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT}


class Groups:
    """The coordinator of all groups of this broker."""

    @property
    def served(self) -> frozenset[Api]:
        """The APIs that the coordinator answers: those of client-side assignors if enabled."""
        if self._config.group_consumer_client_assignors_enable:
            return frozenset(GroupCoordinator.APIS)
        return frozenset(GroupCoordinator.APIS) - OF_CLIENT_ASSIGNORS

    def __init__(self, catalog: BrokerCatalog, config: BrokerConfig, ids: Ids, assignors: Mapping[str, PartitionAssignor]) -> None:
        self._catalog = catalog
        self._assignors = assignors
        self._config = config
        self._ids = ids
        self._log = StateLog(catalog, OFFSETS_TOPIC, config.offsets_topic_num_partitions, "group")
        self._renew()

    def _renew(self) -> None:
        """Begin with a coordinator that has no partition yet."""
        self._coordinator = GroupCoordinator(
            self._group_config(),
            self._catalog.topics,
            self._ids,
            assignors=self._assignors,
            configs=StoredGroupConfigs(lambda: self._catalog.settings, lambda: self._catalog.config),
        )
        self._partitions: CoordinatorPartitions[Sequence[DurableEvent], GroupCoordinatorEffect] = CoordinatorPartitions(
            self._coordinator, self._log, self._catalog.outbox, "group", read=read_groups, empty=(), perform=self._perform
        )

    def start(self, now: Now) -> None:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._renew()
        self._partitions.take_over_all(now)

    def reconfigure(self) -> None:
        """The broker's settings have changed: those of groups hold at once."""
        self._coordinator.reconfigure(self._group_config())

    def offsets_partition_of(self, group_id: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that a group lives in."""
        return TopicPartition(OFFSETS_TOPIC, self._coordinator.partition_for(group_id))

    def check_loaded(self, partition: int) -> None:
        """Check that the log of a partition is not being read: the reader might or might not see the write. Raises ``ApiError``."""
        if self._partitions.ownership.is_loading(partition):
            raise ApiError(ErrorCode.coordinator_load_in_progress, f"{OFFSETS_TOPIC}-{partition} is being read.")

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """The marker of a transaction is in a partition: its offsets count from now on, or never did."""
        self._partitions.execute(self._coordinator.end_transaction(partition, producer_id, commit, now), now)

    def coordinator_of(self, group_id: str) -> NodeEndpoint | None:
        """The coordinator of a group: this broker, unless a scripted fault names another, or none (``None``)."""
        return self._partitions.ownership.endpoint_of(self._coordinator.partition_for(group_id), self._catalog.place)

    def move_away(self, fault: int, group_id: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a group, or all; ``to`` is the new owner in answers."""
        self.write_decided(now)
        self._partitions.move_away(fault, group_id, to, now)

    def come_back(self, fault: int, now: Now) -> None:
        """Take over again what was given up because of a fault."""
        self._partitions.come_back(fault, now)

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> int:
        """Expire the sessions of some members of a group; return their number."""
        count, effects = self._coordinator.expire_members(group_id, fits, now)
        self._partitions.execute(effects, now)
        return count

    def ensure_topic(self) -> None:
        """Create ``__consumer_offsets`` if it is not there yet; ``ApiError`` where that fails."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """A request of one of the ``served`` APIs."""
        self._partitions.execute(self._coordinator.handle(context, message, now), now)

    @property
    def has_decided(self) -> bool:
        """Whether anything was decided that is not written yet."""
        return self._log.has_gathered

    def write_decided(self, now: Now) -> None:
        """Append what was decided since the last time, one batch a partition, and what follows from that, until nothing is left."""
        while self._log.has_gathered:
            self._partitions.execute(self._write(self._log.take_batch(), now), now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """One of the coordinator's timers has come."""
        self._partitions.execute(self._coordinator.on_timer(key, now), now)

    def on_topics_changed(self, topics: Collection[str], now: Now) -> None:
        """Topics were created, were deleted or have more partitions."""
        self._partitions.execute(self._coordinator.on_topics_changed(topics, now), now)

    def on_disconnect(self, connection: int, now: Now) -> None:
        """A connection is gone."""
        self._partitions.execute(self._coordinator.on_disconnect(connection, now), now)

    def load_again(self, partition: int, now: Now) -> None:
        """Try again to read a partition that could not be read."""
        self._partitions.load_again(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """The disk thread has read a partition, has forced a batch to disk, or has matched regular expressions."""
        match tag:
            case ("load", int(partition)):
                self._partitions.on_loaded(partition, outcome, now)
            case ("flush", int(partition), int(batch)):
                self._partitions.on_flushed(partition, batch, outcome, now)
            case ("regexes", str(group_id)):
                matches = outcome if isinstance(outcome, ResolvedRegexes) else None
                self._partitions.execute(self._coordinator.on_regexes_resolved(group_id, matches, now), now)
            case _:
                raise AssertionError(f"no such job: {tag}")

    def _group_config(self) -> GroupConfig:
        config = self._catalog.config
        return GroupConfig(
            offsets_topic_partitions=self._log.partition_count,
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            group_consumer_min_session_timeout_ms=config.group_consumer_min_session_timeout_ms,
            group_consumer_max_session_timeout_ms=config.group_consumer_max_session_timeout_ms,
            group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            group_consumer_min_heartbeat_interval_ms=config.group_consumer_min_heartbeat_interval_ms,
            group_consumer_max_heartbeat_interval_ms=config.group_consumer_max_heartbeat_interval_ms,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_migration_policy=config.group_consumer_migration_policy,
            group_consumer_client_assignors_enable=config.group_consumer_client_assignors_enable,
            group_consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            group_consumer_min_assignment_interval_ms=config.group_consumer_min_assignment_interval_ms,
            group_consumer_max_assignment_interval_ms=config.group_consumer_max_assignment_interval_ms,
            group_consumer_regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        )

    def _perform(self, effect: GroupCoordinatorEffect, now: Now) -> Iterable[GroupCoordinatorEffect]:
        """Put an effect into the outbox, except appends: those are collected or written."""
        if isinstance(effect, Append):
            if effect.producer is not None:  # a batch has one producer: it would have to wait alone
                return self._write([effect], now)
            self._log.gather(effect)
        elif isinstance(effect, ResolveRegexes):
            self._catalog.outbox.put(RunJob(("group", "regexes", effect.group_id), partial(resolve_all, effect)))
        else:
            self._catalog.outbox.put(effect)
        return ()

    def _write(self, appends: Sequence[Append], now: Now) -> list[GroupCoordinatorEffect]:
        """Write one atomic batch; returns what the coordinator says to the outcome, where that is known at once."""
        return self._log.append(self._coordinator, appends, partial(_encoded, appends, now.wall), now)


def _encoded(appends: Sequence[Append], wall: int) -> bytes:
    records = [(key, value, (), wall) for append in appends for key, value in append.records]
    # Always sequence 0, with or without a producer id, as Kafka's coordinator writes them.
    producer = appends[0].producer
    stamp = producer or ProducerStamp()
    return encode_batch(
        records,
        base_sequence=0,
        producer_id=stamp.producer_id,
        producer_epoch=stamp.epoch,
        transactional=producer is not None,
    )


def offered(config: BrokerConfig, own: Mapping[str, PartitionAssignor]) -> dict[str, PartitionAssignor]:
    """The assignors that members of consumer groups may ask for, the default first: those of ``group.consumer.assignors``, then
    the user's own that are not among them. Raises ``ConfigError`` for an unknown name."""
    known: dict[str, PartitionAssignor] = {**SERVER_ASSIGNORS, **own}
    wanted = [name.strip() for name in config.group_consumer_assignors.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigError(
            f"group.consumer.assignors={config.group_consumer_assignors!r} names {', '.join(unknown) or 'no assignor'}",
            hint=f"there are {', '.join(known)}; Broker(assignors=...) adds others",
        )
    return {name: known[name] for name in dict.fromkeys((*wanted, *own))}
