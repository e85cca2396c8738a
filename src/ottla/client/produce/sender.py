"""Sends the batches of the record accumulator to the leaders of their partitions.

Owns the Produce requests, the retries of batches and their delivery time-out. Must not know how records are encoded, nor who waits
for a batch. Invariants: each batch gets one outcome, at ``delivery.timeout.ms`` at the latest; of a partition the batches are sent
in order, and of an idempotent producer one that is sent again is alone in flight; while a request to a broker is not on its way
because the broker cannot be reached, no further one is made for it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, cast

from ottla.client.backoff import ExponentialBackoff
from ottla.client.cluster.metadata import MetadataManager
from ottla.client.effects import AnySend, Poll, Send, ToNode
from ottla.client.produce.metrics import ProducerMeters
from ottla.client.produce.partition_loads import PartitionLoads
from ottla.client.produce.sequences import Sequences
from ottla.client.produce.transactions.manager import TransactionManager
from ottla.config.producer import ProducerConfig
from ottla.errors import LeaderNotAvailableError, OttlaError, OttlaTimeoutError, ProtocolError, UnsupportedApiError, broker_error
from ottla.protocol import ErrorCode, duration, rpcs
from ottla.protocol.apis import VersionRule
from ottla.protocol.messages import produce_request, produce_response
from ottla.records import Compression
from ottla.records.accumulator import RecordAccumulator
from ottla.records.batch_states import BatchInput, BatchState
from ottla.records.producer_batches import divide, encode_producer_batch
from ottla.records.producer_queues import PartitionQueue, ProducerBatch
from ottla.types import Leader, Node, Now, TopicPartition

_log = logging.getLogger(__name__)

_SLOW = "see the logs of the brokers, or increase delivery_timeout"
_TOO_MANY = "send more slowly, or increase batch_size or delivery_timeout"


class ProduceReaction(enum.Enum):
    """The reaction to the error code of a partition."""

    RETRY = "send the batch again"
    NEW_LEADER = "request metadata, and send the batch again"
    WRITTEN = "the batch was written before, by a request whose response was lost"
    SPLIT = "send the records in smaller batches"
    SEQUENCE = "the sequence numbers decide"
    FAIL = "fail the batch"


REACTIONS: Mapping[int, ProduceReaction] = {
    ErrorCode.corrupt_message: ProduceReaction.RETRY,
    ErrorCode.unknown_topic_or_partition: ProduceReaction.NEW_LEADER,
    ErrorCode.leader_not_available: ProduceReaction.NEW_LEADER,
    ErrorCode.not_leader_or_follower: ProduceReaction.NEW_LEADER,
    ErrorCode.request_timed_out: ProduceReaction.RETRY,
    ErrorCode.replica_not_available: ProduceReaction.NEW_LEADER,
    ErrorCode.network_exception: ProduceReaction.NEW_LEADER,
    ErrorCode.message_too_large: ProduceReaction.SPLIT,
    ErrorCode.record_list_too_large: ProduceReaction.SPLIT,
    ErrorCode.not_enough_replicas: ProduceReaction.RETRY,
    ErrorCode.not_enough_replicas_after_append: ProduceReaction.RETRY,
    ErrorCode.out_of_order_sequence_number: ProduceReaction.SEQUENCE,
    ErrorCode.duplicate_sequence_number: ProduceReaction.WRITTEN,
    ErrorCode.kafka_storage_error: ProduceReaction.NEW_LEADER,
    ErrorCode.unknown_producer_id: ProduceReaction.SEQUENCE,
    ErrorCode.concurrent_transactions: ProduceReaction.RETRY,
    ErrorCode.fenced_leader_epoch: ProduceReaction.NEW_LEADER,
    ErrorCode.unknown_leader_epoch: ProduceReaction.NEW_LEADER,
    ErrorCode.unknown_topic_id: ProduceReaction.NEW_LEADER,
    ErrorCode.inconsistent_topic_id: ProduceReaction.NEW_LEADER,
    ErrorCode.throttling_quota_exceeded: ProduceReaction.RETRY,
}
"""Error codes of a partition in a Produce response -> reaction. Any other code fails the batch."""

NOT_WRITTEN = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.concurrent_transactions,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.producer_fenced,
        ErrorCode.transaction_abortable,
        ErrorCode.unknown_producer_id,
        ErrorCode.unsupported_compression_type,
        ErrorCode.invalid_record,
        ErrorCode.throttling_quota_exceeded,
    }
)
"""The codes of a request that surely has not written the batch. After others the batch may be in the log: a leader that loses the
leadership before all replicas have the batch answers NOT_LEADER_OR_FOLLOWER, for example.
"""


class Sent(NamedTuple):
    """A batch in a request. ``was_in_doubt``: an earlier request may have written it."""

    batch: ProducerBatch
    records: bytes | bytearray | memoryview
    was_in_doubt: bool


_Led = tuple[PartitionQueue, Leader]
"""A partition and its leader, looked up once in a pass."""


class Reasons(Protocol):
    """Returns why no batch can be sent to a broker, or to none for ``None``; ``None`` if there is no reason known."""

    def __call__(self, node_id: int | None, /) -> OttlaError | None:
        """Return the reason."""


class Sender:
    """A ``RequestManager``.

    ``sequences`` is ``None`` for a producer that is not idempotent, ``transactions`` for one that is not transactional.
    ``learn_node`` gets the brokers in responses. ``is_connected`` tells whether requests to a broker leave at once, ``reason`` why
    they do not.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: RecordAccumulator,
        metadata: MetadataManager,
        sequences: Sequences | None,
        backoff: ExponentialBackoff,
        learn_node: Callable[[Node, Now], None],
        is_connected: Callable[[int], bool],
        reason: Reasons,
        meters: ProducerMeters,
        transactions: TransactionManager | None = None,
    ) -> None:
        self.urgent = False
        """Whether the batches leave in the next poll without waiting for ``linger.ms``."""
        self._config = config
        self._accumulator = accumulator
        self._metadata = metadata
        self._sequences = sequences
        self._backoff = backoff
        self._learn_node = learn_node
        self._is_connected = is_connected
        self._reason = reason
        self._meters = meters
        self._transactions = transactions
        self._loads = PartitionLoads(config, metadata)
        self._compression = Compression[config.compression_type.upper()]
        self._level = config.compression_level
        self._requests: dict[int, int] = {}
        """Broker -> its number of requests without a response."""
        self._in_flight: dict[ProducerBatch, None] = {}
        self._muted: set[PartitionQueue] = set()
        """Partitions with a batch in flight, where only one may be."""
        self._led_by: dict[PartitionQueue, Leader] = {}
        """The leaders to which the latest batches were sent. With another one, a batch is sent again without back-off."""
        self._drained: list[tuple[int, list[Sent]]] = []
        self._unsent: list[AnySend] = []
        """Batches without a request, and requests, that are already noted as in flight. If a poll raises, the next one goes on."""
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Sender {len(self._in_flight)} batches in flight>"

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return sum(self._requests.values())

    @property
    def is_saturated(self) -> bool:
        """Whether no broker can get another request before one of them has answered."""
        nodes = self._metadata.current.nodes
        if len(self._requests) < len(nodes) or not all(self._requests.values()):
            return False  # the usual case, at once
        return bool(nodes) and not any(self._may_send_to(node_id) for node_id in nodes)

    # -- polling ----------------------------------------------------------------------------------------------------------

    def poll(self, now: Now) -> Poll:
        """Return the requests for all batches that are due and may be sent."""
        active = self._accumulator.active()
        self._expire(active, now)
        wake_at = [min(self._deadline(batch) for batch in self._in_flight)] if self._in_flight else []
        if self._sequences is not None:
            had_id = self._sequences.current is not None
            self._sequences.resolve()
            if had_id and self._sequences.current is None:
                wake_at.append(now.mono)  # another manager looks up an id
        self._request_drained()
        urgent, self.urgent = self.urgent or bool(self._accumulator.waiters) or not self._accumulator.accepts, False
        for node_id, led in self._due(active, wake_at, now, urgent).items():
            self._loads.blocked(node_id, now)
            while self._may_send_to(node_id) and self._drain(node_id, led, now, urgent):
                self._loads.drained(node_id)
                self._request_drained()
        self._loads.weigh(active, now)
        sends, self._unsent = tuple(self._unsent), []
        return Poll(sends, min(wake_at, default=None))

    def _request_drained(self) -> None:
        while self._drained:
            node_id, drained = self._drained[0]
            if drained := [one for one in drained if one.batch.state is BatchState.IN_FLIGHT]:
                self._unsent.append(self._produce(node_id, drained))
            del self._drained[0]

    def _due(self, active: Iterable[PartitionQueue], wake_at: list[int], now: Now, urgent: bool) -> dict[int, list[_Led]]:
        """Return broker -> partitions with a batch that may be sent to it; add to ``wake_at`` when others are due."""
        due: dict[int, list[_Led]] = {}
        metadata = self._metadata.current
        lacks_leader = False
        for queue in active:
            oldest = queue.closed[0] if queue.closed else queue.open
            if oldest is None:
                self._accumulator.set_idle(queue)
                continue
            wake_at.append(self._deadline(oldest))
            leader = metadata.leader(queue.tp)
            at = self._due_at(queue, leader, urgent)
            if at > now.mono:
                wake_at.append(at)
                continue
            if queue.open is not None and (linger_ends := int(queue.open.created_at) + self._config.linger_ms) > now.mono:
                wake_at.append(linger_ends)
            if self._must_wait(queue):
                continue
            if leader is None:
                lacks_leader = True
            else:
                due.setdefault(leader.node.node_id, []).append((queue, leader))
        if lacks_leader:
            self._metadata.request_update()
        return due

    def _deadline(self, batch: ProducerBatch) -> int:
        return int(batch.created_at) + self._config.delivery_timeout_ms

    def _due_at(self, queue: PartitionQueue, leader: Leader | None, urgent: bool) -> int:
        """When the oldest batch of a partition is to be sent (monotonic ms), as far as linger and back-off are concerned."""
        if queue.closed:
            is_same = leader is None or leader == self._led_by.get(queue)
            return (self._first(queue).retry_at or 0) if is_same else 0
        return 0 if urgent or queue.open is None else int(queue.open.created_at) + self._config.linger_ms

    def _first(self, queue: PartitionQueue) -> ProducerBatch:
        """The closed batch of a partition that is sent next."""
        first = None if self._sequences is None else self._sequences.first(queue)
        return queue.closed[0] if first is None else first

    def _must_wait(self, queue: PartitionQueue) -> bool:
        """Whether the first batch of a partition has to wait for others."""
        if queue in self._muted or (self._transactions is not None and not self._transactions.may_send(queue.tp)):
            return True
        return self._sequences is not None and not self._sequences.may_send(queue)

    def _may_send_to(self, node_id: int) -> bool:
        most = self._config.max_in_flight_requests_per_connection if self._is_connected(node_id) else 1
        return self._requests.get(node_id, 0) < most

    def _drain(self, node_id: int, led: list[_Led], now: Now, urgent: bool) -> bool:
        """Take the oldest batch of each partition, as many as a request may hold. Each time another partition is the first.

        Return whether there were any.
        """
        drained: list[Sent] = []
        self._drained.append((node_id, drained))
        size = 0
        self._turn += 1
        start = self._turn % len(led)
        for queue, leader in (*led[start:], *led[:start]):
            if self._due_at(queue, leader, urgent) > now.mono or self._must_wait(queue):
                continue
            if not queue.closed:
                self._accumulator.close(queue)  # only now: as long as it has to wait, records are added to it
            batch = self._first(queue) if queue.closed else None
            if batch is None or (drained and size + batch.size > self._config.max_request_size):
                continue
            if (records := self._encoded(batch, now)) is None:
                continue
            queue.closed.remove(batch)
            was_in_doubt = batch.attempts > 0 if self._sequences is None else self._sequences.sent(batch)
            if self._transactions is not None:
                self._transactions.sent(queue.tp)
            batch.move(BatchInput.SEND)
            self._in_flight[batch] = None
            self._led_by[queue] = leader
            if self._config.max_in_flight_requests_per_connection == 1:
                self._muted.add(queue)
            size += batch.size
            drained.append(Sent(batch, records, was_in_doubt))
        if drained:
            self._meters.drained([(one.batch, len(one.records)) for one in drained], now)
        return bool(drained)

    def _encoded(self, batch: ProducerBatch, now: Now) -> bytes | memoryview | None:
        """Number and encode the oldest batch of a partition; fail it if that cannot be encoded, for example without its codec."""
        if self._sequences is not None:
            self._sequences.number(batch)
        batch.is_transactional = self._transactions is not None
        try:
            return encode_producer_batch(batch, self._compression, self._level)
        except Exception as error:
            batch.queue.closed.remove(batch)
            self._end(batch, BatchInput.FAIL, OttlaError(f"a batch cannot be encoded: {error!r}", cause=error), now)
            return None

    # -- requests ---------------------------------------------------------------------------------------------------------

    def _produce(self, node_id: int, drained: list[Sent]) -> AnySend:
        """Return the request with these batches."""
        data: dict[str, list[produce_request.PartitionProduceData]] = {}
        for one in drained:
            queue = one.batch.queue
            data.setdefault(queue.topic.name, []).append(
                produce_request.PartitionProduceData(index=queue.partition, records=cast(bytes, one.records))
            )
        ids = {name: self._metadata.current.topic_id(name) for name in data}
        message = produce_request.ProduceRequest(
            transactional_id=self._config.transactional_id,
            acks=self._config.acks,
            timeout=duration(self._config.request_timeout_ms),
            topic_data=tuple(
                produce_request.TopicProduceData(topic_id=ids[name], name=name, partition_data=tuple(partitions))
                for name, partitions in data.items()
            ),
        )
        names = {topic_id: name for name, topic_id in ids.items()}
        sent = {one.batch.queue.tp: one for one in drained}
        self._requests[node_id] = self._requests.get(node_id, 0) + 1

        def on_response(response: produce_response.ProduceResponse, now: Now) -> None:
            self._requests[node_id] -= 1
            answers = {
                TopicPartition(topic.name or names.get(topic.topic_id, ""), answer.index): answer
                for topic in response.responses
                for answer in topic.partition_responses
            }
            self._take_leaders(answers, response.node_endpoints, now)
            for tp, one in sent.items():
                self._answered(tp, one, answers.get(tp), now)

        def on_failure(error: OttlaError, now: Now) -> None:
            self._requests[node_id] -= 1
            self._metadata.request_update()
            for one in sent.values():
                if isinstance(error, UnsupportedApiError):
                    self._refused(one, ErrorCode.unsupported_version, error, now)
                else:
                    self._retry(one.batch, error, now)

        rule, version = VersionRule.TRANSACTION_V2, 0 if self._transactions is None else self._transactions.version
        return Send(
            rpcs.PRODUCE,
            message,
            ToNode(node_id),
            self._config.request_timeout_ms,
            on_response,
            on_failure,
            requires=rule if version > 1 else None,
            excludes=rule if version == 1 else None,
        )

    # -- outcomes ---------------------------------------------------------------------------------------------------------

    def _take_leaders(
        self,
        answers: Mapping[TopicPartition, produce_response.PartitionProduceResponse],
        endpoints: Iterable[produce_response.NodeEndpoint],
        now: Now,
    ) -> None:
        """Take over the new leaders that the response names (KIP-951)."""
        leaders = {
            tp: (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
            for tp, answer in answers.items()
            if answer.current_leader.leader_id >= 0
        }
        if leaders:
            nodes = [Node(item.node_id, item.host, item.port, item.rack) for item in endpoints]
            for node in nodes:
                self._learn_node(node, now)
            self._metadata.update_leaders(leaders, nodes)

    def _answered(self, tp: TopicPartition, one: Sent, answer: produce_response.PartitionProduceResponse | None, now: Now) -> None:
        batch = one.batch
        if answer is None:
            return self._retry(batch, ProtocolError(f"the response to Produce lacks {tp}"), now)
        code = int(answer.error_code)
        reaction = REACTIONS.get(code, ProduceReaction.FAIL)
        if not code:
            return self._written(one, answer.base_offset, answer.log_append_time_ms)
        if reaction is ProduceReaction.WRITTEN:
            return self._written(one, None, None)
        error = _refusal(tp, one, answer)
        if reaction is ProduceReaction.NEW_LEADER:
            self._metadata.request_update()
        is_sequence = reaction is ProduceReaction.SEQUENCE and self._sequences is not None
        if not is_sequence and reaction not in (ProduceReaction.RETRY, ProduceReaction.NEW_LEADER):
            return self._refused(one, code, error, now)
        if (code not in NOT_WRITTEN or self._note_refusal(one, code)) and not self._ends_transaction(batch):
            return self._retry(batch, error, now)
        if batch.state is BatchState.IN_FLIGHT:
            self._end(batch, BatchInput.FAIL, error, now)
        return None

    def _ends_transaction(self, batch: ProducerBatch) -> bool:
        """Whether a batch cannot be written any more in its transaction: that needs another epoch, which is another transaction."""
        return self._transactions is not None and self._sequences is not None and self._sequences.has_gap(batch.queue)

    def _note_refusal(self, one: Sent, code: int) -> bool:
        """Note that a request has not written a batch. Return whether it may be sent again."""
        return self._sequences is None or self._sequences.refused(one.batch, code, was_in_doubt=one.was_in_doubt)

    def _refused(self, one: Sent, code: int, error: OttlaError, now: Now) -> None:
        """Fail a batch after an error that a retry does not fix, or divide it."""
        if code in NOT_WRITTEN:
            self._note_refusal(one, code)
        if one.batch.state is not BatchState.IN_FLIGHT:
            return
        if REACTIONS.get(code) is ProduceReaction.SPLIT and one.batch.count > 1:
            self._divide(one.batch, error, now)
        else:
            self._end(one.batch, BatchInput.FAIL, error, now)

    def _written(self, one: Sent, offset: int | None, log_append_time: int | None) -> None:
        batch = one.batch
        if self._sequences is not None:
            self._sequences.acknowledged(batch)
        if batch.state is BatchState.IN_FLIGHT:
            self._leave_flight(batch)
            known = log_append_time if log_append_time is not None and log_append_time >= 0 else None
            batch.settle(BatchInput.ACKNOWLEDGE, base_offset=offset, log_append_time=known)
            self._accumulator.release(batch)

    def _retry(self, batch: ProducerBatch, error: OttlaError, now: Now) -> None:
        """Send a batch again, unless it has an outcome or has used up its attempts."""
        if batch.state is not BatchState.IN_FLIGHT:
            return
        if batch.attempts >= self._config.retries:
            self._end(batch, BatchInput.FAIL, error, now)
            return
        if self._ended_with_transaction(batch, error, now):
            return
        _log.debug("%r is sent again: %s", batch, error)
        self._leave_flight(batch)
        batch.retry_at, batch.last_error = now.mono + self._backoff.delay(batch.attempts), error
        batch.attempts += 1
        batch.move(BatchInput.RETRY)
        self._accumulator.put_back(batch.queue, self._place(batch), [batch])

    def _ended_with_transaction(self, batch: ProducerBatch, error: OttlaError, now: Now) -> bool:
        """End a batch that would be sent again, if its transaction is one of which nothing more is sent. Return whether it is."""
        if self._transactions is None or self._transactions.may_retry:
            return False
        self._end(batch, BatchInput.ABORT, self._transactions.error or error, now)
        return True

    def _divide(self, batch: ProducerBatch, error: OttlaError, now: Now) -> None:
        """Let two batches have the records of one that is too large."""
        if self._ended_with_transaction(batch, error, now):
            return None
        try:
            parts = divide(batch)
        except Exception as bug:
            return self._end(batch, BatchInput.FAIL, OttlaError(f"{error}; the batch cannot be divided: {bug!r}", cause=bug), now)
        self._leave_flight(batch)
        if self._sequences is not None:
            self._sequences.divided(batch, parts)
        self._meters.divided(now)
        self._accumulator.replace(batch, parts)
        self._accumulator.put_back(batch.queue, self._place(parts[0]), parts)
        batch.divide(parts)
        return None

    def _place(self, batch: ProducerBatch) -> int:
        """The place of a batch in its partition's queue: behind those that are sent again and were before it."""
        return 0 if self._sequences is None else self._sequences.place(batch)

    def _expire(self, active: Iterable[PartitionQueue], now: Now) -> None:
        """Fail the batches that were not written within ``delivery.timeout.ms``."""
        for batch in [batch for batch in self._in_flight if self._deadline(batch) <= now.mono]:
            self._end(batch, BatchInput.EXPIRE, self._expired(batch), now)
        for queue in active:
            if queue.open is not None and self._deadline(queue.open) <= now.mono:
                self._accumulator.close(queue)
            while queue.closed and self._deadline(queue.closed[0]) <= now.mono:
                batch = queue.closed.popleft()
                self._end(batch, BatchInput.EXPIRE, self._expired(batch), now)

    def _expired(self, batch: ProducerBatch) -> OttlaTimeoutError:
        tp = batch.queue.tp
        leader = self._metadata.current.leader(tp)
        unreachable = self._reason(None if leader is None else leader.node.node_id)
        cause = self._metadata.current.absence(tp) or batch.last_error or unreachable
        records = f"{batch.count} record{'s' if batch.count > 1 else ''}"
        text = f"{records} for {tp} not acknowledged within {self._config.delivery_timeout_ms / 1000:g} s"
        if cause is not None:
            return OttlaTimeoutError(f"{text}: {cause.args[0]}", hint=cause.hint or _SLOW, cause=cause)
        if leader is None:
            return OttlaTimeoutError(f"{text}: no leader of the partition is known", hint=LeaderNotAvailableError.hint)
        if batch.state is BatchState.IN_FLIGHT:
            return OttlaTimeoutError(f"{text}: {leader.node} has not answered", hint=_SLOW)
        return OttlaTimeoutError(f"{text}: {leader.node} was not sent the records: others were in flight", hint=_TOO_MANY)

    def abort_all(self, error: OttlaError, now: Now) -> None:
        """Fail all batches without an outcome, also those in flight."""
        self.abort_unsent(error, now)
        for batch in self._accumulator.close_all():
            self._end(batch, BatchInput.ABORT, error, now)

    def abort_unsent(self, error: OttlaError, now: Now) -> None:
        """Fail all batches that are not in flight."""
        for batch in self._accumulator.close_all():
            if batch.state in (BatchState.CLOSED, BatchState.RETRYING):
                batch.queue.closed.remove(batch)
                self._end(batch, BatchInput.ABORT, error, now)

    def abort_without_id(self, error: OttlaError, now: Now) -> None:
        """Fail all batches, since no broker assigns a producer id, but those that may have been written: the error denies that."""
        assert self._sequences is not None
        for batch in self._accumulator.close_all():
            if not self._sequences.is_in_doubt(batch):
                batch.queue.closed.remove(batch)
                self._end(batch, BatchInput.ABORT, error, now)

    def _end(self, batch: ProducerBatch, what: BatchInput, error: OttlaError, now: Now) -> None:
        """Fail a batch that has no outcome."""
        self._leave_flight(batch)
        if self._sequences is not None:
            self._sequences.failed(batch)
        self._meters.failed(batch, now)
        batch.settle(what, error=error)
        self._accumulator.release(batch)
        if self._transactions is not None:
            self._transactions.failed(error, now, was_sent=batch.sequence is not None)

    def _leave_flight(self, batch: ProducerBatch) -> None:
        self._in_flight.pop(batch, None)
        self._muted.discard(batch.queue)


def _refusal(tp: TopicPartition, one: Sent, answer: produce_response.PartitionProduceResponse) -> OttlaError:
    """Return the error for a response with an error code; it names the first record that the broker complains about (KIP-467), and
    says whether the batch may be in the log all the same."""
    code, what = int(answer.error_code), f"writing {one.batch.count} record{'s' if one.batch.count > 1 else ''} to {tp}"
    details = [answer.error_message] if answer.error_message else []
    if answer.record_errors:
        index, message = answer.record_errors[0].batch_index, answer.record_errors[0].batch_index_error_message
        if not message or message not in (answer.error_message or ""):  # brokers repeat the first messages in that of the batch
            details.append(f"record {index} of them: {message or 'refused'}")
    if code not in NOT_WRITTEN:
        details.append("they may have been written all the same")
    elif one.was_in_doubt:
        details.append("refused, but an earlier request may have written them")
    return broker_error(code, ": ".join([what, *details]))
