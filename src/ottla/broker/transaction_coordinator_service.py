"""The transaction coordinator in the broker: its appends go to ``__transaction_state``, its markers to the logs.

Owns the translation of the coordinator's effects into the broker's, the pending markers, and the error for a client that the
coordinator does not allow to write. Must not know the states of a transaction. Invariants: each ``WriteMarkers`` gets one
``on_markers_written``, when every partition that still exists has its marker; a transactional batch is written only after the
coordinator has confirmed that its partition is part of the transaction; a client gets no code that its version does not know, and
for a temporary error one that its version retries.

Source: KIP-890 for these codes, which are those that Apache Kafka 4.3 sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ottla.broker.catalog import BrokerCatalog
from ottla.broker.config import BrokerConfig
from ottla.broker.coordinator_log import CoordinatorLog, CoordinatorPartitions, Entry, LoadedLog, StoredSegment, latest_entries
from ottla.broker.effects import (
    BrokerEffect,
    CloseConnection,
    JobTag,
    NodeEndpoint,
    Reply,
    RequestContext,
    RunJob,
    SetTimer,
    Ticket,
    TimerKey,
)
from ottla.broker.group_coordinator_service import GroupCoordinatorService
from ottla.broker.log import PartitionLog
from ottla.broker.markers import TxnMarkerEntry, marker_batch
from ottla.broker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from ottla.coordinator.effects import ApiError, Append
from ottla.coordinator.transactions.coordinator import TransactionCoordinator, TransactionCoordinatorEffect
from ottla.coordinator.transactions.decision import TransactionConfig, TransactionContext, WriteMarkers
from ottla.coordinator.transactions.machine import event_of
from ottla.errors import ProtocolError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api, VersionRule
from ottla.protocol.messages import add_partitions_to_txn_request
from ottla.records import NewRecord, encode_batch, read_header
from ottla.types import Now, TopicPartition

MARKERS = "markers"
"""The first element of the keys of the timers that retry markers."""

_MARKER_RETRY_BACKOFF_MS = 100

_OF_OPEN_TRANSACTIONS = frozenset({Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN})
"""The APIs with which a transaction begins or grows."""

_REFUSAL = (
    "Transactional ids are not served where several of Ottla's brokers share a ZooKeeper: a transaction could not end in the "
    "partitions of the others. Use one broker, or Apache Kafka."
)

logger = logging.getLogger("ottla.broker")

OnPartitionErrors = Callable[[Mapping[TopicPartition, ErrorCode], Now], list[BrokerEffect]]
"""Continues a request with the coordinator's error code for each partition."""


