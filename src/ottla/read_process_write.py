"""``transactions()``: the loop of a program that reads, processes, writes, and commits what it read together with what it wrote.

Owns what happens when a transaction of the loop cannot be committed. Must not know requests. Invariants: no transaction is open
while the consumer polls, so none is open when partitions are revoked; after a transaction that was not committed, its records are
read again, unless other members of the group have their partitions by then.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from ottla.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    OttlaError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionOutcomeUnknownError,
    UnknownProducerIdError,
)
from ottla.records import Records
from ottla.runtime import clock
from ottla.transaction import AsyncTransaction, Transaction
from ottla.types import IsolationLevel, K_co, OffsetAndMetadata, TopicPartition, V_co, short_repr

if TYPE_CHECKING:
    from ottla.async_consumer import AsyncConsumer
    from ottla.async_producer import AsyncProducer
    from ottla.consumer import Consumer
    from ottla.producer import Producer

_log = logging.getLogger(__name__)


_Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


_UNKNOWN = "whether the transaction before was committed is not known: read on with another consumer, from what is committed"


_PASSING = (InvalidProducerIdMappingError, OutOfOrderSequenceNumberError, TransactionAbortableError, UnknownProducerIdError)
"""Errors of one transaction: the next one has another epoch. For example, the coordinator forgets the id of a producer that is idle
for a week."""


class _Recovery(enum.Enum):
    """What follows a transaction that was not committed."""

    READ_AGAIN = "read the records again, or leave them to another member of the group"
    INITIALIZE = "initialize the producer, then read on from what is committed"
    RAISE = "let the program decide"


@overload
def transactions(
    consumer: Consumer[K_co, V_co], producer: Producer, *, timeout: float | timedelta = ...
) -> Iterator[tuple[Transaction, Records[K_co, V_co]]]: ...


@overload
def transactions(
    consumer: AsyncConsumer[K_co, V_co], producer: AsyncProducer, *, timeout: float | timedelta = ...
) -> AsyncIterator[tuple[AsyncTransaction, Records[K_co, V_co]]]: ...


def transactions(consumer: Any, producer: Any, *, timeout: float | timedelta = 1.0) -> Any:
    """Read records, and begin a transaction for each group of them, for ever.

    ::

        for transaction, records in ottla.transactions(consumer, producer):
            for record in records:
                producer.send("invoices", invoice_for(record.value))

    When the body is done, the offsets of ``records`` are committed in the transaction, together with what was sent. An exception or
    ``break`` in the body aborts the transaction; ``transaction.commit()`` before a ``break`` commits it. After
    ``transaction.abort()`` the records come again. With an ``AsyncConsumer`` and an ``AsyncProducer`` it is an ``async for``.

    ``timeout`` (seconds) is that of each ``poll()``. The consumer needs a group, ``enable_auto_commit=False`` and
    ``isolation_level="read_committed"``, the producer a ``transactional_id``.

    The loop goes on after a rebalance, after a body that took longer than ``max_poll_interval`` or ``transaction_timeout``, and
    after errors that a retry may fix: the records come again, or another member gets them. It raises other errors, and what
    ``poll()`` raises, such as ``WakeupError``.
    """
    from ottla.async_consumer import AsyncConsumer
    from ottla.async_producer import AsyncProducer
    from ottla.consumer import Consumer
    from ottla.producer import Producer

    is_async = isinstance(consumer, AsyncConsumer)
    if not is_async and not isinstance(consumer, Consumer):
        raise TypeError(f"consumer must be a Consumer or an AsyncConsumer, not {short_repr(consumer)}")
    expected: type[Any] = AsyncProducer if is_async else Producer
    if not isinstance(producer, expected):
        name = type(consumer).__name__
        raise TypeError(f"an {name} needs an {expected.__name__}" if is_async else f"a {name} needs a {expected.__name__}")
    _check(consumer)
    producer.transaction()  # raises if it is not transactional
    return _tasks_loop(consumer, producer, timeout) if is_async else _threads_loop(consumer, producer, timeout)


def _check(consumer: Any) -> None:
    config = consumer._config
    if config.group_id is None or config.group_protocol == "zookeeper":
        raise IllegalStateError("transactions() needs a consumer with a group that brokers coordinate", hint="set group_id")
    if config.enable_auto_commit:
        raise IllegalStateError("transactions() commits the offsets itself", hint="set enable_auto_commit=False")
    if config.isolation_level is not IsolationLevel.READ_COMMITTED:
        text = "the consumer would also read records of transactions that are aborted"
        raise IllegalStateError(text, hint='set isolation_level="read_committed"')


class _Turn:
    """One transaction of the loop, and the positions of its records."""

    def __init__(self, records: Records[Any, Any], producer: Any) -> None:
        self.first: dict[TopicPartition, OffsetAndMetadata] = {}
        for part in records.parts:
            self.first.setdefault(part.topic_partition, OffsetAndMetadata(part.first_offset))
        self._producer = producer
        self._began_at = clock.monotonic()

    def recovery(self, error: OttlaError) -> _Recovery:
        """What follows an error of the transaction."""
        cause = error.cause if isinstance(error, TransactionAbortedError) and isinstance(error.cause, OttlaError) else error
        if isinstance(cause, CommitFailedError):
            _log.warning("a transaction was aborted, since the group has rebalanced: %s", error)
            return _Recovery.READ_AGAIN
        if isinstance(error, TransactionOutcomeUnknownError):
            _log.warning("%s: reading on from what is committed", error)
            return _Recovery.INITIALIZE
        if isinstance(cause, ProducerFencedError):
            # A coordinator fences the producer of a transaction that takes too long. If this one did, that is taken as the reason.
            limit = self._producer._config.transaction_timeout_ms / 1000
            if clock.monotonic() - self._began_at < limit:
                return _Recovery.RAISE
            _log.warning("a transaction took longer than transaction.timeout.ms (%g s), so it was aborted", limit)
            return _Recovery.INITIALIZE
        if isinstance(error, TransactionAbortedError) and (cause.retriable or isinstance(cause, _PASSING)):
            _log.warning("%s: reading its records again", error)
            return _Recovery.READ_AGAIN
        return _Recovery.RAISE

    def positions(self, consumer: Any, committed: _Committed) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where to read on in the partitions that are still assigned: at the committed offset, or at the first of the records."""
        assigned = consumer.assignment()
        return {tp: committed.get(tp) or first for tp, first in self.first.items() if tp in assigned}


