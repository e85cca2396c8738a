"""The group coordinator in the broker: its state comes from ``__consumer_offsets``, and its appends go there.

Owns the translation of the coordinator's effects into the broker's, the batches of appends, and the reading of the topic after a
start. Must not know the content of a group, or the meaning of a record. Invariants: the appends of one turn of the event loop are
written at its end, in order; to replay the records that ``read_groups`` retains gives the same state as to replay every record and
every marker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_log import CoordinatorLog, CoordinatorPartitions, LoadedLog, StoredSegment, read_entries
from ottla.broker.effects import JobTag, NodeEndpoint, RequestContext, RunJob, TimerKey
from ottla.broker.markers import marker_kind
from ottla.broker.ports import Ids
from ottla.broker.stored_settings import StoredGroupConfigs
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.consumer.regex import resolve_all
from ottla.coordinator.coordinator import GroupCoordinator, GroupCoordinatorEffect
from ottla.coordinator.effects import ApiError, Append, ProducerStamp, ResolvedRegexes, ResolveRegexes
from ottla.coordinator.events import DurableEvent, GroupRecord, events_of
from ottla.coordinator.state import Group, Offsets, PendingWrites
from ottla.errors import ConfigError, ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import ControlType, encode_batch
from ottla.types import Now, TopicPartition

CLIENT_ASSIGNOR_APIS = {Api.CONSUMER_GROUP_PREPARE_ASSIGNMENT, Api.CONSUMER_GROUP_INSTALL_ASSIGNMENT}


class GroupCoordinatorService:
    """The coordinator of all groups of this broker."""

    @property
    def served(self) -> frozenset[Api]:
        """The APIs that the coordinator serves; those of client-side assignors only if they are enabled."""
        if self._config.group_consumer_client_assignors_enable:
            return frozenset(GroupCoordinator.APIS)
        return frozenset(GroupCoordinator.APIS) - CLIENT_ASSIGNOR_APIS

    def __init__(self, catalog: BrokerCatalog, config: BrokerConfig, ids: Ids, assignors: Mapping[str, PartitionAssignor]) -> None:
        self._catalog = catalog
        self._assignors = assignors
        self._config = config
        self._ids = ids
        self._log = CoordinatorLog(catalog, OFFSETS_TOPIC, config.offsets_topic_num_partitions, "group")
        self._partitions: CoordinatorPartitions[Sequence[DurableEvent], GroupCoordinatorEffect] = CoordinatorPartitions(
            self._create_coordinator, self._log, catalog.outbox, "group", read=read_groups, empty=(), perform=self._perform
        )

    def _create_coordinator(self) -> GroupCoordinator:
        """Replace the coordinator by one without partitions."""
        self._coordinator = GroupCoordinator(
            self._group_config(),
            self._catalog.topics,
            self._ids,
            assignors=self._assignors,
            configs=StoredGroupConfigs(lambda: self._catalog.settings, lambda: self._catalog.config),
        )
        return self._coordinator

    def start(self, now: Now) -> None:
        """Load every partition: the empty ones at once, the others when the disk thread has read them."""
        self._partitions.start(now)

    def reconfigure(self) -> None:
        """Apply the broker's current settings to groups."""
        self._coordinator.reconfigure(self._group_config())

    def state_of(self, group_id: str) -> tuple[Group | None, Offsets] | None:
        """Return a group, ``None`` if there is none, and its committed offsets; ``None`` if its partition is not loaded."""
        return self._coordinator.state_of(group_id)

    def offsets_partition_of(self, group_id: str) -> TopicPartition:
        """Return the partition of ``__consumer_offsets`` that stores a group."""
        return TopicPartition(OFFSETS_TOPIC, self._coordinator.partition_for(group_id))

    def check_loaded(self, partition: int) -> None:
        """Raise ``ApiError`` while the log of a partition is being loaded.

        1. The disk thread reads the log. 2. Meanwhile a marker is appended. 3. Whether the reader reaches it is not known, and so
        not whether the loaded state includes it. So nothing is appended until the partition is loaded.
        """
        if self._partitions.ownership.is_loading(partition):
            raise ApiError(ErrorCode.coordinator_load_in_progress, f"{OFFSETS_TOPIC}-{partition} is being loaded.")

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """Apply the marker of a transaction to its pending offsets in a partition: commit or drop them."""
        self._partitions.execute(self._coordinator.end_transaction(partition, producer_id, commit, now), now)

    def coordinator_of(self, group_id: str) -> NodeEndpoint | None:
        """Return the coordinator of a group: the leader of its partition, the one that a scripted fault names, or ``None``."""
        return self._partitions.endpoint_of(group_id)

    def resign(self, fault: int, group_id: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a group, or all; responses name ``to`` as the new owner."""
        self.write_batches(now)
        self._partitions.resign(fault, group_id, to, now)

    def reclaim(self, fault: int, now: Now) -> None:
        """Load the partitions again that were given up because of a fault."""
        self._partitions.reclaim(fault, now)

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> int:
        """Expire the sessions of some members of a group; return their number."""
        count, effects = self._coordinator.expire_members(group_id, fits, now)
        self._partitions.execute(effects, now)
        return count

    def ensure_topic(self) -> None:
        """Create ``__consumer_offsets`` if it does not exist. Raises ``ApiError``."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """Handle a request of one of the ``served`` APIs."""
        self._partitions.execute(self._coordinator.handle(context, message, now), now)

    @property
    def has_pending_writes(self) -> bool:
        """Whether appends are queued."""
        return self._log.has_queued

    def write_batches(self, now: Now) -> None:
        """Write the queued appends, one batch per partition, and those that follow from them, until the queue is empty."""
        while self._log.has_queued:
            self._partitions.execute(self._write(self._log.take_batch(), now), now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """Handle one of the coordinator's timers."""
        self._partitions.execute(self._coordinator.on_timer(key, now), now)

    def on_topics_changed(self, topics: Collection[str], now: Now) -> None:
        """Handle created, deleted and extended topics, of which ``__consumer_offsets`` may be one."""
        self._partitions.follow_topic(now)
        self._partitions.execute(self._coordinator.on_topics_changed(topics, now), now)

    def retry_load(self, partition: int, now: Now) -> None:
        """Retry a failed load."""
        self._partitions.retry_load(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Handle the outcome of a job: a load, a flush, or the resolution of regular expressions."""
        match tag:
            case ("load", int(partition), int(load)):
                self._partitions.on_loaded(partition, load, outcome, now)
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
        """Perform an effect: queue or write appends, put all others into the outbox."""
        if isinstance(effect, Append):
            if effect.producer is not None:  # a batch has one producer, so it cannot be combined with others
                return self._write([effect], now)
            self._log.enqueue(effect)
        elif isinstance(effect, ResolveRegexes):
            self._catalog.outbox.put(RunJob(("group", "regexes", effect.group_id), partial(resolve_all, effect)))
        else:
            self._catalog.outbox.put(effect)
        return ()

    def _write(self, appends: Sequence[Append], now: Now) -> list[GroupCoordinatorEffect]:
        """Write one atomic batch; return the coordinator's effects if the outcome is known at once."""
        return self._log.append(self._coordinator, appends, partial(_encode, appends, now.wall), now)


def _encode(appends: Sequence[Append], wall: int) -> bytes:
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


def configured_assignors(config: BrokerConfig, own: Mapping[str, PartitionAssignor]) -> dict[str, PartitionAssignor]:
    """Return the assignors of consumer groups, the default first: those of ``group.consumer.assignors``, then the user's other
    ones. Raises ``ConfigError`` for an unknown name."""
    known: dict[str, PartitionAssignor] = {**SERVER_ASSIGNORS, **own}
    wanted = [name.strip() for name in config.group_consumer_assignors.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigError(
            f"group.consumer.assignors={config.group_consumer_assignors!r} names {', '.join(unknown) or 'no assignor'}",
            hint=f"there are {', '.join(known)}; Broker(assignors=...) adds others",
        )
    return {name: known[name] for name in dict.fromkeys((*wanted, *own))}


class CompactedGroupLog:
    """Takes records and markers in log order; ``records`` returns the remaining records."""

    def __init__(self) -> None:
        self._latest: dict[bytes, bytes | None] = {}
        self._pending = PendingWrites[bytes, tuple[bytes | None, ProducerStamp]]()

    def write(self, key: bytes, value: bytes | None) -> None:
        """Add a record that was written outside of transactions."""
        self._latest.pop(key, None)
        self._latest[key] = value
        if value is None:
            self._pending.forget(key)
        else:
            self._pending.supersede(key)

    def write_in_transaction(self, producer: ProducerStamp, key: bytes, value: bytes | None) -> None:
        """Add a record of a transaction. It takes effect when a marker commits it."""
        self._pending.write(producer.producer_id, key, (value, producer))

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker of a transaction."""
        for key, (value, _) in self._pending.end(producer_id, commit=commit):
            self._latest.pop(key, None)
            self._latest[key] = value

    def records(self) -> list[GroupRecord]:
        """Return the committed records, and those of open transactions: before the committed ones if one of these supersedes them,
        else after."""
        still_open = sorted(
            (written.number, written.superseded, (key, *written.value))
            for _, writes in self._pending.by_producer()
            for key, written in writes.items()
        )
        superseded = [record for _, is_superseded, record in still_open if is_superseded]
        return [*superseded, *self._latest.items(), *(record for _, is_superseded, record in still_open if not is_superseded)]


def read_groups(segments: Sequence[StoredSegment]) -> LoadedLog[Sequence[DurableEvent]]:
    """Read the state in a log from its segments, oldest first. Raises ``OSError``.

    This runs on the disk thread and includes the decoding: the event loop only replays the result.
    """
    latest = CompactedGroupLog()
    damages: list[str] = []
    for header, entries in read_entries(segments, damages):
        for key, value in entries:
            if key is None:  # coordinators write no record without a key
                continue
            if header.is_control:
                kind = marker_kind(key)
                if kind is not None:
                    latest.end(header.producer_id, commit=kind is ControlType.COMMIT)
            elif header.is_transactional:
                latest.write_in_transaction(ProducerStamp(header.producer_id, header.producer_epoch), key, value)
            else:
                latest.write(key, value)
    errors: list[ProtocolError] = []
    events = events_of(latest.records(), errors)
    damages += [f"a record cannot be decoded: {error}" for error in errors]
    return LoadedLog(events, {event.group_id for event in events}, damages)
