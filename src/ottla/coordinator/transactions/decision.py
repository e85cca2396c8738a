"""A handler's decision about one transactional id, and the draft in which the handler prepares it.

Owns the value that a handler returns, its inputs besides the transaction (settings, by Kafka's names, and interfaces), and its
working copy of a transaction. Must not know any other state, nor the parsing of settings. Invariants: the events of a decision,
applied to the original transaction, give the draft's transaction; a client gets no error that its version does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ottla.coordinator.decision import TopicImage
from ottla.coordinator.effects import CancelTimer, RequestContext, SetTimer, TimerKey
from ottla.coordinator.transactions.machine import Event, LastProducerEpochUpdated, TransactionMetadataUpdated, apply
from ottla.coordinator.transactions.transaction import Transaction, TransactionState, value_of
from ottla.protocol import ErrorCode
from ottla.protocol.apis import VersionRule
from ottla.types import Now, TopicPartition

TRANSACTIONS = "transactions"
"""The first element of every key of the transaction coordinator's timers."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Times are milliseconds."""

    state_topic_partitions: int = 50
    """Partitions of ``__transaction_state``. Do not change it for an existing log: ids would be looked up in other partitions."""
    max_timeout_ms: int = 900_000
    """The largest ``transaction.timeout.ms`` that a producer may set."""
    id_expiration_ms: int = 604_800_000
    """The time after which an unused transactional id is deleted."""
    append_retry_backoff_ms: int = 500
    """The delay before an internal step is retried whose record could not be appended. Failed requests are retried by clients."""


class ProducerIdSource(Protocol):
    """The source of producer ids."""

    def new_producer_id(self) -> int | None:
        """Return an id that was never used before; ``None`` if its allocation cannot be stored now."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """The inputs of a decision besides the transaction."""

    config: TransactionConfig
    topics: TopicImage
    producer_ids: ProducerIdSource
    offsets_partition_of: Callable[[str], TopicPartition]
    """Group id -> its partition of ``__consumer_offsets``."""
    internal_topics: frozenset[str] = frozenset()
    """Topics that producers cannot write to."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers that end a transaction to all its partitions, then call ``on_markers_written``. It cannot be cancelled."""

    transactional_id: str
    state_partition: int
    """The partition of ``__transaction_state`` with the id; its leader epoch is the coordinator epoch in the markers."""
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


DecisionEffect = SetTimer | CancelTimer | WriteMarkers


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a handler. ``answer`` is the response to the current request, if there is one."""

    events: tuple[Event, ...] = ()
    effects: tuple[DecisionEffect, ...] = ()
    answer: Any = None


class TransactionDraft:
    """A handler's working copy of a transaction, the events applied to it at the time ``now``, and effects."""

    def __init__(self, transaction: Transaction, now: Now) -> None:
        self.transaction = transaction
        self.now = now
        self._events: list[Event] = []
        self._effects: list[DecisionEffect] = []

    def apply(self, event: Event) -> None:
        """Apply an event to the draft's transaction, and add it to the decision."""
        self.transaction = apply(self.transaction, event)
        self._events.append(event)

    def transition_to(self, state: TransactionState, **changes: Any) -> None:
        """Move the transaction to a state with these changes; this adds a record."""
        before = self.transaction
        fields: dict[str, Any] = {"previous_producer_id": before.producer_id, "updated_at": self.now.wall, **changes}
        after = replace(before, state=state, **fields)
        self.apply(TransactionMetadataUpdated(before.transactional_id, value_of(after)))

    def keep_last_epoch(self, epoch: int) -> None:
        """Remember the producer's previous epoch."""
        if self.transaction.last_epoch != epoch:
            self.apply(LastProducerEpochUpdated(self.transaction.transactional_id, epoch))

    def add(self, effect: DecisionEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def decision(self, answer: Any = None) -> Decision:
        """Return the events and effects as a decision; ``answer`` is the response to the current request."""
        return Decision(tuple(self._events), tuple(self._effects), answer)


def timeout_timer(transactional_id: str) -> TimerKey:
    """The transaction timeout: the time by which the producer must end its transaction."""
    return (TRANSACTIONS, transactional_id, "timeout")


def completion_timer(transactional_id: str) -> TimerKey:
    """The next attempt to store the completion of a transaction whose markers are written."""
    return (TRANSACTIONS, transactional_id, "complete")


def expiration_timer(transactional_id: str) -> TimerKey:
    """The time at which an unused id expires."""
    return (TRANSACTIONS, transactional_id, "expire")


def error_for_version(context: RequestContext, error: ErrorCode) -> ErrorCode:
    """Return the error, or the one that replaces it for a client whose version does not know it."""
    if error is ErrorCode.producer_fenced and VersionRule.PRODUCER_FENCED not in context.version_rules:
        return ErrorCode.invalid_producer_epoch
    return error
