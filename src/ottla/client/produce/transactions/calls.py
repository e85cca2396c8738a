"""The public calls about transactions, as generators.

Owns the wait for the outcome of each command. Must not know states or requests. Invariant: a call that is interrupted leaves its
command to the network thread, which carries it out; only the transaction that an interrupted call begins is ended at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol, cast

from ottla.client.produce.outcome import Call, Outcome, Wait
from ottla.client.produce.transactions.commands import (
    Begin,
    CloseTransaction,
    CommitOffsets,
    EndTransaction,
    Initialize,
    Prepare,
)
from ottla.client.produce.transactions.prepared import Prepared
from ottla.config.producer import ProducerConfig
from ottla.errors import OttlaError
from ottla.types import ConsumerGroupMetadata, Now, OffsetAndMetadata, TopicPartition

WAITS = ("init", "begin", "send-offsets", "prepare", "commit", "abort")
"""The calls that wait, by the names of Kafka's metrics."""


class _Command(Protocol):
    @property
    def outcome(self) -> Outcome:
        """The outcome to wait for."""


def _ignore() -> None:
    """Called before a command is on its way, by default."""


class TransactionCalls:
    """``submit`` sends a command to the network thread."""

    def __init__(self, config: ProducerConfig, submit: Callable[[object], None]) -> None:
        self.waited = dict.fromkeys(WAITS, 0)
        """The milliseconds that calls have waited."""
        self._max_block_ms = config.max_block_ms
        self._submit = submit

    def initialize(self, now: Now) -> Call[None]:
        """See ``Producer.initialize``."""
        yield from self._carry_out("init", Initialize(now.mono + self._max_block_ms), now)

    def begin(self, command: Begin, now: Now) -> Call[None]:
        """Begin a transaction, once the one before has ended."""
        yield from self._carry_out("begin", command, now)

    def new_begin(self, now: Now) -> Begin:
        """The command to begin a transaction."""
        return Begin(now.mono + self._max_block_ms)

    def drop(self, transaction: Begin) -> None:
        """End a transaction whose beginning was interrupted, whether it has begun or not."""
        self.repeat_end(transaction, commit=False)

    def repeat_end(self, transaction: Begin, *, commit: bool) -> None:
        """Submit the command of an ``end`` that was interrupted; it has no effect if the first one was submitted."""
        with suppress(OttlaError):
            self._submit(EndTransaction(transaction, commit))

    def commit_offsets(
        self, transaction: Begin, group: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata], now: Now
    ) -> Call[None]:
        """See ``Transaction.commit_offsets``."""
        if offsets:
            command = CommitOffsets(transaction, group, offsets, now.mono + self._max_block_ms)
            yield from self._carry_out("send-offsets", command, now)

    def end(self, transaction: Begin, *, commit: bool, now: Now, submits: Callable[[], None] = _ignore) -> Call[None]:
        """See ``Transaction.commit`` and ``abort``. ``submits`` is called just before the command is on its way."""
        submits()
        yield from self._carry_out("commit" if commit else "abort", EndTransaction(transaction, commit), now)

    def prepare(self, transaction: Begin, now: Now) -> Call[Prepared]:
        """See ``Transaction.prepare``."""
        return cast(Prepared, (yield from self._carry_out("prepare", Prepare(transaction), now)))

    def close(self, until: int) -> Call[None]:
        """Abort the open transaction, as far as that is possible until then (monotonic ms)."""
        outcome = self._begun(CloseTransaction())
        yield Wait(outcome, lambda: outcome.done, until)

    def _begun(self, command: _Command) -> Outcome:
        self._submit(command)
        return command.outcome

    def _carry_out(self, what: str, command: _Command, now: Now) -> Call[object]:
        outcome, began_at = self._begun(command), now.mono
        while not outcome.done:
            now = yield Wait(outcome, lambda: outcome.done, None)
        self.waited[what] += now.mono - began_at
        if outcome.error is not None:
            raise outcome.error.afresh()
        return outcome.value
