"""The group coordinator inside the broker: its appends go to ``__consumer_offsets``, what was appended comes back to it.

Owns the translation of the coordinator's effects into the broker's, and the loading of groups after a start. Must not know what
a group is. Invariant: each ``Append`` of the coordinator is answered by exactly one ``on_appended`` or ``on_append_failed``,
before its records can be seen by anybody who would be told otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.config import BrokerConfig
from ottla.broker.effects import Effect, JobTag, RequestContext, RunJob, TimerKey
from ottla.broker.log import PartitionLog
from ottla.broker.ports import Ids, SegmentFile
from ottla.broker.refusal import Refusal
from ottla.broker.topics import OFFSETS_TOPIC
from ottla.coordinator.config import GroupConfig
from ottla.coordinator.coordinator import GroupCoordinator
from ottla.coordinator.effects import Append, Effect as GroupEffect
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.records import NewRecord, encode_batch, iter_records, read_header
from ottla.types import Now

if TYPE_CHECKING:
    from ottla.broker.core import BrokerCore

Entry = tuple[bytes, bytes | None]
"""Key and value of one record; ``None`` is a tombstone."""


class Groups:
    """The coordinator of all groups of this broker."""

    served: frozenset[Api] = frozenset(GroupCoordinator.APIS)
    """The APIs that the coordinator answers."""

    def __init__(self, core: BrokerCore, config: BrokerConfig, ids: Ids) -> None:
        self._core = core
        self._config = config
        self._ids = ids
        self._coordinator = self._new_coordinator()
        self._flushing: dict[tuple[int, int], tuple[PartitionLog, int]] = {}

    def start(self, now: Now) -> list[Effect]:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._coordinator = self._new_coordinator()
        effects: list[Effect] = []
        topic = self._core.topics.get(OFFSETS_TOPIC)
        for partition in range(self.partitions_of(OFFSETS_TOPIC) or 0):
            segments = self._core.logs.get(topic, partition).segments if topic is not None else []
            files = [segment.file for segment in segments if segment.size]
            if files:
                self._coordinator.start_loading(partition)
                effects.append(RunJob(("group", "load", partition), partial(_latest, files)))
            else:
                effects += self._execute(self._coordinator.load(partition, (), now), now)
        return effects

    def partitions_of(self, name: str) -> int | None:
        """How many partitions a topic has whose number the coordinator decides; ``None`` for all other topics."""
        if name != OFFSETS_TOPIC:
            return None
        topic = self._core.topics.get(OFFSETS_TOPIC)
        return topic.partition_count if topic is not None else self._config.offsets_topic_num_partitions

    def ensure_topic(self) -> None:
        """Create ``__consumer_offsets`` if it is not there yet; ``Refusal`` where that fails."""
        self._core.topic_or_new(OFFSETS_TOPIC)

    def handle(self, context: RequestContext, message: Any, now: Now) -> list[Effect]:
        """A request of one of the ``served`` APIs."""
        return self._execute(self._coordinator.handle(context, message, now), now)

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """One of the coordinator's timers has come."""
        return self._execute(self._coordinator.on_timer(key, now), now)

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone."""
        return self._execute(self._coordinator.on_disconnect(connection, now), now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> list[Effect]:
        """The disk thread has read a partition, or has forced a batch to disk."""
        match tag:
            case ("load", int(partition)):
                # One that could not be read stays "loading": better no answer than offsets of long ago.
                effects = [] if isinstance(outcome, Exception) else self._coordinator.load(partition, outcome, now)  # type: ignore[arg-type]
            case ("flush", int(partition), int(batch)):
                log, offset = self._flushing.pop((partition, batch))
                effects = self._flushed(partition, batch, log, offset, outcome, now)
            case _:
                raise AssertionError(f"no such job: {tag}")
        return self._execute(effects, now)

    def _new_coordinator(self) -> GroupCoordinator:
        config = self._config
        return GroupCoordinator(
            GroupConfig(
                offsets_topic_partitions=self.partitions_of(OFFSETS_TOPIC) or config.offsets_topic_num_partitions,
                group_min_session_timeout_ms=config.group_min_session_timeout_ms,
                group_max_session_timeout_ms=config.group_max_session_timeout_ms,
                group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
                group_max_size=config.group_max_size,
                offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            ),
            self._core.topics,
            self._ids,
        )

    def _execute(self, effects: Iterable[GroupEffect], now: Now) -> list[Effect]:
        done: list[Effect] = []
        todo = list(effects)[::-1]
        while todo:
            effect = todo.pop()
            if isinstance(effect, Append):
                todo += self._append(effect, done, now)[::-1]
            else:
                done.append(effect)
        return done

    def _append(self, append: Append, done: list[Effect], now: Now) -> list[GroupEffect]:
        """Write one atomic batch; returns what the coordinator says to the outcome, where that is known at once."""
        records = [NewRecord(key, value, timestamp=now.wall) for key, value in append.records]
        batch = encode_batch(records, base_sequence=0)  # without a producer id, as Kafka's coordinator writes them
        try:
            log = self._core.log(self._core.topic_or_new(OFFSETS_TOPIC).name, append.partition)
            _, effects = self._core.append(log, batch, read_header(batch), now)
        except Refusal as refusal:
            return self._coordinator.on_append_failed(append.partition, append.batch, refusal.code, now)
        done += effects
        if log.flush_due():
            self._flushing[append.partition, append.batch] = (log, log.end_offset)
            done.append(RunJob(("group", "flush", append.partition, append.batch), log.flush()))
            return []
        return self._coordinator.on_appended(append.partition, append.batch, now)

    def _flushed(self, partition: int, batch: int, log: PartitionLog, offset: int, outcome: object, now: Now) -> list[GroupEffect]:
        if isinstance(outcome, Exception):
            return self._coordinator.on_append_failed(partition, batch, ErrorCode.kafka_storage_error, now)
        log.flushed(offset)
        return self._coordinator.on_appended(partition, batch, now)


def _latest(files: list[SegmentFile]) -> list[Entry]:
    """The latest record of each key, in the order of those records: what is left of a log that is compacted."""
    latest: dict[bytes, bytes | None] = {}
    for file in files:
        with file.view() as data:
            for record in iter_records(data):
                if record.key is not None:  # the coordinator writes none without
                    latest.pop(record.key, None)
                    latest[record.key] = record.value
    return list(latest.items())
