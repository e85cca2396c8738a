"""``transactions()``: the loop of a program that reads, processes, writes, and commits what it read together with what it wrote.

Owns what happens when a transaction of the loop cannot be committed. Must not know requests. Invariants: no transaction is open
while the consumer polls, so none is open when partitions are revoked; after a transaction that was not committed, its records are
read again, unless other members of the group have their partitions by then.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, overload

from ottla.errors import (
    ClosedError,
    CommitFailedError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
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


_PASSING = (
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceNumberError,
    TransactionAbortableError,
    UnknownProducerIdError,
)
"""Errors of one transaction: the next one has another epoch. For example, the coordinator forgets the id of a producer that is idle
for a week."""


class _Recovery(enum.Enum):
    """What follows a transaction that was not committed."""

    NOTHING = "it was committed"
    READ_AGAIN = "read the records again, or leave them to another member of the group"
    INITIALIZE = "initialize the producer, then read the records again"
    ASK = "initialize the producer, then read on from what is committed"
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
        needs = f"an {name} needs an {expected.__name__}" if is_async else f"a {name} needs a {expected.__name__}"
        raise TypeError(f"{needs}, not {short_repr(producer)}")
    _check(consumer)
    producer.transaction()  # raises if it is not transactional
    return _tasks_loop(consumer, producer, timeout) if is_async else _threads_loop(consumer, producer, timeout)


def _check(consumer: Any) -> None:
    config = consumer._config
    if config.group_id is None:
        raise IllegalStateError("transactions() needs a consumer with a group", hint="set group_id")
    if config.group_protocol in ("zookeeper", "central"):
        text = f"transactions() needs a group whose offsets are in Kafka; those of a {config.group_protocol} group are in ZooKeeper"
        raise IllegalStateError(text, hint='set group_protocol="classic" or "consumer", and another group_id')
    if config.enable_auto_commit:
        raise IllegalStateError("transactions() commits the offsets itself", hint="set enable_auto_commit=False")
    if config.isolation_level is not IsolationLevel.READ_COMMITTED:
        text = "the consumer would also read records of transactions that are aborted"
        raise IllegalStateError(text, hint='set isolation_level="read_committed"')


class _Turn:
    """The records of one poll, and their transaction, from the poll until it is certain whether they are committed.

    Both clients keep it (``left_open``), so that the next loop of either can end what a loop has left: by ``break``, or by an
    exception at any moment. It does not keep them alive.
    """

    def __init__(self, records: Records[Any, Any], consumer: Any, producer: Any) -> None:
        self._consumer, self._producer = weakref.ref(consumer), weakref.ref(producer)
        self.transaction: Any = None
        self.recovery: _Recovery | None = None
        """What is to be done before the next poll; ``None``: that is not decided."""
        self.next = records.next_offsets()
        self._first: dict[TopicPartition, OffsetAndMetadata] = {}
        for part in records.parts:
            self._first.setdefault(part.topic_partition, OffsetAndMetadata(part.first_offset))
        self._time_limit = producer._config.transaction_timeout_ms / 1000
        self._began_at = clock.monotonic()
        consumer._left_open = producer._network.left_open = self

    @property
    def consumer(self) -> Any:
        """The consumer; ``None`` if it is gone."""
        return self._consumer()

    @property
    def producer(self) -> Any:
        """The producer; ``None`` if it is gone."""
        return self._producer()

    def forget(self) -> None:
        """Note that nothing is left to be done."""
        consumer, producer = self.consumer, self.producer
        if consumer is not None and consumer._left_open is self:
            consumer._left_open = None
        if producer is not None and producer._network.left_open is self:
            producer._network.left_open = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the records."""
        return list(self._first)

    @property
    def may_be_committed(self) -> bool:
        """Whether the commit of the transaction was begun."""
        return self.transaction is not None and self.transaction.is_ending and not self.transaction.was_aborted

    @property
    def is_open(self) -> bool:
        """Whether the transaction has begun, and none of the calls that end it."""
        return self.transaction is not None and self.transaction.is_open

    @property
    def harmless(self) -> tuple[type[OttlaError], ...]:
        """The errors of an abort that need no reaction: of a closed producer, which has aborted, or whose coordinator will; any, if
        it is decided what follows."""
        return (ClosedError,) if self.recovery is None else (OttlaError,)

    @property
    def was_committed(self) -> bool:
        """Whether the commit is known to have succeeded."""
        return self.transaction is not None and self.transaction.was_committed

    @property
    def needs_committed(self) -> bool:
        """Whether only the committed offsets tell whether the transaction was committed."""
        return self.recovery is _Recovery.ASK or (self.recovery is _Recovery.RAISE and self.may_be_committed)

    def began(self) -> None:
        """Note that the transaction has begun: its time counts from here."""
        self._began_at = clock.monotonic()

    def ended(self) -> None:
        """Note that the transaction has ended without an error."""
        self.recovery = _Recovery.READ_AGAIN if self.transaction.was_aborted else _Recovery.NOTHING

    def failed(self, error: OttlaError) -> None:
        """Decide what follows an error of the transaction."""
        self.recovery = self._recovery(error)

    def not_committed(self, error: OttlaError) -> None:
        """Decide what follows an error of another call to commit. Raises it if the program has to decide."""
        if not isinstance(error, IllegalStateError):
            self.failed(error)
        elif not self.transaction.was_prepared:
            self.recovery = _Recovery.ASK  # another transaction was begun since then, so the producer does not remember this one
        if self.recovery in (None, _Recovery.RAISE):
            raise error

    def _recovery(self, error: OttlaError) -> _Recovery:
        cause = error.cause if isinstance(error, TransactionAbortedError) and isinstance(error.cause, OttlaError) else error
        if isinstance(cause, CommitFailedError):
            _log.warning("a transaction was aborted, since the group has rebalanced: %s", error)
            return _Recovery.READ_AGAIN
        if isinstance(error, TransactionOutcomeUnknownError):
            _log.warning("%s: reading on from what is committed", error)
            return _Recovery.ASK
        if isinstance(cause, ProducerFencedError):
            # A coordinator fences the producer of a transaction that takes too long. If this one did, that is taken as the reason.
            if clock.monotonic() - self._began_at < self._time_limit:
                return _Recovery.RAISE
            _log.warning("a transaction took longer than transaction.timeout.ms (%g s), so it was aborted", self._time_limit)
            return _Recovery.INITIALIZE
        if isinstance(error, TransactionAbortedError) and (cause.retriable or isinstance(cause, _PASSING)):
            _log.warning("%s: reading its records again", error)
            return _Recovery.READ_AGAIN
        return _Recovery.RAISE

    def positions(self, committed: _Committed) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where to read on in the partitions that are still assigned: at the committed offset, or at the first of the records.

        A committed offset elsewhere is that of a program that has called ``seek()``.
        """
        assigned = self.consumer.assignment()
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp, first in self._first.items():
            at = committed.get(tp)
            is_of_these = at is not None and first.offset <= at.offset <= self.next[tp].offset
            if tp in assigned:
                found[tp] = at if at is not None and is_of_these else first
        return found


def _threads_loop(
    consumer: Consumer[Any, Any], producer: Producer, timeout: float | timedelta
) -> Iterator[tuple[Transaction, Records[Any, Any]]]:
    while True:
        for left in _left(consumer, producer):
            _end(left, consumer, producer)
            left.forget()
        records = consumer.poll(timeout)
        if not records:
            continue
        turn = _Turn(records, consumer, producer)
        try:
            turn.transaction = transaction = producer.transaction()
            transaction.begin()
            turn.began()
            transaction.add_at_end(consumer, turn.next)
            yield transaction, records
            if transaction.is_open:
                transaction.commit()
            turn.ended()
        except OttlaError as error:
            turn.failed(error)
            if turn.recovery is _Recovery.RAISE:
                _give_up(turn, error)
                turn.forget()
                raise
            _abort(turn, error)
        except BaseException as error:  # the loop was left, by break or by an exception in its body, or Ctrl-C came
            if not turn.may_be_committed:
                _give_up(turn, error)
                turn.forget()
            raise


def _left(consumer: Any, producer: Any) -> list[_Turn]:
    """What earlier loops of these clients have left: with one of them, and another client, or with both."""
    found = [producer._network.left_open, consumer._left_open]
    return list(dict.fromkeys(turn for turn in found if turn is not None))


def _end(turn: _Turn, consumer: Consumer[Any, Any], producer: Producer) -> None:
    """End a turn: its transaction may be open, being ended, or over. Unless it was committed, its records come again."""
    if turn.is_open:
        with suppress(*turn.harmless):
            turn.transaction.abort()
    elif turn.recovery is None and turn.was_committed:
        turn.ended()
    elif turn.recovery is None and turn.may_be_committed:
        try:
            turn.transaction.commit()  # waits for the outcome
        except OttlaError as error:
            turn.not_committed(error)
        else:
            turn.ended()
    turn.recovery = turn.recovery or _Recovery.READ_AGAIN
    if turn.recovery in (_Recovery.INITIALIZE, _Recovery.ASK) and turn.producer is producer:
        producer.initialize()
    if turn.recovery is not _Recovery.NOTHING and turn.consumer is consumer:
        committed = consumer.committed(*turn.partitions) if turn.needs_committed else {}
        consumer._seek_all(turn.positions(committed))


def _abort(turn: _Turn, error: BaseException) -> None:
    if turn.transaction is not None:
        turn.transaction.abort_after(error)


def _give_up(turn: _Turn, error: BaseException) -> None:
    """Abort, and have the consumer read on from what is committed. ``error`` ends the loop, so no other one replaces it."""
    _abort(turn, error)
    try:
        # 1. The commit was sent. 2. Another thread has closed the producer, for example. 3. Only the group knows the outcome.
        committed = turn.consumer.committed(*turn.partitions) if turn.needs_committed else {}
        turn.consumer._seek_all(turn.positions(committed))
    except OttlaError as seeking:
        error.add_note(f"the consumer does not read the records again: {seeking}")


async def _tasks_loop(
    consumer: AsyncConsumer[Any, Any], producer: AsyncProducer, timeout: float | timedelta
) -> AsyncIterator[tuple[AsyncTransaction, Records[Any, Any]]]:
    while True:
        for left in _left(consumer, producer):
            await _end_in_task(left, consumer, producer)
            left.forget()
        records = await consumer.poll(timeout)
        if not records:
            continue
        turn = _Turn(records, consumer, producer)
        try:
            turn.transaction = transaction = producer.transaction()
            await transaction.begin()
            turn.began()
            transaction.add_at_end(consumer, turn.next)
            yield transaction, records
            if transaction.is_open:
                await transaction.commit()
            turn.ended()
        except GeneratorExit as error:
            # The event loop closes the generator some time after the loop was left. The next loop may be running by then, and has
            # ended the turn.
            await _abort_in_task(turn, error)
            raise
        except OttlaError as error:
            turn.failed(error)
            if turn.recovery is _Recovery.RAISE:
                await _give_up_in_task(turn, error)
                turn.forget()
                raise
            await _abort_in_task(turn, error)
        except BaseException as error:  # the task was cancelled
            if not turn.may_be_committed:
                await _give_up_in_task(turn, error)
                turn.forget()
            raise


async def _end_in_task(turn: _Turn, consumer: AsyncConsumer[Any, Any], producer: AsyncProducer) -> None:
    """As ``_end``."""
    if turn.is_open:
        with suppress(*turn.harmless):
            await turn.transaction.abort()
    elif turn.recovery is None and turn.was_committed:
        turn.ended()
    elif turn.recovery is None and turn.may_be_committed:
        try:
            await turn.transaction.commit()
        except OttlaError as error:
            turn.not_committed(error)
        else:
            turn.ended()
    turn.recovery = turn.recovery or _Recovery.READ_AGAIN
    if turn.recovery in (_Recovery.INITIALIZE, _Recovery.ASK) and turn.producer is producer:
        await producer.initialize()
    if turn.recovery is not _Recovery.NOTHING and turn.consumer is consumer:
        committed = await consumer.committed(*turn.partitions) if turn.needs_committed else {}
        await consumer._seek_all(turn.positions(committed))


async def _abort_in_task(turn: _Turn, error: BaseException) -> None:
    if turn.transaction is not None:
        await turn.transaction.abort_after(error)


async def _give_up_in_task(turn: _Turn, error: BaseException) -> None:
    """As ``_give_up``."""
    await _abort_in_task(turn, error)
    try:
        committed = await turn.consumer.committed(*turn.partitions) if turn.needs_committed else {}
        await turn.consumer._seek_all(turn.positions(committed))
    except OttlaError as seeking:
        error.add_note(f"the consumer does not read the records again: {seeking}")