@dataclass(frozen=True, slots=True)
class TransactionalWriter:
    """The producer in a transaction, as in the request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class TransactionCoordinatorService:
    """The coordinator of all transactions of this broker."""

    served: frozenset[Api] = TransactionCoordinator.APIS
    """The APIs that the coordinator serves."""

    def __init__(self, catalog: BrokerCatalog, groups: GroupCoordinatorService, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._groups = groups
        self._config = config
        self._log = CoordinatorLog(catalog, TRANSACTIONS_TOPIC, config.transaction_state_log_num_partitions, "transactions")
        self._has_refused = False
        """Whether the log says why transactional ids are refused: librdkafka does not show it."""
        self._markers: dict[str, WriteMarkers] = {}
        self._waiting_requests: dict[int, OnPartitionErrors] = {}
        self._partitions: CoordinatorPartitions[Sequence[Entry], TransactionCoordinatorEffect] = CoordinatorPartitions(
            self._create_coordinator, self._log, catalog.outbox, "transactions", read=_read, empty=(), perform=self._perform
        )

    def _create_coordinator(self) -> TransactionCoordinator:
        """Replace the coordinator by one without partitions."""
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
        return self._coordinator

    def start(self, now: Now) -> None:
        """Load every partition: the empty ones at once, the others when the disk thread has read them."""
        self._partitions.start(now)

    def coordinator_of(self, transactional_id: str) -> NodeEndpoint | None:
        """Return the coordinator of a transactional id: this broker, the one that a scripted fault names, or ``None``."""
        return self._partitions.endpoint_of(transactional_id)

    def resign(self, fault: int, transactional_id: str | None, to: NodeEndpoint | None, now: Now) -> None:
        """Give up the partition of a transactional id, or all; responses name ``to`` as the new owner."""
        self._partitions.resign(fault, transactional_id, to, now)
        ownership = self._partitions.ownership
        for name in [name for name, order in self._markers.items() if ownership.is_away(order.state_partition)]:
            del self._markers[name]  # the next owner of the id writes them

    def reclaim(self, fault: int, now: Now) -> None:
        """Load the partitions again that were given up because of a fault."""
        self._partitions.reclaim(fault, now)

    def ensure_topic(self) -> None:
        """Create ``__transaction_state`` if it does not exist. Raises ``ApiError``."""
        self._log.ensure_topic()

    def check_alone(self) -> None:
        """Raise ``ApiError`` if there are other brokers: the markers that end a transaction could not be written to their
        partitions."""
        if not self._catalog.cluster.is_known:
            raise ApiError(ErrorCode.coordinator_not_available, "This broker does not know yet whether there are others.")
        if self._catalog.cluster.is_shared:
            self._log_refusal()
            raise ApiError(ErrorCode.invalid_request, _REFUSAL)

    def _log_refusal(self) -> None:
        if not self._has_refused:
            logger.warning("a transaction was refused: %s", _REFUSAL)
        self._has_refused = True

    def on_topics_changed(self, now: Now) -> None:
        """Handle created and deleted topics, of which ``__transaction_state`` may be one."""
        self._partitions.follow_topic(now)

    def handle(self, context: RequestContext, message: Any, now: Now) -> None:
        """Handle a request of one of the ``served`` APIs. Once there are other brokers, transactions can end, and none can begin or
        grow: the client looks for the coordinator again, and gets the reason."""
        of_client = context.api in _OF_OPEN_TRANSACTIONS and VersionRule.FROM_BROKER not in context.version_rules
        if of_client and self._catalog.cluster.is_shared:
            self._catalog.outbox.put(self._coordinator.refuse(context, message, ErrorCode.not_coordinator))
            return
        self._partitions.execute(self._coordinator.handle(context, message, now), now)

    def add_or_verify_partitions(
        self,
        context: RequestContext,
        wanted: Mapping[TransactionalWriter, Iterable[TopicPartition]],
        then: OnPartitionErrors,
        now: Now,
    ) -> None:
        """Add partitions to the transactions of ``wanted``, or verify that they were added, then call ``then`` with the error code
        of each.

        For clients of transaction version 2 the broker adds a partition when they write to it; older clients must have added it
        themselves (KIP-890).
        """
        adds = VersionRule.TRANSACTION_V2 in context.version_rules
        if adds and self._catalog.cluster.is_shared:
            self._log_refusal()
            error = ErrorCode.transaction_abortable  # what it has written so far can be aborted
            self._catalog.outbox.put(*then(dict.fromkeys(chain.from_iterable(wanted.values()), error), now))
            return
        request = add_partitions_to_txn_request.AddPartitionsToTxnRequest(
            transactions=tuple(_part(writer, partitions, verify_only=not adds) for writer, partitions in wanted.items())
        )
        ticket = _counterpart(context.ticket)
        self._waiting_requests[ticket] = then
        version_rules = frozenset({VersionRule.FROM_BROKER, *([VersionRule.TRANSACTION_V2] if adds else ())})
        asked = replace(context, ticket=ticket, api=Api.ADD_PARTITIONS_TO_TXN, version_rules=version_rules)
        self.handle(asked, request, now)

    def on_timer(self, key: TimerKey, now: Now) -> None:
        """Handle one of the coordinator's timers."""
        self._partitions.execute(self._coordinator.on_timer(key, now), now)

    def retry_markers(self, key: tuple[Any, ...], now: Now) -> None:
        """Retry markers that could not be written."""
        order = self._markers.get(key[0])
        if order is not None:
            self._partitions.execute([order], now)

    def retry_load(self, partition: int, now: Now) -> None:
        """Retry a failed load."""
        self._partitions.retry_load(partition, now)

    def on_job(self, tag: JobTag, outcome: object, now: Now) -> None:
        """Handle the outcome of a job: a load or a flush."""
        match tag:
            case ("load", int(partition), int(load)):
                self._partitions.on_loaded(partition, load, outcome, now)
            case ("flush", int(partition), int(batch)):
                self._partitions.on_flushed(partition, batch, outcome, now)
            case _:
                raise AssertionError(f"no such job: {tag}")

    def write_marker(self, log: PartitionLog, marker: TxnMarkerEntry, now: Now) -> None:
        """Write a marker to one log, and apply it to the groups whose offsets are in it. Raises ``ApiError``."""
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
        """Return an id that was never assigned, for the coordinator; ``None`` if the disk fails."""
        try:
            return self._catalog.producer_ids.allocate()
        except ApiError:
            return None

    def _perform(self, effect: TransactionCoordinatorEffect, now: Now) -> Iterable[TransactionCoordinatorEffect]:
        """Perform an effect: write appends and markers, continue requests that waited for an internal reply, put all others into
        the outbox."""
        if isinstance(effect, Append):
            return self._log.append(self._coordinator, [effect], partial(_encode, effect, now.wall), now)
        if isinstance(effect, WriteMarkers):
            return self._write_markers(effect, now)
        if isinstance(effect, Reply) and effect.ticket in self._waiting_requests:
            self._continue_request(effect, now)
        else:
            self._catalog.outbox.put(effect)
        return ()

    def _continue_request(self, reply: Reply, now: Now) -> None:
        """Continue a request that waited for the coordinator's answer. A failure closes only the connection of the request."""
        try:
            effects = self._waiting_requests.pop(reply.ticket)(_errors(reply.response), now)
        except Exception:
            logger.exception("closing a connection: the broker failed to serve a request in a transaction")
            effects = [CloseConnection(_counterpart(reply.ticket), "the broker failed to serve it")]
        self._catalog.outbox.put(*effects)

    def _write_markers(self, order: WriteMarkers, now: Now) -> list[TransactionCoordinatorEffect]:
        """Write the markers that can be written now; notify the coordinator when none is missing."""
        epoch = self._coordinator_epoch(order.state_partition)
        marker = TxnMarkerEntry(order.commit, order.producer_id, order.producer_epoch, epoch)
        missing: list[TopicPartition] = []
        for topic_partition in order.partitions:
            topic = self._catalog.topics.get(topic_partition.topic)
            if topic is None or topic_partition.partition not in topic.partitions:
                continue  # deleted: there are no readers
            if not self._catalog.cluster.is_mine(topic, topic_partition.partition):
                continue  # created again, on another broker
            log = self._catalog.logs.get(topic, topic_partition.partition)
            if log.producers.is_fenced(order.producer_id, order.producer_epoch):
                continue  # a newer epoch writes there: the transaction that this one had left open was ended for it
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
        return self._catalog.logs.get(topic, state_partition).leader_epochs.current if topic is not None else 0


