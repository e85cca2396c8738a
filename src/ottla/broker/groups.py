"""The group coordinator inside the broker: its appends go to ``__consumer_offsets``, what was appended comes back to it.

Owns the translation of the coordinator's effects into the broker's, and the loading of groups after a start. Must not know what
a group is. Invariant: a partition's groups are served only when all of its log was read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from ottla.assignors import SERVER_ASSIGNORS, PartitionAssignor
from ottla.broker.config import BrokerConfig
from ottla.broker.effects import Effect, JobTag, Place, RequestContext, RunJob, TimerKey
from ottla.broker.group_configs import StoredGroupConfigs
from ottla.broker.group_log import read_groups
from ottla.broker.holdings import Holdings
from ottla.broker.ports import Ids
from ottla.broker.refusal import Refusal
from ottla.broker.state_log import StateLog
from ottla.broker.tenure import Tenure
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.consumer.regex import match_all
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.coordinator.effects import Append, Effect as GroupEffect, MatchRegexes, ProducerStamp, RegexMatches
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
        """The APIs that the coordinator answers: those of client-side assignors if it was told to."""
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

    def start(self, now: Now) -> list[Effect]:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._coordinator = self._new_coordinator()
        return [effect for partition in range(self._log.partition_count) for effect in self._take_over(partition, now)]

    def reconfigure(self) -> None:
        """The broker's settings have changed: those of groups hold at once."""
        self._coordinator.reconfigure(self._group_config())

    def offsets_partition_of(self, group_id: str) -> TopicPartition:
        """The partition of ``__consumer_offsets`` that a group lives in."""
        return TopicPartition(OFFSETS_TOPIC, self._coordinator.partition_for(group_id))

    def check_loaded(self, partition: int) -> None:
        """Whether nobody is reading a partition's log just now, who might or might not see what is written; raises ``Refusal``."""
        if self._tenure.is_loading(partition):
            raise Refusal(ErrorCode.coordinator_load_in_progress, f"{OFFSETS_TOPIC}-{partition} is being read.")

    def end_transaction(self, partition: int, producer_id: int, commit: bool, now: Now) -> list[Effect]:
        """The marker of a transaction is in a partition: its offsets count from now on, or never did."""
        return self._execute(self._coordinator.end_transaction(partition, producer_id, commit, now), now)

    def coordinator_of(self, group_id: str) -> Place | None:
        """Who coordinates a group: this broker, unless a scripted fault says another, or nobody (``None``)."""
        return self._tenure.place_of(self._coordinator.partition_for(group_id), self._holdings.place)

    def move_away(self, fault: int, group_id: str | None, to: Place | None, now: Now) -> list[Effect]:
        """Give up the partition of a group, or all; ``to`` is who is said to have it."""
        every = range(self._log.partition_count)
        done = self.write_decided(now)
        effects: list[GroupEffect] = []
        for partition in every if group_id is None else (self._coordinator.partition_for(group_id),):
            self._tenure.give_up(partition, fault, to)
            effects += self._coordinator.unload(partition, now)
        return done + self._execute(effects, now)

    def come_back(self, fault: int, now: Now) -> list[Effect]:
        """Take over again what was given up because of a fault."""
        return [effect for partition in self._tenure.take_back(fault) for effect in self._take_over(partition, now)]

    def expire_members(self, group_id: str, fits: Callable[[Any], bool], now: Now) -> tuple[int, list[Effect]]:
        """Let the sessions of some members of a group be over; also returns how many."""
        count, effects = self._coordinator.expire_members(group_id, fits, now)
        return count, self._execute(effects, now)

    def ensure_topic(self) -> None:
        """Create ``__consumer_offsets`` if it is not there yet; ``Refusal`` where that fails."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> list[Effect]:
        """A request of one of the ``served`` APIs."""
        return self._execute(self._coordinator.handle(context, message, now), now)

    @property
    def has_decided(self) -> bool:
        """Whether anything was decided that is not written yet."""
        return self._log.has_gathered

    def write_decided(self, now: Now) -> list[Effect]:
        """Append what was decided since the last time, one batch a partition, and what follows from that, until nothing is left."""
        done: list[Effect] = []
        while self._log.has_gathered:
            done += self._execute(self._write(self._log.take_batch(), done, now), now)
        return done

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """One of the coordinator's timers has come."""
        return self._execute(self._coordinator.on_timer(key, now), now)

    def on_topics_changed(self, topics: Collection[str], now: Now) -> list[Effect]:
        """Topics were created, were deleted or have more partitions."""
        return self._execute(self._coordinator.on_topics_changed(topics, now), now)

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone."""
        return self._execute(self._coordinator.on_disconnect(connection, now), now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> list[Effect]:
        """The disk thread has read a partition, or has forced a batch to disk."""
        match tag:
            case ("load", int(partition)):
                if not self._tenure.has_loaded(partition, outcome):
                    return []
                effects = self._coordinator.load(partition, cast("list[DurableEvent]", outcome), now)
            case ("flush", int(partition), int(batch)):
                effects = self._log.flushed(self._coordinator, partition, batch, outcome, now)
            case ("regexes", str(group_id)):
                matches = outcome if isinstance(outcome, RegexMatches) else None
                effects = self._coordinator.on_regexes_matched(group_id, matches, now)
            case _:
                raise AssertionError(f"no such job: {tag}")
        return self._execute(effects, now)

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

    def _take_over(self, partition: int, now: Now) -> list[Effect]:
        files = self._log.files(partition)
        if not files:
            return self._execute(self._coordinator.load(partition, (), now), now)
        self._coordinator.start_loading(partition)
        self._tenure.start_loading(partition)
        return [RunJob(("group", "load", partition), partial(read_groups, files))]

    def _execute(self, effects: Iterable[GroupEffect], now: Now) -> list[Effect]:
        done: list[Effect] = []
        todo = list(effects)[::-1]
        while todo:
            effect = todo.pop()
            if isinstance(effect, Append):
                if effect.producer is None:
                    self._log.gather(effect)
                else:  # a batch has one producer: it would have to wait alone
                    todo += self._write([effect], done, now)[::-1]
            elif isinstance(effect, MatchRegexes):
                done.append(RunJob(("group", "regexes", effect.group_id), partial(match_all, effect)))
            else:
                done.append(effect)
        return done

    def _write(self, appends: Sequence[Append], done: list[Effect], now: Now) -> list[GroupEffect]:
        """Write one atomic batch; returns what the coordinator says to the outcome, where that is known at once."""
        wall = now.wall
        records = [(key, value, (), wall) for append in appends for key, value in append.records]
        # Sequence 0 each time, with a producer id or without: as Kafka's coordinator writes them.
        producer = appends[0].producer
        stamp = producer or ProducerStamp()
        batch = encode_batch(
            records,
            base_sequence=0,
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            transactional=producer is not None,
        )
        return self._log.append(self._coordinator, appends, batch, done, now)


def offered(config: BrokerConfig, own: Mapping[str, PartitionAssignor]) -> dict[str, PartitionAssignor]:
    """The assignors that members of consumer groups may ask for, the default first: those of ``group.consumer.assignors``, then
    the user's own that are not among them. Raises ``ConfigError`` for a name that nobody knows."""
    known: dict[str, PartitionAssignor] = {**SERVER_ASSIGNORS, **own}
    wanted = [name.strip() for name in config.group_consumer_assignors.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ConfigError(
            f"group.consumer.assignors={config.group_consumer_assignors!r} names {', '.join(unknown) or 'no assignor'}",
            hint=f"there are {', '.join(known)}; Broker(assignors=...) adds others",
        )
    return {name: known[name] for name in dict.fromkeys((*wanted, *own))}
