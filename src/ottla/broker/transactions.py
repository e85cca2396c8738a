"""The transaction coordinator inside the broker: its appends go to ``__transaction_state``, its markers to the logs.

Owns the translation of the coordinator's effects into the broker's, and the markers that are on their way. Must not know what a
transaction may do. Invariants: each ``WriteMarkers`` is answered by one ``on_markers_written``, when every partition that still
exists has its marker; a batch of a transaction is written only after the coordinator has said that its partition belongs to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_partitions import CoordinatorPartitions, LoadedLog
from ottla.broker.effects import (
    CloseConnection,
    Effect,
    JobTag,
    NodeEndpoint,
    Reply,
    RequestContext,
    RunJob,
    SetTimer,
    Ticket,
    TimerKey,
)
from ottla.broker.groups import Groups
from ottla.broker.log import PartitionLog
from ottla.broker.markers import NewMarker, marker_batch
from ottla.broker.state_log import Entry, StateLog, StoredSegment, latest_entries
from ottla.broker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.broker.verdicts import Writer
from ottla.coordinator.api_error import ApiError
from ottla.coordinator.effects import Append
from ottla.coordinator.transactions.config import TransactionConfig
from ottla.coordinator.transactions.coordinator import TransactionCoordinator, TransactionCoordinatorEffect
from ottla.coordinator.transactions.decision import TransactionContext, WriteMarkers
from ottla.coordinator.transactions.events import event_of
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
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

    def __init__(self, catalog: BrokerCatalog, groups: Groups, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._groups = groups
        self._config = config
        self._log = StateLog(catalog, TRANSACTIONS_TOPIC, config.transaction_state_log_num_partitions, "transactions")
        self._markers: dict[str, WriteMarkers] = {}
        self._enlisting: dict[int, Enlisted] = {}
        self._renew()

    def _renew(self) -> None:
        """Begin with a coordinator that has no partition yet."""
        config = self._config
        self._coordinator = TransactionCoordinator(
            TransactionContext(
                TransactionConfig(
                    state_topic_partitions=self._log.partition_count,
                    max_timeout_ms=config.transaction_max_timeout_ms,
                    id_expiration_ms=config.transactional_id_expiration_ms,
                ),
                self._catalog.topics,
                self,
                self._groups.offsets_partition_of,
                frozenset(INTERNAL_TOPICS),
            )
        )
        self._partitions: CoordinatorPartitions[Sequence[Entry], TransactionCoordinatorEffect] = CoordinatorPartitions(
            self._coordinator, self._log, self._catalog.outbox, "transactions", read=_read, empty=(), perform=self._perform
        )

    def start(self, now: Now) -> None:
        """Take over every partition: the empty ones at once, the others when the disk thread has read them."""
        self._renew()
        self._partitions.take_over_all(now)

    def coordinator_of(self, transactional_id: str) -> NodeEndpoint | None:
        """The coordinator of a transactional id: this broker, unless a scripted fault names another, or none (``None``)."""
        return self._partitions.ownership.endpoint_of(self._coordinator.partition_for(transactional_id), self._catalog.place)

    def move_away(self, fault: int, transactional_id: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a transactional id, or all; ``to`` is the new owner in answers."""
        self._partitions.move_away(fault, transactional_id, to, now)
        ownership = self._partitions.ownership
        for name in [name for name, order in self._markers.items() if ownership.is_away(order.state_partition)]:
            del self._markers[name]  # the next owner of the id writes them

    def come_back(self, fault: int, now: Now) -> None:
        """Take over again what was given up because of a fault."""
        self._partitions.come_back(fault, now)

    def ensure_topic(self) -> None:
        """Create ``__transaction_state`` if it is not there yet; ``ApiError`` where that fails."""
        self._log.ensure_topic()

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """A request of one of the ``served`` APIs."""
        self._partitions.execute(self._coordinator.handle(context, message, now), now)

    def enlist(self, context: RequestContext, wanted: Mapping[Writer, Iterable[TopicPartition]], then: Enlisted, now: Now) -> None:
        """Have partitions belong to the transactions of ``wanted``, then go on with what was said to each.

        A client of version 2 adds them by writing; of all others it is only asked whether they did.
        """
        adds = VersionRule.TRANSACTION_V2 in context.version_rules
        request = add_partitions_to_txn_request.AddPartitionsToTxnRequest(
            transactions=tuple(_part(writer, partitions, verify_only=not adds) for writer, partitions in wanted.items())
        )
        ticket = _counterpart(context.ticket)
        self._enlisting[ticket] = then
        version_rules = frozenset({VersionRule.FROM_BROKER, *([VersionRule.TRANSACTION_V2] if adds else ())})
        asked = replace(context, ticket=ticket, api=Api.ADD_PARTITIONS_TO_TXN, version_rules=version_rules)
        self.handle(asked, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """One of the coordinator's timers has come."""
        self._partitions.execute(self._coordinator.on_timer(key, now), now)

    def retry_markers(self, key: tuple[Any, ...], now: Now) -> None:
        """It is time to try again what could not be written."""
        order = self._markers.get(key[0])
        if order is not None:
            self._partitions.execute([order], now)

    def load_again(self, partition: int, now: Now) -> None:
        """Try again to read a partition that could not be read."""
        self._partitions.load_again(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """The disk thread has read a partition, or has forced a batch to disk."""
        match tag:
            case ("load", int(partition)):
                self._partitions.on_loaded(partition, outcome, now)
            case ("flush", int(partition), int(batch)):
                self._partitions.on_flushed(partition, batch, outcome, now)
            case _:
                raise AssertionError(f"no such job: {tag}")

    def write_marker(self, log: PartitionLog, marker: NewMarker, now: Now) -> None:
        """End a transaction in one log, and in the groups whose offsets are in it; ``ApiError`` where that is not possible now."""
        topic, partition = log.topic_partition
        if topic == OFFSETS_TOPIC:
            self._groups.check_loaded(partition)
        batch = marker_batch(*marker, timestamp=now.wall)
        self._catalog.append(log, batch, read_header(batch), now)
        if log.flush_due():
            self._catalog.outbox.put(RunJob(("sync-marker", log.topic_partition), log.flush()))
        if topic == OFFSETS_TOPIC:
            self._groups.end_transaction(partition, marker.producer_id, marker.commit, now)

    def new_producer_id(self) -> int | None:
        """For the coordinator: an id that was never given out."""
        try:
            return self._catalog.producer_ids.allocate()
        except ApiError:
            return None

    def _perform(self, effect: TransactionCoordinatorEffect, now: Now) -> Iterable[TransactionCoordinatorEffect]:
        """Put an effect into the outbox; write appends and markers, and go on with what waited for an internal answer."""
        if isinstance(effect, Append):
            return self._log.append(self._coordinator, [effect], partial(_encoded, effect, now.wall), now)
        if isinstance(effect, WriteMarkers):
            return self._write_markers(effect, now)
        if isinstance(effect, Reply) and effect.ticket in self._enlisting:
            self._go_on(effect, now)
        else:
            self._catalog.outbox.put(effect)
        return ()

    def _go_on(self, said: Reply, now: Now) -> None:
        """Continue a request that waited for the coordinator's answer. A failure only closes the connection of the request."""
        try:
            effects = self._enlisting.pop(said.ticket)(_errors(said.response), now)
        except Exception:
            logger.exception("closing a connection: the broker failed to serve a request in a transaction")
            effects = [CloseConnection(_counterpart(said.ticket), "the broker failed to serve it")]
        self._catalog.outbox.put(*effects)

    def _write_markers(self, order: WriteMarkers, now: Now) -> list[TransactionCoordinatorEffect]:
        """Write the markers that can be written now; the coordinator hears of it when none is missing."""
        epoch = self._coordinator_epoch(order.state_partition)
        marker = NewMarker(order.commit, order.producer_id, order.producer_epoch, epoch)
        missing: list[TopicPartition] = []
        for topic_partition in order.partitions:
            topic = self._catalog.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition not in topic.partitions:
                continue  # deleted: there are no readers
            log = self._catalog.logs.get(topic, topic_partition.partition)
            if log.producers.is_fenced(order.producer_id, order.producer_epoch):
                continue  # a newer epoch writes there: what this one left open was ended for it
            try:
                self.write_marker(log, marker, now)
            except ApiError:
                missing.append(topic_partition)
        transactional_id = order.transactional_id
        if missing:
            self._markers[transactional_id] = replace(order, partitions=tuple(missing))
            self._catalog.outbox.put(SetTimer((MARKERS, transactional_id), now.mono + _MARKER_RETRY_BACKOFF_MS))
            return []
        self._markers.pop(transactional_id, None)
        return self._coordinator.on_markers_written(transactional_id, now)

    def _coordinator_epoch(self, state_partition: int) -> int:
        topic = self._catalog.topics.get(TRANSACTIONS_TOPIC)
        return self._catalog.logs.get(topic, state_partition).epochs.current if topic is not None else 0


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


def _read(segments: Sequence[StoredSegment]) -> LoadedLog[Sequence[Entry]]:
    """What a log says. For the disk thread; raises ``OSError``."""
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
    return LoadedLog(readable, transactional_ids, damages)
