"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Owns the state of one broker: topics, logs, parked requests, producer ids, the group coordinator. Must not know sockets,
threads, clocks or how files are kept. Invariants: each request that was handled gets exactly one reply, or its connection is
closed; what was acknowledged is in the log; nothing here waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ottla.broker.api import HANDLERS, fetch, produce
from ottla.broker.config import BrokerConfig
from ottla.broker.delayed import Delayed
from ottla.broker.effects import Effect, JobTag, RequestContext, RunJob, SetTimer, Ticket, TimerKey
from ottla.broker.groups import Groups
from ottla.broker.log import Appended, PartitionLog
from ottla.broker.logs import Logs
from ottla.broker.ports import Catalog, Ids, Job, Store, StoredTopic
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.refusal import Refusal
from ottla.broker.topics import Topic, Topics
from ottla.coordinator.timers import COORDINATOR
from ottla.protocol import ErrorCode
from ottla.protocol.codec import RequestHeader
from ottla.records import BatchHeader
from ottla.types import Now

Key = tuple[Any, ...]
"""The rest of a timer's key or of a job's tag, after the word that says whose it is."""

Outcome = object
"""What a job returned, or the ``OSError`` that it raised."""


class Endpoint(NamedTuple):
    """Where clients are told to connect to."""

    host: str
    port: int


