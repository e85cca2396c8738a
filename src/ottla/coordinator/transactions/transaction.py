"""A transactional id as an immutable value: its producer and its transaction.

Owns the fields and their record in ``__transaction_state``. Must not know how it changes (``machine``) nor which responses follow.
Invariant: ``of_value(id, value_of(transaction))`` is the transaction, except ``last_epoch``, which no record holds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType

from ottla.protocol.transaction_records import TopicPartitions, TransactionLogValue
from ottla.types import TopicPartition

NONE = -1
"""No producer id, no epoch, or no time."""

MAX_EPOCH = 2**15 - 1


class TransactionState(enum.Enum):
    """The state of a transactional id; the values are the names that DescribeTransactions and ListTransactions use."""

    EMPTY = "Empty"
    """It has a producer that has not begun a transaction."""
    ONGOING = "Ongoing"
    """The transaction has partitions."""
    PREPARE_COMMIT = "PrepareCommit"
    """The outcome is commit: markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """The outcome is abort: markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed in all partitions."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted in all partitions."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The coordinator is about to abort the transaction and fence its producer. A transient state, never written."""
    DEAD = "Dead"
    """The id does not exist, or no longer exists."""


STATUS = MappingProxyType(
    {
        TransactionState.EMPTY: 0,
        TransactionState.ONGOING: 1,
        TransactionState.PREPARE_COMMIT: 2,
        TransactionState.PREPARE_ABORT: 3,
        TransactionState.COMPLETE_COMMIT: 4,
        TransactionState.COMPLETE_ABORT: 5,
        TransactionState.DEAD: 6,
        TransactionState.PREPARE_EPOCH_FENCE: 7,
    }
)
"""State -> its number in a record."""
STATE = MappingProxyType({number: state for state, number in STATUS.items()})

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states with a fixed outcome: the markers and the completion follow."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id. Times are wall-clock milliseconds.

    ``next_producer_id`` is set while a transaction ends whose producer has exhausted its epochs. ``version`` is the version of
    transactions (KIP-890) of the last change.
    """

    transactional_id: str
    state: TransactionState = TransactionState.DEAD
    producer_id: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    epoch: int = NONE
    last_epoch: int = NONE
    """The producer's previous epoch: a request with it repeats one whose response was lost."""
    timeout_ms: int = 0
    partitions: frozenset[TopicPartition] = frozenset()
    started_at: int = NONE
    updated_at: int = NONE
    version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next producer needs another id. The largest epoch is reserved for the markers of the last transaction."""
        return self.epoch >= MAX_EPOCH - 1


def value_of(transaction: Transaction) -> TransactionLogValue:
    """Return the record of a transaction."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(partition)
    partitions = tuple(TopicPartitions(topic=topic, partition_ids=tuple(numbers)) for topic, numbers in by_topic.items())
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=STATUS[transaction.state],
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_at,
        transaction_start_timestamp_ms=transaction.started_at,
        client_transaction_version=transaction.version,
    )


def of_value(transactional_id: str, value: TransactionLogValue) -> Transaction:
    """Return the transaction of a record."""
    return Transaction(
        transactional_id=transactional_id,
        state=STATE[value.transaction_status],
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        partitions=frozenset(
            TopicPartition(one.topic, partition) for one in value.transaction_partitions or () for partition in one.partition_ids
        ),
        started_at=value.transaction_start_timestamp_ms,
        updated_at=value.transaction_last_update_timestamp_ms,
        version=value.client_transaction_version,
    )
