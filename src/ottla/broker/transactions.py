"""The transaction coordinator inside the broker: its appends go to ``__transaction_state``, its markers to the logs.

Owns the translation of the coordinator's effects into the broker's, the loading of transactional ids after a start, and the markers
that are on their way. Must not know what a transaction may do. Invariants: each ``WriteMarkers`` is answered by one
``on_markers_written``, when every partition that still exists has its marker; a batch of a transaction is written only after the
coordinator has said that its partition belongs to it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from ottla.broker.config import BrokerConfig
from ottla.broker.effects import (
    CloseConnection,
    Effect,
    JobTag,
    Place,
    Reply,
    RequestContext,
    RunJob,
    SetTimer,
    Ticket,
    TimerKey,
)
from ottla.broker.groups import Groups
from ottla.broker.holdings import Holdings
from ottla.broker.log import PartitionLog
from ottla.broker.markers import NewMarker, marker_batch
from ottla.broker.refusal import Refusal
from ottla.broker.state_log import Entry, StateLog, StoredSegment, latest_entries
from ottla.broker.tenure import LOAD_RETRY_BACKOFF_MS, LOADING, OFFLINE, Tenure
from ottla.broker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.broker.verdicts import Writer
from ottla.coordinator.effects import Append
from ottla.coordinator.transactions.config import TransactionConfig
from ottla.coordinator.transactions.coordinator import Effect as CoordinatorEffect, TransactionCoordinator
from ottla.coordinator.transactions.decision import Surroundings, WriteMarkers
from ottla.coordinator.transactions.events import event_of
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, Fact
from ottla.protocol.messages import add_partitions_to_txn_request
from ottla.records import NewRecord, encode_batch, read_header
from ottla.types import Now, TopicPartition

MARKERS = "markers"
"""The first element of the keys of timers after which markers are tried again."""

_MARKER_RETRY_BACKOFF_MS = 100

logger = logging.getLogger("ottla.broker")

Enlisted = Callable[[Mapping[TopicPartition, ErrorCode], Now], list[Effect]]
"""What goes on when the coordinator has said which partitions belong to a transaction."""


class Transactions:
    """The coordinator of all transactions of this broker."""

    served: frozenset[Api] = TransactionCoordinator.APIS
    """The APIs that the coordinator answers."""

    def __init__(self, holdings: Holdings, groups: Groups, config: BrokerConfig) -> None:
        self._holdings = holdings
        self._groups = groups
        self._config = config
        self._log = StateLog(holdings, TRANSACTIONS_TOPIC, config.transaction_state_log_num_partitions, "transactions")
        self._coordinator = self._new_coordinator()
        self._markers: dict[str, WriteMarkers] = {}
        self._enlisting: dict[int, Enlisted] = {}
        self._tenure = Tenure()

    def start(self, now: Now) -> None:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._coordinator = self._new_coordinator()
        for partition in range(self._log.partition_count):
            self._take_over(partition, now)

    def coordinator_of(self, transactional_id: str) -> Place | None:
        """The coordinator of a transactional id: this broker, unless a scripted fault names another, or none (``None``)."""
        return self._tenure.place_of(self._coordinator.partition_for(transactional_id), self._holdings.place)

    def move_away(self, fault: int, transactional_id: str | None, to: Place | None, now: Now) -> None:
        """Give up the partition of a transactional id, or all; ``to`` is the new owner in answers."""
        every = range(self._log.partition_count)
        effects: list[CoordinatorEffect] = []
        for partition in every if transactional_id is None else (self._coordinator.partition_for(transactional_id),):
            self._tenure.give_up(partition, fault, to)
            effects += self._coordinator.unload(partition)
        for name in [name for name, order in self._markers.items() if self._tenure.is_away(order.state_partition)]:
            del self._markers[name]  # the next owner of the id writes them
        self._execute(effects, now)

    def come_back(self, fault: int, now: Now) -> None:
        """Take over again what was given up because of a fault."""
        for partition in self._tenure.take_back(fault):
            self._take_over(partition, now)

    def ensure_topic(self) -> None:
        """Create ``__transaction_state`` if it is not there yet; ``Refusal`` where that fails."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """A request of one of the ``served`` APIs."""
        self._execute(self._coordinator.handle(context, message, now), now)

    def enlist(self, context: RequestContext, wanted: Mapping[Writer, Iterable[TopicPartition]], then: Enlisted, now: Now) -> None:
        """Have partitions belong to the transactions of ``wanted``, then go on with what was said to each.

        A client of version 2 adds them by writing; of all others it is only asked whether they did.
        """
        adds = Fact.TRANSACTION_V2 in context.facts
        request = add_partitions_to_txn_request.AddPartitionsToTxnRequest(
            transactions=tuple(_part(writer, partitions, verify_only=not adds) for writer, partitions in wanted.items())
        )
        ticket = _counterpart(context.ticket)
        self._enlisting[ticket] = then
        facts = frozenset({Fact.FROM_BROKER, *([Fact.TRANSACTION_V2] if adds else ())})
        asked = replace(context, ticket=ticket, api=Api.ADD_PARTITIONS_TO_TXN, facts=facts)
        self.handle(asked, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """One of the coordinator's timers has come."""
        self._execute(self._coordinator.on_timer(key, now), now)

    def retry_markers(self, key: tuple[Any, ...], now: Now) -> None:
        """It is time to try again what could not be written."""
        order = self._markers.get(key[0])
        if order is not None:
            self._execute([order], now)

    def load_again(self, partition: int, now: Now) -> None:
        """Try again to read the partitions that could not be read."""
        if self._tenure.is_loading(partition):
            self._take_over(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """The disk thread has read a partition, or has forced a batch to disk."""
        effects: list[CoordinatorEffect] = []
        match tag:
            case ("load", int(partition)):
                if isinstance(outcome, OSError):
                    self._holdings.outbox.put(SetTimer((LOADING, "transactions", partition), now.mono + LOAD_RETRY_BACKOFF_MS))
                if self._tenure.has_loaded(partition, outcome):
                    entries, transactional_ids, damages = cast("tuple[list[Entry], set[str], list[str]]", outcome)
                    self._log.report(partition, damages, transactional_ids)
                    effects = self._coordinator.load(partition, entries, now)
            case ("flush", int(partition), int(batch)):
                effects = self._log.flushed(self._coordinator, partition, batch, outcome, now)
            case _:
                raise AssertionError(f"no such job: {tag}")
        self._execute(effects, now)

    def write_marker(self, log: PartitionLog, marker: NewMarker, now: Now) -> None:
        """End a transaction in one log, and in the groups whose offsets are in it; ``Refusal`` where that is not possible now."""
        topic, partition = log.topic_partition
        if topic == OFFSETS_TOPIC:
            self._groups.check_loaded(partition)
        batch = marker_batch(*marker, timestamp=now.wall)
        self._holdings.append(log, batch, read_header(batch), now)
        if log.flush_due():
            self._holdings.outbox.put(RunJob(("sync-marker", log.topic_partition), log.flush()))
        if topic == OFFSETS_TOPIC:
            self._groups.end_transaction(partition, marker.producer_id, marker.commit, now)

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
        self._holdings.outbox.put(RunJob(("transactions", "load", partition), partial(_read, segments)))

    def _new_coordinator(self) -> TransactionCoordinator:
        config = self._config
        return TransactionCoordinator(
            Surroundings(
                TransactionConfig(
                    state_topic_partitions=self._log.partition_count,
                    max_timeout_ms=config.transaction_max_timeout_ms,
                    id_expiration_ms=config.transactional_id_expiration_ms,
                ),
                self._holdings.topics,
                self,
                self._groups.offsets_partition_of,
                frozenset(INTERNAL_TOPICS),
            )
        )

    def new_producer_id(self) -> int | None:
        """For the coordinator: an id that was never given out."""
        try:
            return self._holdings.producer_ids.allocate()
        except Refusal:
            return None

    def _execute(self, effects: Iterable[CoordinatorEffect], now: Now) -> None:
        """Put effects into the outbox, in the order in which they were decided; write the appends."""
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Append):
                todo += self._log.append(self._coordinator, [effect], partial(_encoded, effect, now.wall), now)
            elif isinstance(effect, WriteMarkers):
                todo += self._write_markers(effect, now)
            elif isinstance(effect, Reply) and effect.ticket in self._enlisting:
                self._go_on(effect, now)
            else:
                self._holdings.outbox.put(effect)

    def _go_on(self, said: Reply, now: Now) -> None:
        """Continue a request that waited for the coordinator's answer. A failure only closes the connection of the request."""
        try:
            effects = self._enlisting.pop(said.ticket)(_errors(said.response), now)
        except Exception:
            logger.exception("closing a connection: the broker failed to serve a request in a transaction")
            effects = [CloseConnection(_counterpart(said.ticket), "the broker failed to serve it")]
        self._holdings.outbox.put(*effects)

    def _write_markers(self, order: WriteMarkers, now: Now) -> list[CoordinatorEffect]:
        """Write the markers that can be written now; the coordinator hears of it when none is missing."""
        epoch = self._coordinator_epoch(order.state_partition)
        marker = NewMarker(order.commit, order.producer_id, order.producer_epoch, epoch)
        missing: list[TopicPartition] = []
        for topic_partition in order.partitions:
            topic = self._holdings.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition not in topic.partitions:
                continue  # deleted: there are no readers
            log = self._holdings.logs.get(topic, topic_partition.partition)
            if log.producers.is_fenced(order.producer_id, order.producer_epoch):
                continue  # a newer epoch writes there: what this one left open was ended for it
            try:
                self.write_marker(log, marker, now)
            except Refusal:
                missing.append(topic_partition)
        transactional_id = order.transactional_id
        if missing:
            self._markers[transactional_id] = replace(order, partitions=tuple(missing))
            self._holdings.outbox.put(SetTimer((MARKERS, transactional_id), now.mono + _MARKER_RETRY_BACKOFF_MS))
            return []
        self._markers.pop(transactional_id, None)
        return self._coordinator.on_markers_written(transactional_id, now)

    def _coordinator_epoch(self, state_partition: int) -> int:
        topic = self._holdings.topics.get(TRANSACTIONS_TOPIC)
        return self._holdings.logs.get(topic, state_partition).epochs.current if topic is not None else 0


