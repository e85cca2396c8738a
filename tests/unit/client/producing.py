"""What tests of the sender share: the real accumulator, metadata, sequences and sender under a virtual clock.

Owns the producer's half; must not know which behaviour is tested. Invariant: nothing is answered unless the test answers it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

from ottla import Delivery
from ottla.client.effects import AnySend
from ottla.client.produce.calls import metadata_of
from ottla.client.produce.metrics import ProducerMeters
from ottla.client.produce.sender import Sender
from ottla.client.produce.sequences import ProducerIdAndEpoch, Sequences
from ottla.client.produce.transactions.manager import TransactionManager
from ottla.config.producer import ProducerConfig
from ottla.errors import OttlaError
from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import produce_response
from ottla.records import iter_records
from ottla.records.accumulator import RecordAccumulator
from ottla.records.batch_states import OUTCOMES
from ottla.records.header import read_header
from ottla.records.producer_queues import ProducerBatch
from ottla.types import RecordMetadata, TopicPartition
from tests.unit.client.managers import T0, Asked, Cluster, backoff

PRODUCER_ID = 7

_parsed = cache(partial(ProducerConfig.parse, bootstrap_servers="one:9092"))


class Batch(NamedTuple):
    """One batch in a request."""

    epoch: int
    sequence: int
    values: list[str]


class Writes(Asked):
    """A producer of topic ``t`` with three partitions, whose brokers the test plays. Records leave without linger by default."""

    manager: Sender

    def __init__(
        self, *, producer_id: int | None = PRODUCER_ID, leaders: Mapping[TopicPartition, int] | None = None, **settings: Any
    ) -> None:
        self.config = _parsed(**{"linger_ms": 0, **settings})
        self.cluster = Cluster() if leaders is None else Cluster(leaders=leaders)
        self.accumulator = RecordAccumulator(
            batch_size=self.config.batch_size,
            memory=self.config.buffer_memory,
            max_record=self.config.max_request_size,
            lock=threading.Lock(),
            nanoseconds=lambda: 1_700_000_000_000 * 1_000_000,
            mono=lambda: self.mono,
            random=random.Random(0),
            wake=lambda: None,
            settled=lambda batch: self.settled.append(batch),
            unseen=lambda _batch: None,
        )
        self.accumulator.set_partitions("t", 3)
        self.sequences = Sequences() if self.config.enable_idempotence else None
        self.connected = {1, 2}
        self.reason: OttlaError | None = None
        self.settled: list[ProducerBatch] = []
        self.transactions = self._new_transactions()
        sender = Sender(
            self.config,
            self.accumulator,
            self.cluster.manager,
            self.sequences,
            backoff(),
            lambda _node, _now: None,
            self.connected.__contains__,
            lambda _node: self.reason,
            ProducerMeters(),
            self.transactions,
        )
        super().__init__(sender)
        if self.sequences is not None and producer_id is not None:
            self.sequences.assigned(ProducerIdAndEpoch(producer_id, 0))

    def _new_transactions(self) -> TransactionManager | None:
        return None

    def write(self, *values: str, to: TopicPartition = T0, **record: Any) -> list[Delivery]:
        """Append records; they become one batch unless it is full."""
        deliveries = [self.accumulator.append(to.topic, value, partition=to.partition, **record) for value in values]
        assert None not in deliveries
        return [delivery for delivery in deliveries if delivery is not None]

    def request(self, *values: str, to: TopicPartition = T0) -> tuple[AnySend, list[Delivery]]:
        """Append records and send their batch: the request, and the deliveries."""
        deliveries = self.write(*values, to=to)
        return self.one(Api.PRODUCE), deliveries

    def confirmed(self, to: TopicPartition = T0) -> None:
        """Let the first batch be written, after which several may be in flight."""
        send, _ = self.request("first", to=to)
        self.reply(send)
        self.settled.clear()

    def reply(self, send: AnySend, code: int = 0, *, offset: int = 100, at: int | None = None, **fields: Any) -> None:
        """Answer with one code for all partitions."""
        if at is not None:
            self.mono = at
        self.answer(send, response(batches(send), code, offset, **fields))


def batches(send: AnySend) -> dict[TopicPartition, Batch]:
    """The batches of a request."""
    found = {}
    for topic in send.message.topic_data:
        for part in topic.partition_data:
            header = read_header(part.records)
            values = [bytes(record.value).decode() for record in iter_records(bytes(part.records))]
            found[TopicPartition(topic.name, part.index)] = Batch(header.producer_epoch, header.base_sequence, values)
    return found


def response(partitions: Iterable[TopicPartition], code: int = 0, offset: int = 100, **fields: Any) -> Any:
    endpoints = fields.pop("node_endpoints", ())
    topics: dict[str, list[Any]] = {}
    for tp in partitions:
        answer = produce_response.PartitionProduceResponse(
            index=tp.partition, error_code=ErrorCode(code), base_offset=-1 if code else offset, **{"record_errors": (), **fields}
        )
        topics.setdefault(tp.topic, []).append(answer)
    return produce_response.ProduceResponse(
        responses=tuple(
            produce_response.TopicProduceResponse(name=name, partition_responses=tuple(parts)) for name, parts in topics.items()
        ),
        node_endpoints=endpoints,
    )


def result(delivery: Delivery) -> RecordMetadata:
    """The outcome of a record, which it must have."""
    assert is_done(delivery), delivery
    return metadata_of(delivery)


def error(delivery: Delivery) -> OttlaError:
    """The error of a record that has failed."""
    batch, _ = delivery.batch.part_of(delivery.index)
    assert batch.error is not None, batch
    return batch.error


def is_done(delivery: Delivery) -> bool:
    return delivery.batch.part_of(delivery.index)[0].state in OUTCOMES
