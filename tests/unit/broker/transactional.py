"""A transactional producer and a reader made of bare requests, for tests of the broker's core.

Owns the requests. Must not know what an answer should be. Invariant: a producer takes its id and epoch from answers, as clients
do, and from nowhere else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ottla.protocol import ErrorCode
from ottla.protocol.apis import Api
from ottla.protocol.messages import (
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    describe_transactions_request,
    end_txn_request,
    init_producer_id_request,
    offset_fetch_request,
    txn_offset_commit_request,
)
from ottla.records import iter_headers
from ottla.simulation.requests import creating, produce_message
from tests.simulation.broker import CoreUnderTest
from tests.simulation.files import content
from tests.simulation.requests import fetch_message
from tests.unit.broker.harness import batch

GROUP = "readers"


def make_topic(broker: CoreUnderTest, name: str = "t", partitions: int = 2, **configs: str) -> None:
    """Create a topic."""
    (result,) = broker.ask(Api.CREATE_TOPICS, creating(name, partitions=partitions, **configs)).topics
    assert result.error_code is ErrorCode.none


class Producer:
    """A producer of version 2 of transactions (KIP-890), or of the first, which adds partitions by asking."""

    def __init__(
        self, broker: CoreUnderTest, transactional_id: str = "tx", *, newest: bool = True, timeout_ms: int = 60_000
    ) -> None:
        self.broker, self.transactional_id, self.newest, self.timeout_ms = broker, transactional_id, newest, timeout_ms
        self.producer_id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self, *, as_known: bool = False) -> ErrorCode:
        """InitProducerId; ``as_known``: with the id and epoch that it has."""
        message = init_producer_id_request.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout=timedelta(milliseconds=self.timeout_ms),
            producer_id=self.producer_id if as_known else -1,
            producer_epoch=self.epoch if as_known else -1,
        )
        answer = self.broker.ask(Api.INIT_PRODUCER_ID, message)
        if answer.error_code is ErrorCode.none:
            self._become(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def add(self, topic: str = "t", partition: int = 0) -> ErrorCode:
        """AddPartitionsToTxn as clients send it."""
        asked = add_partitions_to_txn_request.AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=False,
            topics=(add_partitions_to_txn_request.AddPartitionsToTxnTopic(name=topic, partitions=(partition,)),),
        )
        message = add_partitions_to_txn_request.AddPartitionsToTxnRequest(transactions=(asked,))
        answer = self.broker.ask(Api.ADD_PARTITIONS_TO_TXN, message, version=3)
        return ErrorCode(answer.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code)

    def write(self, partition: int = 0, count: int = 1, *, topic: str = "t", version: int | None = None) -> ErrorCode:
        """Produce; a producer of the first version has added the partition before."""
        version = version or (12 if self.newest else 11)
        sequence = self._sequences.get((topic, partition), 0)
        data = batch(count, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True)
        message = produce_message(data, topic, partition, acks=-1, transactional_id=self.transactional_id)
        answer = self.broker.ask(Api.PRODUCE, message, version=version).responses[0].partition_responses[0]
        if answer.error_code is ErrorCode.none:
            self._sequences[topic, partition] = sequence + count
        return ErrorCode(answer.error_code)

    def add_offsets(self, group: str = GROUP) -> ErrorCode:
        """AddOffsetsToTxn."""
        message = add_offsets_to_txn_request.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        return ErrorCode(self.broker.ask(Api.ADD_OFFSETS_TO_TXN, message).error_code)

    def commit_offset(
        self, offset: int, partition: int = 0, *, group: str = GROUP, generation: int = -1, member: str = ""
    ) -> ErrorCode:
        """TxnOffsetCommit."""
        wanted = txn_offset_commit_request.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        message = txn_offset_commit_request.TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member,
            topics=(txn_offset_commit_request.TxnOffsetCommitRequestTopic(name="t", partitions=(wanted,)),),
        )
        answer = self.broker.ask(Api.TXN_OFFSET_COMMIT, message, version=5 if self.newest else 3)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end(self, *, commit: bool = True) -> ErrorCode:
        """EndTxn."""
        return self.ended(self.broker.ask(Api.END_TXN, self.end_message(commit=commit), version=5 if self.newest else 4))

    def end_message(self, *, commit: bool = True) -> Any:
        """The request."""
        return end_txn_request.EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )

    def ended(self, answer: Any) -> ErrorCode:
        """The answer to EndTxn has come."""
        if answer.error_code is ErrorCode.none and self.newest:
            self._become(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch


def fetch(broker: CoreUnderTest, partition: int = 0, offset: int = 0, *, committed: bool = True) -> Any:
    """What Fetch says of a partition."""
    message = fetch_message(offset, topic="t", partition=partition, isolation_level=1 if committed else 0)
    return broker.ask(Api.FETCH, message, version=12).responses[0].partitions[0]


def read(broker: CoreUnderTest, partition: int = 0, offset: int = 0) -> list[int]:
    """The offsets that a consumer of committed records hands out, from ``offset`` on, of one answer."""
    answer = fetch(broker, partition, offset)
    data = content(answer.records) if len(answer.records) else b""
    upcoming = sorted(answer.aborted_transactions or (), key=lambda one: one.first_offset)
    aborting: set[int] = set()
    found: list[int] = []
    for _, header in iter_headers(data):
        while upcoming and upcoming[0].first_offset <= header.last_offset:
            aborting.add(upcoming.pop(0).producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)  # whatever it says, the transaction is over
        elif not (header.is_transactional and header.producer_id in aborting):
            found += range(header.base_offset, header.next_offset)
    return found


def committed_offset(broker: CoreUnderTest, partition: int = 0, *, group: str = GROUP, require_stable: bool = False) -> Any:
    """The committed offset of a group, or the error that is there in its place."""
    topic = offset_fetch_request.OffsetFetchRequestTopics(name="t", partition_indexes=(partition,))
    message = offset_fetch_request.OffsetFetchRequest(
        groups=(offset_fetch_request.OffsetFetchRequestGroup(group_id=group, topics=(topic,)),), require_stable=require_stable
    )
    answer = broker.ask(Api.OFFSET_FETCH, message, version=9).groups[0].topics[0].partitions[0]
    return answer.committed_offset if answer.error_code is ErrorCode.none else ErrorCode(answer.error_code)


def state_of(broker: CoreUnderTest, transactional_id: str = "tx") -> tuple[str, int]:
    """The state and the epoch of a transactional id."""
    message = describe_transactions_request.DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    answer = broker.ask(Api.DESCRIBE_TRANSACTIONS, message).transaction_states[0]
    return answer.transaction_state, answer.producer_epoch
