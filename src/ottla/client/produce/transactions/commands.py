"""What the application asks of a transactional producer, as commands for the network thread.

Owns their content. Must not know how they are carried out. Invariant: each command's outcome is set once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.client.produce.outcome import Outcome
from ottla.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


@dataclass(frozen=True, slots=True, eq=False)
class Initialize:
    """Get a producer id and an epoch; this ends the transaction of a predecessor. ``deadline`` is in monotonic milliseconds."""

    deadline: int
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """Begin a transaction, which later commands name by this one."""

    deadline: int
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True, eq=False)
class CommitOffsets:
    """Add a group's offsets to the transaction."""

    transaction: Begin
    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    deadline: int
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True, eq=False)
class EndTransaction:
    """Commit or abort the transaction."""

    transaction: Begin
    commit: bool
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True, eq=False)
class Prepare:
    """Have all records and offsets of the transaction acknowledged; the outcome is a ``Prepared``."""

    transaction: Begin
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True, slots=True, eq=False)
class CloseTransaction:
    """Abort the transaction that is open, if there is one, since the producer is being closed."""

    outcome: Outcome = field(default_factory=Outcome)
