"""A producer's health: the state of its network thread, as one value, and the rules of the verdicts.

Owns the shape of ``ProducerHealth`` and what ``live``, ``ready`` and ``healthy`` mean. Must not know threads or callers. Invariant:
an assessment changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ottla.client.health.metrics import MetricName
from ottla.types import FrozenMapping, Now, TopicPartition

STUCK_AFTER = 60.0
"""Seconds for which a record may have no outcome before the producer counts as unhealthy."""


class Waiting(NamedTuple):
    """The records of one partition that have no outcome."""

    records: int
    since: int
    """When the oldest of them was sent (monotonic ms)."""
    problem: str | None
    """The last error of their oldest batch, or why it is not sent."""


class ProducerView(NamedTuple):
    """The network thread's view of a producer."""

    at: Now
    unreachable: str | None
    """Why no broker is connected, if none is."""
    waiting: Mapping[TopicPartition, Waiting]
    metrics: Mapping[MetricName, float]
    transaction: str | None = None
    """The state of a transactional producer."""
    fatal: str | None = None
    """Why a transactional producer cannot go on."""


@dataclass(frozen=True, slots=True)
class PartitionWaiting:
    """The records of one partition that have no outcome."""

    records: int
    oldest: float
    """Seconds since the oldest of them was sent."""
    problem: str | None


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """One producer at one moment."""

    live: bool
    """The producer can work. Otherwise it is closed, and only a new producer helps."""
    ready: bool
    """It is live, and a broker is connected, or none was needed yet."""
    healthy: bool
    """It is ready, no record has waited for longer than ``stuck_after``, and it is not fenced."""
    reasons: tuple[str, ...]
    """Why it is not healthy; empty if it is."""
    partitions: Mapping[TopicPartition, PartitionWaiting] = FrozenMapping()
    """The partitions with records that have no outcome."""
    transaction: str | None = None
    """The state of a transactional producer, such as ``IN_TRANSACTION``; docs/states.md has all of them."""

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it."""
        fields = asdict(self)
        fields["reasons"] = list(self.reasons)
        fields["partitions"] = {str(tp): asdict(part) for tp, part in self.partitions.items()}
        return fields


def assess(view: ProducerView, stuck_after: int) -> ProducerHealth:
    """Return the health that follows from a view. ``stuck_after`` is in milliseconds."""
    partitions = {
        tp: PartitionWaiting(one.records, (view.at.mono - one.since) / 1000, one.problem) for tp, one in view.waiting.items()
    }
    reasons = [reason for reason in (view.unreachable, view.fatal) if reason is not None]
    for tp, part in partitions.items():
        if part.oldest * 1000 >= stuck_after:
            why = "" if part.problem is None else f": {part.problem}"
            reasons.append(f"{tp}: {part.records} records, the oldest sent {part.oldest:.1f} s ago, have no outcome{why}")
    ready = view.unreachable is None
    return ProducerHealth(True, ready, not reasons, tuple(reasons), FrozenMapping(partitions), view.transaction)


def without_thread(reason: str, *, live: bool) -> ProducerHealth:
    """Return the health of a producer whose network thread does not run."""
    return ProducerHealth(live, False, False, (reason,))