class BrokerCore:
    """One broker. ``start`` first; then ``handle``, ``on_timer``, ``on_job`` and ``on_disconnect`` as things happen."""

    def __init__(self, config: BrokerConfig, endpoint: Endpoint, store: Store, ids: Ids) -> None:
        self.config = config
        self.endpoint = endpoint
        self.node_id = config.node_id
        self.cluster_id = store.cluster_id
        self.topics = Topics(config)
        self.logs = Logs(store)
        self.delayed = Delayed()
        self.flushing: dict[Ticket, produce.Flushing] = {}
        self.producer_ids = ProducerIds(0, self._reserve_producer_ids)
        self.groups = Groups(self, config, ids)
        self.served = tuple(sorted({*HANDLERS, *self.groups.served}))
        """The APIs that have a handler, and no others."""
        self._store = store
        self._ids = ids
        self._touched: dict[PartitionLog, None] = {}
        self._background: list[Effect] = []

    # What happens to a broker.

    def start(self, now: Now) -> tuple[list[str], list[Effect]]:
        """Bring back topics, logs and groups; also returns, in words, what was cut from logs that were damaged.

        Raises ``ConfigError`` or ``OSError`` where the data can not be used.
        """
        catalog = self._store.read_catalog()
        for stored in catalog.topics:
            self.topics.add(stored)
        warnings = self.logs.load(self.topics, now)
        seen = [producer_id for log in self.logs for producer_id in log.producers.known]
        self.producer_ids = ProducerIds(max([catalog.next_producer_id, *(one + 1 for one in seen)]), self._reserve_producer_ids)
        return warnings, [*self._every(now, "retention"), *self._every(now, "checkpoint"), *self.groups.start(now)]

    def handle(self, header: RequestHeader, message: Any, ticket: Ticket, connection: int, host: str, now: Now) -> list[Effect]:
        """One request. ``host`` is its client's address."""
        context = RequestContext(ticket, header.api, connection, header.client_id or "", f"/{host}", header.facts)
        handler = HANDLERS.get(header.api)
        effects = handler(self, context, message, now) if handler is not None else self.groups.handle(context, message, now)
        return effects + self._aftermath()

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer that was set has come."""
        kind, *rest = key
        return _ON_TIMER[kind](self, tuple(rest), now) + self._aftermath()

    def on_job(self, tag: JobTag, outcome: Outcome, now: Now) -> list[Effect]:
        """A job is done. One that failed has no more to say than the shell's log line, unless a table row knows better."""
        kind, *rest = tag
        react = _ON_JOB.get(kind)
        return react(self, tuple(rest), outcome, now) + self._aftermath() if react is not None else []

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone: nobody reads the answers to what it asked."""
        for parked in self.delayed.of_connection(connection):
            self.delayed.take(parked.context.ticket)
        return self.groups.on_disconnect(connection, now) + self._aftermath()

    def close(self) -> list[Job]:
        """What must be done, in this order, so that the next start finds everything in place."""
        return self.logs.close()

    # What the handlers of APIs ask for.

    def topic(self, name: str) -> Topic:
        """The topic of a name, or ``Refusal``: UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topics.get(name)
        if topic is None:
            raise Refusal(ErrorCode.unknown_topic_or_partition, f"There is no topic '{name}'.")
        return topic

    def topic_by_id(self, topic_id: uuid.UUID | None) -> Topic:
        """The topic of an id, or ``Refusal``: UNKNOWN_TOPIC_ID."""
        topic = self.topics.by_id(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}.")
        return topic

    def log(self, name: str, partition: int) -> PartitionLog:
        """The log of a partition by its topic's name, or ``Refusal``."""
        return self._log(self.topic(name), partition)

    def log_by_id(self, topic_id: uuid.UUID | None, partition: int) -> PartitionLog:
        """The log of a partition by its topic's id, or ``Refusal``."""
        return self._log(self.topic_by_id(topic_id), partition)

    def append(self, log: PartitionLog, batch: bytes, header: BatchHeader, now: Now) -> tuple[Appended, list[Effect]]:
        """Write a validated batch and remember to look after those who wait for it; ``Refusal`` where the disk fails."""
        try:
            appended, effects = self.logs.append(log, batch, header, now)
        except OSError as error:
            raise log.failed(ErrorCode.kafka_storage_error, f"{log.topic_partition} could not be written to: {error}") from error
        self._touched[log] = None
        return appended, effects

    def topic_or_new(self, name: str) -> Topic:
        """The topic of a name, created with the broker's defaults if need be; ``Refusal`` where it can not be."""
        topic = self.topics.get(name)
        return topic if topic is not None else self.create_topic(name, self._default_partitions(name), {})

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Make a topic that outlasts this process; ``Refusal`` where it can not be."""
        self.topics.check_new(name, partitions, configs)
        stored = StoredTopic(name, self._ids.new_uuid(), partitions, configs)
        self._save([*(topic.stored() for topic in self.topics), stored], self.producer_ids.limit)
        return self.topics.add(stored)

    def delete_topic(self, topic: Topic) -> list[Effect]:
        """Forget a topic and give up its logs; ``Refusal`` where that can not be stored."""
        self._save([one.stored() for one in self.topics if one is not topic], self.producer_ids.limit)
        self.topics.remove(topic)
        dropped, job = self.logs.drop(topic)
        self._touched.update(dict.fromkeys(dropped))
        return [RunJob(("delete-topic", topic.name), job)]

    def _log(self, topic: Topic, partition: int) -> PartitionLog:
        if partition not in topic.partitions:
            raise Refusal(
                ErrorCode.unknown_topic_or_partition,
                f"Topic '{topic.name}' has {topic.partition_count} partitions, no {partition}.",
            )
        return self.logs.get(topic, partition)

    def _default_partitions(self, name: str) -> int:
        return self.groups.partitions_of(name) or self.config.num_partitions

    def _save(self, topics: list[StoredTopic], next_producer_id: int) -> None:
        try:
            self._background.append(RunJob(("sync-catalog",), self._store.save_catalog(Catalog(tuple(topics), next_producer_id))))
        except OSError as error:
            raise Refusal(ErrorCode.kafka_storage_error, f"The list of topics could not be stored: {error}") from error

    def _reserve_producer_ids(self, limit: int) -> None:
        self._save([topic.stored() for topic in self.topics], limit)

    # Timers and jobs.

    def _aftermath(self) -> list[Effect]:
        """What follows from what was done: work for the disk thread, and answers to those who wait for a log that has changed."""
        effects, self._background = self._background, []
        if self._touched:
            touched, self._touched = self._touched, {}
            for parked in self.delayed.waiting_on(touched):
                effects += fetch.retry(self, parked, last=False)
        return effects

    def _every(self, now: Now, kind: str) -> list[Effect]:
        intervals = {
            "retention": self.config.log_retention_check_interval_ms,
            "checkpoint": self.config.log_flush_offset_checkpoint_interval_ms,
        }
        return [SetTimer((kind,), now.mono + intervals[kind])]

    def _fetch_expired(self, key: Key, now: Now) -> list[Effect]:
        parked = self.delayed.take(key[0])
        return fetch.retry(self, parked, last=True) if parked is not None else []

    def _expire(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.expire(now, self.config.producer_id_expiration_ms), *self._every(now, "retention")]

    def _checkpoint(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.checkpoint(), *self._every(now, "checkpoint")]

    def _remove_files(self, key: Key, now: Now) -> list[Effect]:
        return self.logs.remove_set_aside(key[0])

    def _sealed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        self.logs.on_sealed(("seal", *tag), outcome if isinstance(outcome, OSError) else None)
        return []

    def _flushed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        return produce.flushed(self.flushing.pop(tag[0]), outcome if isinstance(outcome, OSError) else None)


_ON_TIMER: dict[Any, Callable[[BrokerCore, Key, Now], list[Effect]]] = {
    "fetch": BrokerCore._fetch_expired,
    "retention": BrokerCore._expire,
    "checkpoint": BrokerCore._checkpoint,
    "remove-files": BrokerCore._remove_files,
    COORDINATOR: lambda core, key, now: core.groups.on_timer((COORDINATOR, *key), now),
}

_ON_JOB: dict[Any, Callable[[BrokerCore, Key, Outcome, Now], list[Effect]]] = {
    "seal": BrokerCore._sealed,
    "flush": BrokerCore._flushed,
    "group": lambda core, tag, outcome, now: core.groups.on_job(tag, outcome, now),
}
