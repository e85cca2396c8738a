"""The broker without its sockets, threads and files: requests, timers and finished jobs in, effects out.

Owns the state of one broker: topics, logs, parked requests, producer ids, the group coordinator. Must not know sockets,
threads, clocks or how files are kept. Invariants: each request that was handled gets exactly one reply, or its connection is
closed; what was acknowledged is in the log; nothing here waits.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ottla.assignors import PartitionAssignor
from ottla.broker.api import HANDLERS, fetch, produce
from ottla.broker.config import CLUSTER_WIDE, BrokerConfig, altered
from ottla.broker.delayed import Delayed
from ottla.broker.effects import Effect, JobTag, Place, Reply, RequestContext, RunJob, SetTimer, Struck, Ticket, TimerKey
from ottla.broker.faults.rules import AddFault, Command, ExpireMember, MoveCoordinator, RemoveFaults
from ottla.broker.faults.table import FAULT, FaultTable
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.groups import Groups, offered
from ottla.broker.log import Appended, PartitionLog
from ottla.broker.logs import Logs
from ottla.broker.ports import Catalog, DiskUsage, Ids, Job, Store, StoredSettings, StoredTopic
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.refusal import Refusal
from ottla.broker.topics import Topic, Topics
from ottla.broker.transactions import MARKERS, Transactions
from ottla.coordinator.timers import COORDINATOR
from ottla.coordinator.transactions.decision import TRANSACTIONS
from ottla.errors import ConfigError
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
    """One broker. ``start`` first; then ``handle``, ``on_timer``, ``on_job`` and ``on_disconnect`` as things happen, and
    ``write_decided`` whenever all that is at hand has been told: what groups decide is written and answered only then."""

    def __init__(
        self,
        config: BrokerConfig,
        endpoint: Endpoint,
        store: Store,
        ids: Ids,
        assignors: Mapping[str, PartitionAssignor] = MappingProxyType({}),
    ) -> None:
        """``assignors``: those of the user's own for consumer groups. Raises ``ConfigError``."""
        self.static_config = config
        self.config = config
        """The settings that hold: those it was started with, under what was set since."""
        self.settings = StoredSettings()
        self.endpoint = endpoint
        self.node_id = config.node_id
        self.cluster_id = store.cluster_id
        self.topics = Topics(config)
        self.logs = Logs(store)
        self.delayed = Delayed()
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, ids.new_uuid)
        self.flushing: dict[Ticket, produce.Flushing] = {}
        self.answers: dict[Ticket, tuple[object, object]] = {}
        self.producer_ids = ProducerIds(0, self._reserve_producer_ids)
        self.groups = Groups(self, config, ids, offered(config, assignors))
        self.transactions = Transactions(self, config)
        self.served = tuple(sorted({*HANDLERS, *self.groups.served, *self.transactions.served}))
        """The APIs that have a handler, and no others."""
        self.faults = FaultTable(self._name_of)
        self._store = store
        self._ids = ids
        self._touched: dict[PartitionLog, None] = {}
        self._changed_topics: dict[str, None] = {}
        self._background: list[Effect] = []

    # What happens to a broker.

    def start(self, now: Now) -> tuple[list[str], list[Effect]]:
        """Bring back topics, logs and groups; also returns, in words, what was cut from logs that were damaged.

        Raises ``ConfigError`` or ``OSError`` where the data can not be used.
        """
        catalog = self._store.read_catalog()
        self.settings = catalog.settings._replace(cluster={**CLUSTER_WIDE, **catalog.settings.cluster})
        self.config = altered(self.static_config, {**self.settings.cluster, **self.settings.broker})
        self.topics.reconfigure(self.config)
        for stored in catalog.topics:
            self.topics.add(stored)
        warnings = self.logs.load(self.topics, now)
        seen = [producer_id for log in self.logs for producer_id in log.producers.known]
        self.producer_ids = ProducerIds(max([catalog.next_producer_id, *(one + 1 for one in seen)]), self._reserve_producer_ids)
        every = [effect for kind in ("retention", "checkpoint", "clean") for effect in self._every(now, kind)]
        return warnings, [*every, *self.groups.start(now), *self.transactions.start(now)]

    def handle(self, header: RequestHeader, message: Any, ticket: Ticket, connection: int, host: str, now: Now) -> list[Effect]:
        """One request. ``host`` is its client's address."""
        context = RequestContext(ticket, header.api, connection, header.client_id or "", f"/{host}", header.facts)
        return self._out(self._serve(context, message, now), now)

    def on_timer(self, key: TimerKey, now: Now) -> list[Effect]:
        """A timer that was set has come."""
        kind, *rest = key
        if self.faults.active and self.faults.frozen and kind != FAULT:
            self.faults.hold_timer(key)
            return []
        return self._out(_ON_TIMER[kind](self, tuple(rest), now), now)

    def on_job(self, tag: JobTag, outcome: Outcome, now: Now) -> list[Effect]:
        """A job is done. One that failed has no more to say than the shell's log line, unless a table row knows better."""
        kind, *rest = tag
        react = _ON_JOB.get(kind)
        return self._out(react(self, tuple(rest), outcome, now), now) if react is not None else []

    def write_decided(self, now: Now) -> list[Effect]:
        """Nothing else is at hand: what groups have decided since the last time is written, together, and answered."""
        effects: list[Effect] = []
        while self.groups.has_decided:
            effects += self._out(self.groups.write_decided(now), now)
        return effects

    def on_disconnect(self, connection: int, now: Now) -> list[Effect]:
        """A connection is gone: nobody reads the answers to what it asked."""
        for parked in self.delayed.of_connection(connection):
            self.delayed.take(parked.context.ticket)
        self.faults.on_disconnect(connection)
        return self._out(self.groups.on_disconnect(connection, now), now)

    def on_command(self, command: Command, now: Now) -> tuple[int, list[Effect]]:
        """A fault is set or ended; for ``ExpireMember`` also how many members it concerned."""
        match command:
            case AddFault(rule):
                effects = self.faults.add(rule, now)
                self.fetch_sessions.clear()
                if isinstance(rule.action, MoveCoordinator):
                    effects += self._move_away(rule.number, rule.action, now)
                return 0, self._out(effects, now)
            case RemoveFaults(number):
                return 0, self._end_faults(self.faults.known() if number is None else [number], now)
            case ExpireMember(group):
                count, effects = self.groups.expire_members(group, command.fits, now)
                return count, self._out(effects, now)

    def close(self) -> list[Job]:
        """What must be done, in this order, so that the next start finds everything in place."""
        return self.logs.close()

    # What the handlers of APIs ask for.

    @property
    def place(self) -> Place:
        """This broker as clients are told of it."""
        return Place(self.node_id, self.endpoint.host, self.endpoint.port)

    def disk_usage(self) -> DiskUsage:
        """The disk that the logs are on. Raises ``OSError`` where it does not say."""
        return self._store.usage()

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
        if self.faults.active and (fault := self.faults.full(log.topic_partition)) is not None:
            self._background.append(Struck(fault))
            raise log.failed(ErrorCode.kafka_storage_error, f"broker.faults let the disk of {log.topic_partition} be full.")
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
        self._save([*(topic.stored() for topic in self.topics), stored])
        self._changed_topics[name] = None
        return self.topics.add(stored)

    def answer_after(self, ticket: Ticket, job: Job, response: object, failure: object) -> list[Effect]:
        """Send ``response`` when ``job`` is done, or ``failure`` where the disk failed."""
        self.answers[ticket] = (response, failure)
        return [RunJob(("answer", ticket), job)]

    def delete_records(self, log: PartitionLog, offset: int) -> bool:
        """Let a log begin at ``offset``, if it does not begin later anyhow: whether that gave up anything."""
        if offset <= log.start_offset:
            return False
        log.start_at(offset)
        self._touched[log] = None
        return True

    def replace_topic(self, topic: Topic) -> None:
        """Let a topic have more partitions or other settings, at once; ``Refusal`` where that can not be stored."""
        self._save([(topic if one.name == topic.name else one).stored() for one in self.topics])
        self.topics.put(topic)
        self.logs.reconfigure(self.topics)
        self._changed_topics[topic.name] = None

    def alter_settings(self, settings: StoredSettings, *, validate_only: bool = False) -> None:
        """Let other settings of the broker and of groups hold, at once; ``Refusal`` where they can not be or not be stored."""
        try:
            config = altered(self.static_config, {**settings.cluster, **settings.broker})
            self.topics.reconfigured(config)
        except ConfigError as error:
            raise Refusal(ErrorCode.invalid_request, str(error)) from error
        if validate_only:
            return
        self._save([topic.stored() for topic in self.topics], settings=settings)
        self.settings, self.config = settings, config
        self.topics.reconfigure(config)
        self.logs.reconfigure(self.topics)
        self.groups.reconfigure()

    def delete_topic(self, topic: Topic) -> list[Effect]:
        """Forget a topic and give up its logs; ``Refusal`` where that can not be stored."""
        self._save([one.stored() for one in self.topics if one is not topic])
        self.topics.remove(topic)
        self._changed_topics[topic.name] = None
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
        return self.groups.partitions_of(name) or self.transactions.partitions_of(name) or self.config.num_partitions

    def _save(
        self, topics: list[StoredTopic], *, next_producer_id: int | None = None, settings: StoredSettings | None = None
    ) -> None:
        catalog = Catalog(
            tuple(topics),
            self.producer_ids.limit if next_producer_id is None else next_producer_id,
            self.settings if settings is None else settings,
        )
        try:
            self._background.append(RunJob(("sync-catalog",), self._store.save_catalog(catalog)))
        except OSError as error:
            raise Refusal(ErrorCode.kafka_storage_error, f"The list of topics could not be stored: {error}") from error

    def _reserve_producer_ids(self, limit: int) -> None:
        self._save([topic.stored() for topic in self.topics], next_producer_id=limit)

    def _name_of(self, topic_id: uuid.UUID) -> str | None:
        topic = self.topics.by_id(topic_id)
        return topic.name if topic is not None else None

    # Timers and jobs.

    def _serve(self, context: RequestContext, message: Any, now: Now) -> list[Effect]:
        before: list[Effect] = []
        if self.faults.active:
            if self.faults.frozen:
                return self.faults.hold_request(context, message)
            message, before = self.faults.meet(context, message)
            if message is None:
                return before
        handler = HANDLERS.get(context.api)
        if handler is not None:
            return before + handler(self, context, message, now)
        coordinator = self.transactions if context.api in self.transactions.served else self.groups
        return before + coordinator.handle(context, message, now)

    def _out(self, effects: list[Effect], now: Now) -> list[Effect]:
        """What goes to the shell: what was done and what follows from it, as far as no fault has hold of it."""
        effects += self._aftermath(now)
        return self.faults.outgoing(effects, now) if self.faults.active else effects

    def _move_away(self, fault: int, moved: MoveCoordinator, now: Now) -> list[Effect]:
        effects: list[Effect] = []
        if moved.of_groups:
            effects += self.groups.move_away(fault, moved.group, moved.to, now)
        if moved.of_transactions:
            effects += self.transactions.move_away(fault, moved.transactional_id, moved.to, now)
        return effects

    def _end_faults(self, numbers: list[int], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for number in numbers:
            rule = self.faults.remove(number)
            effects += self.faults.let_go(number)
            if rule is not None and isinstance(rule.action, MoveCoordinator):
                effects += self.groups.come_back(number, now) + self.transactions.come_back(number, now)
        if not self.faults.frozen:
            requests, timers, answers = self.faults.thawed()
            effects += answers
            for context, request in requests:
                effects += self._serve(context, request, now)
            for key in timers:
                effects += _ON_TIMER[key[0]](self, key[1:], now)
        return self._out(effects, now)

    def _fault(self, key: Key, now: Now) -> list[Effect]:
        match key:
            case ("over", int(number)):
                return self._end_faults([number], now)
            case ("late", int(ticket)):
                return self.faults.on_late(ticket)
        raise AssertionError(f"no such timer: {key}")

    def _aftermath(self, now: Now) -> list[Effect]:
        """What follows from what was done: news for groups, work for the disk thread, answers to whoever waits for a log."""
        effects: list[Effect] = []
        if self._changed_topics:
            changed, self._changed_topics = self._changed_topics, {}
            effects += self.groups.on_topics_changed(changed, now)
        effects += self._background
        self._background = []
        if self._touched:
            touched, self._touched = self._touched, {}
            for parked in self.delayed.waiting_on(touched):
                effects += fetch.retry(self, parked, now, last=False)
        return effects

    def _every(self, now: Now, kind: str) -> list[Effect]:
        intervals = {
            "retention": self.config.log_retention_check_interval_ms,
            "checkpoint": self.config.log_flush_offset_checkpoint_interval_ms,
            "clean": self.config.log_cleaner_backoff_ms,
        }
        return [SetTimer((kind,), now.mono + intervals[kind])]

    def _fetch_expired(self, key: Key, now: Now) -> list[Effect]:
        parked = self.delayed.take(key[0])
        return fetch.retry(self, parked, now, last=True) if parked is not None else []

    def _expire(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.expire(now, self.config.producer_id_expiration_ms), *self._every(now, "retention")]

    def _checkpoint(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.checkpoint(), *self._every(now, "checkpoint")]

    def _clean(self, key: Key, now: Now) -> list[Effect]:
        return [*self.logs.clean(self.config.log_cleaner_dedupe_buffer_size, now), *self._every(now, "clean")]

    def _cleaned(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        return self.logs.on_clean_step(outcome, self.config.log_cleaner_dedupe_buffer_size, now)

    def _remove_files(self, key: Key, now: Now) -> list[Effect]:
        return self.logs.remove_set_aside(key[0])

    def _sealed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        self.logs.on_sealed(("seal", *tag), outcome if isinstance(outcome, OSError) else None)
        return []

    def _flushed(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        return produce.flushed(self.flushing.pop(tag[0]), outcome if isinstance(outcome, OSError) else None)

    def _answered(self, tag: Key, outcome: Outcome, now: Now) -> list[Effect]:
        response, failure = self.answers.pop(tag[0])
        return [Reply(tag[0], failure if isinstance(outcome, Exception) else response)]


_ON_TIMER: dict[Any, Callable[[BrokerCore, Key, Now], list[Effect]]] = {
    FAULT: BrokerCore._fault,
    "fetch": BrokerCore._fetch_expired,
    "retention": BrokerCore._expire,
    "checkpoint": BrokerCore._checkpoint,
    "clean": BrokerCore._clean,
    "remove-files": BrokerCore._remove_files,
    COORDINATOR: lambda core, key, now: core.groups.on_timer((COORDINATOR, *key), now),
    TRANSACTIONS: lambda core, key, now: core.transactions.on_timer((TRANSACTIONS, *key), now),
    MARKERS: lambda core, key, now: core.transactions.retry_markers(key, now),
}

_ON_JOB: dict[Any, Callable[[BrokerCore, Key, Outcome, Now], list[Effect]]] = {
    "seal": BrokerCore._sealed,
    "flush": BrokerCore._flushed,
    "answer": BrokerCore._answered,
    "clean": BrokerCore._cleaned,
    "group": lambda core, tag, outcome, now: core.groups.on_job(tag, outcome, now),
    "transactions": lambda core, tag, outcome, now: core.transactions.on_job(tag, outcome, now),
}