def _threads_loop(
    consumer: Consumer[Any, Any], producer: Producer, timeout: float | timedelta
) -> Iterator[tuple[Transaction, Records[Any, Any]]]:
    while True:
        records = consumer.poll(timeout)
        if not records:
            continue
        turn, transaction = _Turn(records, producer), producer.transaction()
        try:
            transaction.begin()
            transaction.add_at_end(consumer, records.next_offsets())
            yield transaction, records
            if transaction.is_open:
                transaction.commit()
            recovery = _Recovery.READ_AGAIN if transaction.was_aborted else None
        except OttlaError as error:
            recovery = turn.recovery(error)
            transaction.abort_after(error)
            if recovery is _Recovery.RAISE:
                _read_again(consumer, turn, {}, error)
                raise
        except BaseException as error:  # the loop has ended: by an exception in its body, or by break
            transaction.abort_after(error)
            _read_again(consumer, turn, {}, error)
            raise
        if recovery is _Recovery.INITIALIZE:
            try:
                producer.initialize()
                committed = consumer.committed(*turn.first)
            except BaseException as error:
                error.add_note(_UNKNOWN)
                raise
            _read_again(consumer, turn, committed)
        elif recovery is not None:
            _read_again(consumer, turn, {})


async def _tasks_loop(
    consumer: AsyncConsumer[Any, Any], producer: AsyncProducer, timeout: float | timedelta
) -> AsyncIterator[tuple[AsyncTransaction, Records[Any, Any]]]:
    network = producer._network
    if network.left_open is not None:
        # A loop that is left by break, or by an exception in its body, goes on only when its generator is closed: some time later.
        (transaction, turn), network.left_open = network.left_open, None
        if transaction.is_open:
            await transaction.abort()
        await _read_again_in_task(consumer, turn, {})
    while True:
        records = await consumer.poll(timeout)
        if not records:
            continue
        turn, transaction = _Turn(records, producer), producer.transaction()
        try:
            await transaction.begin()
            transaction.add_at_end(consumer, records.next_offsets())
            network.left_open = transaction, turn
            yield transaction, records
            network.left_open = None
            if transaction.is_open:
                await transaction.commit()
            recovery = _Recovery.READ_AGAIN if transaction.was_aborted else None
        except GeneratorExit as error:
            await transaction.abort_after(error)
            raise
        except OttlaError as error:
            recovery = turn.recovery(error)
            await transaction.abort_after(error)
            if recovery is _Recovery.RAISE:
                await _read_again_in_task(consumer, turn, {}, error)
                raise
        except BaseException as error:  # the task was cancelled while it committed
            await transaction.abort_after(error)
            await _read_again_in_task(consumer, turn, {}, error)
            raise
        if recovery is _Recovery.INITIALIZE:
            try:
                await producer.initialize()
                committed = await consumer.committed(*turn.first)
            except BaseException as error:
                error.add_note(_UNKNOWN)
                raise
            await _read_again_in_task(consumer, turn, committed)
        elif recovery is not None:
            await _read_again_in_task(consumer, turn, {})


def _read_again(consumer: Consumer[Any, Any], turn: _Turn, committed: _Committed, error: BaseException | None = None) -> None:
    """Read on from what is committed, or read the records again. ``error`` ends the loop, so it is not replaced by another one."""
    try:
        for tp, position in turn.positions(consumer, committed).items():
            consumer.seek(tp, position)
    except OttlaError as seeking:
        if error is None:
            raise
        error.add_note(f"the consumer does not read the records again: {seeking}")


async def _read_again_in_task(
    consumer: AsyncConsumer[Any, Any], turn: _Turn, committed: _Committed, error: BaseException | None = None
) -> None:
    try:
        for tp, position in turn.positions(consumer, committed).items():
            await consumer.seek(tp, position)
    except OttlaError as seeking:
        if error is None:
            raise
        error.add_note(f"the consumer does not read the records again: {seeking}")