def _counterpart(ticket: Ticket) -> Ticket:
    """The ticket of the internal request for a client's request, or vice versa. Tickets of internal requests are negative."""
    return -ticket - 1


def _encode(append: Append, wall: int) -> bytes:
    return encode_batch([NewRecord(key, value, timestamp=wall) for key, value in append.records])


def _part(
    writer: TransactionalWriter, partitions: Iterable[TopicPartition], *, verify_only: bool
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
    """Read the records of a partition, on the disk thread. Raises ``OSError``."""
    readable: list[Entry] = []
    transactional_ids: set[str] = set()
    entries, damages = latest_entries(segments)
    for key, value in entries:
        try:
            event = event_of(key, value)
        except ProtocolError as error:
            damages.append(f"a record cannot be decoded: {error}")
            continue
        readable.append((key, value))
        if event is not None:
            transactional_ids.add(event.transactional_id)
    return LoadedLog(readable, transactional_ids, damages)


_RETRY = {Api.PRODUCE: ErrorCode.not_enough_replicas, Api.TXN_OFFSET_COMMIT: ErrorCode.coordinator_load_in_progress}
"""The error codes with which clients of all versions retry."""

_TEMPORARY = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)


def error_for_client(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """Return the coordinator's error in the version of the Produce or TxnOffsetCommit request."""
    if error is ErrorCode.concurrent_transactions and VersionRule.TRANSACTION_V2 in context.version_rules:
        return error
    if error in _TEMPORARY:
        return _RETRY[context.api]
    if error is ErrorCode.transaction_abortable and VersionRule.TRANSACTION_ABORTABLE not in context.version_rules:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error
