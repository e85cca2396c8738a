"""``Transaction`` and ``AsyncTransaction``: the transactions of a producer, for threads and for tasks.

Owns the order of the steps at the end of a ``with`` block. Must not know states or requests. Invariants: a block that ends with an
exception never commits; an exception that leaves the block is never hidden by one of ``abort()``; a block that ends without one has
committed, or raises.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla import arguments
from ottla.arguments import Offset
from ottla.client.produce.outcome import Call
from ottla.client.produce.transactions.calls import TransactionCalls
from ottla.client.produce.transactions.commands import Begin
from ottla.client.produce.transactions.prepared import Prepared
from ottla.errors import CommitFailedError, IllegalStateError, OttlaError, TransactionAbortedError
from ottla.producer_drivers import drive_in_task, drive_in_thread
from ottla.runtime import clock
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition, short_repr

if TYPE_CHECKING:
    from ottla.async_consumer import AsyncConsumer
    from ottla.consumer import Consumer
    from ottla.producer_base import ProducerNetwork

    Member = Consumer[Any, Any] | AsyncConsumer[Any, Any] | ConsumerGroupMetadata
    """A consumer, or its ``group_metadata()``."""

T = TypeVar("T")

Offsets = Mapping[TopicPartition, Offset] | None


class _TransactionBase:
    """What both kinds have: whether the transaction is open, and the calls."""

    def __init__(self, network: ProducerNetwork, calls: TransactionCalls) -> None:
        self._network = network
        self._calls = calls
        self._begun: Begin | None = None
        self._over = False
        self._refused: CommitFailedError | None = None
        """Why ``commit_offsets`` has failed, so that the transaction must not be committed without the offsets."""
        self._due: tuple[Any, dict[TopicPartition, OffsetAndMetadata]] | None = None
        """The consumer and the offsets that the end of the transaction adds, unless ``commit_offsets`` was called."""
        self.was_aborted = self.was_committed = self.was_prepared = False
        """Whether ``abort()`` was called; whether ``commit()`` and ``prepare()`` have succeeded."""

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self.__dict__.get("_begun") is not None and not self._over:
            # For example, Ctrl-C came between the return of begin() and the body of the with block.
            warn(f"{self!r} was neither committed nor aborted: it is aborted", ResourceWarning, source=self)
            self._calls.repeat_end(self._open(), commit=False)

    def __repr__(self) -> str:
        state = "not begun" if self._begun is None else "ended" if self._over else "open"
        return f"<{type(self).__name__} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether the transaction was begun, and none of ``commit``, ``abort`` and ``prepare`` was called."""
        return self._begun is not None and not self._over

    @property
    def is_ending(self) -> bool:
        """Whether one of ``commit`` and ``abort`` was called, as far as that it has effects even if the call was interrupted."""
        return self._begun is not None and self._over

    def add_at_end(self, consumer: Any, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Have the end of the transaction commit these offsets of a consumer, unless ``commit_offsets`` is called before."""
        self._due = consumer, offsets

    def _ends(self) -> None:
        """Note that the command to commit is about to be submitted."""
        self._over = True

    def _aborts(self) -> None:
        """Note that the command to abort is about to be submitted."""
        self._over = self.was_aborted = True

    def _must_abort(self) -> TransactionAbortedError | None:
        """The error of a transaction that must not be committed, as far as that is known here."""
        refused = self._refused
        if refused is None:
            return None
        return TransactionAbortedError(f"the transaction has to be aborted: {refused.args[0]}", hint=refused.hint, cause=refused)

    def _member(self, consumer: Any, *kinds: str) -> Any:
        """Return the consumer of a call. Raises if it is none, or one of another cluster."""
        names = {cls.__name__ for cls in type(consumer).__mro__ if cls.__module__.startswith("ottla.")}
        if names.isdisjoint(kinds):
            expected = " or ".join(f"an ottla.{kind}" for kind in kinds)
            raise TypeError(f"commit_offsets() needs {expected}, or the group_metadata() of one, not {short_repr(consumer)}")
        theirs, ours = consumer._assembly.core.metadata.cluster_id, self._network.cluster_id
        if theirs is not None and ours is not None and theirs != ours:
            text = f"the consumer reads from the cluster {theirs}, and the producer writes to the cluster {ours}"
            raise IllegalStateError(text, hint="a transaction cannot span clusters: commit the offsets with the consumer")
        return consumer

    def _interrupted(self, error: BaseException, transaction: Begin, *, commit: bool) -> None:
        """After an exception in a call that ends the transaction: have the network thread end it, whenever the exception came."""
        if isinstance(error, IllegalStateError):
            self.was_aborted = False  # it is, or was, committed; or the producer was closed, and no one knows
        elif self._over and not isinstance(error, OttlaError):
            self._calls.repeat_end(transaction, commit=commit)

    def _report_failures(self) -> None:
        """Note that failures of records are known by now: a transaction that has ended was committed with all its records."""
        if self._over:
            self._network.calls.forget_failure()

    def _open(self) -> Begin:
        if self._begun is None:
            raise IllegalStateError("the transaction was not begun", hint="with producer.transaction() as transaction: ...")
        return self._begun

    def _may_begin(self) -> None:
        if self._begun is not None:
            raise IllegalStateError("the transaction was begun before", hint="each transaction is another producer.transaction()")


class Transaction(_TransactionBase):
    """A transaction of a ``Producer``: its records, and offsets of consumers, are all read by others, or none of them.

    ::

        with producer.transaction() as transaction:
            producer.send("invoices", invoice)
            transaction.commit_offsets(consumer)

    The end of the block commits; an exception aborts. One thread at a time may use a transaction. Its calls raise:

    * ``TransactionAbortedError`` if the transaction has to be aborted, since a record was not written, or it took too long;
    * ``CommitFailedError`` if the group of ``commit_offsets`` has rebalanced;
    * ``ProducerFencedError`` if another producer has the transactional id now, or the transaction took too long;
    * ``TransactionOutcomeUnknownError`` if a response was lost, and nothing tells whether the transaction was committed;
    * ``OttlaTimeoutError`` after ``max_block``.
    """

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit, unless the transaction has ended. After an exception, abort; a failure of that is a note on the exception."""
        if error is not None:
            self.abort_after(error)
        elif not self._over:
            self._commit_or_abort()

    def _commit_or_abort(self) -> None:
        try:
            self.commit()
        except BaseException as error:
            self.abort_after(error)
            raise

    def begin(self) -> None:
        """Begin the transaction; a ``with`` block does that. The first one of a producer initializes it."""
        self._may_begin()
        now = clock.now()
        command = self._calls.new_begin(now)
        try:
            self._run(self._calls.begin(command, now))
            self._begun = command
        except BaseException as error:
            if not isinstance(error, OttlaError):
                self._calls.drop(command)
            raise

    def commit_offsets(self, consumer: Consumer[Any, Any] | ConsumerGroupMetadata, offsets: Offsets = None) -> None:
        """Make a consumer's offsets part of the transaction: those after all records that it has returned, or ``offsets``.

        Raises ``CommitFailedError`` if the consumer is no longer a member of its group with these partitions: then the transaction
        has to be aborted, since another member processes the records. For a consumer elsewhere, give its ``group_metadata()`` and
        the offsets. Raises ``IllegalStateError`` for a consumer that commits by itself.
        """
        transaction = self._open()
        group, positions = _given(consumer, offsets)
        if group is None:
            try:
                group, positions = self._member(consumer, "Consumer")._offsets_for_transaction(positions)
            except CommitFailedError as error:
                self._refused = error
                raise
        assert positions is not None
        self._due = None
        self._run(self._calls.commit_offsets(transaction, group, positions, clock.now()))

    def commit(self) -> None:
        """Write all records, and commit. If that fails, the transaction is aborted, and the error raised.

        After a ``TransactionOutcomeUnknownError``, another call waits for the outcome again.
        """
        transaction = self._open()
        if self._due is not None and self._refused is None:
            self.commit_offsets(*self._due)
        if (refusal := self._must_abort()) is not None:
            self.abort_after(refusal)
            raise refusal
        try:
            self._run(self._calls.end(transaction, commit=True, now=clock.now(), submits=self._ends))
            self.was_committed = True
        except TransactionAbortedError as error:
            self._over = False
            self.abort_after(error)
            raise
        except BaseException as error:
            self._interrupted(error, transaction, commit=True)
            raise

    def abort_after(self, error: BaseException) -> None:
        """Abort a transaction that is open, after an error. A failure of that is a note on the error."""
        if not self.is_open:
            return
        try:
            self.abort()
        except OttlaError as aborting:
            aborting.__context__ = None
            if not isinstance(error, type(aborting)):  # the same reason needs no second mention
                error.add_note(f"aborting the transaction failed, too: {aborting}")

    def abort(self) -> None:
        """Abort: consumers with ``isolation_level="read_committed"`` never see the records, and no offsets are committed."""
        transaction = self._open()
        try:
            self._run(self._calls.end(transaction, commit=False, now=clock.now(), submits=self._aborts))
        except BaseException as error:
            self._interrupted(error, transaction, commit=False)
            raise

    def prepare(self) -> Prepared:
        """Have all records and offsets acknowledged, and leave the rest to ``ottla.finish``, which any process may call.

        From then on neither the end of the block nor ``close()`` ends the transaction. The producer refuses all work until
        ``initialize()``, which aborts a transaction that is not finished.
        """
        transaction = self._open()
        if self._due is not None and self._refused is None:
            self.commit_offsets(*self._due)
        if (refusal := self._must_abort()) is not None:
            raise refusal
        prepared = self._run(self._calls.prepare(transaction, clock.now()))
        self._over = self.was_prepared = True
        return prepared

    def _run(self, call: Call[T]) -> T:
        try:
            return drive_in_thread(self._network, call)
        finally:
            self._network.calls.run_callbacks()
            self._report_failures()


class AsyncTransaction(_TransactionBase):
    """``Transaction`` for tasks: the same calls with ``await``, in an ``async with`` block."""

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """As ``Transaction``. A cancelled task aborts, too."""
        if error is not None:
            await self.abort_after(error)
        elif not self._over:
            await self._commit_or_abort()

    async def _commit_or_abort(self) -> None:
        try:
            await self.commit()
        except BaseException as error:
            await self.abort_after(error)
            raise

    async def begin(self) -> None:
        """As ``Transaction.begin``."""
        self._may_begin()
        now = clock.now()
        command = self._calls.new_begin(now)
        try:
            await self._run(self._calls.begin(command, now))
            self._begun = command
        except BaseException as error:
            if not isinstance(error, OttlaError):
                self._calls.drop(command)
            raise

    async def commit_offsets(self, consumer: Member, offsets: Offsets = None) -> None:
        """As ``Transaction.commit_offsets``, for an ``AsyncConsumer`` or a ``Consumer``."""
        transaction = self._open()
        group, positions = _given(consumer, offsets)
        if group is None:
            try:
                found = self._member(consumer, "AsyncConsumer", "Consumer")._offsets_for_transaction(positions)
                group, positions = await found if inspect.isawaitable(found) else found
            except CommitFailedError as error:
                self._refused = error
                raise
        assert positions is not None
        self._due = None
        await self._run(self._calls.commit_offsets(transaction, group, positions, clock.now()))

    async def commit(self) -> None:
        """As ``Transaction.commit``. If it is cancelled, the commit is made nevertheless."""
        transaction = self._open()
        if self._due is not None and self._refused is None:
            await self.commit_offsets(*self._due)
        if (refusal := self._must_abort()) is not None:
            await self.abort_after(refusal)
            raise refusal
        try:
            await self._run(self._calls.end(transaction, commit=True, now=clock.now(), submits=self._ends))
            self.was_committed = True
        except TransactionAbortedError as error:
            self._over = False
            await self.abort_after(error)
            raise
        except BaseException as error:
            self._interrupted(error, transaction, commit=True)
            raise

    async def abort_after(self, error: BaseException) -> None:
        """Abort a transaction that is open, after an error. A failure of that is a note on the error."""
        if not self.is_open:
            return
        try:
            await self.abort()
        except OttlaError as aborting:
            aborting.__context__ = None
            if not isinstance(error, type(aborting)):  # the same reason needs no second mention
                error.add_note(f"aborting the transaction failed, too: {aborting}")

    async def abort(self) -> None:
        """As ``Transaction.abort``."""
        transaction = self._open()
        try:
            await self._run(self._calls.end(transaction, commit=False, now=clock.now(), submits=self._aborts))
        except BaseException as error:
            self._interrupted(error, transaction, commit=False)
            raise

    async def prepare(self) -> Prepared:
        """As ``Transaction.prepare``."""
        transaction = self._open()
        if self._due is not None and self._refused is None:
            await self.commit_offsets(*self._due)
        if (refusal := self._must_abort()) is not None:
            raise refusal
        prepared = await self._run(self._calls.prepare(transaction, clock.now()))
        self._over = self.was_prepared = True
        return prepared

    async def _run(self, call: Call[T]) -> T:
        try:
            return await drive_in_task(self._network, call)
        finally:
            self._report_failures()


def _given(
    consumer: object, offsets: Offsets
) -> tuple[ConsumerGroupMetadata | None, dict[TopicPartition, OffsetAndMetadata] | None]:
    """The group and the offsets in the arguments, as far as they are there. Raises for what they cannot be."""
    positions = arguments.offsets(offsets)
    if not isinstance(consumer, ConsumerGroupMetadata):
        return None, positions
    if positions is None:
        raise TypeError("commit_offsets() of a group's metadata needs offsets: only a consumer knows what it has returned")
    return consumer, positions