def _counterpart(ticket: Ticket) -> Ticket:
    """The ticket of the internal request for a client's request, or vice versa. Tickets of internal requests are negative."""
    return -ticket - 1


def _encoded(append: Append, wall: int) -> bytes:
    return encode_batch([NewRecord(key, value, timestamp=wall) for key, value in append.records])


def _part(
    writer: Writer, partitions: Iterable[TopicPartition], *, verify_only: bool
) -> add_partitions_to_txn_request.AddPartitionsToTxnTransaction:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
        transactional_id=writer.transactional_id,
        producer_id=writer.producer_id,
        producer_epoch=writer.producer_epoch,
        verify_only=verify_only,
        topics=tuple(
            add_partitions_to_txn_request.AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
            for topic, numbers in by_topic.items()
        ),
    )


def _errors(response: Any) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, one.partition_index): one.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for one in topic.results_by_partition
    }


def _read(segments: Sequence[StoredSegment]) -> tuple[list[Entry], set[str], list[str]]:
    """What a log says, the transactional ids in it, and what of it is damaged. For the disk thread; raises ``OSError``."""
    readable: list[Entry] = []
    transactional_ids: set[str] = set()
    entries, damages = latest_entries(segments)
    for key, value in entries:
        try:
            event = event_of(key, value)
        except ProtocolError as error:
            damages.append(f"a record cannot be understood: {error}")
            continue
        readable.append((key, value))
        if event is not None:
            transactional_ids.add(event.transactional_id)
    return readable, transactional_ids, damages
