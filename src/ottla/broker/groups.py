"""The group coordinator inside the broker: its appends go to ``__consumer_offsets``, what was appended comes back to it.

Owns the translation of the coordinator's effects into the broker's, and the loading of groups after a start. Must not know what
a group is. Invariant: a partition's groups are served only when all of its log was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import JobTag, Place, RequestContext, RunJob, SetTimer, TimerKey
from ottla.broker.group_configs import StoredGroupConfigs
from ottla.broker.group_log import read_groups
from ottla.broker.holdings import Holdings
from ottla.broker.ports import Ids
from ottla.broker.refusal import Refusal
from ottla.broker.state_log import StateLog
from ottla.broker.tenure import LOAD_RETRY_BACKOFF_MS, LOADING, OFFLINE, Tenure
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.consumer.regex import match_all
from ottla.coordinator.coordinator import Effect as GroupEffect, GroupCoordinator
from ottla.coordinator.effects import Append, MatchRegexes, ProducerStamp, RegexMatches
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

    def __init__(self, holdings: Holdings, config: BrokerConfig, ids: Ids, assignors: Mapping[str, PartitionAssignor]) -> None:
        self._holdings = holdings
        self._assignors = assignors
        self._config = config
        self._ids = ids
        self._log = StateLog(holdings, OFFSETS_TOPIC, config.offsets_topic_num_partitions, "group")
        self._coordinator = self._new_coordinator()
        self._tenure = Tenure()

    def start(self, now: Now) -> None:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._coordinator = self._new_coordinator()
        for partition in range(self._log.partition_count):
            self._take_over(partition, now)

    def reconfigure(self) -> None:
        """The broker's settings have changed: those of groups hold at once."""
        self._coordinator.reconfigure(self._group_config())

    def offsets_partition_of(self, group_id: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that a group lives in."""
        return TopicPartition(OFFSETS_TOPIC, self._coordinator.partition_for(group_id))

    def check_loaded(self, partition: int) -> None:
        """Check that a partition's log is not being read, since the reader might or might not see the write; raises ``Refusal``."""
        if self._tenure.is_loading(partition):
            raise Refusal(ErrorCode.coordinator_load_in_progress, f"{OFFSETS_TOPIC}-{partition} is being read.")

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> None:
        """The marker of a transaction is in a partition: its offsets count from now on, or never did."""
        self._execute(self._coordinator.end_transaction(partition, producer_id, commit, now), now)

    def coordinator_of(self, group_id: str) -> Place | None:
        """The coordinator of a group: this broker, unless a scripted fault names another, or none (``None``)."""
        return self._tenure.place_of(self._coordinator.partition_for(group_id), self._holdings.place)

    def move_away(self, fault: int, group_id: str | None, to: Place | None, now: Now) -> None:
        """Give up the partition of a group, or all; ``to`` is the new owner in answers."""
        every = range(self._log.partition_count)
        self.write_decided(now)
        for partition in every if group_id is None else (self._coordinator.partition_for(group_id),):
            self._tenure.give_up(partition, fault, to)
            self._execute(self._coordinator.unload(partition, now), now)

    def come_back(self, fault: int, now: Now) -> None:
        """Take over again what was given up because of a fault."""
        for partition in self._tenure.take_back(fault):
            self._take_over(partition, now)

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> int:
        """Expire the sessions of some members of a group; return their number."""
        count, effects = self._coordinator.expire_members(group_id, fits, now)
        self._execute(effects, now)
        return count

    def ensure_topic(self) -> None:
        """Create ``__consumer_offsets`` if it is not there yet; ``Refusal`` where that fails."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """A request of one of the ``served`` APIs."""
        self._execute(self._coordinator.handle(context, message, now), now)

    @property
    def has_decided(self) -> bool:
        """Whether anything was decided that is not written yet."""
        return self._log.has_gathered

    def write_decided(self, now: Now) -> None:
        """Append what was decided since the last time, one batch a partition, and what follows from that, until nothing is left."""
        while self._log.has_gathered:
            self._execute(self._write(self._log.take_batch(), now), now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """One of the coordinator's timers has come."""
        self._execute(self._coordinator.on_timer(key, now), now)

    def on_topics_changed(self, topics: Collection[str], now: Now) -> None:
        """Topics were created, were deleted or have more partitions."""
        self._execute(self._coordinator.on_topics_changed(topics, now), now)

    def on_disconnect(self, connection: int, now: Now) -> None:
        """A connection is gone."""
        self._execute(self._coordinator.on_disconnect(connection, now), now)

    def load_again(self, partition: int, now: Now) -> None:
        """Try again to read the partitions that could not be read."""
        if self._tenure.is_loading(partition):
            self._take_over(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """The disk thread has read a partition, or has forced a batch to disk."""
        match tag:
            case ("load", int(partition)):
                if isinstance(outcome, OSError):
                    self._holdings.outbox.put(SetTimer((LOADING, "group", partition), now.mono + LOAD_RETRY_BACKOFF_MS))
                if not self._tenure.has_loaded(partition, outcome):
                    return
                events, damages = cast("tuple[list[DurableEvent], list[str]]", outcome)
                self._log.report(partition, damages, {event.group_id for event in events})
                effects = self._coordinator.load(partition, events, now)
            case ("flush", int(partition), int(batch)):
                effects = self._log.flushed(self._coordinator, partition, batch, outcome, now)
            case ("regexes", str(group_id)):
                matches = outcome if isinstance(outcome, RegexMatches) else None
                effects = self._coordinator.on_regexes_matched(group_id, matches, now)
            case _:
                raise AssertionError(f"no such job: {tag}")
        self._execute(effects, now)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self._group_config(),
            self._holdings.topics,
            self._ids,
            assignors=self._assignors,
            configs=StoredGroupConfigs(lambda: self._holdings.settings, lambda: self._holdings.config),
        )

    def _group_config(self) -> GroupConfig:
        config = self._holdings.config
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

    def _take_over(self, partition: int, now: Now) -> None:
        if self._log.is_offline(partition):
            self._tenure.give_up(partition, OFFLINE, None)
            return
        segments = self._log.stored(partition)
        if not segments:
            self._log.report(partition, (), ())
            self._execute(self._coordinator.load(partition, (), now), now)
            return
        self._coordinator.start_loading(partition)
        self._tenure.start_loading(partition)
        self._holdings.outbox.put(RunJob(("group", "load", partition), partial(read_groups, segments)))

    def _execute(self, effects: Iterable[GroupEffect], now: Now) -> None:
        """Put effects into the outbox, in the order in which they were decided, except appends: those are collected or written."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Append):
                if effect.producer is None:
                    self._log.gather(effect)
                else:  # a batch has one producer: it would have to wait alone
                    todo += self._write([effect], now)
            elif isinstance(effect, MatchRegexes):
                self._holdings.outbox.put(RunJob(("group", "regexes", effect.group_id), partial(match_all, effect)))
            else:
                self._holdings.outbox.put(effect)

    def _write(self, appends: Sequence[Append], now: Now) -> list[GroupEffect]:
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
