"""A decision about one transactional id, in the making and made.

Owns what a handler returns, the ports it may look at, and the way from a transaction to what it will be. Must not know any state
but its own copy. Invariant: the events of a decision lead from the transaction that the draft began with to the one that it shows
now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ottla.coordinator.effects import CancelTimer, SetTimer, TimerKey
from ottla.coordinator.ports import TopicImage
from ottla.coordinator.transactions.config import TransactionConfig
from ottla.coordinator.transactions.events import Event, LastProducerEpochUpdated, TransactionMetadataUpdated
from ottla.coordinator.transactions.machine import apply
from ottla.coordinator.transactions.transaction import Transaction, TransactionState, value_of
from ottla.types import Now, TopicPartition

TRANSACTIONS = "transactions"
"""The first element of every key of the transaction coordinator's timers."""


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers that end a transaction to all its partitions, then tell ``on_markers_written``; there is no way back."""

    transactional_id: str
    state_partition: int
    """The partition of ``__transaction_state`` whose leader epoch is the coordinator's epoch in the markers."""
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]


class ProducerIdSource(Protocol):
    """Where producer ids come from."""

    def new_producer_id(self) -> int | None:
        """An id that was never given out; ``None`` where that cannot be stored now."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionContext:
    """All that a decision may look at besides the transaction itself."""

    config: TransactionConfig
    topics: TopicImage
    producer_ids: ProducerIdSource
    offsets_partition_of: Callable[[str], TopicPartition]
    """The partition of ``__consumer_offsets`` that a group lives in."""
    internal_topics: frozenset[str] = frozenset()
    """Topics that no producer may write to."""


DecisionEffect = SetTimer | CancelTimer | WriteMarkers


@dataclass(frozen=True, slots=True)
class Decision:
    """``answer`` is the response to the request at hand, if there is one."""

    events: tuple[Event, ...] = ()
    effects: tuple[DecisionEffect, ...] = ()
    answer: Any = None


class TransactionDraft:
    """The transaction as it will be, at the time ``now``."""

    def __init__(self, transaction: Transaction, now: Now) -> None:
        self.transaction = transaction
        self.now = now
        self._events: list[Event] = []
        self._effects: list[DecisionEffect] = []

    def apply(self, event: Event) -> None:
        """Apply an event to the draft."""
        self.transaction = apply(self.transaction, event)
        self._events.append(event)

    def write(self, state: TransactionState, **changes: Any) -> None:
        """Bring the transaction to a state, with changes, as a record of now."""
        before = self.transaction
        made: dict[str, Any] = {"previous_producer_id": before.producer_id, "updated_at": self.now.wall, **changes}
        after = replace(before, state=state, **made)
        self.apply(TransactionMetadataUpdated(before.transactional_id, value_of(after)))

    def keep_last_epoch(self, epoch: int) -> None:
        """Remember the epoch before the present one."""
        if self.transaction.last_epoch != epoch:
            self.apply(LastProducerEpochUpdated(self.transaction.transactional_id, epoch))

    def add(self, effect: DecisionEffect) -> None:
        """Ask for an effect."""
        self._effects.append(effect)

    def decision(self, answer: Any = None) -> Decision:
        """What was decided."""
        return Decision(tuple(self._events), tuple(self._effects), answer)


def timeout_timer(transactional_id: str) -> TimerKey:
    """The end of the time that a producer has for its transaction."""
    return (TRANSACTIONS, transactional_id, "timeout")


def completion_timer(transactional_id: str) -> TimerKey:
    """The next attempt to write down that all markers are written."""
    return (TRANSACTIONS, transactional_id, "complete")


def expiration_timer(transactional_id: str) -> TimerKey:
    """The time after which an unused id expires."""
    return (TRANSACTIONS, transactional_id, "expire")
